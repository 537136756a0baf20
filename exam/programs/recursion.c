/* Call stacks deeper than the 64 entries of a return predictor, thin and wide, and returns that go elsewhere than they came from. */
#include <stdio.h>

static int (*volatile descend)(int);

static int down(int depth)
{
    return depth == 0 ? 1 : descend(depth - 1) + 1;
}

static int odd(int n);
static int __attribute__((noinline)) even(int n)
{
    return n == 0 ? 1 : odd(n - 1) * 3 + n;
}
static int __attribute__((noinline)) odd(int n)
{
    return n == 0 ? 0 : n % 5 ? even(n - 1) + 1 : even(n - 1) * 5 - n;
}

static int ackermann(int m, int n)
{
    if (m == 0)
        return n + 1;
    return n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}

/* Reads its own address with call/pop (no return ever matches that call), then returns to a pushed address, then drops
   a caller's frame. */
long tricks(long n);
__asm__(".text\n"
        "tricks:\n"
        "  call 1f\n"
        "1: pop %rax\n"
        "  lea 2f(%rip), %rdx\n"
        "  push %rdx\n"
        "  ret\n"              /* a jump in the clothes of a return */
        "  ud2\n"
        "2: lea 3f(%rip), %rdx\n"
        "  call 4f\n"
        "  ud2\n"
        "4: mov %rdx, (%rsp)\n" /* the return address is changed under way */
        "  ret\n"
        "3: call 5f\n"
        "  mov $1, %eax\n"
        "  ret\n"
        "5: call 6f\n"
        "  ud2\n"
        "6: add $8, %rsp\n"     /* a frame is left out */
        "  ret\n");

int main(void)
{
    descend = down;
    int sum = 0;
    static const int depths[] = {1, 62, 63, 64, 65, 66, 130, 300};
    for (unsigned i = 0; i < sizeof depths / sizeof depths[0]; i++) {
        sum += down(depths[i]);
        sum ^= even(depths[i]);
    }
    long t = tricks(1) + tricks(2);
    printf("%d %d %ld\n", sum, ackermann(2, 6), t);
    return 0;
}
