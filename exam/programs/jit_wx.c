/* A generator of the careful kind: write, make executable, run, make writable, write other code to the same address, run. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

typedef int (*function)(int);

static int reach(int value)
{
    return value ^ 0x55;
}

/* mov eax, edi; then `count` times: add eax, constant; with a backward loop if asked for; ret */
static size_t adder(uint8_t *out, int count, int constant)
{
    uint8_t *p = out;
    *p++ = 0x89, *p++ = 0xf8;
    for (int i = 0; i < count; i++) {
        *p++ = 0x05;
        memcpy(p, &constant, 4);
        p += 4;
    }
    *p++ = 0xc3;
    return (size_t)(p - out);
}

/* mov ecx, edi; xor eax, eax; again: add eax, ecx; dec ecx; jnz again; ret */
static size_t summer(uint8_t *out)
{
    static const uint8_t code[] = {0x89, 0xf9, 0x31, 0xc0, 0x01, 0xc8, 0xff, 0xc9, 0x75, 0xfa, 0xc3};
    memcpy(out, code, sizeof code);
    return sizeof code;
}

/* push rbx; mov rax, reach; call rax; lea eax, [rax+1]; pop rbx; ret */
static size_t caller(uint8_t *out)
{
    uint8_t *p = out;
    uint64_t target = (uint64_t)(uintptr_t)reach;
    *p++ = 0x53, *p++ = 0x48, *p++ = 0xb8;
    memcpy(p, &target, 8);
    p += 8;
    *p++ = 0xff, *p++ = 0xd0, *p++ = 0x8d, *p++ = 0x40, *p++ = 0x01, *p++ = 0x5b, *p++ = 0xc3;
    return (size_t)(p - out);
}

int main(void)
{
    uint8_t *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return 3;
    int results[6], n = 0;
    for (int version = 0; version < 6; version++) {
        mprotect(page, 8192, PROT_READ | PROT_WRITE);
        switch (version % 3) {
        case 0: adder(page, 3 + version, 10); break;
        case 1: summer(page); break;
        default: caller(page); break;
        }
        mprotect(page, 8192, PROT_READ | PROT_EXEC);
        results[n++] = ((function)page)(5) + ((function)page)(6);
    }
    munmap(page, 8192);
    uint8_t *other = mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    summer(other);
    mprotect(other, 4096, PROT_READ | PROT_EXEC);
    printf("%d %d %d %d %d %d %d\n", results[0], results[1], results[2], results[3], results[4], results[5],
           ((function)other)(100));
    return 0;
}
