# Every way to go on, a known number of times.
.globl _start, rep_stos, rep_none, rep_cmps, loop_dec, last_call, jump_self
.text
_start: mov $1000, %ecx             # 1
loop_dec: dec %ecx                  # 1000
        jnz loop_dec                # 1000
        cld                         # 1
        lea buffer(%rip), %rdi      # 1
        mov $100, %ecx              # 1
rep_stos: rep stosb                 # 1
        xor %ecx, %ecx              # 1
rep_none: rep stosb                 # 1
        lea buffer(%rip), %rdi      # 1
        lea other(%rip), %rsi       # 1
        mov $50, %ecx               # 1
rep_cmps: repe cmpsb                # 1, stops at the third byte
        call function               # 1 + 2
        lea function(%rip), %rax    # 1
        call *%rax                  # 1 + 2
        lea 1f(%rip), %rax          # 1
        jmp *%rax                   # 1
        ud2
1:      jmp 2f                      # 1
        ud2
2:      mov $3, %ecx                # 1
3:      loop 3b                     # 3
        jmp 4f                      # 1
4:      mov $39, %eax               # 1
        syscall                     # 1
        mov $60, %eax               # 1
        mov $7, %edi                # 1
last_call: syscall                  # 1
function: nop
        ret
.bss
buffer: .skip 256
.data
other:  .byte 0, 0, 1
        .skip 64
