# time() on the vsyscall page: the kernel executes it when the page is entered.
.globl _start, call1, back1, back2
.text
_start: xor %edi, %edi
        mov $0xffffffffff600400, %rax
call1:  call *%rax
back1:  mov %rax, %rbx
        xor %edi, %edi
        mov $0xffffffffff600400, %rax
        call *%rax
back2:  sub %rbx, %rax
        mov $60, %eax
        xor %edi, %edi
        syscall
