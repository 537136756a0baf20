/* Calls every function of intel-pt.h, rightly and wrongly, and prints what comes of it: any libipt must print the same.
 *
 *   everything FOLDER    (in which it may write)
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <intel-pt.h>

/* Prints a call and what it returned. */
#define P(call) printf("%s = %d\n", #call, (int)(call))
/* Prints whether a call gave something. */
#define G(call) printf("%s: %s\n", #call, (call) ? "given" : "null")

static uint8_t code[] = {
    0x90,                         /* 1000 nop */
    0x74, 0x02,                   /* 1001 je 1005 */
    0x90, 0x90,                   /* 1003 nop nop */
    0xe8, 0x05, 0x00, 0x00, 0x00, /* 1005 call 100f */
    0xff, 0xe0,                   /* 100a jmp *rax */
    0x0f, 0x05,                   /* 100c syscall */
    0x90,                         /* 100e nop */
    0x90, 0xc3,                   /* 100f nop, ret */
    0xf3, 0x48, 0x0f, 0xae, 0xe0, /* 1011 ptwrite rax */
    0xeb, 0xe8,                   /* 1016 jmp 1000 */
};

static const uint8_t stream[] = {
    2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, /* PSB */
    0x19, 0, 1, 0, 0, 0, 0, 0,                                             /* TSC */
    0x99, 1,                                                               /* MODE.Exec 64 */
    2, 3, 20, 0,                                                           /* CBR */
    0x7d, 0, 0x10, 0, 0, 0, 0,                                             /* FUP 1000 */
    2, 0x23,                                                               /* PSBEND */
    0x0e,                                                                  /* TNT: T T, the return compressed */
    0x2d, 0x11, 0x10,                                                      /* TIP 1011 */
    2, 0x12, 1, 2, 3, 4,                                                   /* PTW */
    0x04,                                                                  /* TNT: N */
    0x3d, 0x0f, 0x10,                                                      /* FUP 100f */
    0x2d, 0x0c, 0x10,                                                      /* TIP 100c */
    0x01,                                                                  /* TIP.PGD */
    2, 0x43, 0, 0x20, 0, 0, 0, 0,                                          /* PIP */
    0x31, 0x00, 0x10,                                                      /* TIP.PGE 1000 */
    2, 0xf3,                                                               /* OVF */
    0x7d, 5, 0x10, 0, 0, 0, 0,                                             /* FUP 1005 */
    0x06,                                                                  /* TNT: T */
};

static int read_code(uint8_t *buffer, size_t size, const struct pt_asid *asid, uint64_t ip, void *context)
{
    if (asid->size != sizeof *asid || context != code || ip < 0x1000 || ip - 0x1000 >= sizeof code)
        return -pte_nomap;
    if (size > sizeof code - (ip - 0x1000))
        size = sizeof code - (ip - 0x1000);
    memcpy(buffer, code + (ip - 0x1000), size);
    return (int)size;
}

static int decode_unknown(struct pt_packet_unknown *unknown, const struct pt_config *config, const uint8_t *pos, void *context)
{
    unknown->packet = pos;
    unknown->priv = context;
    return config->size == sizeof *config ? *(int *)context : -pte_internal;
}

static struct pt_config config_of(const uint8_t *bytes, size_t size)
{
    struct pt_config config;
    pt_config_init(&config);
    config.begin = (uint8_t *)bytes;
    config.end = config.begin + size;
    return config;
}

static void words_and_processors(void)
{
    struct pt_version version = pt_library_version();
    printf("version %u.%u.%u '%s'\n", version.major, version.minor, version.patch, version.ext ? version.ext : "-");
    for (int i = -2; i < 32; i++)
        printf("%d: %s\n", i, pt_errstr((enum pt_error_code)i));
    for (int vendor = 0; vendor < 3; vendor++)
        for (int family = 5; family < 8; family++)
            for (int model = 0; model < 256; model++) {
                struct pt_cpu cpu = {(enum pt_cpu_vendor)vendor, (uint16_t)family, (uint8_t)model, 1};
                struct pt_errata errata;
                uint32_t words[sizeof errata / 4];
                memset(&errata, 0xff, sizeof errata);
                int status = pt_cpu_errata(&errata, &cpu);
                memcpy(words, &errata, sizeof errata);
                if (status >= 0 || model == 0)
                    printf("%d/%d/%x: %d %x %x\n", vendor, family, model, status, words[0], words[1]);
            }
    struct pt_cpu cpu = {pcv_intel, 6, 79, 1};
    P(pt_cpu_errata(NULL, &cpu));
    struct pt_errata errata;
    P(pt_cpu_errata(&errata, NULL));
}

