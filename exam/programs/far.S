/* Far branches that a user program may make: RETF, IRET, far call and far jump through memory, and the way into 32-bit
   code and back. Linked at a low address. Exits with 16. */
        .globl _start
        .text
        .code64
_start:
        lea     stack_top(%rip), %rsp   /* 32-bit code needs a stack below 4 GB */
        xor     %ebx, %ebx
        mov     %cs, %eax
        push    %rax
        lea     1f(%rip), %rdx
        push    %rdx
        lretq
        ud2
1:      inc     %ebx
        mov     %ss, %eax
        mov     %rsp, %rcx
        push    %rax
        push    %rcx
        pushfq
        mov     %cs, %eax
        push    %rax
        lea     2f(%rip), %rdx
        push    %rdx
        iretq
        ud2
2:      inc     %ebx
        mov     %cs, %eax
        mov     %ax, there+4(%rip)
        mov     %ax, jump+4(%rip)
        lcall   *there(%rip)            /* 16:32 in memory: the callee is below 4 GB */
        inc     %ebx
        ljmp    *jump(%rip)
        ud2
3:      mov     $3, %r14d
4:      lcall   *down(%rip)             /* into 32-bit code */
        dec     %r14d
        jnz     4b
        mov     $60, %eax
        mov     %ebx, %edi
        syscall
        ud2
far_leaf:
        inc     %ebx
        lretl
        .code32
compat: mov     $3, %ecx
5:      inc     %ebx
        dec     %ecx                    /* 49: a REX prefix in 64-bit mode */
        jnz     5b
        call    6f
        inc     %ebx
        lret
6:      push    %eax
        pop     %eax
        ret

        .data
        .balign 8
there:  .long   far_leaf
        .word   0
        .balign 8
jump:   .long   3b
        .word   0
        .balign 8
down:   .long   compat
        .word   0x23
        .bss
        .balign 16
        .skip   4096
stack_top:
        .section .note.GNU-stack, "", @progbits
