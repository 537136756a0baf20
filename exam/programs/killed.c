/* Ends by a fault that nobody handles, in a function called through a pointer. */
#include <stdio.h>

static int touch(volatile int *place)
{
    return *place + 1;
}

int (*volatile toucher)(volatile int *) = touch;

int main(void)
{
    puts("about to fault");
    fflush(stdout);
    return toucher((volatile int *)64);
}
