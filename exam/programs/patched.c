/* One thread changes the code that others run: in turns, under their feet, by other memory at the same address, by another
 * library there, before a fork, and in the program's own text. The first argument says which, and how often, the second. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, CALL = 0x103, A = 0x400, B = 0x800, RUNNERS = 2 };

static unsigned char *code;
static atomic_int round_now, done, stop;
static unsigned rounds = 40;

/* Two functions with loops of other lengths, and a caller whose operand is aligned: it changes as a whole. */
static void write_functions(unsigned char *at) {
    static const unsigned char loop[] = {0xb9, 0, 0, 0, 0, 0x31, 0xc0, 0xff, 0xc0, 0xff, 0xc9, 0x75, 0xfa, 0xc3};
    memcpy(at + A, loop, sizeof loop);
    memcpy(at + B, loop, sizeof loop);
    at[A + 1] = 3;
    at[B + 1] = 7;
    at[CALL] = 0xe8;
    *(int32_t *)(at + CALL + 1) = A - (CALL + 5);
    memcpy(at + CALL + 5, "\xff\xc0\xc3", 3);
}

static void aim(unsigned target) {
    atomic_store_explicit((_Atomic int32_t *)(code + CALL + 1), (int32_t)(target - (CALL + 5)), memory_order_seq_cst);
}

static int call(void) {
    return ((int (*)(void))(code + CALL))();
}

static void wait_for(atomic_int *what, int value) {
    while (atomic_load(what) < value)
        sched_yield();
}

static void *memory(void *at) {
    void *got = mmap(at, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC,
                     MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
    if (got == MAP_FAILED)
        exit(9);
    return got;
}

/* A -> B -> A, each called before the next change. */
static void *turns(void *unused) {
    (void)unused;
    for (unsigned i = 1; i <= rounds; i++) {
        wait_for(&done, (int)i - 1);
        aim(i % 2 ? B : A);
        atomic_store(&round_now, (int)i);
    }
    return 0;
}

/* The same, while the others call all the time. */
static void *running(void *unused) {
    int *sum = unused;
    do
        *sum += call() > 0;
    while (!atomic_load(&stop));
    return 0;
}

/* Other memory at the same address, which was gone meanwhile. */
static void *remapping(void *unused) {
    (void)unused;
    for (unsigned i = 1; i <= rounds; i++) {
        wait_for(&done, (int)i - 1);
        munmap(code, PAGE);
        memory(code);
        write_functions(code);
        code[A + 1] = (unsigned char)(1 + i % 5);
        aim(i % 2 ? B : A);
        atomic_store(&round_now, (int)i);
    }
    return 0;
}

static int (*chosen)(int);
static const char *libraries[2];

/* Another library at the address of the one before it. */
static void *loading(void *unused) {
    (void)unused;
    for (unsigned i = 1; i <= rounds; i++) {
        wait_for(&done, (int)i - 1);
        void *library = dlopen(libraries[i % 2], RTLD_NOW);
        if (!library)
            exit(8);
        chosen = (int (*)(int))dlsym(library, "chosen");
        atomic_store(&round_now, (int)i);
        wait_for(&done, (int)i);
        dlclose(library);
    }
    return 0;
}

static long in_turns(void *(*other)(void *), int loads) {
    pthread_t thread;
    long sum = 0;
    atomic_store(&done, 0);
    atomic_store(&round_now, 0);
    pthread_create(&thread, 0, other, 0);
    for (unsigned i = 1; i <= rounds; i++) {
        wait_for(&round_now, (int)i);
        for (int j = 0; j < 3; j++)
            sum = sum * 3 + (loads ? chosen(j) : call());
        sum %= 1000003;
        atomic_store(&done, (int)i);
    }
    pthread_join(thread, 0);
    return sum;
}

/* A page of this program's own text, which can be written while it is changed only. */
__asm__(".pushsection .patched, \"ax\", @progbits\n.balign 4096\nown_text: .zero 4096, 0xcc\n.popsection");
extern unsigned char own_text[];

static void allow(int rights) {
    if (mprotect(code, PAGE, PROT_READ | PROT_EXEC | rights))
        exit(7);
}

static int under_their_feet(int is_protected) {
    pthread_t threads[RUNNERS];
    int sums[RUNNERS] = {0};
    atomic_store(&stop, 0);
    for (int i = 0; i < RUNNERS; i++)
        pthread_create(&threads[i], 0, running, &sums[i]);
    for (unsigned i = 1; i <= rounds; i++) {
        if (is_protected)
            allow(PROT_WRITE);
        aim(i % 2 ? B : A);
        if (is_protected)
            allow(0);
        sched_yield();
    }
    atomic_store(&stop, 1);
    int all = 1;
    for (int i = 0; i < RUNNERS; i++) {
        pthread_join(threads[i], 0);
        all &= sums[i] > 0;
    }
    return all;
}

/* The child has the code as it was; both go on and change it. */
static long forks(void) {
    long sum = 0;
    for (unsigned i = 1; i <= rounds / 8 + 1; i++) {
        aim(i % 2 ? B : A);
        sum = (sum * 3 + call()) % 1000003;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            long its = call();
            aim(i % 2 ? A : B);
            its = its * 16 + call();
            code[A + 1] = code[B + 1] = 2;
            _exit((int)(its * 16 + call()) & 0x7f);
        }
        aim(i % 2 ? A : B);
        sum = (sum * 3 + call()) % 1000003;
        int status = 0;
        waitpid(child, &status, 0);
        sum = (sum * 3 + WEXITSTATUS(status)) % 1000003;
    }
    return sum;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "all";
    int all = !strcmp(what, "all");
    if (argc > 2)
        rounds = (unsigned)atoi(argv[2]);
    if (argc > 4)
        libraries[0] = argv[3], libraries[1] = argv[4];
    code = memory(0);
    write_functions(code);
    if (all || !strcmp(what, "turns"))
        printf("turns %ld\n", in_turns(turns, 0));
    if (all || !strcmp(what, "running"))
        printf("running %d\n", under_their_feet(0));
    if (all || !strcmp(what, "remapping"))
        printf("remapping %ld\n", in_turns(remapping, 0));
    if (libraries[0] && (all || !strcmp(what, "loading")))
        printf("loading %ld\n", in_turns(loading, 1));
    if (all || !strcmp(what, "forks"))
        printf("forks %ld\n", forks());
    if (all || !strcmp(what, "text")) {
        code = own_text;
        allow(PROT_WRITE);
        write_functions(code);
        allow(0);
        printf("text %d\n", under_their_feet(1));
    }
    return 0;
}
