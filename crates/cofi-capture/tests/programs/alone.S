# Executes the program that its first argument names, with the arguments behind it and no environment.
.globl _start
_start:
    mov 16(%rsp), %rdi
    lea 16(%rsp), %rsi
    xor %edx, %edx
    mov $59, %eax
    syscall
    # It has not worked.
    mov $127, %edi
    mov $60, %eax
    syscall
