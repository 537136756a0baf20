/* 32-bit code without a C library, its system calls through INT 0x80. Exits with 23. */
        .globl _start
        .text
        .code32
_start:
        xor     %ebx, %ebx
        mov     $6, %edi
1:      mov     $20, %eax               /* getpid */
        int     $0x80
        inc     %ebx
        dec     %edi
        jnz     1b
        mov     $4, %eax                /* write */
        push    %ebx
        mov     $1, %ebx
        mov     $text, %ecx
        mov     $text_end - text, %edx
        int     $0x80
        pop     %ebx
        call    2f                      /* position-independent code's way to its own address */
2:      pop     %edx
        lea     3f-2b(%edx), %eax
        jmp     *%eax
        ud2
3:      pushl   $2
        call    sum
        add     $4, %esp
        add     %eax, %ebx
        mov     $3, %cx
4:      inc     %ebx
        loopw   4b
        xor     %ecx, %ecx
        jcxz    5f
        ud2
5:      push    %ss
        pop     %ss                     /* the next instruction gets no trap of its own */
        jmp     6f
        ud2
6:      call    *table
        mov     $1, %eax                /* exit */
        int     $0x80
        ud2

sum:    mov     4(%esp), %eax
        test    %eax, %eax
        jz      7f
        dec     %eax
        push    %eax
        call    sum
        add     $4, %esp
        add     $2, %eax
7:      ret     $0
leaf:   add     $10, %ebx
        ret

        .data
table:  .long   leaf
text:   .ascii  "thirty-two\n"
text_end:
        .section .note.GNU-stack, "", @progbits
