/* Threads that begin and end, each with calls of its own. */
#include "log.h"
#include <pthread.h>

FUNCTION static int leaf(int x) { return x + 1; }
FUNCTION static int tree(int n) { return n ? tree(n - 1) + tree(n - 1) : leaf(n); }
FUNCTION static void *work(void *argument) { return (void *)(long)tree((int)(long)argument); }

FUNCTION int main(void) {
    pthread_t threads[3];
    for (long i = 0; i < 3; i++) pthread_create(&threads[i], 0, work, (void *)(i + 1));
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    leaf(3);
    printf("done\n");
    write_log();
    return 0;
}
