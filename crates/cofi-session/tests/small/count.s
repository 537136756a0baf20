# Counts to three, calling a function, and exits: the program of the trace count.pt. Made with
#   gcc -nostdlib -static -Wl,-n,--build-id=none -s -o count count.s
#   cofi record --engine ptrace --raw-output count.pt -o count.data -- ./count
.globl _start
_start: mov  $3, %ebx
again:  call down
        jnz  again
        mov  $60, %eax
        xor  %edi, %edi
        syscall
down:   dec  %ebx
        ret
