/* fork, vfork and exec: copies of one address space, a borrowed one, and a replaced one. */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int reap(pid_t child)
{
    int status = 0;
    while (waitpid(child, &status, 0) != child)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

int main(int argc, char **argv)
{
    char *const empty[] = {NULL};
    if (argc > 1 && !strcmp(argv[1], "leaf"))
        return argc > 2 ? atoi(argv[2]) : 9;
    if (argc > 1 && !strcmp(argv[1], "again")) {
        char *const next[] = {argv[0], "leaf", "12", NULL};
        execve("/proc/self/exe", next, empty);
        return 1;
    }

    pid_t forked = fork();
    if (forked == 0) {
        int sum = 0;
        for (int i = 0; i < 50; i++)
            sum += i % 3;
        _exit(sum);
    }
    int first = reap(forked);

    pid_t executing = fork();
    if (executing == 0) {
        char *const next[] = {argv[0], "again", NULL};
        execve("/proc/self/exe", next, empty);
        _exit(1);
    }
    int second = reap(executing);

    pid_t borrowed = vfork();
    if (borrowed == 0) {
        char *const next[] = {argv[0], "leaf", "21", NULL};
        execve("/proc/self/exe", next, empty);
        _exit(1);
    }
    int third = reap(borrowed);

    pid_t spawned;
    char *const next[] = {argv[0], "leaf", "33", NULL};
    int fourth = posix_spawn(&spawned, "/proc/self/exe", NULL, NULL, next, empty) ? -1 : reap(spawned);

    pid_t doomed = fork();
    if (doomed == 0)
        abort();
    int fifth = reap(doomed);

    printf("%d %d %d %d %d\n", first, second, third, fourth, fifth);
    return 0;
}
