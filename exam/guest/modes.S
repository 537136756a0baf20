/* Traces itself through all modes: protected mode of 32 and 16 bits, real mode, long mode with code of 64 and 32 bits, and back; with near
   and far branches, interrupts and faults in each, HLT, MWAIT, and SMIs. Then it sends the packets. BASE is where segments of 16-bit code begin. */
#include "bare.inc"
    .set IA32_RTIT_OUTPUT_BASE, 0x560
    .set IA32_RTIT_OUTPUT_MASK_PTRS, 0x561
    .set IA32_RTIT_CTL, 0x570
    .set IA32_EFER, 0xc0000080
    .set LONG_MODE, 0x100
    .set TRACE_EN, 1
    .set OS, 4
    .set USER, 8
    .set CYC_EN, 2
    .set MTC_EN, 0x200
    .set TSC_EN, 0x400
    .set DIS_RETC, 0x800
    .set PWR_EVT_EN, 0x10
    .set EVENT_EN, 0x80000000
    /* A write to this port is an SMI, whose handler is the firmware's. */
    .set SMI_PORT, 0xb2
    .set BRANCH_EN, 0x2000
    .set PAGES, 0x20000
    .set PAE, 0x20
    .set PAGING, 0x80000000

    .text
    .code32
    set_up
    gate idt, 0, division32
    gate idt, 0x60, interrupt32
    write_msr IA32_RTIT_OUTPUT_BASE, PACKETS
    write_msr IA32_RTIT_OUTPUT_MASK_PTRS, 0x3fffff
    write_msr IA32_RTIT_CTL, (CONFIGURATION|OS|USER|BRANCH_EN)
    write_msr IA32_RTIT_CTL, (CONFIGURATION|OS|USER|BRANCH_EN|TRACE_EN)

    call work32
    movb $0x77, %al
    outb %al, $SMI_PORT
    call leaf32
    ljmp $CODE16, $(narrow - BASE)

    /* Protected mode, 16 bits. */
    .code16
narrow:
    movw $DATA16, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    call work16
    /* A gate leads to code of 32 bits, and IRET back. */
    int $0x60
    lcall $CODE16, $(far16 - BASE)
    lcallw $CODE32, $far32_of_16
    lidtl real_idt - BASE
    movl %cr0, %eax
    andb $0xfe, %al
    movl %eax, %cr0
    ljmp $(BASE >> 4), $(real - BASE)

    /* Real mode. */
real:
    movw $(BASE >> 4), %ax
    movw %ax, %ds
    movw %ax, %es
    xorw %ax, %ax
    movw %ax, %ss
    movw %ax, %fs
    movl $0x7000, %esp
    /* Vectors 0, 8 and 60H: a fault, the timer's interrupt, a software interrupt. */
    movw $(division16 - BASE), %fs:0
    movw $(BASE >> 4), %fs:2
    movw $(timer - BASE), %fs:8 * 4
    movw $(BASE >> 4), %fs:8 * 4 + 2
    movw $(interrupt16 - BASE), %fs:0x60 * 4
    movw $(BASE >> 4), %fs:0x60 * 4 + 2
    call work16
    lcall $(BASE >> 4), $(far16 - BASE)
    int $0x60
    xorw %cx, %cx
    divw %cx
    /* The timer's interrupt alone, at its vector of the firmware. */
    movb $0xfe, %al
    outb %al, $0x21
    movb $0x34, %al
    outb %al, $0x43
    movb $0xff, %al
    outb %al, $0x40
    movb $0x03, %al
    outb %al, $0x40
    sti
1:  cmpb $3, ticks - BASE
    jb 1b
    hlt
    /* MWAIT, for C1 and for C2: hints 0 and 11H. */
    movw $(ticks - BASE), %ax
    xorw %cx, %cx
    xorw %dx, %dx
    monitor
    xorl %eax, %eax
    mwait
    call leaf16
    movl $0x11, %eax
    mwait
    /* So often that at some HLT a PSB+ is due. */
1:  hlt
    cmpb $200, ticks - BASE
    jb 1b
    cli
    movb $0x77, %al
    outb %al, $SMI_PORT
    call leaf16
    movb $0xff, %al
    outb %al, $0x21
    /* And back, to 32 bits. */
    lidtl idt_pointer - BASE
    movl %cr0, %eax
    orb $1, %al
    movl %eax, %cr0
    ljmpl $CODE32, $wide

    .code32
