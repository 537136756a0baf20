/* Works until the file argv[1] is there, and ends with status 7. Beside it, "begun" holds its number, and "ended" is made at the end. With
   "deaf" it ignores SIGTERM and SIGHUP, with "idle" it sleeps most of the time, with
   "clock" it runs the vDSO. argv[3] says how much it does between two looks. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static unsigned next(unsigned x) { return x & 1 ? 3 * x + 1 : x / 2; }

static void make(const char *path, const char *ending, int number) {
    char name[4096], made[4096];
    snprintf(made, sizeof made, "%s.%s", path, ending);
    snprintf(name, sizeof name, "%s.tmp", made);
    FILE *file = fopen(name, "w");
    fprintf(file, "%d\n", number);
    fclose(file);
    rename(name, made);
}

int main(int argc, char **argv) {
    int deaf = argc > 2 && !strcmp(argv[2], "deaf"), idle = argc > 2 && !strcmp(argv[2], "idle");
    int rounds = argc > 3 ? atoi(argv[3]) : 2000;
    if (deaf) {
        signal(SIGTERM, SIG_IGN);
        signal(SIGHUP, SIG_IGN);
    }
    volatile unsigned x = 27;
    for (int i = 0; i < 2000; i++) x = x == 1 ? 27 : next(x);
    make(argv[1], "begun", getpid());
    while (access(argv[1], F_OK)) {
        struct timespec time;
        if (argc > 2 && !strcmp(argv[2], "clock")) clock_gettime(CLOCK_MONOTONIC, &time);
        if (idle) sleep(4);
        else for (int i = 0; i < rounds; i++) x = x == 1 ? 27 : next(x);
    }
    make(argv[1], "ended", 0);
    return 7;
}
