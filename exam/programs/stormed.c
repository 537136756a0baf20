/* A child sends a stream of signals to a parent that computes: signals at arbitrary points of the parent's flow. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIGNALS = 15 };

static volatile sig_atomic_t received;
static volatile unsigned sink;

static void on_usr1(int number)
{
    (void)number;
    received++;
    sink += 3;
}

static unsigned step(unsigned x)
{
    return x % 3 ? x * 7 + 1 : x / 3;
}

int main(void)
{
    int answer[2];
    char token = 0;
    signal(SIGUSR1, on_usr1);
    if (pipe(answer))
        return 3;
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < SIGNALS; i++) {
            kill(getppid(), SIGUSR1);
            while (read(answer[0], &token, 1) != 1)
                ;
        }
        _exit(5);
    }
    unsigned value = 1;
    for (int done = 0; done < SIGNALS;) {
        value = step(value);
        if (received > done) {
            done++;
            if (write(answer[1], "x", 1) != 1)
                return 4;
        }
    }
    sink += value;
    int status = 0;
    while (waitpid(child, &status, 0) != child)
        ;
    printf("received %d child %d\n", (int)received, WEXITSTATUS(status));
    return 0;
}
