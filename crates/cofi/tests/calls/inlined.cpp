/* Templates that are inlined, methods, and what an exception leaves. */
#include "notes.h"

template <class T> static INLINE T twice(T x) { note("twice"); T y = x + x; done(); return y; }
template <class T, int N> struct Power {
    static INLINE T power(T x) { note("power"); T y = x * Power<T, N - 1>::power(x); done(); return y; }
};
template <class T> struct Power<T, 0> {
    static INLINE T power(T) { note("power"); done(); return 1; }
};
template <class F> static INLINE int repeat(int n, F f) {
    note("repeat");
    int sum = 0;
    for (int i = 0; i < n; i++) sum += f(i);
    done();
    return sum;
}
APART static int throws(int x) { note("throws"); if (x > 1) { depth -= 1; throw x; } done(); return x; }
static INLINE int careful(int x) {
    note("careful");
    int y = twice(x), at = depth;
    try { y += throws(x); } catch (int caught) { depth = at; y += twice(caught); }
    done();
    return y;
}

int main(int c, char **) {
    int sum = twice(c) + (int)twice(1.5 * c) + Power<long, 3>::power(c + 1);
    sum += repeat(3, [](int i) { return twice(i); }) + careful(1) + careful(2) + careful(3);
    printf("%d\n", sum);
    write_log();
    return 0;
}
