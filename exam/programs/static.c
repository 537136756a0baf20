/* A plain static program: loops, branches, recursion by the library's sort, formatted output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *left, const void *right)
{
    int l = *(const int *)left, r = *(const int *)right;
    return (l > r) - (l < r);
}

static unsigned checksum(const char *text)
{
    unsigned sum = 5381;
    while (*text)
        sum = sum * 33 ^ (unsigned char)*text++;
    return sum;
}

int main(int argc, char **argv)
{
    int numbers[200];
    unsigned state = 12345;
    for (int i = 0; i < 200; i++) {
        state = state * 1103515245u + 12345u;
        numbers[i] = (int)(state >> 16) % 1000;
    }
    qsort(numbers, 200, sizeof numbers[0], by_value);

    long collatz = 0;
    for (int start = 1; start < 60; start++)
        for (long n = start; n != 1; n = n & 1 ? 3 * n + 1 : n / 2)
            collatz++;

    char text[256];
    snprintf(text, sizeof text, "%d %d %d %.3f %s", numbers[0], numbers[100], numbers[199],
             (double)collatz / 7.0, argc > 1 ? argv[1] : "none");
    printf("%s %u %zu\n", text, checksum(text), strlen(text));
    return 7;
}