static void configurations(void)
{
    uint8_t room[512];
    for (size_t size = 0; size < 300; size++) {
        struct pt_config config = config_of(stream, sizeof stream);
        config.size = size;
        memset(room, 0, sizeof room);
        memcpy(room, &config, sizeof config);
        struct pt_packet_decoder *pkt = pt_pkt_alloc_decoder((struct pt_config *)(void *)room);
        struct pt_encoder *enc = pt_alloc_encoder((struct pt_config *)(void *)room);
        if (size < 26 || size > 278)
            printf("size %zu: %d %d %zu\n", size, pkt != NULL, enc != NULL, pkt ? pt_pkt_get_config(pkt)->size : 0);
        pt_pkt_free_decoder(pkt);
        pt_free_encoder(enc);
    }
    for (int which = 0; which < 4; which++) {
        struct pt_config config = config_of(stream, sizeof stream);
        if (which == 0)
            config.begin = NULL;
        if (which == 1)
            config.end = NULL;
        if (which == 2)
            config.end = config.begin - 1;
        if (which == 3)
            config.end = config.begin;
        struct pt_query_decoder *qry = pt_qry_alloc_decoder(&config);
        struct pt_insn_decoder *insn = pt_insn_alloc_decoder(&config);
        struct pt_block_decoder *blk = pt_blk_alloc_decoder(&config);
        printf("configuration %d: %d %d %d\n", which, qry != NULL, insn != NULL, blk != NULL);
        if (which == 3) {
            P(pt_qry_sync_forward(qry, NULL));
            P(pt_insn_sync_forward(insn));
            P(pt_blk_sync_backward(blk));
        }
        pt_qry_free_decoder(qry);
        pt_insn_free_decoder(insn);
        pt_blk_free_decoder(blk);
    }
    G(pt_alloc_encoder(NULL));
    G(pt_pkt_alloc_decoder(NULL));
    G(pt_qry_alloc_decoder(NULL));
    G(pt_insn_alloc_decoder(NULL));
    G(pt_blk_alloc_decoder(NULL));
    pt_free_encoder(NULL);
    pt_pkt_free_decoder(NULL);
    pt_qry_free_decoder(NULL);
    pt_insn_free_decoder(NULL);
    pt_blk_free_decoder(NULL);
}

static void encoder(void)
{
    uint8_t buffer[32] = {0};
    struct pt_config config = config_of(buffer, sizeof buffer);
    struct pt_encoder *enc = pt_alloc_encoder(&config);
    uint64_t offset = 77, random = 88172645463325252;
    printf("config %d\n", pt_enc_get_config(enc)->begin == buffer);
    for (int type = 0; type < 30; type++)
        for (int round = 0; round < 40; round++) {
            struct pt_packet packet;
            uint8_t *bytes = (uint8_t *)&packet.payload;
            memset(&packet, 0, sizeof packet);
            packet.type = (enum pt_packet_type)type;
            for (size_t i = 0; i < sizeof packet.payload; i++) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                bytes[i] = round & 1 ? (uint8_t)random : (uint8_t)(random & 3);
            }
            if (type >= ppt_fup && type <= ppt_tip_pgd)
                packet.payload.ip.ipc = (enum pt_ip_compression)(round & 7);
            if (type == ppt_tnt_8 || type == ppt_tnt_64) {
                /* None at all, and more than there is room for; in every third round more than it says. */
                packet.payload.tnt.bit_size = (uint8_t)(round * 3 / 2);
                if (round % 3)
                    packet.payload.tnt.payload &= ((uint64_t)1 << packet.payload.tnt.bit_size) - 1;
            }
            if (type == ppt_mode)
                packet.payload.mode.leaf = round & 4 ? pt_mol_tsx : round == 10 ? (enum pt_mode_leaf)0x40 : pt_mol_exec;
            if (type == ppt_ptw)
                packet.payload.ptw.plc = (uint8_t)(round & 3);
            if (type == ppt_tma)
                packet.payload.tma.fc &= 0x3ff;
            memset(buffer, 0xa5, sizeof buffer);
            pt_enc_sync_set(enc, 0);
            int size = pt_enc_next(enc, &packet);
            pt_enc_get_offset(enc, &offset);
            printf("encode %d: %d @%" PRIu64 ":", type, size, offset);
            for (int i = 0; i < 17; i++)
                printf(" %02x", buffer[i]);
            puts("");
        }
    struct pt_packet packet = {.type = ppt_psb};
    P(pt_enc_sync_set(enc, 16));
    P(pt_enc_next(enc, &packet));
    P(pt_enc_next(enc, &packet));
    P(pt_enc_sync_set(enc, 32));
    P(pt_enc_sync_set(enc, 33));
    P(pt_enc_sync_set(NULL, 0));
    P(pt_enc_next(NULL, &packet));
    P(pt_enc_next(enc, NULL));
    P(pt_enc_get_offset(NULL, &offset));
    P(pt_enc_get_offset(enc, NULL));
    G(pt_enc_get_config(NULL));
    pt_free_encoder(enc);
}

