/* A generator of the careless kind: one page writable and executable at once, rewritten at the same address without a system call. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

typedef int (*function)(int);

int main(void)
{
    uint8_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return 3;
    /* loop: mov ecx, edi; xor eax, eax; again: add eax, ecx; dec ecx; jnz again; ret */
    static const uint8_t loop[] = {0x89, 0xf9, 0x31, 0xc0, 0x01, 0xc8, 0xff, 0xc9, 0x75, 0xfa, 0xc3};
    /* choose: cmp edi, 3; jle +6; mov eax, 100; ret; mov eax, 200; ret */
    static const uint8_t choose[] = {0x83, 0xff, 0x03, 0x7e, 0x06, 0xb8, 100, 0, 0, 0, 0xc3, 0xb8, 200, 0, 0, 0, 0xc3};
    /* hop: jmp +3; int3 ×3; lea eax, [rdi+rdi*4]; ret */
    static const uint8_t hop[] = {0xeb, 0x03, 0xcc, 0xcc, 0xcc, 0x8d, 0x04, 0xbf, 0xc3};
    int sum = 0;
    for (int turn = 0; turn < 6; turn++) {
        switch (turn % 3) {
        case 0: memcpy(page, loop, sizeof loop); break;
        case 1: memcpy(page, choose, sizeof choose); break;
        default: memcpy(page, hop, sizeof hop); break;
        }
        for (int i = 1; i < 5; i++)
            sum = sum * 3 + ((function)page)(i);
    }
    printf("%d\n", sum);
    return 0;
}