wide:
    movw $DATA32, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movl $0x7000, %esp
    call work32
    /* Pages of 2 MB, at their own addresses. */
    movl $(PAGES + 0x1003), PAGES
    movl $(PAGES + 0x2003), PAGES + 0x1000
    movl $0x83, PAGES + 0x2000
    movl $0x200083, PAGES + 0x2008
    movl $0x400083, PAGES + 0x2010
    /* (Users may go everywhere.) */
    orl $4, PAGES
    orl $4, PAGES + 0x1000
    orl $4, PAGES + 0x2000
    /* Vectors 0, 13, 60H and 61H of the table for 64 bits. */
    gate idt64, 0, division64, CODE64
    gate idt64, 2*13, protection64, CODE64
    gate idt64, 2*0x60, interrupt64, CODE64
    gate idt64, 2*0x61, back64, CODE64, 0xee00
    /* (The stack of CPL 0 is of 64 bits there.) */
    movl $0, tss + 8
    movl %cr4, %eax
    orl $PAE, %eax
    movl %eax, %cr4
    movl $PAGES, %eax
    movl %eax, %cr3
    read_msr IA32_EFER
    orl $LONG_MODE, %eax
    wrmsr
    movl %cr0, %eax
    orl $PAGING, %eax
    movl %eax, %cr0
    /* Still 32 bits, in long mode. */
    call leaf32
    ljmp $CODE64, $long_mode

    .code64
long_mode:
    movw $DATA32, %ax
    movw %ax, %ss
    lidt idt64_pointer
    call work64
    int $0x60
    movb $0x77, %al
    outb %al, $SMI_PORT
    call leaf64
    xorl %ecx, %ecx
    divl %ecx
    movq %cr3, %rax
    movq %rax, %cr3
    /* Code of users: of 64 bits, and of 32. */
    movq $user64, %rax
    movq $USER64, %rcx
    call as_user
    movq $user32, %rax
    movq $USER32, %rcx
    call as_user
    /* To 32 bits, and out of long mode. */
    pushq $CODE32
    pushq $compatible
    lretq

    .code32
compatible:
    movw $DATA32, %ax
    movw %ax, %ds
    movw %ax, %ss
    call leaf32
    movl %cr0, %eax
    andl $~PAGING, %eax
    movl %eax, %cr0
    lidt idt_pointer
    call work32
    write_msr IA32_RTIT_CTL, (CONFIGURATION|OS|USER|BRANCH_EN)
    read_msr IA32_RTIT_OUTPUT_MASK_PTRS
    movl %edx, %ecx
    movl $PACKETS, %esi
    call send
    jmp finish

    /* Branches of 32-bit code. */
work32:
    branches 100, leaf32
    ljmp $CODE32, $5f
    nop
5:  lcall $CODE32, $far32
    int $0x60
    xorl %ecx, %ecx
    divl %ecx
    pushl $6f
    ret
    nop
6:  ret
leaf32:
    ret
far32:
    lret
far32_of_16:
    /* Called by code of 16 bits, with a return address of that. */
    call leaf32
    lretw
interrupt32:
    iret
division32:
    addl $2, (%esp)
    iret

    /* Branches of 16-bit code. */
    .code16
work16:
    movw $50, %cx
1:  testw $3, %cx
    jz 2f
    call leaf16
2:  movw $(leaf16 - BASE), %ax
    testw $1, %cx
    jz 3f
    call *%ax
3:  loop 1b
    movw $(4f - BASE), %ax
    jmp *%ax
    nop
4:  calll leaf16_wide
    jmp 5f
    nop
5:  xorw %cx, %cx
    jcxz 6f
    nop
6:  ret
leaf16:
    ret
leaf16_wide:
    retl
far16:
    call leaf16
    lret
interrupt16:
    iretw
timer:
    pushw %ax
    incb ticks - BASE
    movb $0x20, %al
    outb %al, $0x20
    popw %ax
    iretw
division16:
    /* DIV CX has two bytes. */
    pushw %bp
    movw %sp, %bp
    addw $2, 2(%bp)
    popw %bp
    iretw

    /* Branches of 64-bit code. */
    .code64
work64:
    movl $100, %ecx
1:  testl $3, %ecx
    jz 2f
    call leaf64
2:  movq $leaf64, %rax
    testl $1, %ecx
    jz 3f
    call *%rax
3:  loop 1b
    leaq 4f(%rip), %rax
    jmp *%rax
    nop
4:  ret
leaf64:
    ret
interrupt64:
    iretq
division64:
    addq $2, (%rsp)
    iretq
protection64:
    /* HLT has one byte; an error code lies on top. */
    addq $8, %rsp
    addq $1, (%rsp)
    iretq

    /* Runs the code at RAX with CS being CX, until that does INT 61H. */
as_user:
    movq %rsp, kernel_stack
    pushq $USER_DATA
    pushq $0x7800
    pushq $2
    pushq %rcx
    pushq %rax
    iretq
back64:
    movl $DATA32, %ecx
    movl %ecx, %ss
    movq kernel_stack, %rsp
    ret
user64:
    /* #GP: it does not wait. */
    hlt
    movl $9, %ecx
1:  loop 1b
    int $0x61
    .code32
user32:
    movl $9, %ecx
1:  call 2f
    loop 1b
    int $0x61
2:  ret

    shared_code

    .balign 8
kernel_stack:
    .quad 0
ticks:
    .byte 0
real_idt:
    .word 0x3ff
    .long 0
idt64_pointer:
    .word 0x62 * 16 - 1
    .quad idt64
    shared_data
    .balign 16
idt64:
    .space 0x62 * 16
