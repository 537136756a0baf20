/* Signals of every origin: faults repaired and faults jumped out of, traps, nested handlers, an alternate stack, timers. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

static volatile sig_atomic_t alarms, storms, traps, divisions, illegal, nested, general;
static sigjmp_buf escape;

static void on_alarm(int number) { (void)number; alarms++; }
static void on_storm(int number) { (void)number; storms++; }
static void on_trap(int number) { (void)number; traps++; }
static void on_segv(int number) { (void)number; siglongjmp(escape, 1); }

static void on_fpe(int number, siginfo_t *info, void *context)
{
    ucontext_t *uc = context;
    (void)number;
    (void)info;
    divisions++;
    uc->uc_mcontext.gregs[REG_RCX] = 3; /* repair the divisor; the division starts again */
}

static void on_ill(int number, siginfo_t *info, void *context)
{
    ucontext_t *uc = context;
    (void)number;
    (void)info;
    illegal++;
    uc->uc_mcontext.gregs[REG_RIP] += 2; /* step over the ud2 */
}

static void on_privileged(int number, siginfo_t *info, void *context)
{
    ucontext_t *uc = context;
    (void)number;
    (void)info;
    general++;
    uc->uc_mcontext.gregs[REG_RIP] += 1; /* step over the hlt */
}

static void on_usr2(int number)
{
    (void)number;
    nested++;
    if (nested < 4)
        raise(SIGUSR2); /* SA_NODEFER: arrives inside itself */
    raise(SIGUSR1);
}

static void set(int number, void *handler, int flags)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = (void (*)(int, siginfo_t *, void *))handler;
    action.sa_flags = flags;
    if (sigaction(number, &action, NULL))
        exit(3);
}

int main(void)
{
    stack_t alternate = {.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&alternate, NULL);
    set(SIGALRM, on_alarm, SA_RESTART);
    set(SIGUSR1, on_storm, SA_RESTART);
    set(SIGUSR2, on_usr2, SA_NODEFER);
    set(SIGTRAP, on_trap, 0);
    set(SIGSEGV, on_segv, SA_ONSTACK);
    set(SIGFPE, on_fpe, SA_SIGINFO);
    set(SIGILL, on_ill, SA_SIGINFO | SA_ONSTACK);

    for (int i = 0; i < 3; i++)
        if (!sigsetjmp(escape, 1))
            *(volatile int *)(uintptr_t)(8 + i) = 1;
    if (!sigsetjmp(escape, 1))
        ((void (*)(void))(uintptr_t)0x10)(); /* a jump to where nothing is */

    for (int i = 0; i < 3; i++)
        __asm__ volatile("int3");
    __asm__ volatile(".byte 0xcd, 0x03"); /* the long form of int3 */
    for (int i = 0; i < 2; i++)
        __asm__ volatile("ud2");
    set(SIGSEGV, on_privileged, SA_SIGINFO);
    __asm__ volatile("hlt");

    long quotient = 0;
    for (int i = 0; i < 3; i++) {
        long value = 0, rest = 0;
        __asm__ volatile("xor %%ecx, %%ecx\n\tmov $42, %%eax\n\txor %%edx, %%edx\n\tidiv %%rcx"
                         : "=a"(value), "=d"(rest) : : "rcx", "cc");
        quotient += value;
    }

    raise(SIGUSR2);

    sigset_t set_of, old;
    sigemptyset(&set_of);
    sigaddset(&set_of, SIGUSR1);
    sigaddset(&set_of, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set_of, &old);
    kill(getpid(), SIGUSR1);
    nested = 3;
    kill(getpid(), SIGUSR2);
    sigprocmask(SIG_SETMASK, &old, NULL); /* both arrive at once, stacked */

    for (int i = 0; i < 20; i++)
        kill(getpid(), SIGUSR1);

    struct itimerval once = {.it_value = {.tv_usec = 1500}};
    for (int i = 0; i < 6; i++) {
        int before = alarms;
        setitimer(ITIMER_REAL, &once, NULL);
        while (alarms == before)
            for (volatile int spin = 0; spin < 5; spin++)
                __asm__ volatile("pause");
    }

    set(SIGALRM, on_alarm, 0);
    sigemptyset(&set_of);
    sigaddset(&set_of, SIGALRM);
    sigprocmask(SIG_BLOCK, &set_of, &old); /* the alarm waits until someone waits for it */
    setitimer(ITIMER_REAL, &once, NULL);
    sigsuspend(&old); /* a system call that a signal ends */
    sigprocmask(SIG_SETMASK, &old, NULL);

    printf("alarms %d storms %d traps %d divisions %d quotient %ld illegal %d general %d nested %d\n", (int)alarms,
           (int)storms, (int)traps, (int)divisions, quotient, (int)illegal, (int)general, (int)nested);
    return 0;
}
