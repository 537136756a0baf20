/* Coroutines by swapcontext, and by a switch of our own. Each has its own list of open calls. */
#include "log.h"
#include <ucontext.h>

static ucontext_t contexts[3], back;
static struct shadow shadows[6];
static char stacks[3][1 << 16];

FUNCTION static int leaf(int x) { return x + 1; }
QUIET static void yields(int me) { shadow = 0; swapcontext(&contexts[me], &back); }
FUNCTION static void counts(void) { for (int i = 0; i < 3; i++) { leaf(i); yields(0); } }
FUNCTION static int inner(int n) { if (n) return inner(n - 1) + 1; yields(1); return leaf(n); }
FUNCTION static void recurses(void) { for (int i = 0; i < 2; i++) inner(i + 1); yields(1); }
FUNCTION static void ends(void) { leaf(7); yields(2); leaf(8); }
QUIET static void resume(int which) { shadow = &shadows[which]; swapcontext(&back, &contexts[which]); shadow = 0; }

/* Saves what a call keeps, takes the other stack, and returns there. */
void switch_stacks(void **from, void *to);
asm(".globl switch_stacks\n.type switch_stacks, @function\nswitch_stacks:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size switch_stacks, . - switch_stacks\n");
static void *own_back, *own;
static long own_stack[8192];
FUNCTION static void generator(void) {
    for (int i = 0;; i++) { leaf(i); shadow = 0; switch_stacks(&own, own_back); }
}
QUIET static void next_of_generator(void) { shadow = &shadows[3]; switch_stacks(&own_back, own); shadow = 0; }

FUNCTION static void scheduler(void) {
    for (int round = 0; round < 3; round++)
        for (int which = 0; which < 3; which++)
            if (which != 2 || round < 1) { resume(which); leaf(round); }
}

FUNCTION int main(void) {
    void (*functions[])(void) = {counts, recurses, ends};
    for (int i = 0; i < 3; i++) {
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = stacks[i];
        contexts[i].uc_stack.ss_size = sizeof stacks[i];
        contexts[i].uc_link = &back;
        makecontext(&contexts[i], functions[i], 0);
    }
    scheduler();
    own_stack[8190] = 0;
    own_stack[8189] = (long)generator;
    own = &own_stack[8183];
    for (int i = 0; i < 4; i++) { next_of_generator(); leaf(i); }
    printf("done\n");
    write_log();
    return 0;
}
