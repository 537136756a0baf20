/* Recursion of one and of two functions, calls through pointers, callbacks of the C library, other libraries. */
#include "log.h"
#include <string.h>

FUNCTION static int leaf(int x) { return x * 3 + 1; }
FUNCTION static int factorial(int n) { return n < 2 ? 1 : n * factorial(n - 1) + leaf(n); }
FUNCTION static int odd(int n);
FUNCTION static int even(int n) { return n == 0 ? 1 : odd(n - 1) + 0 * leaf(n); }
FUNCTION static int odd(int n) { return n == 0 ? 0 : even(n - 1) + 0 * leaf(n); }
FUNCTION static int ackermann(int m, int n) { return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1)); }
FUNCTION static int compare(const void *a, const void *b) { return leaf(*(const int *)a) - leaf(*(const int *)b); }
FUNCTION static int deep(int n) { return n ? deep(n - 1) + 1 : 0; }

FUNCTION int main(void) {
    int (*volatile functions[])(int) = {leaf, factorial, even};
    int sum = 0, list[] = {5, 2, 9, 1, 7, 3};
    for (int i = 0; i < 9; i++) sum += functions[i % 3](i);
    qsort(list, 6, sizeof *list, compare);
    sum += ackermann(2, 3) + deep(500) + atoi("77") + (int)strlen(getenv("CALLS_LOG"));
    printf("%d %d\n", list[0], sum > 0);
    write_log();
    return 0;
}
