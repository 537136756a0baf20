/* Programs RTIT as the examples of its reference do (Appendix A), each behind the steps of B 4.2: everything; one application, by CR3 and
   ranges; a driver, with a TraceStop. The packets of each are sent. */
    .set BASE, 0
#include "bare.inc"
    /* RANGE0 is from RTIT_LIP0 to before RTIT_LIP2, RANGE1 from RTIT_LIP1 to before RTIT_LIP3. */
    .set RTIT_LIP0, 0x760
    .set RTIT_CTL, 0x768
    .set RTIT_STATUS, 0x769
    .set RTIT_EVENTS, 0x76c
    .set RTIT_LAST_LIP, 0x76e
    .set RTIT_LAST_CALL_NLIP, 0x76f
    .set RTIT_BASE_ADDR, 0x770
    .set RTIT_LIMIT_MASK, 0x771
    .set RTIT_OFFSET, 0x772
    .set RTIT_CR3_MATCH, 0x777
    .set RTIT_TNT_BUFF, 0x77d
    .set TRACE_EN, 1
    .set CYCLE_ACC, 2
    .set OS, 4
    .set USER, 8
    .set CR3_EN, 0x80
    .set DEST, 0x100
    .set MTC_EN, 0x200
    .set STS_EN, 0x400
    .set CMPRS_RET, 0x800
    .set TRACE_ACTIVE, 0x2000
    /* RTIT_EVENTS: TraceStop_Event_ID and Filter_Event_ID. */
    .set RANGE0, 0
    .set RANGE1, 1
    .set NEVER, 6
    .set ALWAYS, 7

    /* Everything is written before RTIT is enabled. */
    .macro enable configuration, events
    write_msr RTIT_STATUS, 0
    write_msr RTIT_TNT_BUFF, 1
    write_msr RTIT_LAST_LIP, 0
    write_msr RTIT_LAST_CALL_NLIP, 0
    write_msr RTIT_OFFSET, 0
    write_msr RTIT_EVENTS, \events
    write_msr RTIT_CTL, \configuration
    write_msr RTIT_CTL, (\configuration|TRACE_EN)
    write_msr RTIT_CTL, (\configuration|TRACE_EN|TRACE_ACTIVE)
    .endm

    .text
    .code32
    set_up
    gate idt, 0, division
    gate idt, 0x30, back
    movw $0xee00, idt + 0x30 * 8 + 4
    gate idt, 0x31, interrupt
    /* Until this register was read, no other can be accessed. */
    read_msr RTIT_CTL
    write_msr RTIT_BASE_ADDR, PACKETS
    write_msr RTIT_LIMIT_MASK, 0x3fffff

    /* Everything. */
    enable (OS|USER|MTC_EN|STS_EN|CMPRS_RET), (NEVER<<3|ALWAYS)
    call work
    movl $application, %eax
    call as_user
    /* Without a privilege level that is traced, FUP.PGD tells where tracing ends. */
    write_msr RTIT_CTL, (TRACE_EN|TRACE_ACTIVE)
    call done

    /* One application: two run, at the same addresses. */
    movl $0x5000, %eax
    movl %eax, %cr3
    write_msr RTIT_CR3_MATCH, 0x5000
    write_msr RTIT_LIP0, application
    write_msr RTIT_LIP0+2, application_end
    enable (USER|CR3_EN|MTC_EN|CMPRS_RET), (NEVER<<3|RANGE0)
    movl $application, %eax
    call as_user
    movl $0x6000, %eax
    movl %eax, %cr3
    movl $application, %eax
    call as_user
    movl $0x5000, %eax
    movl %eax, %cr3
    movl $beside, %eax
    call as_user
    call done

    /* A driver, until control comes to a certain place. */
    write_msr RTIT_LIP0, driver
    write_msr RTIT_LIP0+2, driver_end
    write_msr RTIT_LIP0+1, stop
    write_msr RTIT_LIP0+3, stop_end
    enable (OS|CYCLE_ACC|DEST|STS_EN), (RANGE1<<3|RANGE0)
    movl $3, %esi
1:  call driver
    decl %esi
    jnz 1b
    call stop
    call driver
    call done
    jmp finish

/* Clears Trace_En, and sends what there is. */
done:
    write_msr RTIT_CTL, 0
    read_msr RTIT_OFFSET
    movl %eax, %ecx
    movl $PACKETS, %esi
    jmp send

/* Branches of every kind. */
work:
    branches 1000, leaf
    ljmp $CODE32, $5f
    nop
5:  lcall $CODE32, $far
    int $0x31
    /* An SMI, whose handler is the firmware's. */
    movb $0x77, %al
    outb %al, $0xb2
    call leaf
    /* A paging change that is none, and one of CR3. */
    movl %cr0, %eax
    movl %eax, %cr0
    movl $0x7000, %eax
    movl %eax, %cr3
    /* It faults, and the handler goes on behind it. */
    xorl %ecx, %ecx
    divl %ecx
    /* A return that leads elsewhere. */
    pushl $6f
    ret
    nop
6:  ret
leaf:
    ret
far:
    lret
interrupt:
    iret
division:
    addl $2, (%esp)
    iret

/* Runs the code at EAX with CPL 3, until that does INT 30H. */
as_user:
    pushal
    movl %esp, kernel_stack
    movl $USER_DATA, %ecx
    movw %cx, %ds
    movw %cx, %es
    pushl $USER_DATA
    pushl $0x7800
    pushl $2
    pushl $USER32
    pushl %eax
    iret
back:
    movl $DATA32, %ecx
    movw %cx, %ds
    movw %cx, %es
    movl kernel_stack, %esp
    popal
    ret

    shared_code

    .org 0x1000
driver:
    movl $5, %ecx
1:  call leaf
    call inner
    loop 1b
    ret
inner:
    testl $1, %ecx
    jz 2f
    nop
2:  ret
    .org 0x1100
driver_end:
stop:
    nop
    movl $1, %ecx
    ret
    .org 0x1200
stop_end:
application:
    movl $100, %ecx
1:  call 2f
    /* Outside of the range. */
    call beyond
    loop 1b
    int $0x30
2:  testl $1, %ecx
    jnz 3f
    nop
3:  ret
    .org 0x1300
application_end:
beyond:
    testl $2, %ecx
    jnz 4f
    nop
4:  ret
beside:
    int $0x30

kernel_stack:
    .long 0
    shared_data
