/* Signals in every way. argv[1] chooses; the exit status tells how it went, and must be the same traced or not. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static volatile sig_atomic_t count, code;
static sigjmp_buf back;
static volatile int seven = 7;

static void on(int sig, void (*handler)(int, siginfo_t *, void *), int flags) {
    struct sigaction act = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    sigaction(sig, &act, NULL);
}
static void counts(int sig, siginfo_t *info, void *context) {
    count++;
    code = info->si_code;
}
static volatile sig_atomic_t *shared;
static void counts_for_all(int sig, siginfo_t *info, void *context) {
    count++;
    ++*shared;
}
static void jumps(int sig, siginfo_t *info, void *context) {
    count++;
    code = info->si_code;
    siglongjmp(back, sig);
}
static void nests(int sig, siginfo_t *info, void *context) {
    count++;
    if (sig == SIGUSR1) raise(SIGUSR2);
}
static void skips2(int sig, siginfo_t *info, void *context) {
    count++;
    code = info->si_code;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
}
static void clears_tf(int sig, siginfo_t *info, void *context) {
    code = info->si_code;
    if (++count == 5) ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~0x100;
}
static void *nothing(void *arg) { return arg; }
static void *raises(void *arg) {
    for (int i = 0; i < 20; i++) pthread_kill((pthread_t)arg, SIGUSR1);
    return NULL;
}

static int faults(void) {
    static const int signals[] = {SIGSEGV, SIGILL, SIGFPE, SIGBUS};
    for (int i = 0; i < 4; i++) on(signals[i], jumps, SA_NODEFER);
    volatile int zero = 0;
    int seen = 0, sig;
    if (!(sig = sigsetjmp(back, 1))) *(volatile int *)8 = 1;
    seen = seen * 3 + (sig == SIGSEGV && code == SEGV_MAPERR);
    if (!(sig = sigsetjmp(back, 1))) __asm__ volatile("ud2");
    seen = seen * 3 + (sig == SIGILL && code == ILL_ILLOPN);
    if (!(sig = sigsetjmp(back, 1))) zero = seven / zero;
    seen = seen * 3 + (sig == SIGFPE && code == FPE_INTDIV);
    if (!(sig = sigsetjmp(back, 1))) __asm__ volatile("hlt");
    seen = seen * 3 + (sig == SIGSEGV && code == SI_KERNEL);
    if (!(sig = sigsetjmp(back, 1))) ((void (*)(void))0x10)();
    seen = seen * 3 + (sig == SIGSEGV);
    return seen % 251 + (count == 5);
}
static int traps(void) {
    on(SIGTRAP, counts, 0);
    __asm__ volatile("int3");
    int first = code;
    __asm__ volatile(".byte 0xcd, 0x03");
    raise(SIGTRAP);
    return count * 16 + (first == SI_KERNEL) + 4 * (code == SI_TKILL);
}
static int int1(void) {
    /* On its own: under some hypervisors INT1 comes back to itself for ever, which two seconds of processor time end. */
    struct itimerval limit = {{0, 0}, {2, 0}};
    setitimer(ITIMER_PROF, &limit, NULL);
    on(SIGTRAP, counts, 0);
    __asm__ volatile(".byte 0xf1");
    return count * 16 + 2 * (code == TRAP_BRKPT);
}
static int own_steps(void) {
    /* The program single-steps itself until the handler stops it. */
    on(SIGTRAP, clears_tf, 0);
    __asm__ volatile("pushfq; orl $0x100, (%%rsp); popfq; nop; nop; nop; nop; nop; nop; nop; nop" ::: "memory", "cc");
    return count * 16 + code;
}
static int own_steps_over_call(void) {
    /* The same over a system call, and switched off by POPF. */
    on(SIGTRAP, counts, 0);
    long nr = 39;
    __asm__ volatile("pushfq; orl $0x100, (%%rsp); popfq; nop; syscall; nop; pushfq; andl $~0x100, (%%rsp); popfq; nop"
                     : "+a"(nr)::"rcx", "r11", "memory", "cc");
    return count * 16 + code;
}
static int restarts(void) {
    /* A read that is interrupted again and again, with and without SA_RESTART; the writer ends it. */
    int fds[2];
    char c;
    if (pipe(fds)) return 1;
    volatile sig_atomic_t *seen = shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    on(SIGALRM, counts_for_all, SA_RESTART);
    struct itimerval often = {{0, 20000}, {0, 20000}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    pid_t child = fork();
    if (!child) {
        struct timespec pause = {0, 5000000};
        while (*seen < 5) nanosleep(&pause, NULL);
        _exit(write(fds[1], "x", 1) != 1);
    }
    int got = read(fds[0], &c, 1);
    setitimer(ITIMER_REAL, &never, NULL);
    int enough = count > 2;
    waitpid(child, NULL, 0);
    on(SIGALRM, counts, 0);
    /* Again and again, as the first may come before the read. */
    setitimer(ITIMER_REAL, &often, NULL);
    errno = 0;
    int interrupted = read(fds[0], &c, 1) == -1 && errno == EINTR;
    setitimer(ITIMER_REAL, &never, NULL);
    /* nanosleep goes on with what is left (restart_syscall) after a signal without a handler. */
    child = fork();
    if (!child) {
        struct timespec pause = {0, 60000000};
        nanosleep(&pause, NULL);
        kill(getppid(), SIGWINCH);
        nanosleep(&pause, NULL);
        kill(getppid(), SIGCONT);
        _exit(0);
    }
    struct timespec pause = {0, 400000000}, begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    int slept = nanosleep(&pause, NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    long ms = (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000;
    waitpid(child, NULL, 0);
    return (got == 1) + 2 * enough + 4 * interrupted + 8 * (slept == 0) + 16 * (ms >= 390);
}
static int nested(void) {
    static char stack[65536];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, NULL);
    on(SIGUSR1, nests, SA_ONSTACK);
    on(SIGUSR2, nests, SA_ONSTACK);
    for (int i = 0; i < 3; i++) raise(SIGUSR1);
    sigset_t both;
    sigemptyset(&both);
    sigaddset(&both, SIGUSR1);
    sigaddset(&both, SIGUSR2);
    sigprocmask(SIG_BLOCK, &both, NULL);
    raise(SIGUSR1);
    raise(SIGUSR2);
    sigprocmask(SIG_UNBLOCK, &both, NULL);
    return count;
}
static int blocked_trap(void) {
    /* What blocks or ignores SIGTRAP must find its handler, its mask and its disposition as it left them. */
    int result = 0;
    sigset_t all, old, seen;
    on(SIGTRAP, counts, 0);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &old);
    sigprocmask(SIG_SETMASK, NULL, &seen);
    result |= sigismember(&seen, SIGTRAP) ? 1 : 0;
    kill(getpid(), SIGTRAP); /* must wait until it is unblocked */
    result |= count == 0 ? 2 : 0;
    sigprocmask(SIG_SETMASK, &old, &seen);
    result |= sigismember(&seen, SIGTRAP) ? 4 : 0;
    result |= count == 1 ? 8 : 0;
    pthread_t thread;
    pthread_create(&thread, NULL, nothing, NULL);
    pthread_join(thread, NULL);
    __asm__ volatile("int3");
    result |= count == 2 ? 16 : 0;
    signal(SIGTRAP, SIG_IGN);
    raise(SIGTRAP);
    struct sigaction act;
    sigaction(SIGTRAP, NULL, &act);
    result |= act.sa_handler == SIG_IGN ? 32 : 0;
    result |= 64;
    return result;
}
static volatile int blocked_trap_in_handler_seen;
static void looks(int sig, siginfo_t *info, void *context) {
    sigset_t now;
    sigprocmask(SIG_SETMASK, NULL, &now);
    blocked_trap_in_handler_seen = sigismember(&now, SIGTRAP) + 2 * sigismember(&((ucontext_t *)context)->uc_sigmask, SIGTRAP);
}
static int masks(void) {
    int result = 0;
    sigset_t trap, now;
    struct sigaction act = {.sa_sigaction = looks, .sa_flags = SA_SIGINFO};
    on(SIGTRAP, counts, 0);
    sigaddset(&act.sa_mask, SIGTRAP);
    sigaction(SIGUSR1, &act, NULL);
    raise(SIGUSR1);
    result |= blocked_trap_in_handler_seen == 1 ? 1 : 0;
    sigprocmask(SIG_SETMASK, NULL, &now);
    result |= !sigismember(&now, SIGTRAP) ? 2 : 0;
    sigemptyset(&trap);
    sigaddset(&trap, SIGTRAP);
    sigprocmask(SIG_BLOCK, &trap, NULL);
    sigemptyset(&act.sa_mask);
    sigaction(SIGUSR1, &act, NULL);
    raise(SIGUSR1);
    result |= blocked_trap_in_handler_seen == 3 ? 4 : 0;
    sigprocmask(SIG_SETMASK, NULL, &now);
    result |= sigismember(&now, SIGTRAP) ? 8 : 0;
    if (!fork()) {
        sigprocmask(SIG_SETMASK, NULL, &now);
        _exit(sigismember(&now, SIGTRAP) ? 33 : 0);
    }
    int status;
    wait(&status);
    result |= WEXITSTATUS(status) == 33 ? 16 : 0;
    return result;
}
static volatile int popping;
static void notes_tf(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)info;
    if (((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] & 0x100) code = 1;
    count++;
}
static void *raises_meanwhile(void *arg) {
    while (popping) {
        int before = count;
        pthread_kill((pthread_t)arg, SIGUSR1);
        while (popping && count == before) sched_yield();
    }
    return NULL;
}
static int popfs(void) {
    /* Signals at and between instructions that load the flags: no SIGTRAP, and no trap flag in the flags that handlers see. */
    on(SIGUSR1, notes_tf, 0);
    popping = 1;
    pthread_t thread;
    pthread_create(&thread, NULL, raises_meanwhile, (void *)pthread_self());
    while (count < 100)
        __asm__ volatile("lea -256(%%rsp), %%rsp; pushfq; popfq; pushfq; popfq; pushfq; popfq; pushfq; popfq; lea 256(%%rsp), %%rsp" ::: "memory", "cc");
    popping = 0;
    pthread_join(thread, NULL);
    return code;
}
static int many(void) {
    on(SIGUSR1, counts, SA_RESTART);
    on(SIGCHLD, counts, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, raises, (void *)pthread_self());
    pthread_join(thread, NULL);
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (!child) _exit(3);
        while (waitpid(child, NULL, 0) == -1 && errno == EINTR) {}
    }
    return count >= 1 && count <= 23;
}
static int stopped(void) {
    /* A child stops itself; we see it stop and continue it. */
    int status, result = 0, fds[2];
    if (pipe(fds)) return 1;
    pid_t child = fork();
    if (!child) {
        char c;
        on(SIGCONT, counts, SA_RESTART);
        raise(SIGSTOP);
        /* Until the parent has seen that we go on. */
        _exit(read(fds[0], &c, 1) == 1 ? 40 + count : 39);
    }
    waitpid(child, &status, WUNTRACED);
    result += WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP;
    kill(child, SIGCONT);
    waitpid(child, &status, WCONTINUED);
    result += 2 * WIFCONTINUED(status);
    if (write(fds[1], "x", 1) != 1) return 1;
    waitpid(child, &status, 0);
    return result + (WIFEXITED(status) ? WEXITSTATUS(status) : 0);
}
static int skipping(void) {
    on(SIGILL, skips2, 0);
    for (int i = 0; i < 3; i++) __asm__ volatile("ud2");
    return count * 16 + code;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(void);
    } table[] = {{"faults", faults},   {"traps", traps},     {"int1", int1}, {"own-steps", own_steps}, {"own-steps-over-call", own_steps_over_call},
                 {"restarts", restarts}, {"nested", nested}, {"blocked-trap", blocked_trap}, {"masks", masks},
                 {"many", many}, {"popfs", popfs},       {"stopped", stopped}, {"skipping", skipping}};
    const char *name = argc > 1 ? argv[1] : "";
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name)) return table[i].run();
    if (!strcmp(name, "abort")) abort();
    if (!strcmp(name, "trap")) __asm__ volatile("int3");
    if (!strcmp(name, "segv")) *(volatile int *)8 = 1;
    if (!strcmp(name, "kill")) kill(getpid(), SIGKILL);
    return 99;
}
