/* What programs mostly do, the same each time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned seed = 1;
static unsigned next(void) {
    seed = seed * 1103515245u + 12345u;
    return seed >> 8;
}
static int compare(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return x < y ? -1 : x > y;
}
static unsigned chosen(unsigned x) {
    switch (x % 7) {
    case 0: return x / 3;
    case 1: return x + 5;
    case 2: return x ^ 77;
    case 3: return x * 9;
    case 4: return x >> 2;
    case 5: return ~x;
    default: return x;
    }
}

int main(void) {
    int numbers[100];
    unsigned hash = 0;
    for (int i = 0; i < 100; i++) numbers[i] = next() % 1000;
    qsort(numbers, 100, sizeof *numbers, compare);
    for (int i = 0; i < 100; i++) {
        char text[16];
        sprintf(text, "%d", numbers[i]);
        for (char *p = text; *p; p++) hash = chosen(hash * 31 + *p);
        char *copy = strdup(text);
        hash += strlen(copy) + (strcmp(copy, "500") > 0);
        free(copy);
    }
    return hash % 100;
}
