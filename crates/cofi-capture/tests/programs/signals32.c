/* A 32-bit program: system calls through the vDSO (SYSENTER) and by INT 0x80, signals, a thread. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int count;
static void counts(int sig) { count++; }
static void *adds(void *arg) {
    count += 10;
    return arg;
}
int main(void) {
    int result, fds[2];
    char c;
    struct itimerval soon = {{0, 0}, {0, 50000}};
    struct sigaction act = {.sa_handler = counts, .sa_flags = SA_RESTART};
    pthread_t thread;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(20));
    if (result != getpid()) return 1;
    sigaction(SIGALRM, &act, NULL);
    sigaction(SIGTRAP, &act, NULL);
    if (pipe(fds)) return 2;
    setitimer(ITIMER_REAL, &soon, NULL);
    if (!fork()) {
        usleep(150000);
        _exit(write(fds[1], "x", 1) != 1);
    }
    if (read(fds[0], &c, 1) != 1) return 3;
    wait(NULL);
    pthread_create(&thread, NULL, adds, NULL);
    pthread_join(thread, NULL);
    __asm__ volatile("int3");
    raise(SIGTRAP);
    return 100 + count;
}
