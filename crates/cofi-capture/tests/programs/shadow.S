# The instruction after a load of SS gets no stop of its own.
.globl _start, load1, shadow1, load2, shadow2, load3, shadow3, load4, shadow4, bad
.text
_start: mov %ss, %eax
load1:  mov %eax, %ss
shadow1: inc %ebx
        nop
load2:  mov %eax, %ss
shadow2: jmp 1f
        ud2
1:      mov %eax, %ecx
load3:  mov %ecx, %ss
shadow3: mov $60, %eax
        nop
        mov %ss, %edx
        mov %rsp, %rbp
        mov $39, %eax
load4:  mov %edx, %ss
shadow4: pushfq
        pop %rcx
        xor %edi, %edi
        test $0x100, %ecx
        setnz %dil
        mov $60, %eax
        mov %edx, %ss
        syscall
