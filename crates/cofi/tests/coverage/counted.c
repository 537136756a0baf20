/* Lines of every shape, for the counts of `cofi coverage` beside those of gcov and llvm-cov. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int square(int x) { return x * x; }

int never(int x)
{
    if (x > 3)
        return x;
    return -x;
}

static int collatz(unsigned n)
{
    int steps = 0;
    while (n != 1) {
        if (n % 2 == 0)
            n /= 2;
        else
            n = 3 * n + 1;
        steps++;
    }
    return steps;
}

static int kind(int c)
{
    switch (c) {
    case 'a': case 'e': case 'i': case 'o': case 'u':
        return 1;
    case ' ': return 2;
    case '\n':
    case '\t':
        return 3;
    default:
        return c > 'z' ? 4 : c < 'a' ? 5 : 0;
    }
}

static int compare(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return x < y ? -1 : x > y;
}

int fact(int n) { return n < 2 ? 1 : n * fact(n - 1); }

int main(int argc, char **argv)
{
    int list[50], sum = 0;
    unsigned seed = 7;
    for (int i = 0; i < 50; i++) {
        seed = seed * 1103515245 + 12345;
        list[i] = (seed >> 8) % 1000;
    }
    qsort(list, 50, sizeof *list, compare);
    for (int i = 0; i < 50; i++) sum += collatz(list[i] + 1);
    const char *text = "the quick brown fox\tjumps over\nthe lazy dog";
    int kinds[6] = {0};
    for (const char *p = text; *p; p++)
        kinds[kind(*p)]++;
    int i = 10;
    do i--; while (i > 0);
    while (i++ < 5);
    if (argc > 1 && argv[1][0] == 'x' || sum == 12) printf("x\n"); else printf("no x\n");
    for (i = 0; i < 6; i++)
        printf("%d%c", kinds[i], i == 5 ? '\n' : ' ');
    if (argc > 1)
        sum += never(argc);
    int k = 0;
again:
    if (k++ < 3)
        goto again;
    for (int a = 0; a < 3; a++) for (int b = 0; b < 4; b++) sum += a * b;
    printf("%d %d %d\n", sum, square(sum), fact(6));
    return 0;
}
