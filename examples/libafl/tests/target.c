/* Reads the file that its argument names, and dies of three half bytes, one behind the other. Without a library, so that it runs a few hundred instructions. */
static long call(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

static volatile int found;

__attribute__((noinline)) static void judge(const unsigned char *bytes, long count)
{
    if (count < 3 || (bytes[0] & 15) != 0xc) return;
    found = 1;
    if ((bytes[1] & 15) != 0x0) return;
    found = 2;
    if ((bytes[2] & 15) != 0xf) return;
    __builtin_trap();
}

__attribute__((used)) static void begin(long *stack)
{
    unsigned char bytes[64];
    char **arguments = (char **)(stack + 1);
    long file = call(2, (long)arguments[1], 0, 0);
    if (stack[0] == 2 && file >= 0) {
        long count = call(0, file, (long)bytes, sizeof bytes);
        if (count > 0 && bytes[0] == '~') for (;;) found = 3;
        judge(bytes, count);
    }
    call(60, 0, 0, 0);
}

__asm__(".globl _start\n_start: mov %rsp, %rdi\nand $-16, %rsp\ncall begin\nhlt");
