/* Calls and little else: qsort with a function that compares, and a recursion. `calls N DEPTH`. */
#include <stdio.h>
#include <stdlib.h>

static int compare(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

__attribute__((noinline)) static int fib(int n) {
    return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 100000, depth = argc > 2 ? atoi(argv[2]) : 20;
    int *list = malloc(n * sizeof *list);
    unsigned seed = 1;
    if (!list)
        return 1;
    for (int i = 0; i < n; i++)
        list[i] = (seed = seed * 1103515245 + 12345) >> 8;
    qsort(list, n, sizeof *list, compare);
    printf("%d %d\n", list[n / 2], fib(depth));
    return 0;
}
