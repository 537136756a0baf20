/* Indirect calls and jumps through tables: an interpreter, a dense switch, function pointers, tail calls. Built stripped. */
#include <stdio.h>

enum op { PUSH, ADD, MUL, DUP, SWAP, DEC, JNZ, HALT };

static long interpret(const int *code)
{
    static const void *const labels[] = {&&push, &&add, &&mul, &&dup, &&swap, &&dec, &&jnz, &&halt};
    long stack[32], *sp = stack;
    const int *pc = code;
#define NEXT goto *labels[*pc++]
    NEXT;
push: *sp++ = *pc++; NEXT;
add: sp--; sp[-1] += *sp; NEXT;
mul: sp--; sp[-1] *= *sp; NEXT;
dup: sp[0] = sp[-1]; sp++; NEXT;
swap: { long t = sp[-1]; sp[-1] = sp[-2]; sp[-2] = t; } NEXT;
dec: sp[-1]--; NEXT;
jnz: if (sp[-1]) pc = code + *pc; else pc++; NEXT;
halt: return sp[-2];
}

static int switched(int n)
{
    switch (n) {
    case 0: return 3;
    case 1: return n * 17;
    case 2: return n - 40;
    case 3: return n << 3;
    case 4: return ~n;
    case 5: return n ^ 0x2a;
    case 6: return n % 4;
    case 7: return -n;
    default: return 0;
    }
}

static long twice(long x) { return x * 2; }
static long minus(long x) { return x - 9; }
static long square(long x) { return x * x % 1009; }
static long (*const functions[])(long) = {twice, minus, square};

static long __attribute__((noinline)) tail(int which, long x)
{
    return functions[which](x);
}

int main(void)
{
    static const int code[] = {PUSH, 1, PUSH, 40, SWAP, PUSH, 1, ADD, DUP, PUSH, 0, MUL, ADD, SWAP, DEC, JNZ, 4, HALT};
    long value = 5;
    int sum = 0;
    for (int i = 0; i < 60; i++) {
        value = tail(i % 3, value);
        sum += switched(i % 9);
    }
    printf("%ld %ld %d\n", interpret(code), value, sum);
    return 0;
}
