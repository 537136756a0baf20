/* What `cargo xtask fuzz seeds` records: a little of everything that branches, without a C library. */

static volatile int sink;

__attribute__((noinline)) static int twice(int number)
{
    return number * 2;
}

__attribute__((noinline)) static int depth(int number)
{
    return number == 0 ? 1 : depth(number - 1) + 1;
}

static int (*const table[])(int) = {twice, depth};

void _start(void)
{
    for (int round = 0; round < 6; round++) {
        sink += table[round % 2](round);
        if (round % 3 == 0)
            sink -= depth(2);
        /* getppid */
        long result;
        __asm__ volatile("syscall" : "=a"(result) : "a"(110) : "rcx", "r11", "memory");
    }
    __asm__ volatile("syscall" : : "a"(231), "D"(0) : "rcx", "r11", "memory");
    __builtin_unreachable();
}
