# The kernel executes these in place of the processor, where that is forbidden to user space.
.globl _start, sgdt, after
.text
_start: sub $64, %rsp
        mov %rsp, %rdi
sgdt:   sgdt (%rdi)
after:  nop
        smsw %eax
        nop
        sidt (%rdi)
        inc %ebx
        mov $60, %eax
        xor %edi, %edi
        syscall
