/* Code that no file holds. argv[1] chooses; the exit status tells how it went. */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int (*function)(void);
static const unsigned char template[6] = {0xb8, 0, 0, 0, 0, 0xc3}; /* mov $N, %eax; ret */

static void put(unsigned char *at, int value) {
    memcpy(at, template, sizeof template);
    memcpy(at + 1, &value, 4);
}
__attribute__((noinline, aligned(4096))) int changed(void) {
    __asm__ volatile("");
    return 3;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    int sum = 0;
    if (!strcmp(name, "rwx")) {
        unsigned char *page = mmap(NULL, 8192, 7, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int i = 1; i <= 5; i++) {
            put(page + 4093, i); /* lies across two pages */
            sum += ((function)(page + 4093))();
        }
        return sum;
    }
    if (!strcmp(name, "toggled")) {
        unsigned char *page = mmap(NULL, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int i = 1; i <= 4; i++) {
            mprotect(page, 4096, 3);
            put(page, i);
            mprotect(page, 4096, 5);
            sum += ((function)page)() + ((function)page)();
        }
        return sum;
    }
    if (!strcmp(name, "twice")) {
        /* The same memory twice: written here, executed there. */
        int fd = memfd_create("code", 0);
        if (ftruncate(fd, 4096)) return 1;
        unsigned char *writable = mmap(NULL, 4096, 3, MAP_SHARED, fd, 0);
        unsigned char *executable = mmap(NULL, 4096, 5, MAP_SHARED, fd, 0);
        for (int i = 1; i <= 5; i++) {
            put(writable, i);
            sum += ((function)executable)();
        }
        return sum;
    }
    if (!strcmp(name, "private-memfd")) {
        int fd = memfd_create("code", 0);
        unsigned char bytes[6];
        put(bytes, 31);
        if (ftruncate(fd, 4096) || pwrite(fd, bytes, 6, 0) != 6) return 1;
        sum += ((function)mmap(NULL, 4096, 5, MAP_PRIVATE, fd, 0))();
        return sum;
    }
    if (!strcmp(name, "modified")) {
        /* A page of the program itself, changed and made read-only again. */
        sum += changed();
        unsigned char *page = (unsigned char *)((uintptr_t)changed & ~4095UL);
        mprotect(page, 4096, 7);
        put((unsigned char *)changed, 50);
        mprotect(page, 4096, 5);
        sum += changed();
        return sum;
    }
    if (!strcmp(name, "deleted")) {
        if (unlink(argv[2])) return 1;
        mmap(NULL, 4096, 5, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return 12;
    }
    return 99;
}
