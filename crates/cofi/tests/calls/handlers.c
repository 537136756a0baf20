/* Handlers of signals: raised, within each other, on a stack of their own, one that changes where the program goes on. */
#include "log.h"
#include <signal.h>
#include <string.h>
#include <ucontext.h>

FUNCTION static int leaf(int x) { return x + 1; }
static volatile int seen;
FUNCTION static void second(int signal) { (void)signal; seen += leaf(2); }
FUNCTION static void first(int signal) { (void)signal; seen += leaf(1); raise(SIGUSR2); seen += leaf(3); }
FUNCTION static void skips(int signal, siginfo_t *info, void *context) {
    (void)signal; (void)info;
    /* The load has three bytes: 0f 0b would have two. */
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
    seen += leaf(4);
}
FUNCTION static int faults(void) { asm volatile("ud2"); return leaf(5); }
FUNCTION static int works(int n) { int sum = 0; for (int i = 0; i < n; i++) { sum += leaf(i); if (i == 2) raise(SIGUSR1); } return sum; }

FUNCTION int main(void) {
    static char room[1 << 16];
    stack_t stack = {.ss_sp = room, .ss_size = sizeof room};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    sigaltstack(&stack, 0);
    action.sa_handler = first;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &action, 0);
    action.sa_handler = second;
    action.sa_flags = 0;
    sigaction(SIGUSR2, &action, 0);
    action.sa_sigaction = skips;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, 0);
    int sum = works(5) + faults() + works(3) + leaf(9);
    printf("%d %d\n", sum, seen);
    write_log();
    return 0;
}
