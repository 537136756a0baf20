/* String instructions with a repeat prefix: none, one and many rounds, both directions, ended by their condition,
   stopped in the middle by a fault that is repaired, and under a timer. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>

static char from[20000], to[20000];
static char *wall;
static volatile sig_atomic_t repaired, alarms;

static void on_segv(int number)
{
    (void)number;
    repaired++;
    mprotect(wall, 4096, PROT_READ | PROT_WRITE);
}

static void on_alarm(int number)
{
    (void)number;
    alarms++;
    static const struct itimerval once = {.it_value = {.tv_usec = 3000}};
    if (alarms < 4)
        setitimer(ITIMER_REAL, &once, NULL);
}

static void copy(char *target, const char *source, size_t count)
{
    __asm__ volatile("rep movsb" : "+D"(target), "+S"(source), "+c"(count) : : "memory");
}

static void fill(void *target, int value, size_t count)
{
    __asm__ volatile("rep stosb" : "+D"(target), "+c"(count) : "a"(value) : "memory");
}

static size_t scan(const char *place, int value, size_t count)
{
    size_t left = count;
    __asm__ volatile("repne scasb" : "+D"(place), "+c"(left) : "a"(value) : "memory", "cc");
    return count - left;
}

static size_t same(const char *a, const char *b, size_t count)
{
    __asm__ volatile("repe cmpsb" : "+D"(a), "+S"(b), "+c"(count) : : "memory", "cc");
    return count;
}

int main(void)
{
    signal(SIGSEGV, on_segv);
    signal(SIGALRM, on_alarm);
    static const size_t counts[] = {0, 1, 100};
    size_t sum = 0;
    for (int i = 0; i < 3; i++) {
        fill(from, 'a' + i, counts[i]);
        copy(to, from, counts[i]);
        sum += scan(to, 'z', counts[i]);
        sum += same(to, from, counts[i]);
    }
    from[60] = 'z';
    copy(to, from, 100);
    sum += scan(to, 'z', 100);
    to[30] = 'q';
    sum += same(to, from, 100);
    char *target = to + 99;
    const char *source = from + 99;
    size_t count = 100;
    __asm__ volatile("std\n\trep movsb\n\tcld" : "+D"(target), "+S"(source), "+c"(count) : : "memory", "cc");
    uint64_t quads = 12;
    void *place = to;
    __asm__ volatile("rep stosq" : "+D"(place), "+c"(quads) : "a"(0x0101010101010101) : "memory");
    __asm__ volatile("rep lodsb" : "+S"(source), "=c"(count) : "1"(0L) : "rax", "memory");

    wall = (char *)mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 4096;
    mprotect(wall, 4096, PROT_NONE);
    fill(wall - 100, 7, 200); /* stops after 100 of 200, goes on after the handler */
    mprotect(wall, 4096, PROT_NONE);
    copy(wall - 1, from, 2);

    static const struct itimerval once = {.it_value = {.tv_usec = 3000}};
    setitimer(ITIMER_REAL, &once, NULL);
    while (alarms < 4)
        fill(to, alarms, sizeof to); /* one step at a time, these are long */
    printf("sum %zu repaired %d wall %d %d alarms %d\n", sum, (int)repaired, wall[0], wall[99], (int)alarms);
    return 0;
}
