/* Loops of known length, under a storm of signals. */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>

extern const char copies[];
static volatile sig_atomic_t signals, resumed;
/* The resume flag is set after a fault or between two rounds of a string instruction, but not otherwise. */
static void counts(int sig, siginfo_t *info, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    signals += sig == SIGALRM;
    resumed += regs[REG_RIP] != (greg_t)copies && regs[REG_EFL] & 0x10000;
}

static unsigned char from[4096], to[4096];

int main(void) {
    struct sigaction action = {.sa_sigaction = counts, .sa_flags = SA_SIGINFO};
    struct itimerval often = {{0, 700}, {0, 700}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &often, 0);
    long n = 3000, sum = 0;
    __asm__ volatile(".globl one_instruction\none_instruction: loop one_instruction" : "+c"(n));
    n = 3000;
    __asm__ volatile(".globl two_instructions\ntwo_instructions: dec %0\njnz two_instructions" : "+r"(n)::"cc");
    n = 1000;
    __asm__ volatile(".globl many_instructions\nmany_instructions: add %0, %1\nnop\nnop\nnop\nnop\ntest $1, %0\njz 1f\n"
                     ".globl every_other\nevery_other: add $1, %1\n1: nop\nnop\nnop\ndec %0\njnz many_instructions"
                     : "+r"(n), "+r"(sum)::"cc");
    for (int i = 0; i < 500; i++) {
        void *s = from, *d = to;
        long length = sizeof to;
        __asm__ volatile(".globl copies\ncopies: rep movsb" : "+S"(s), "+D"(d), "+c"(length)::"memory");
    }
    setitimer(ITIMER_REAL, &never, 0);
    return sum == 500500 + 500 && resumed * 4 <= signals ? 5 : 6;
}
