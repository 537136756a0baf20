/* The vector extensions this machine has, up to AVX-512, by the compiler's own choice of encodings. */
#include <immintrin.h>
#include <stdio.h>

enum { N = 64 };
static float a[N], b[N], c[N];
static int v[N];

#define KERNEL(name, isa)                                                     \
    __attribute__((target(isa), noinline, optimize("O3"))) static void name(void) \
    {                                                                         \
        for (int i = 0; i < N; i++) {                                         \
            c[i] = a[i] * b[i] + c[i];                                        \
            v[i] = v[i] > 3 ? v[i] - i : v[i] * 3 + (int)c[i] % 7;            \
        }                                                                     \
    }

KERNEL(sse2, "sse2")
KERNEL(sse42, "sse4.2,popcnt")
KERNEL(avx, "avx")
KERNEL(avx2, "avx2,fma,bmi,bmi2,lzcnt")
KERNEL(avx512, "avx512f,avx512bw,avx512dq,avx512vl,fma")

int main(void)
{
    for (int i = 0; i < N; i++)
        a[i] = (float)i, b[i] = (float)(N - i), v[i] = i % 9;
    __builtin_cpu_init();
    sse2();
    if (__builtin_cpu_supports("sse4.2"))
        sse42();
    if (__builtin_cpu_supports("avx"))
        avx();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        avx2();
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        avx512();
    int sum = 0;
    for (int i = 0; i < N; i++)
        sum += v[i] + (int)c[i];
    printf("%d\n", sum);
    return 0;
}
