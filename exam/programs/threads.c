/* Four threads that hand a turn round under one mutex, then race to the end; one is still asleep when the process exits. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { WORKERS = 4, ROUNDS = 12 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static int turn;
static long total;
static __thread long mine;

static void *work(void *argument)
{
    int self = (int)(long)argument;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_mutex_lock(&lock);
        while (turn != self)
            pthread_cond_wait(&turned, &lock);
        mine += self * round;
        turn = (turn + 1) % WORKERS;
        pthread_cond_broadcast(&turned);
        pthread_mutex_unlock(&lock);
    }
    __atomic_add_fetch(&total, mine, __ATOMIC_SEQ_CST);
    return NULL;
}

static void *sleeper(void *argument)
{
    (void)argument;
    for (;;)
        pause();
    return NULL;
}

int main(void)
{
    pthread_t threads[WORKERS], late;
    for (long i = 0; i < WORKERS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < WORKERS; i++)
        pthread_join(threads[i], NULL);
    pthread_create(&late, NULL, sleeper, NULL);
    printf("total %ld\n", total);
    return 0;
}
