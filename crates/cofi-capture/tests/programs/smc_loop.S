# Each round changes code in its own page, from the first instruction of the loop.
.globl _start
.section .wtext, "awx", @progbits
_start: xor %ebx, %ebx
        mov $10, %ecx
1:      movb %cl, 2f+1(%rip)
        nop
2:      mov $0, %eax
        add %eax, %ebx
        dec %ecx
        jnz 1b
        mov $5, %ecx
        lea 1f(%rip), %rdi
1:      incb 2f+1(%rip)
        dec %ecx
        jnz 1b
2:      mov $1, %eax
        add %eax, %ebx
        mov %ebx, %edi
        mov $60, %eax
        syscall
