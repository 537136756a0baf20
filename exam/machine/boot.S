/* A machine's whole life in a few thousand instructions: real mode, protected mode, long mode with paging; a software interrupt in
   each; in long mode a timer interrupt, #UD, a page fault, privilege level 3 and back, another CR3; then the power goes off.

   Assembled by `cc -c`, linked as bare bytes at 0x7c00: the first sector is what a PC's firmware loads. */

        .code16
        .globl  _start
_start: ljmp    $0, $real
real:   xorw    %ax, %ax
        movw    %ax, %ds
        movw    %ax, %es
        movw    %ax, %ss
        movw    $0x7c00, %sp
        /* The other sectors: INT 13h, as the firmware has it. */
        movw    $(0x200 + SECTORS), %ax
        movw    $0x7e00, %bx
        movw    $2, %cx
        xorb    %dh, %dh
        int     $0x13
        jc      real
        /* An interrupt of our own, through the table at 0. */
        movw    $int16, 4*0x60
        movw    $0, 4*0x60+2
        int     $0x60
        /* A far call and return with another CS, whose base is not 0. */
        lcall   $0x7c0, $(far16 - 0x7c00)
        jmp     more

int16:  incw    counter
        iretw
far16:  movw    $3, %cx
1:      loop    1b
        lretw

        .org    0x1fe
        .byte   0x55, 0xaa

more:   cli
        lgdtl   gdt_pointer
        movl    %cr0, %eax
        orb     $1, %al
        movl    %eax, %cr0
        ljmpl   $8, $protected

        .code32
protected:
        movw    $16, %ax
        movw    %ax, %ds
        movw    %ax, %es
        movw    %ax, %ss
        movl    $0x7c00, %esp
        /* A software interrupt and an overflow trap through gates of 8 bytes. */
        movl    $idt32, %edi
        movl    $gate32, %esi
        movl    $(8 * 0x31), %ecx
        xorl    %eax, %eax
        rep stosb
        movl    $idt32 + 8*0x30, %edi
        movl    $8, %ecx
        rep movsb
        lidtl   idt32_pointer
        int     $0x30
        /* Page tables at 0x10000: the first 2 MiB at their own addresses, twice: two roots. */
        movl    $0x10000, %edi
        movl    %edi, %cr3
        xorl    %eax, %eax
        movl    $(7 * 1024), %ecx
        rep stosl
        movl    $0x11007, 0x10000
        movl    $0x12007, 0x11000
        movl    $0x13007, 0x12000
        movl    $0x11007, 0x16000
        movl    $7, %eax
        movl    $0x13000, %edi
        movl    $512, %ecx
2:      movl    %eax, (%edi)
        addl    $0x1000, %eax
        addl    $8, %edi
        loop    2b
        movl    %cr4, %eax
        orl     $0x20, %eax
        movl    %eax, %cr4
        movl    $0xc0000080, %ecx
        rdmsr
        orl     $0x101, %eax
        wrmsr
        movl    %cr0, %eax
        orl     $0x80000000, %eax
        movl    %eax, %cr0
        ljmpl   $0x18, $long

int32:  incl    counter
        iretl

        .code64
