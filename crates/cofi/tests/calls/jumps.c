/* longjmp, out of one call or many, to where recursion saved it at another level, in loops; from a signal handler. */
#include "log.h"
#include <setjmp.h>
#include <signal.h>

static jmp_buf outer, inner;
static sigjmp_buf from_signal;

FUNCTION static void thrower(jmp_buf where, int value) { longjmp(where, value); }
FUNCTION static int deeper(int n, jmp_buf where) { if (!n) thrower(where, 7); return deeper(n - 1, where) + 1; }
FUNCTION static int catcher(int n) {
    int got = setjmp(inner);
    if (got) { unwound_to(catcher); return got; }
    return deeper(n, inner);
}
/* Only the outermost saves where to go back to. */
FUNCTION static int nested(int n) {
    if (n == 3) {
        int got = setjmp(outer);
        if (got) { while (here()->depth > 2) here()->depth--; return got; }
    }
    if (n == 0) thrower(outer, 5);
    return nested(n - 1) + 1;
}
FUNCTION static void handler(int signal) { (void)signal; siglongjmp(from_signal, 1); }
FUNCTION static int struck(volatile int *address) { return *address; }
FUNCTION static int survives(void) {
    if (sigsetjmp(from_signal, 1)) { unwound_to(survives); return 3; }
    return struck((int *)0x10);
}
FUNCTION static int leaf(int x) { return x + 1; }

FUNCTION int main(void) {
    int sum = 0;
    signal(SIGSEGV, handler);
    for (int i = 0; i < 4; i++) sum += catcher(i) + leaf(i);
    sum += nested(3) + leaf(1);
    for (int i = 0; i < 2; i++) sum += survives() + leaf(i);
    printf("%d\n", sum);
    write_log();
    return 0;
}
