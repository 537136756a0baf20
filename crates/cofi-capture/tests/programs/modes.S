# 64-bit code that calls 32-bit code and comes back, twice over INT 0x80.
.globl _start, in32, back, int80a, int80b
.text
_start: mov $stack_top, %esp        # 32-bit code needs a stack below 4 GiB
        lcall *pointer
back:   mov $20, %eax               # getpid of the 32-bit table, from 64-bit code
int80b: int $0x80
        mov %eax, %r12d
        sub %ebx, %r12d             # both got the same answer
        mov $39, %eax
        syscall
        sub %ebx, %eax
        or %r12d, %eax
        setnz %dil
        movzx %dil, %edi
        mov $60, %eax
        syscall
.code32
in32:   mov $20, %eax
int80a: int $0x80
        mov %eax, %ebx
        pushf
        pop %eax
        test $0x100, %eax
        jz 1f
        ud2
1:      inc %eax                    # 0x40: a prefix in 64-bit code
        dec %eax
        lret
.data
pointer: .long in32
        .word 0x23
.bss
        .skip 4096
stack_top:
