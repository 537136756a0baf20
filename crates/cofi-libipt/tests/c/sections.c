/* Blocks of code whose sections end in the middle of a branch ("split"), or go away while decoders use them ("goes").
 * sections WHICH FILE: the code is written to FILE. Prints each block. */
#include <intel-pt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint8_t code[64];
static size_t code_size;
static int refuses_second, asked;

/* A stream that begins at ip: PSB, MODE.Exec (64-bit), FUP, PSBEND, and what follows. */
static size_t begin(uint8_t *stream, uint64_t ip)
{
    size_t size = 0;
    for (int i = 0; i < 8; i++) {
        stream[size++] = 0x02;
        stream[size++] = 0x82;
    }
    stream[size++] = 0x99;
    stream[size++] = 0x01;
    stream[size++] = 0x7d;
    memcpy(stream + size, &ip, 6);
    size += 6;
    stream[size++] = 0x02;
    stream[size++] = 0x23;
    return size;
}

static struct pt_block_decoder *decoder(uint8_t *stream, size_t size)
{
    struct pt_config config;
    pt_config_init(&config);
    config.begin = stream;
    config.end = stream + size;
    return pt_blk_alloc_decoder(&config);
}

static int events(struct pt_block_decoder *decoder, int status)
{
    struct pt_event event;
    while (status > 0 && status & pts_event_pending)
        status = pt_blk_event(decoder, &event, sizeof(event));
    return status;
}

static int next(const char *name, struct pt_block_decoder *decoder)
{
    struct pt_block block;
    memset(&block, 0, sizeof(block));
    int status = pt_blk_next(decoder, &block, sizeof(block));
    if (!block.ninsn) {
        printf("%s nothing -> %d\n", name, status);
        return status;
    }
    printf("%s %lx..%lx %u class %u", name, block.ip, block.end_ip, block.ninsn, block.iclass);
    if (block.truncated)
        printf(" truncated %u bytes %02x", block.size, block.raw[0]);
    printf(" -> %d\n", status);
    return events(decoder, status);
}

/* jmp over one byte, of which the last bytes are in another section; nop; jmp rax. */
static void split(const char *file)
{
    uint8_t stream[64];
    size_t size = begin(stream, 0x1000);
    struct pt_block_decoder *blocks = decoder(stream, size);
    struct pt_image *image = pt_blk_get_image(blocks);
    printf("%d\n", pt_image_add_file(image, file, 0, 3, NULL, 0x1000));
    printf("%d\n", pt_image_add_file(image, file, 3, code_size - 3, NULL, 0x1003));
    int status = events(blocks, pt_blk_sync_forward(blocks));
    for (int i = 0; i < 4 && status >= 0; i++)
        status = next("split", blocks);
    pt_blk_free_decoder(blocks);
}

/* Answers, but for every second time if it is to. */
static int read_code(uint8_t *buffer, size_t size, const struct pt_asid *asid, uint64_t ip, void *context)
{
    (void)asid;
    (void)context;
    if (refuses_second && ++asked % 2 == 0)
        return -pte_nomap;
    if (ip < 0x1000 || ip >= 0x1000 + code_size)
        return -pte_nomap;
    size_t left = 0x1000 + code_size - ip;
    if (size > left)
        size = left;
    memcpy(buffer, code + (ip - 0x1000), size);
    return (int)size;
}

/* Two decoders share an image. The section of the first is gone, and what the second decodes stands where the first one's blocks were kept. */
static void goes(const char *file)
{
    uint8_t streams[2][128];
    struct pt_block_decoder *both[2];
    struct pt_image *image = pt_image_alloc("shared");
    printf("%d\n", pt_image_add_file(image, file, 0, code_size, NULL, 0x1000));
    for (int i = 0; i < 2; i++) {
        size_t size = begin(streams[i], i ? 0x2000 : 0x1000);
        for (int results = 0; results < 40; results++)
            streams[i][size++] = results & 1 ? 0xfe : 0xaa;
        both[i] = decoder(streams[i], size);
        pt_blk_set_image(both[i], image);
        events(both[i], pt_blk_sync_forward(both[i]));
    }
    for (int i = 0; i < 12; i++)
        next("first", both[0]);
    pt_image_remove_by_asid(image, NULL);
    printf("%d\n", pt_image_add_file(image, file, 0, code_size, NULL, 0x2000));
    pt_image_set_callback(image, read_code, NULL);
    for (int i = 0; i < 12; i++)
        next("second", both[1]);
    refuses_second = 1;
    /* (How much of the block is handed out with the error depends on what was asked for before.) */
    struct pt_block block;
    printf("refused -> %d\n", pt_blk_next(both[0], &block, sizeof(block)));
    refuses_second = 0;
    for (int i = 0; i < 6; i++) {
        int status = events(both[0], pt_blk_next(both[0], &block, sizeof(block)));
        printf("then %lx class %u -> %d\n", block.end_ip, block.iclass, status);
    }
    for (int i = 0; i < 2; i++)
        pt_blk_free_decoder(both[i]);
    pt_image_free(image);
}

static void write_code(const char *name, const uint8_t *bytes, size_t size)
{
    FILE *file = fopen(name, "wb");
    if (!file || fwrite(bytes, 1, size, file) != size || fclose(file)) {
        perror(name);
        exit(2);
    }
    memcpy(code, bytes, size);
    code_size = size;
}

int main(int count, char **words)
{
    static const uint8_t jumps[] = {0xe9, 0x01, 0x00, 0x00, 0x00, 0xcc, 0x90, 0xff, 0xe0};
    /* nop, and a conditional branch back; five times. */
    static const uint8_t branches[] = {0x90, 0x75, 0xfd, 0x90, 0x75, 0xfa, 0x90, 0x75,
                                       0xfa, 0x90, 0x75, 0xf4, 0x90, 0x75, 0xf4, 0x90};
    if (count != 3)
        return 2;
    if (strcmp(words[1], "split") == 0) {
        write_code(words[2], jumps, sizeof(jumps));
        split(words[2]);
    } else {
        write_code(words[2], branches, sizeof(branches));
        goes(words[2]);
    }
    return 0;
}
