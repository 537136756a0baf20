/* What runs in a guest to make its kernel write code: socket filters, which the kernel translates, one after the other, while
 * another thread sends through the socket. */
#include <linux/filter.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FILTERS = 60 };

static int ends[2];
static atomic_int done;

static void *send_all(void *unused) {
    char byte = 1;
    (void)unused;
    while (!atomic_load(&done))
        send(ends[0], &byte, 1, MSG_DONTWAIT);
    return 0;
}

int main(void) {
    pthread_t sender;
    char byte;
    unsigned attached = 0, received = 0;
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)) {
        puts("no sockets");
        return 1;
    }
    pthread_create(&sender, 0, send_all, 0);
    for (unsigned i = 0; i < FILTERS; i++) {
        /* Of other length and with another result each time. */
        struct sock_filter code[16];
        unsigned count = 0;
        code[count++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_IMM, i);
        for (unsigned j = 0; j < i % 11; j++)
            code[count++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_ADD | BPF_K, j);
        code[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 20, 0, 1);
        code[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
        code[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0xffff);
        struct sock_fprog program = {(unsigned short)count, code};
        attached += !setsockopt(ends[1], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
        for (int j = 0; j < 20; j++)
            received += recv(ends[1], &byte, 1, MSG_DONTWAIT) == 1;
    }
    atomic_store(&done, 1);
    pthread_join(sender, 0);
    printf("filters %u, %s\n", attached, received ? "received" : "nothing received");
    return 0;
}
