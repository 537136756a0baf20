# Exits with 0 if the trap flag is nowhere to be seen, else with the number of the place.
.globl _start
.text
_start: mov $1, %edi
        pushfq
        pop %rax
        test $0x100, %eax
        jnz out
        mov $2, %edi
        pushfw
        pop %ax
        test $0x100, %eax
        jnz out
        mov $3, %ebx
        mov $39, %eax
        syscall
        mov %ebx, %edi
        test $0x100, %r11d
        jnz out
        mov $4, %ebx
        mov $57, %eax               # fork: parent and child look
        syscall
        mov %ebx, %edi
        test $0x100, %r11d
        jnz out
        test %eax, %eax
        jz fine
        sub $16, %rsp               # the child's verdict is the parent's
        mov %eax, %edi
        mov %rsp, %rsi
        xor %edx, %edx
        xor %r10d, %r10d
        mov $61, %eax
        syscall
        mov $5, %edi
        cmpl $0, (%rsp)
        jne out
fine:   xor %edi, %edi
out:    mov $60, %eax
        syscall
