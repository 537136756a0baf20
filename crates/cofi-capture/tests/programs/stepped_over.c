/* What QEMU does in steps of its own, and what it does not tell. argv[1] chooses; the exit status tells how it went. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sched.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t seen;
static char buffer[256] __attribute__((aligned(64)));
static int left, sum;

__attribute__((noinline)) static void handler(int number) { seen += number == SIGUSR1 ? 3 : 1; }
__attribute__((noinline, aligned(4096))) int changed(int x) { return x * 3 + 1; }
__attribute__((noinline, aligned(4096))) int other(int x) { return x ^ 3; }

/* Atomic accesses across a cache line: QEMU makes them while no other thread runs, each in a block of its own. */
static void *unaligned(void *arg) {
    int n = 50;
    for (int i = 0; i < 200; i++) __asm__ volatile("lock incl %0" : "+m"(*(int *)(buffer + 62))::"memory");
    __asm__ volatile("1: lock incl (%1); dec %0; jnz 1b" : "+r"(n) : "r"(buffer + 126) : "memory", "cc");
    return arg;
}
static void *counts(void *arg) {
    __atomic_add_fetch(&sum, 1, __ATOMIC_SEQ_CST);
    return arg;
}
static volatile sig_atomic_t first_seen, second_seen;
static void on_first(int number) { first_seen++; }
static void on_second(int number, siginfo_t *info, void *context) { second_seen++; }

/* Each thread starts the next before it ends: never more than a few, but always some. */
static void *rolls(void *arg) {
    pthread_t next;
    pthread_detach(pthread_self());
    sum++;
    if (--left == 0) _exit(sum % 256);
    pthread_create(&next, NULL, rolls, NULL);
    return arg;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    pthread_t threads[3];
    if (!strcmp(name, "handler-called")) {
        /* A function that has run before it becomes a handler. */
        handler(SIGUSR2);
        signal(SIGUSR1, handler);
        for (int i = 0; i < 3; i++) raise(SIGUSR1);
        return seen;
    }
    if (!strcmp(name, "handler-called-timer")) {
        /* The same, and nothing but a timer calls it then. */
        volatile unsigned value = 1;
        struct itimerval often = {{0, 2000}, {0, 2000}};
        handler(SIGUSR2);
        signal(SIGALRM, handler);
        setitimer(ITIMER_REAL, &often, NULL);
        while (seen < 20) value = value % 3 ? value * 7 + 1 : value / 3;
        return 6;
    }
    if (!strcmp(name, "pairs")) {
        /* Two signals at once, in the middle of a computation: the second interrupts the handler of the first before it
           has run anything. */
        volatile int *done = mmap(NULL, 4096, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        struct sigaction first = {.sa_handler = on_first}, second = {.sa_sigaction = on_second, .sa_flags = SA_SIGINFO};
        sigaction(SIGUSR1, &first, NULL);
        sigaction(SIGUSR2, &second, NULL);
        pid_t child = fork();
        if (!child) {
            for (int i = 1; i <= 50; i++) {
                kill(getppid(), SIGUSR2);
                kill(getppid(), SIGUSR1);
                while (*done < i) usleep(100);
            }
            _exit(0);
        }
        volatile unsigned value = 1;
        for (int i = 1; i <= 50; i++) {
            while (first_seen < i || second_seen < i) value = value % 3 ? value * 7 + 1 : value / 3;
            *done = i;
        }
        waitpid(child, NULL, 0);
        return first_seen + second_seen;
    }
    if (!strcmp(name, "unaligned")) {
        int first, second;
        for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, unaligned, NULL);
        for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
        memcpy(&first, buffer + 62, 4);
        memcpy(&second, buffer + 126, 4);
        return first == 600 && second == 150 ? 21 : 1;
    }
    if (!strcmp(name, "patched")) {
        /* A page of the program is changed, made read-only again, and other things are mapped. */
        static const uint8_t code[] = {0x90, 0x90, 0x66, 0x90, 0xeb, 0x02, 0x0f, 0x0b, 0x8d, 0x47, 0x07, 0xc3};
        int total = changed(1);
        mprotect((void *)changed, 4096, 7);
        memcpy((void *)changed, code, sizeof code);
        mprotect((void *)changed, 4096, 5);
        total += changed(2);
        for (int i = 0; i < 3; i++) {
            mmap(NULL, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            total += changed(i) + other(i);
        }
        return total;
    }
    if (!strcmp(name, "many-threads")) {
        for (int i = 0; i < 300; i++) {
            pthread_create(&threads[0], NULL, counts, NULL);
            pthread_join(threads[0], NULL);
        }
        return sum % 256;
    }
    if (!strcmp(name, "rolling-threads")) {
        left = 1100;
        pthread_create(&threads[0], NULL, rolls, NULL);
        pthread_exit(NULL);
    }
    if (!strcmp(name, "closed")) {
        /* Nothing of the tracer's may hang on a file descriptor. */
        for (int fd = 0; fd < 1024; fd++) close(fd);
        pid_t child = fork();
        if (!child) _exit(3);
        return 13;
    }
    return 99;
}
