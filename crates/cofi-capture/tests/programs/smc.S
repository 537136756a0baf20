# Code that is written while it runs: the immediate of one instruction changes in each of ten rounds.
.globl _start, patched
.section .wtext, "awx", @progbits
_start: xor %ebx, %ebx
        mov $10, %ecx
1:      mov %cl, patched+1(%rip)
patched: mov $0, %eax
        add %eax, %ebx              # 10 + 9 + ... + 1 = 55
        dec %ecx
        jnz 1b
        mov %ebx, %edi
        mov $60, %eax
        syscall
