/* A thread that is not the first calls exec while the others run and wait: they vanish, and it takes the first one's number. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile int ready, over;
static char *self;

static void *spin(void *argument)
{
    (void)argument;
    __atomic_add_fetch(&ready, 1, __ATOMIC_SEQ_CST);
    /* A conditional loop: how often an unconditional one went round, no processor trace tells. */
    while (!over)
        __asm__ volatile("pause");
    return NULL;
}

static void *wait_for_ever(void *argument)
{
    (void)argument;
    __atomic_add_fetch(&ready, 1, __ATOMIC_SEQ_CST);
    for (;;)
        pause();
    return NULL;
}

static void *replace(void *argument)
{
    char *const next[] = {self, "replaced", NULL}, *const empty[] = {NULL};
    (void)argument;
    while (ready < 2)
        ;
    execve("/proc/self/exe", next, empty);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[3];
    if (argc > 1 && !strcmp(argv[1], "replaced")) {
        puts("replaced");
        return 11;
    }
    self = argv[0];
    pthread_create(&threads[0], NULL, spin, NULL);
    pthread_create(&threads[1], NULL, wait_for_ever, NULL);
    pthread_create(&threads[2], NULL, replace, NULL);
    pthread_join(threads[0], NULL);
    return 1;
}
