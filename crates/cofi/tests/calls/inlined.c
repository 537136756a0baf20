/* Functions that are inlined: in each other, in loops and recursion, around calls and before the end of others. */
#include "notes.h"

static INLINE int square(int x) { note("square"); int y = x * x; done(); return y; }
static INLINE int cube(int x) { note("cube"); int y = x * square(x); done(); return y; }
/* It runs code of its caller's function between its own. */
static INLINE int both(int x, int (*f)(int)) { note("both"); int y = f(x) + cube(x); done(); return y; }
APART static int apart(int x) { note("apart"); int y = square(x) + 1; done(); return y; }
APART static int steps(int n) {
    note("steps");
    int y = n ? cube(n) + steps(n - 1) : square(7);
    done();
    return y;
}
APART static int out(int x) { note("out"); int y = x + 3; done(); return y; }
/* Behind it, its caller may be left by a jump. */
static INLINE int last(int x) { note("last"); x += square(x); done(); return x; }
APART static int ends(int x) { return out(last(x)); }
static INLINE int loops(int n) {
    note("loops");
    int y = 0;
    for (int i = 0; i < n; i++) y += i % 3 ? square(i) : apart(i);
    done();
    return y;
}

int main(int c, char **v) {
    (void)v;
    int sum = loops(5 + c) + both(c, apart) + steps(3 + c) + ends(c);
    sum += both(sum, out);
    printf("%d\n", sum);
    write_log();
    return 0;
}
