/* Every kind of near branch there is in 64-bit mode, without a C library. Exits with 42. */
        .globl _start
        .text
_start:
        xor     %ebx, %ebx
        mov     $5, %ecx
1:      inc     %ebx
        loop    1b
        mov     $4, %ecx
2:      cmp     $3, %ecx
        loopne  2b
        mov     $4, %ecx
3:      test    $0, %al
        loope   3b
        xor     %ecx, %ecx
        jrcxz   4f
        ud2
4:      inc     %ecx
        jrcxz   5f
        jmp     6f
5:      ud2
6:      jecxz   5b
        .byte   0x0f, 0x85              /* a conditional with a 32-bit displacement, taken */
        .long   7f - . - 4
        ud2
7:      .byte   0xe9                    /* a jump with a 32-bit displacement */
        .long   8f - . - 4
        ud2
8:      lea     9f(%rip), %rax
        jmp     *%rax
        ud2
9:      jmp     *table(%rip)
        ud2
10:     mov     $2, %edx
        lea     table(%rip), %r12
        call    *8(%r12)
        call    *(%r12,%rdx,8)
        lea     leaf(%rip), %r13
        call    *%r13
        push    $7
        push    $8
        call    popper                  /* ret imm16 drops both */
        notrack jmp *24(%r12)
11:     bnd jmp 12f
12:
        call    padded
        mov     %ss, %eax
        mov     %eax, %ss               /* the next instruction gets no trap of its own */
        nop
        mov     %eax, %ss
        jmp     13f
        ud2
13:     mov     $1, %edi
        jmp     14f
        ud2
14:     mov     $39, %eax               /* getpid */
        syscall
        mov     $20, %eax               /* getpid by the 32-bit gate */
        int     $0x80
        mov     $60, %eax
        mov     $42, %edi
        syscall
        ud2

leaf:   inc     %ebx
        ret
leaf2:  dec     %ebx
        repz ret
popper: ret     $16
padded: nopw    0x0(%rax,%rax,1)
        endbr64
        repz ret

        .section .data.rel.ro, "aw"
        .balign 8
table:  .quad   10b
        .quad   leaf
        .quad   leaf2
        .quad   11b
        .section .note.GNU-stack, "", @progbits
