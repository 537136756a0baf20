/* A multiboot kernel that copies a program (program.bin) to 8000H and goes there: 32-bit protected mode, no paging. */
    .section .multiboot, "ax"
    .align 4
    .long 0x1badb002, 0, -0x1badb002

    .text
    .globl _start
_start:
    cli
    cld
    movl $program, %esi
    movl $0x8000, %edi
    movl $(end - program), %ecx
    rep movsb
    movl $0x8000, %eax
    jmp *%eax
program:
    .incbin "program.bin"
end:
