/* The kernel's own page of user code, called through the C library's pointers into it. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>

int main(void)
{
    struct timespec last = {0, 0}, now;
    int backwards = 0;
    unsigned cpu = 0, node = 0;
    for (int i = 0; i < 50; i++) {
        clock_gettime(i & 1 ? CLOCK_MONOTONIC_COARSE : CLOCK_MONOTONIC, &now);
        if (!(i & 1)) {
            if (now.tv_sec < last.tv_sec || (now.tv_sec == last.tv_sec && now.tv_nsec < last.tv_nsec))
                backwards++;
            last = now;
        }
    }
    struct timeval of_day;
    gettimeofday(&of_day, NULL);
    time_t seconds = time(NULL);
    getcpu(&cpu, &node);
    clock_getres(CLOCK_REALTIME, &now);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now); /* this one is a real system call inside the vDSO */
    printf("backwards %d apart %d cpu %d\n", backwards, seconds - of_day.tv_sec > 2, cpu > 4096);
    return 0;
}
