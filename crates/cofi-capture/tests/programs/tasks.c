/* Threads and processes. argv[1] chooses; the exit status tells how it went. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int sum;
static char *self;

static void *adds(void *arg) {
    for (int i = 0; i < 100; i++) atomic_fetch_add(&sum, 1);
    prctl(PR_SET_NAME, "adder");
    return arg;
}
static void *spins(void *arg) {
    for (;;) atomic_fetch_add(&sum, 1);
    return arg;
}
static void *waits(void *arg) {
    for (;;) pause();
    return arg;
}
static void *executes(void *arg) {
    execl(self, self, "exit", NULL);
    return arg;
}
static int in_clone(void *arg) {
    atomic_fetch_add(&sum, 5);
    return 6;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    pthread_t threads[4];
    int status;
    self = argv[0];
    if (!strcmp(name, "exit")) return 42;
    if (!strcmp(name, "threads")) {
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, adds, NULL);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
        return sum / 4;
    }
    if (!strcmp(name, "fork")) {
        int total = 0;
        for (int i = 1; i <= 3; i++)
            if (!fork()) return i;
        while (wait(&status) > 0) total += WEXITSTATUS(status);
        return total;
    }
    if (!strcmp(name, "vfork")) {
        pid_t child = vfork();
        if (!child) {
            execl(self, self, "exit", NULL);
            _exit(1);
        }
        waitpid(child, &status, 0);
        return WEXITSTATUS(status);
    }
    if (!strcmp(name, "clone")) {
        /* A process that shares our memory, and tells its end by no signal. */
        static char stack[65536];
        pid_t child = clone(in_clone, stack + sizeof stack, CLONE_VM, NULL);
        waitpid(child, &status, __WALL);
        return sum * 10 + WEXITSTATUS(status);
    }
    if (!strcmp(name, "exec")) {
        execl(self, self, "exit", NULL);
        return 1;
    }
    if (!strcmp(name, "thread-exec")) {
        pthread_create(&threads[0], NULL, spins, NULL);
        pthread_create(&threads[1], NULL, waits, NULL);
        pthread_create(&threads[2], NULL, executes, NULL);
        for (;;) pause();
    }
    if (!strcmp(name, "exit-group")) {
        pthread_create(&threads[0], NULL, spins, NULL);
        pthread_create(&threads[1], NULL, waits, NULL);
        pthread_create(&threads[2], NULL, spins, NULL);
        while (sum < 50) sched_yield();
        exit(17);
    }
    if (!strcmp(name, "leader-exit")) {
        pthread_create(&threads[0], NULL, adds, NULL);
        pthread_exit(NULL);
    }
    if (!strcmp(name, "kill-child")) {
        atomic_int *rounds = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        pid_t child = fork();
        if (!child) for (;;) atomic_fetch_add(rounds, 1);
        while (*rounds < 1000) usleep(1000);
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        return WTERMSIG(status);
    }
    if (!strcmp(name, "daemon")) {
        if (!fork()) {
            setsid();
            for (;;) pause();
        }
        return 5;
    }
    if (!strcmp(name, "tree")) {
        /* Processes that end while others are being made. */
        for (int i = 0; i < 6; i++)
            if (!fork()) {
                if (!fork()) _exit(0);
                pthread_create(&threads[0], NULL, adds, NULL);
                _exit(1);
            }
        int total = 0;
        while (wait(&status) > 0) total += WEXITSTATUS(status);
        return total;
    }
    if (!strcmp(name, "busy")) {
        /* Runs until its standard input ends, with two threads; what was traced on the way must not show. */
        char c;
        pthread_create(&threads[0], NULL, spins, NULL);
        pthread_create(&threads[1], NULL, waits, NULL);
        while (!sum) sched_yield();
        if (write(1, "r", 1) != 1) return 1;
        while (read(0, &c, 1) == 1) {}
        return sum > 0 ? 23 : 1;
    }
    return 99;
}
