# Ways that divide and join in every manner, a known number of times.
.globl _start, back, self_loop, last, odd, inner, tight, twice
.text
_start: mov $300, %ebx
        xor %ebp, %ebp
back:   test $1, %bl
        jz even                     # if without else
odd:    add $3, %ebp                # 150
even:   test $2, %bl
        jz 1f                       # if with else
        add $5, %ebp
        jmp 2f
1:      sub $1, %ebp
2:      cmp $100, %ebx
        ja 3f                       # both ways lead to the same place at once
3:      jc 4f
        jc 4f                       # twice the same target
        test $4, %bl
        jnz 5f
        jmp 6f
4:      nop
5:      nop
6:      jz .+2                      # to the next instruction, by both ways
        mov $3, %ecx
self_loop: loop self_loop           # an instruction that leads to itself: 3 * 300
        mov $2, %ecx
tight:  dec %ecx                    # 2 * 300
        jnz tight
        jrcxz 7f
        ud2
7:      mov $2, %ecx
8:      mov $3, %edx                # a loop in a loop
inner:  dec %edx                    # 6 * 300
        jnz inner
        dec %ecx
        jnz 8b
        # The same bytes as two instructions or as one.
        test $1, %bl
        jz 9f + 1
9:      mov $0x90909090, %eax
        nop
        # One function by three calls, one of them in a row with a jump.
        call twice
        lea twice(%rip), %rax
        call *%rax
        push %rax
        call *(%rsp)
        pop %rax
        lea table(%rip), %rdx
        mov %ebx, %ecx
        and $3, %ecx
        movslq (%rdx, %rcx, 4), %rax
        add %rdx, %rax
        jmp *%rax
c0:     inc %ebp
        jmp 10f
c1:     add $2, %ebp
        jmp 10f
c2:     add $4, %ebp
c3:     add $8, %ebp
10:     pushf
        popf
        lea buffer(%rip), %rdi
        mov %ebx, %ecx
        rep stosb
        push %rbx
        mov $39, %eax
        syscall
        pop %rbx
        dec %ebx
        jnz back
last:   mov %ebp, %edi
        and $127, %edi
        mov $60, %eax
        syscall
twice:  test $1, %bl
        jnz 11f
        inc %ebp
        jmp 12f
11:     add $2, %ebp
12:     ret
        .section .rodata
table:  .long c0 - table, c1 - table, c2 - table, c3 - table
        .bss
buffer: .skip 512
        .section .note.GNU-stack, "", @progbits
