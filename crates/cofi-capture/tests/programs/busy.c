/* Threads that do nothing but run, each the same so many times. */
#include <pthread.h>

enum { THREADS = 3, ROUNDS = 60000 };

__attribute__((noinline)) unsigned long step(unsigned long state)
{
    state ^= state << 13;
    return state & 1 ? state * 5 : state + 7;
}

static void *work(void *argument)
{
    unsigned long state = (unsigned long)argument;
    for (int i = 0; i < ROUNDS; i++)
        state = step(state);
    return (void *)state;
}

int main(void)
{
    pthread_t threads[THREADS];
    unsigned long sum = 0;
    for (unsigned long i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], 0, work, (void *)(i + 1)))
            return 1;
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        sum += (unsigned long)result;
    }
    return sum & 0x3f;
}
