/* A 32-bit program with a C library: its system calls leave through the 32-bit vDSO; 64-bit arithmetic in helpers; a signal. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile sig_atomic_t seen;

static void on_usr1(int number)
{
    (void)number;
    seen++;
}

static unsigned long long power(unsigned long long base, unsigned exponent)
{
    unsigned long long result = 1;
    while (exponent) {
        if (exponent & 1)
            result = result * base % 1000000007ull;
        base = base * base % 1000000007ull;
        exponent >>= 1;
    }
    return result;
}

static int compare(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

int main(void)
{
    int values[40];
    for (int i = 0; i < 40; i++)
        values[i] = (i * 37 + 11) % 41;
    qsort(values, 40, sizeof values[0], compare);
    signal(SIGUSR1, on_usr1);
    raise(SIGUSR1);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("%d %d %llu %d %d\n", values[0], values[39], power(3, 1000), (int)seen, now.tv_sec < 0);
    return 0;
}
