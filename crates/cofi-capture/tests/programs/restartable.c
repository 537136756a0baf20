/* A restartable sequence: the kernel moves the thread out of it when it was stopped within. */
#include <stdint.h>
#include <stdio.h>
#include <sys/rseq.h>

extern const char sequence[], committed[], aborted[];
static struct rseq_cs descriptor;

int main(void) {
    if (__rseq_size == 0) return 3;
    struct rseq *area = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
    int rounds = 0, aborts = 0, sum = 0;
    descriptor.start_ip = (uintptr_t)sequence;
    descriptor.post_commit_offset = committed - sequence;
    descriptor.abort_ip = (uintptr_t)aborted;
    for (int i = 0; i < 10; i++) {
        volatile int *cs_aborts = &aborts;
        __asm__ volatile goto("mov %1, %0\n"
                              ".globl sequence, committed, aborted\n"
                              "sequence: mov $50, %%ecx\n1: dec %%ecx\njnz 1b\nnop\n"
                              "committed: jmp 2f\n"
                              ".long 0x53053053\n"
                              "aborted: jmp %l[moved]\n2:"
                              : "=m"(area->rseq_cs)
                              : "r"(&descriptor)
                              : "ecx", "cc", "memory"
                              : moved);
        rounds++;
        continue;
    moved:
        ++*cs_aborts;
        for (int k = 0; k < 1000; k++) __asm__ volatile("" : "+r"(sum) : "r"(k));
        area->rseq_cs = 0;
    }
    return rounds + aborts == 10 ? 0 : 1;
}
