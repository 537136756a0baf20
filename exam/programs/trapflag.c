/* Steps through its own code with the trap flag, counting the traps: what a debugger inside the program would do. */
#include <signal.h>
#include <stdio.h>

static volatile sig_atomic_t traps;

static void on_trap(int number)
{
    (void)number;
    traps++;
}

int main(void)
{
    signal(SIGTRAP, on_trap);
    int sum = 0;
    for (int i = 0; i < 3; i++) {
        __asm__ volatile("pushfq\n\t"
                         "orl $0x100, (%%rsp)\n\t"
                         "popfq\n\t"
                         "add $1, %0\n\t"
                         "add $2, %0\n\t"
                         "jmp 1f\n"
                         "1: pushfq\n\t"
                         "andl $~0x100, (%%rsp)\n\t"
                         "popfq\n\t"
                         "add $3, %0"
                         : "+r"(sum) : : "cc", "memory");
    }
    printf("sum %d traps %d\n", sum, (int)traps);
    return 0;
}
