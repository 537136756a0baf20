/* Eight threads that sort, search and hash, each on numbers of its own, and meet in between: threads ROUNDS. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 8, NUMBERS = 512 };

static pthread_barrier_t meeting;
static long rounds;
static uint64_t sums[THREADS];

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void *work(void *argument)
{
    uint64_t *sum = argument;
    uint32_t state = (uint32_t)(sum - sums) + 1, numbers[NUMBERS];
    for (long round = 0; round < rounds; round++) {
        for (int i = 0; i < NUMBERS; i++)
            numbers[i] = state = state * 1664525 + 1013904223;
        qsort(numbers, NUMBERS, sizeof *numbers, compare);
        for (uint32_t i = 0; i < NUMBERS; i++) {
            uint32_t key = numbers[i] ^ (i & 1);
            if (bsearch(&key, numbers, NUMBERS, sizeof *numbers, compare))
                *sum += key;
            for (; key & 0xff; key >>= 1)
                *sum = *sum * 31 + (key & 1 ? 7 : 3);
        }
        if (round % 64 == 0)
            pthread_barrier_wait(&meeting);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    uint64_t sum = 0;
    rounds = argc > 1 ? atol(argv[1]) : 1;
    pthread_barrier_init(&meeting, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, &sums[i]);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        sum += sums[i];
    }
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