static void packet_decoder(void)
{
    struct pt_config config = config_of(stream, sizeof stream);
    struct pt_packet_decoder *pkt = pt_pkt_alloc_decoder(&config);
    struct pt_packet packet;
    uint64_t offset = 77;
    P(pt_pkt_next(pkt, &packet, sizeof packet));
    P(pt_pkt_get_offset(pkt, &offset));
    P(pt_pkt_get_sync_offset(pkt, &offset));
    P(pt_pkt_sync_backward(pkt));
    P(pt_pkt_sync_forward(pkt));
    P(pt_pkt_sync_set(pkt, 24));
    P(pt_pkt_get_sync_offset(pkt, &offset));
    P(pt_pkt_sync_set(pkt, sizeof stream + 1));
    P(pt_pkt_next(pkt, &packet, sizeof packet));
    P(pt_pkt_next(pkt, &packet, 8));
    P(pt_pkt_next(pkt, &packet, 0));
    P(pt_pkt_next(pkt, NULL, sizeof packet));
    P(pt_pkt_next(NULL, &packet, sizeof packet));
    P(pt_pkt_sync_forward(NULL));
    P(pt_pkt_sync_backward(NULL));
    P(pt_pkt_sync_set(NULL, 0));
    P(pt_pkt_get_offset(NULL, &offset));
    P(pt_pkt_get_offset(pkt, NULL));
    P(pt_pkt_get_sync_offset(NULL, &offset));
    P(pt_pkt_get_sync_offset(pkt, NULL));
    G(pt_pkt_get_config(NULL));
    pt_pkt_free_decoder(pkt);
    static const uint8_t strange[] = {0x02, 0x63, 0x00, 0x00};
    for (int len = -3; len < 7; len++) {
        if (len == 0)
            continue;
        config = config_of(strange, sizeof strange);
        config.decode.callback = decode_unknown;
        config.decode.context = &len;
        pkt = pt_pkt_alloc_decoder(&config);
        pt_pkt_sync_set(pkt, 0);
        int status = pt_pkt_next(pkt, &packet, sizeof packet);
        pt_pkt_get_offset(pkt, &offset);
        printf("unknown %d: %d @%" PRIu64 "\n", len, status, offset);
        if (status > 0)
            printf("  %d %d %d\n", packet.type, packet.payload.unknown.packet == strange, packet.payload.unknown.priv == &len);
        pt_pkt_free_decoder(pkt);
    }
}

static void query_decoder(void)
{
    struct pt_config config = config_of(stream, sizeof stream);
    struct pt_query_decoder *qry = pt_qry_alloc_decoder(&config);
    struct pt_event event;
    uint64_t ip = 77, offset = 77, time = 77;
    uint32_t mtc, cyc, ratio;
    int taken = 77;
    P(pt_qry_cond_branch(qry, &taken));
    P(pt_qry_indirect_branch(qry, &ip));
    P(pt_qry_event(qry, &event, sizeof event));
    P(pt_qry_get_offset(qry, &offset));
    P(pt_qry_get_sync_offset(qry, &offset));
    P(pt_qry_time(qry, &time, &mtc, &cyc));
    P(pt_qry_core_bus_ratio(qry, &ratio));
    P(pt_qry_sync_set(qry, &ip, 3));
    P(pt_qry_sync_set(qry, &ip, sizeof stream));
    P(pt_qry_sync_set(qry, &ip, 0));
    P(pt_qry_sync_forward(qry, &ip));
    P(pt_qry_sync_set(qry, NULL, 0));
    P(pt_qry_event(qry, &event, 8));
    P(pt_qry_event(qry, &event, sizeof event));
    P(pt_qry_event(qry, &event, sizeof event));
    P(pt_qry_event(qry, &event, sizeof event));
    P(pt_qry_indirect_branch(qry, NULL));
    P(pt_qry_cond_branch(qry, NULL));
    P(pt_qry_cond_branch(qry, &taken));
    P(taken);
    P(pt_qry_time(qry, &time, NULL, NULL));
    P(pt_qry_time(qry, NULL, &mtc, &cyc));
    P(pt_qry_time(NULL, &time, &mtc, &cyc));
    P(pt_qry_core_bus_ratio(qry, &ratio));
    P(ratio);
    P(pt_qry_core_bus_ratio(qry, NULL));
    P(pt_qry_core_bus_ratio(NULL, &ratio));
    P(pt_qry_event(qry, NULL, sizeof event));
    P(pt_qry_event(NULL, &event, sizeof event));
    P(pt_qry_cond_branch(NULL, &taken));
    P(pt_qry_indirect_branch(NULL, &ip));
    P(pt_qry_sync_forward(NULL, &ip));
    P(pt_qry_sync_backward(NULL, &ip));
    P(pt_qry_sync_set(NULL, &ip, 0));
    P(pt_qry_get_offset(NULL, &offset));
    P(pt_qry_get_offset(qry, NULL));
    P(pt_qry_get_sync_offset(NULL, &offset));
    P(pt_qry_get_sync_offset(qry, NULL));
    G(pt_qry_get_config(NULL));
    printf("config %d\n", pt_qry_get_config(qry)->end == config.end);
    pt_qry_free_decoder(qry);
}

/* The functions that the decoders of instructions and of blocks have alike. */
#define FLOW(p, decoder_type, item)                                                                                                   \
    static void p##_functions(void)                                                                                           \
    {                                                                                                                         \
        struct pt_config config = config_of(stream, sizeof stream);                                                           \
        struct decoder_type *decoder = pt_##p##_alloc_decoder(&config);                                                               \
        struct pt_image *image = pt_image_alloc(NULL), *own = pt_##p##_get_image(decoder);                                    \
        struct pt_asid asid;                                                                                                  \
        struct pt_event event;                                                                                                \
        struct item next;                                                                                                     \
        uint64_t offset = 77, time = 77;                                                                                      \
        uint32_t mtc, cyc, ratio;                                                                                             \
        P(pt_##p##_get_offset(decoder, &offset));                                                                             \
        P(pt_##p##_get_sync_offset(decoder, &offset));                                                                        \
        P(pt_##p##_time(decoder, &time, &mtc, &cyc));                                                                         \
        P(pt_##p##_core_bus_ratio(decoder, &ratio));                                                                          \
        P(pt_##p##_set_image(decoder, image));                                                                                \
        P(pt_##p##_get_image(decoder) == image);                                                                              \
        P(pt_image_set_callback(image, read_code, code));                                                                     \
        P(pt_##p##_sync_set(decoder, sizeof stream));                                                                         \
        P(pt_##p##_sync_set(decoder, 5));                                                                                     \
        P(pt_##p##_sync_forward(decoder));                                                                                    \
        P(pt_##p##_get_sync_offset(decoder, &offset));                                                                        \
        pt_asid_init(&asid);                                                                                                  \
        P(pt_##p##_asid(decoder, &asid, sizeof asid));                                                                        \
        P(asid.size == sizeof asid && asid.cr3 == pt_asid_no_cr3);                                                            \
        P(pt_##p##_asid(decoder, NULL, sizeof asid));                                                                         \
        P(pt_##p##_asid(NULL, &asid, sizeof asid));                                                                           \
        P(pt_##p##_event(decoder, NULL, sizeof event));                                                                       \
        P(pt_##p##_event(NULL, &event, sizeof event));                                                                        \
        P(pt_##p##_next(decoder, NULL, sizeof next));                                                                         \
        P(pt_##p##_next(NULL, &next, sizeof next));                                                                           \
        P(pt_##p##_get_offset(NULL, &offset));                                                                                \
        P(pt_##p##_get_offset(decoder, NULL));                                                                                \
        P(pt_##p##_get_sync_offset(NULL, &offset));                                                                           \
        P(pt_##p##_get_sync_offset(decoder, NULL));                                                                           \
        P(pt_##p##_time(NULL, &time, &mtc, &cyc));                                                                            \
        P(pt_##p##_time(decoder, NULL, &mtc, &cyc));                                                                          \
        P(pt_##p##_core_bus_ratio(NULL, &ratio));                                                                             \
        P(pt_##p##_core_bus_ratio(decoder, NULL));                                                                            \
        P(pt_##p##_sync_forward(NULL));                                                                                       \
        P(pt_##p##_sync_backward(NULL));                                                                                      \
        P(pt_##p##_sync_set(NULL, 0));                                                                                        \
        P(pt_##p##_set_image(NULL, image));                                                                                   \
        G(pt_##p##_get_image(NULL));                                                                                          \
        G(pt_##p##_get_config(NULL));                                                                                         \
        P(pt_##p##_get_config(decoder)->begin == stream);                                                                     \
        P(pt_##p##_set_image(decoder, NULL));                                                                                 \
        P(pt_##p##_get_image(decoder) == own);                                                                                \
        P(pt_image_set_callback(own, read_code, code));                                                                       \
        int status = pt_##p##_sync_set(decoder, 0);                                                                           \
        printf(#p " begins: %d\n", status);                                                                                   \
        while (status >= 0) {                                                                                                 \
            memset(&event, 0, sizeof event);                                                                                  \
            memset(&next, 0, sizeof next);                                                                                    \
            if (status & pts_event_pending) {                                                                                 \
                status = pt_##p##_event(decoder, &event, sizeof event);                                                       \
                printf(#p " event %d: %d\n", event.type, status);                                                             \
            } else {                                                                                                          \
                status = pt_##p##_next(decoder, &next, sizeof next);                                                          \
                print_##p(&next, status);                                                                                     \
            }                                                                                                                 \
        }                                                                                                                     \
        P(pt_##p##_asid(decoder, &asid, sizeof asid));                                                                        \
        printf("cr3 %" PRIx64 "\n", asid.cr3);                                                                                \
        pt_##p##_free_decoder(decoder);                                                                                       \
        pt_image_free(image);                                                                                                 \
    }

static void print_insn(const struct pt_insn *insn, int status)
{
    printf("insn %" PRIx64 " class %d mode %d size %d: %d\n", insn->ip, insn->iclass, insn->mode, insn->size, status);
}

static void print_blk(const struct pt_block *block, int status)
{
    printf("block %" PRIx64 "..%" PRIx64 " mode %d %d instructions: %d\n", block->ip, block->end_ip, block->mode, block->ninsn, status);
}

FLOW(insn, pt_insn_decoder, pt_insn)
FLOW(blk, pt_block_decoder, pt_block)

static void file(const char *name, size_t size)
{
    FILE *out = fopen(name, "wb");
    for (size_t i = 0; out && i < size; i++)
        fputc((int)(i * 7 & 0xff), out);
    if (out)
        fclose(out);
}

static void section_cache(void)
{
    struct pt_image_section_cache *cache = pt_iscache_alloc("a name"), *nameless = pt_iscache_alloc(NULL);
    uint8_t buffer[64] = {0};
    puts(pt_iscache_name(cache));
    G(pt_iscache_name(nameless));
    G(pt_iscache_name(NULL));
    P(pt_iscache_set_limit(NULL, 1));
    P(pt_iscache_set_limit(cache, 100000));
    P(pt_iscache_add_file(NULL, "f1", 0, 100, 0x1000));
    P(pt_iscache_add_file(cache, NULL, 0, 100, 0x1000));
    P(pt_iscache_add_file(cache, "none", 0, 100, 0x1000));
    P(pt_iscache_add_file(cache, "f0", 0, 100, 0x1000));
    P(pt_iscache_add_file(cache, "f1", 0, 100, 0x1000));
    P(pt_iscache_add_file(cache, "f1", 0, 100, 0x1000));
    P(pt_iscache_add_file(cache, "f1", 0, 100, 0x2000));
    P(pt_iscache_add_file(cache, "f1", 999, 100, 0x1000));
    P(pt_iscache_add_file(cache, "f1", 999, 1, 0x1000));
    P(pt_iscache_add_file(cache, "f1", 1000, 1, 0x1000));
    P(pt_iscache_add_file(cache, "f1", 0, UINT64_MAX, 0x1000));
    P(pt_iscache_read(NULL, buffer, 10, 1, 0x1000));
    P(pt_iscache_read(cache, NULL, 10, 1, 0x1000));
    P(pt_iscache_read(cache, buffer, 0, 1, 0x1000));
    P(pt_iscache_read(cache, buffer, 10, 99, 0x1000));
    P(pt_iscache_read(cache, buffer, 10, 0, 0x1000));
    P(pt_iscache_read(cache, buffer, 10, -1, 0x1000));
    P(pt_iscache_read(cache, buffer, 10, 1, 0x1001));
    P(buffer[0] == 7 && buffer[9] == 70 && buffer[10] == 0);
    P(pt_iscache_read(cache, buffer, 10, 1, 0xfff));
    P(pt_iscache_read(cache, buffer, 10, 1, 0x1063));
    P(pt_iscache_read(cache, buffer, 10, 1, 0x1064));
    pt_iscache_free(cache);
    pt_iscache_free(nameless);
    pt_iscache_free(NULL);
}

static void images(void)
{
    struct pt_image_section_cache *cache = pt_iscache_alloc(NULL);
    struct pt_image *image = pt_image_alloc("an image"), *other = pt_image_alloc(NULL);
    struct pt_asid one, two, guest;
    pt_asid_init(&one);
    pt_asid_init(&two);
    pt_asid_init(&guest);
    one.cr3 = 0x1000;
    two.cr3 = 0x2000;
    guest.vmcs = 0x5000;
    puts(pt_image_name(image));
    G(pt_image_name(other));
    G(pt_image_name(NULL));
    int isid = pt_iscache_add_file(cache, "f2", 0, 100, 0x1000);
    P(pt_image_add_file(NULL, "f1", 0, 100, NULL, 0x1000));
    P(pt_image_add_file(image, NULL, 0, 100, NULL, 0x1000));
    P(pt_image_add_file(image, "none", 0, 100, NULL, 0x1000));
    P(pt_image_add_file(image, "f0", 0, 100, NULL, 0x1000));
    P(pt_image_add_file(image, "f1", 1000, 100, NULL, 0x1000));
    P(pt_image_add_file(image, "f1", 0, 100, NULL, 0x1000));
    P(pt_image_add_file(image, "f1", 0, 100, &one, 0x3000));
    P(pt_image_add_file(image, "f1", 0, 100, &two, 0x3000));
    P(pt_image_add_file(image, "f1", 0, 100, &guest, 0x5000));
    P(pt_image_copy(other, image));
    P(pt_image_copy(NULL, image));
    P(pt_image_copy(other, NULL));
    P(pt_image_remove_by_filename(image, "f1", &one));
    P(pt_image_remove_by_filename(image, "f1", &two));
    P(pt_image_remove_by_filename(image, "f1", NULL));
    P(pt_image_remove_by_filename(NULL, "f1", NULL));
    P(pt_image_remove_by_filename(image, NULL, NULL));
    P(pt_image_remove_by_asid(other, &two));
    P(pt_image_remove_by_asid(other, NULL));
    P(pt_image_remove_by_asid(NULL, NULL));
    P(pt_image_add_cached(NULL, cache, isid, NULL));
    P(pt_image_add_cached(image, NULL, isid, NULL));
    P(pt_image_add_cached(image, cache, 99, NULL));
    P(pt_image_add_cached(image, cache, 0, NULL));
    P(pt_image_add_cached(image, cache, isid, NULL));
    P(pt_image_add_cached(image, cache, isid, NULL));
    P(pt_image_remove_by_filename(image, "f2", NULL));
    /* What is added takes the place of what it overlaps: in the middle, at both ends, as a whole. */
    P(pt_image_add_file(image, "f1", 0, 1000, NULL, 0x1000));
    P(pt_image_add_file(image, "f2", 0, 16, NULL, 0x1100));
    P(pt_image_add_file(image, "f2", 0, 100, NULL, 0xff0));
    P(pt_image_remove_by_filename(image, "f2", NULL));
    P(pt_image_remove_by_filename(image, "f1", NULL));
    P(pt_image_add_file(image, "f1", 0, 1000, &one, 0x1000));
    P(pt_image_add_file(image, "f2", 0, 1000, NULL, 0x1000));
    P(pt_image_remove_by_filename(image, "f1", &one));
    P(pt_image_remove_by_filename(image, "f2", NULL));
    P(pt_image_set_callback(NULL, read_code, NULL));
    P(pt_image_set_callback(image, read_code, code));
    P(pt_image_set_callback(image, NULL, NULL));
    pt_image_free(image);
    pt_image_free(other);
    pt_image_free(NULL);
    pt_iscache_free(cache);
}

int main(int argc, char **argv)
{
    if (argc < 2 || chdir(argv[1]) != 0)
        return 2;
    file("f0", 0);
    file("f1", 1000);
    file("f2", 500);
    words_and_processors();
    configurations();
    encoder();
    packet_decoder();
    query_decoder();
    insn_functions();
    blk_functions();
    section_cache();
    images();
    return 0;
}
