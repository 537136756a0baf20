/* Jumps out of deep frames, coroutines by hand, and a context switched with swapcontext. */
#include <setjmp.h>
#include <stdio.h>
#include <ucontext.h>

static jmp_buf out;
static ucontext_t main_context, other_context;
static int turns;

static void deep(int n)
{
    if (n < 0)
        return;
    if (n == 0)
        longjmp(out, 5);
    deep(n - 1);
    turns++; /* not reached: keeps the call above from becoming a jump */
}

static void other(void)
{
    for (int i = 0; i < 5; i++) {
        turns += 10;
        swapcontext(&other_context, &main_context);
    }
}

int main(void)
{
    static char stack[32768];
    volatile int jumped = 0;
    for (volatile int i = 0; i < 6; i++)
        if (setjmp(out))
            jumped++;
        else
            deep(i * 20);
    getcontext(&other_context);
    other_context.uc_stack.ss_sp = stack;
    other_context.uc_stack.ss_size = sizeof stack;
    other_context.uc_link = &main_context;
    makecontext(&other_context, other, 0);
    for (int i = 0; i < 5; i++)
        swapcontext(&main_context, &other_context);
    printf("jumped %d turns %d\n", jumped, turns);
    return 0;
}
