/* Code that rewrites itself as it runs: an operand in a loop, a branch turned round, the very next instruction. */
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

int patched(int times);
__asm__(".text\n"
        ".balign 4096\n"
        "patched:\n"
        "  xor %eax, %eax\n"
        "  lea 1f(%rip), %rdx\n"
        "  lea 2f(%rip), %rsi\n"
        "  lea 3f(%rip), %r8\n"
        "0:\n"
        "1: add $1, %eax\n"        /* 83 c0 01: the operand grows every time round */
        "  incb 2(%rdx)\n"
        "  xorb $1, (%rsi)\n"      /* 75 jne, 74 je */
        "  cmp $-1, %eax\n"
        "2: jne 4f\n"
        "  add $100, %eax\n"
        "4: xorw $0x938d, (%r8)\n" /* eb 03 jmp +3, 66 90 nop */
        "3: jmp 5f\n"
        "  add $5, %eax\n"
        "5: dec %edi\n"
        "  jnz 0b\n"
        "  ret\n"
        ".balign 4096\n");

int main(void)
{
    uintptr_t start = (uintptr_t)patched & ~(uintptr_t)4095;
    if (mprotect((void *)start, 4096, PROT_READ | PROT_WRITE | PROT_EXEC))
        return 3;
    int first = patched(7);
    int second = patched(4);
    mprotect((void *)start, 4096, PROT_READ | PROT_EXEC);
    printf("%d %d\n", first, second);
    return 0;
}