long:   xorl    %eax, %eax
        movw    %ax, %ds
        movw    %ax, %es
        movw    $16, %ax
        movw    %ax, %ss
        movq    $0x7c00, %rsp
        /* Gates of 16 bytes. */
        movl    $0x06, %ebx
        movl    $invalid, %esi
        call    gate
        movl    $0x0e, %ebx
        movl    $fault, %esi
        call    gate
        movl    $0x20, %ebx
        movl    $timer, %esi
        call    gate
        movl    $0x30, %ebx
        movl    $software, %esi
        call    gate
        /* The last may be used from level 3. */
        movb    $0xee, idt64 + 16*0x30 + 5
        lidt    idt64_pointer
        movl    $0x28, %eax
        ltr     %ax
        int     $0x30
        ud2
        /* A page that is not there. */
        movq    0x400000, %rax
        /* The timer: both controllers at 0x20, the first line only, the shortest useful period. */
        movb    $0x11, %al
        outb    %al, $0x20
        outb    %al, $0xa0
        movb    $0x20, %al
        outb    %al, $0x21
        movb    $0x28, %al
        outb    %al, $0xa1
        movb    $4, %al
        outb    %al, $0x21
        movb    $2, %al
        outb    %al, $0xa1
        movb    $1, %al
        outb    %al, $0x21
        outb    %al, $0xa1
        movb    $0xfe, %al
        outb    %al, $0x21
        movb    $0xff, %al
        outb    %al, $0xa1
        movb    $0x34, %al
        outb    %al, $0x43
        movw    $2000, %ax
        outb    %al, $0x40
        movb    %ah, %al
        outb    %al, $0x40
        sti
        /* Interrupted in a loop with branches to itself, in one through a pointer, and in HLT. */
3:      cmpl    $3, ticks
        jb      3b
        movl    $4f, %ebx
4:      pause
        cmpl    $6, ticks
        jae     5f
        jmp     *%rbx
5:      hlt
        cmpl    $8, ticks
        jb      5b
        /* Other page tables with the same pages. */
        movl    $0x16000, %eax
        movq    %rax, %cr3
        movl    $0x10000, %eax
        movq    %rax, %cr3
        /* Level 3, and back with an interrupt. */
        pushq   $0x23
        pushq   $0x7a00
        pushfq
        pushq   $0x3b
        pushq   $user
        iretq

user:   movl    $100, %ecx
6:      call    leaf
        loop    6b
        movl    $7, %eax
        int     $0x30
7:      jmp     7b

leaf:   ret

        /* Gate %ebx leads to %rsi. */
gate:   movl    %ebx, %edi
        shll    $4, %edi
        addl    $idt64, %edi
        movl    %esi, %eax
        movw    %ax, (%rdi)
        movw    $0x18, 2(%rdi)
        movw    $0x8e00, 4(%rdi)
        shrl    $16, %eax
        movw    %ax, 6(%rdi)
        movq    $0, 8(%rdi)
        ret

invalid:
        addq    $2, (%rsp)
        iretq
fault:  addq    $8, %rsp
        addq    $8, (%rsp)
        iretq
timer:  pushq   %rax
        incl    ticks
        movb    $0x20, %al
        outb    %al, $0x20
        popq    %rax
        iretq
software:
        incl    counter
        cmpl    $7, %eax
        je      off
        iretq

        /* The power goes off, by ACPI's register as this machine's firmware places it. */
off:    movw    $0x604, %dx
        movw    $0x2000, %ax
        outw    %ax, %dx
        cli
8:      hlt
        jmp     8b

        .balign 8
gate32: .word   int32, 8, 0x8e00, 0
gdt:    .quad   0
        .quad   0x00cf9a000000ffff      /* 0x08: 32-bit code */
        .quad   0x00cf92000000ffff      /* 0x10: data */
        .quad   0x00af9a000000ffff      /* 0x18: 64-bit code */
        .quad   0x00cff2000000ffff      /* 0x20: data of level 3 */
        .word   104, tss, 0x8900, 0     /* 0x28: the task state, two entries */
        .quad   0
        .quad   0x00affa000000ffff      /* 0x38: 64-bit code of level 3 */
gdt_end:
tss:    .long   0
        .quad   0x7800
        .fill   104 - 12, 1, 0
gdt_pointer:
        .word   gdt_end - gdt - 1
        .long   gdt
idt32_pointer:
        .word   8*0x31 - 1
        .long   idt32
idt64_pointer:
        .word   16*0x31 - 1
        .quad   idt64
counter:
        .long   0
ticks:  .long   0
        .balign 512
end:
        .set    SECTORS, (end - _start) / 512 - 1
        .set    idt32, 0x9000
        .set    idt64, 0xa000
