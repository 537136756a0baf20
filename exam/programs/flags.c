/* Looks for the traces of its tracer: reads the flags by every way there is and prints the trap bit it finds. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <ucontext.h>

static volatile uint64_t in_handler;

static void on_usr1(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    in_handler = (uint64_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL];
}

int main(void)
{
    uint64_t pushed, short_pushed = 0, after_syscall, restored;
    __asm__ volatile("pushfq\n\tpop %0" : "=r"(pushed));
    __asm__ volatile("pushfw\n\tpopw %w0" : "+r"(short_pushed));
    __asm__ volatile("syscall" : "=r"(after_syscall) : "a"(SYS_getppid) : "rcx", "r11", "memory");
    __asm__ volatile("syscall\n\tmov %%r11, %0" : "=r"(after_syscall) : "a"(SYS_getppid) : "rcx", "r11", "memory");
    __asm__ volatile("stc\n\tpushfq\n\tclc\n\tpopfq\n\tpushfq\n\tpop %0" : "=r"(restored) : : "cc");
    uint64_t taken = 0;
    for (int i = 0; i < 20; i++) {
        uint64_t flags;
        __asm__ volatile("pushfq\n\tpopq %0\n\tpushq %0\n\tpopfq" : "=r"(flags) : : "cc");
        taken |= flags;
    }
    struct sigaction action = {0};
    action.sa_sigaction = on_usr1;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    printf("trap bits %d %d %d %d %d %d carry %d\n", (int)(pushed >> 8 & 1), (int)(short_pushed >> 8 & 1),
           (int)(after_syscall >> 8 & 1), (int)(restored >> 8 & 1), (int)(taken >> 8 & 1), (int)(in_handler >> 8 & 1),
           (int)(restored & 1));
    return 0;
}
