/* Work for a traced guest: calls, returns, loops, indirect calls, system calls, a page fault now and then. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int by_value(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static unsigned fibonacci(unsigned n)
{
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

/* Each form of operand, if the program's second argument asks for it: not every processor has the instruction. */
static void tell(unsigned long round)
{
    unsigned long values[2] = {0x1122334455660000 + round, 0x7788};
    unsigned long *at = values;
    asm volatile("ptwrite %0" : : "r"((unsigned)round));
    asm volatile("ptwrite %q0" : : "r"(values[0]));
    asm volatile("ptwriteq (%0)" : : "r"(at), "m"(values));
    asm volatile("ptwritel 8(%0,%1,8)" : : "r"(at), "r"(0UL), "m"(values));
}

int main(int count, char **words)
{
    int rounds = count > 1 ? atoi(words[1]) : 1;
    /* With more words: the work twice, once in a child. */
    if (count > 3 && fork() == 0)
        rounds /= 2;
    unsigned sum = 0;
    for (int round = 0; round < rounds; round++) {
        int numbers[200];
        for (int i = 0; i < 200; i++)
            numbers[i] = (i * 7919 + round) % 1009;
        qsort(numbers, 200, sizeof *numbers, by_value);
        sum += numbers[100] + fibonacci(12) + getppid();
        char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(page, round, 8192);
        sum += page[4097];
        munmap(page, 8192);
        if (count == 3)
            tell(round);
    }
    if (count > 3)
        wait(NULL);
    printf("%u\n", sum);
    return 0;
}
