/* Returns to elsewhere, calls that only read the instruction pointer, subroutines within a function, calls that do not return. */
#include "log.h"

FUNCTION static int leaf(int x) { return x + 1; }
FUNCTION static int reads(void) {
    long here;
    asm volatile("lea -128(%%rsp), %%rsp\ncall 1f\n1: pop %0\nlea 128(%%rsp), %%rsp" : "=r"(here));
    return leaf(here != 0);
}
/* Returns behind an instruction that its caller has for others. */
void skips(void);
asm(".globl skips\n.type skips, @function\nskips: addq $2, (%rsp)\nret\n.size skips, . - skips\n");
FUNCTION static int calls_skips(void) {
    asm volatile("lea -128(%%rsp), %%rsp\ncall skips\nud2\nlea 128(%%rsp), %%rsp" ::: "memory", "rax", "rcx", "rdx");
    return leaf(1);
}
/* Returns to who called its caller. */
void past(void);
asm(".globl past\n.type past, @function\npast: lea 8(%rsp), %rsp\nret\n.size past, . - past\n");
void through(void);
asm(".globl through\n.type through, @function\nthrough: call past\nud2\n.size through, . - through\n");
/* A jump by a return. */
void pushes(void);
asm(".globl pushes\n.type pushes, @function\npushes: lea landed(%rip), %rax\npush %rax\nret\n.size pushes, . - pushes\n"
    ".globl landed\n.type landed, @function\nlanded: mov $7, %eax\nret\n.size landed, . - landed\n");
/* A call over data, never returned from. */
int over(void);
asm(".globl over\n.type over, @function\nover: call 1f\n.byte 6, 6\n1: pop %rax\nmov $3, %eax\nret\n.size over, . - over\n");

FUNCTION static int in_the_middle(void) { through(); pushes(); return leaf(over()); }

FUNCTION int main(void) {
    int sum = 0;
    for (int i = 0; i < 3; i++) sum += reads() + calls_skips() + in_the_middle() + leaf(i);
    printf("%d\n", sum);
    write_log();
    return 0;
}
