/* Walks the trace registers of a machine from bare metal: each row of the table is a RDMSR or WRMSR, or asks CPUID for a register, and each
   result is a line on port E9H.
   A multiboot kernel: 32-bit protected mode, no paging. The table is the exam's (rules.txt). */
    .section .multiboot, "ax"
    .align 4
    .long 0x1badb002, 0, -0x1badb002

    .text
    .globl _start
_start:
    cli
    movl $stack, %esp
    lgdt gdt_pointer
    ljmp $8, $1f
1:  movw $16, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    /* #GP leads to `general_protection`. */
    movl $general_protection, %eax
    movw %ax, idt + 13 * 8
    shrl $16, %eax
    movw %ax, idt + 13 * 8 + 6
    movw $8, idt + 13 * 8 + 2
    movw $0x8e00, idt + 13 * 8 + 4
    lidt idt_pointer
    movl $table, %esi
next:
    movl (%esi), %ebx
    testl %ebx, %ebx
    jz done
    movl 4(%esi), %ecx
    movl 8(%esi), %eax
    movl 12(%esi), %edx
    movl $0, has_faulted
    cmpb $'r', %bl
    je read
    cmpb $'w', %bl
    jne identify
    wrmsr
    jmp told
identify:
    /* CPUID of leaf ECX, sub-leaf EAX; which register is told, EBX says: from a to d. The line has 0 in place of EDX. */
    movl %ebx, which
    xchgl %eax, %ecx
    pushl %eax
    cpuid
    cmpb $'a', which
    je 6f
    movl %ebx, %eax
    cmpb $'b', which
    je 6f
    movl %ecx, %eax
    cmpb $'c', which
    je 6f
    movl %edx, %eax
6:  popl %ecx
    movl which, %ebx
    xorl %edx, %edx
    jmp told
read:
    rdmsr
told:
    /* Everything that the access left is told: the address, too, as a fault must not change RCX. */
    movl %eax, %edi
    movl %edx, %ebp
    movb %bl, %al
    call put
    movl %ecx, %eax
    call put_number
    movl %ebp, %eax
    call put_number
    movl %edi, %eax
    call put_number
    movb $'+', %al
    cmpl $0, has_faulted
    je 2f
    movb $'-', %al
2:  call put
    movb $'\n', %al
    call put
    addl $16, %esi
    jmp next
done:
    /* The device isa-debug-exit ends QEMU. */
    movb $0, %al
    outb %al, $0xf4
3:  hlt
    jmp 3b

general_protection:
    movl $1, has_faulted
    /* Over the error code; on behind the instruction, which has two bytes. */
    addl $4, %esp
    addl $2, (%esp)
    iret

put:
    outb %al, $0xe9
    ret

/* Eight digits of EAX, behind a blank. */
put_number:
    pushl %ecx
    pushl %edx
    movl %eax, %edx
    movb $' ', %al
    call put
    movl $8, %ecx
4:  roll $4, %edx
    movl %edx, %eax
    andb $15, %al
    addb $'0', %al
    cmpb $'9', %al
    jbe 5f
    addb $('a' - '0' - 10), %al
5:  call put
    loop 4b
    popl %edx
    popl %ecx
    ret

    .data
    .align 8
gdt:
    .quad 0, 0x00cf9b000000ffff, 0x00cf93000000ffff
gdt_pointer:
    .word 23
    .long gdt
idt_pointer:
    .word 32 * 8 - 1
    .long idt
    .align 16
table:
    .include "table.inc"
    .long 0
    .bss
    .align 16
idt:
    .space 32 * 8
has_faulted:
    .space 4
which:
    .space 4
    .space 4096
stack:
