/* Lists the packets that libipt's packet decoder finds in an Intel PT stream, or measures how fast libipt goes about it.
 *
 *   ptpackets dump STREAM
 *   ptpackets bench STREAM ROUNDS decode|encode|sync
 *
 * `dump` begins at offset 0 and prints one JSON object a line, with the keys of `cofi dump --json`. Every IP packet has one key
 * more, `raw`: its payload as it stands there; `ip` is what this program makes of it by Table 33-18. What libipt does not
 * read is left out, not guessed: `if` of MODE.Exec. Bytes that libipt takes for no packet give {"offset", "size", "error"},
 * and the list goes on at the next PSB. Exit status: 0 without errors, 1 with errors, 2 for wrong usage.
 *
 * `bench` goes over the stream ROUNDS times and prints one JSON object: mode, bytes, packets, errors, checksum, and
 * seconds, the processor time of each pass. What is timed, and what the checksum is of:
 *
 *   decode  every packet, from offset 0 on, into a struct, and from there into the checksum.
 *           sum = rotate_left(sum, 5) ^ (value + ((kind | extra << 5) << 56)), modulo 2^64, beginning with 0;
 *           see `enum kind` and `weigh` for kind, value and extra.
 *   encode  as many packets as fit SLICE structs are decoded, outside the time; encoding them into a buffer is timed.
 *           The checksum is that of all encoded bytes, slice by slice: the little-endian words of 8 bytes, the last one
 *           of a slice filled up with zeros: sum = rotate_left(sum, 5) ^ word. `differing` counts the slices that did
 *           not come out as the bytes they were decoded from.
 *   sync    the search for every PSB in turn: sum = rotate_left(sum, 5) ^ offset, and `packets` counts them.
 */
#define _POSIX_C_SOURCE 199309L
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <intel-pt.h>

/* The packets of one slice of `bench encode`: with their structs they fit a second-level cache. */
#define SLICE 8192
/* The longest packet: PSB. */
#define LONGEST 16

static int usage(const char *what)
{
    fprintf(stderr,
            "ptpackets: %s\nusage: ptpackets dump STREAM | ptpackets bench STREAM ROUNDS decode|encode|sync\n", what);
    return 2;
}

static int refuse(const char *what, int status)
{
    fprintf(stderr, "ptpackets: %s: %s\n", what, pt_errstr(pt_errcode(status)));
    return 2;
}

static uint8_t *slurp(const char *name, size_t *size)
{
    FILE *file = fopen(name, "rb");
    long length;
    uint8_t *bytes;
    if (!file)
        return NULL;
    if (fseek(file, 0, SEEK_END) != 0 || (length = ftell(file)) < 0 || fseek(file, 0, SEEK_SET) != 0) {
        fclose(file);
        return NULL;
    }
    bytes = malloc((size_t)length + 1);
    if (bytes && fread(bytes, 1, (size_t)length, file) != (size_t)length) {
        free(bytes);
        bytes = NULL;
    }
    fclose(file);
    *size = (size_t)length;
    return bytes;
}

/* Moves on to the first PSB behind `offset`; false at the end of the stream. */
static bool resync(struct pt_packet_decoder *decoder, uint64_t offset)
{
    uint64_t now = 0;
    do {
        if (pt_pkt_sync_forward(decoder) < 0 || pt_pkt_get_offset(decoder, &now) < 0)
            return false;
    } while (now <= offset);
    return true;
}

/* What a packet is called; kinds begin with 1, in the order of the names in `cofi dump`'s contract. */
enum kind {
    pad = 1, psb, psbend, ovf, tracestop, tnt_8, tnt_64, tip, tip_pge, tip_pgd, fup, pip, mode_exec, mode_tsx, cbr, tsc,
    mtc, tma, cyc, vmcs, mnt, ptw, exstop, mwait, pwre, pwrx, kinds
};

static const char *const names[kinds] = {
    [pad] = "pad", [psb] = "psb", [psbend] = "psbend", [ovf] = "ovf", [tracestop] = "tracestop", [tnt_8] = "tnt.8",
    [tnt_64] = "tnt.64", [tip] = "tip", [tip_pge] = "tip.pge", [tip_pgd] = "tip.pgd", [fup] = "fup", [pip] = "pip",
    [mode_exec] = "mode.exec", [mode_tsx] = "mode.tsx", [cbr] = "cbr", [tsc] = "tsc", [mtc] = "mtc", [tma] = "tma",
    [cyc] = "cyc", [vmcs] = "vmcs", [mnt] = "mnt", [ptw] = "ptw", [exstop] = "exstop", [mwait] = "mwait",
    [pwre] = "pwre", [pwrx] = "pwrx",
};

static const uint8_t by_type[] = {
    [ppt_pad] = pad, [ppt_psb] = psb, [ppt_psbend] = psbend, [ppt_fup] = fup, [ppt_tip] = tip, [ppt_tip_pge] = tip_pge,
    [ppt_tip_pgd] = tip_pgd, [ppt_tnt_8] = tnt_8, [ppt_tnt_64] = tnt_64, [ppt_mode] = mode_exec, [ppt_pip] = pip,
    [ppt_vmcs] = vmcs, [ppt_cbr] = cbr, [ppt_tsc] = tsc, [ppt_tma] = tma, [ppt_mtc] = mtc, [ppt_cyc] = cyc,
    [ppt_stop] = tracestop, [ppt_ovf] = ovf, [ppt_mnt] = mnt, [ppt_exstop] = exstop, [ppt_mwait] = mwait,
    [ppt_pwre] = pwre, [ppt_pwrx] = pwrx, [ppt_ptw] = ptw,
};

static inline unsigned kind_of(const struct pt_packet *packet)
{
    if (packet->type >= sizeof by_type)
        return 0;
    return by_type[packet->type] + (packet->type == ppt_mode && packet->payload.mode.leaf == pt_mol_tsx);
}

/* Table 33-18. */
static uint64_t reconstruct(uint64_t last, const struct pt_packet_ip *packet)
{
    const uint64_t low16 = 0xffff, low32 = 0xffffffff, low48 = 0xffffffffffff;
    switch (packet->ipc) {
    case pt_ipc_update_16: return (last & ~low16) | packet->ip;
    case pt_ipc_update_32: return (last & ~low32) | packet->ip;
    case pt_ipc_update_48: return (last & ~low48) | packet->ip;
    case pt_ipc_sext_48: return packet->ip >> 47 & 1 ? packet->ip | ~low48 : packet->ip;
    case pt_ipc_full: return packet->ip;
    default: return last; /* suppressed: not a payload */
    }
}

static const char *truth(bool value)
{
    return value ? "true" : "false";
}

static void print_tnt(const struct pt_packet_tnt *tnt)
{
    char bits[65];
    for (int i = 0; i < tnt->bit_size; i++)
        bits[i] = tnt->payload >> (tnt->bit_size - 1 - i) & 1 ? 'T' : 'N';
    bits[tnt->bit_size] = 0;
    printf(",\"bits\":\"%s\"", bits);
}

static void print_mode(const struct pt_packet_mode *mode)
{
    if (mode->leaf == pt_mol_tsx) {
        printf(",\"intx\":%s,\"abort\":%s", truth(mode->bits.tsx.intx), truth(mode->bits.tsx.abrt));
        return;
    }
    switch (pt_get_exec_mode(&mode->bits.exec)) {
    case ptem_16bit: printf(",\"mode\":16"); break;
    case ptem_32bit: printf(",\"mode\":32"); break;
    case ptem_64bit: printf(",\"mode\":64"); break;
    default: printf(",\"mode\":null"); break;
    }
}

static void print_fields(const struct pt_packet *packet, uint64_t *last)
{
    switch (packet->type) {
    case ppt_tnt_8:
    case ppt_tnt_64:
        print_tnt(&packet->payload.tnt);
        break;
    case ppt_tip:
    case ppt_tip_pge:
    case ppt_tip_pgd:
    case ppt_fup: {
        const struct pt_packet_ip *ip = &packet->payload.ip;
        printf(",\"ipc\":%d,\"ip\":", (int)ip->ipc);
        if (ip->ipc == pt_ipc_suppressed) {
            printf("null,\"raw\":null");
            break;
        }
        *last = reconstruct(*last, ip);
        printf("\"0x%" PRIx64 "\",\"raw\":\"0x%" PRIx64 "\"", *last, ip->ip);
        break;
    }
    case ppt_mode:
        print_mode(&packet->payload.mode);
        break;
    case ppt_pip:
        printf(",\"cr3\":\"0x%" PRIx64 "\",\"nr\":%s", packet->payload.pip.cr3, truth(packet->payload.pip.nr));
        break;
    case ppt_vmcs:
        printf(",\"base\":\"0x%" PRIx64 "\"", packet->payload.vmcs.base);
        break;
    case ppt_cbr:
        printf(",\"ratio\":%u", packet->payload.cbr.ratio);
        break;
    case ppt_tsc:
        printf(",\"tsc\":%" PRIu64, packet->payload.tsc.tsc);
        break;
    case ppt_tma:
        printf(",\"ctc\":%u,\"fc\":%u", packet->payload.tma.ctc, packet->payload.tma.fc);
        break;
    case ppt_mtc:
        printf(",\"ctc\":%u", packet->payload.mtc.ctc);
        break;
    case ppt_cyc:
        printf(",\"cycles\":%" PRIu64, packet->payload.cyc.value);
        break;
    case ppt_mnt:
        printf(",\"payload\":\"0x%" PRIx64 "\"", packet->payload.mnt.payload);
        break;
    case ppt_exstop:
        printf(",\"ip\":%s", truth(packet->payload.exstop.ip));
        break;
    case ppt_mwait:
        /* libipt hands out the reserved bits too. */
        printf(",\"hints\":%u,\"ext\":%u", packet->payload.mwait.hints & 0xff, packet->payload.mwait.ext & 3);
        break;
    case ppt_pwre:
        printf(",\"hw\":%s,\"state\":%u,\"sub_state\":%u", truth(packet->payload.pwre.hw), packet->payload.pwre.state,
               packet->payload.pwre.sub_state);
        break;
    case ppt_pwrx: {
        /* libipt has no flag for bit 1, the timer deadline. */
        const struct pt_packet_pwrx *p = &packet->payload.pwrx;
        printf(",\"last\":%u,\"deepest\":%u,\"wake\":%u", p->last, p->deepest,
               (unsigned)(p->interrupt | p->store << 2 | p->autonomous << 3));
        break;
    }
    case ppt_ptw:
        printf(",\"payload\":\"0x%" PRIx64 "\",\"ip\":%s", packet->payload.ptw.payload, truth(packet->payload.ptw.ip));
        break;
    default:
        break;
    }
}

static int dump(struct pt_packet_decoder *decoder, size_t size)
{
    uint64_t last = 0;
    bool errors = false;
    int status = pt_pkt_sync_set(decoder, 0);
    if (status < 0)
        return refuse("the stream", status);
    for (;;) {
        struct pt_packet packet;
        uint64_t offset = 0;
        pt_pkt_get_offset(decoder, &offset);
        if (offset == size)
            break;
        status = pt_pkt_next(decoder, &packet, sizeof packet);
        if (status >= 0) {
            unsigned kind = kind_of(&packet);
            if (kind == psb)
                last = 0;
            /* PTW has a key `size` of its own. */
            if (kind == ptw)
                printf("{\"offset\":%" PRIu64 ",\"length\":%d,\"packet\":\"ptw\",\"size\":%d", offset, status,
                       pt_ptw_size(packet.payload.ptw.plc));
            else
                printf("{\"offset\":%" PRIu64 ",\"size\":%d,\"packet\":\"%s\"", offset, status,
                       kind ? names[kind] : "unknown");
            print_fields(&packet, &last);
            printf("}\n");
            continue;
        }
        uint64_t next = size;
        bool more = resync(decoder, offset);
        if (more)
            pt_pkt_get_offset(decoder, &next);
        printf("{\"offset\":%" PRIu64 ",\"size\":%" PRIu64 ",\"error\":\"%s\"}\n", offset, next - offset,
               pt_errstr(pt_errcode(status)));
        errors = true;
        if (!more)
            break;
    }
    return errors;
}

static uint64_t rotate(uint64_t value)
{
    return value << 5 | value >> 59;
}

/* What a packet adds to the checksum: its payload as libipt gives it, without anything that libipt 2.0.5 reads otherwise than
 * the manual has it (`if` of MODE.Exec, `hw` of PWRE, the deadline of PWRX) and without reserved bits. */
static inline uint64_t weigh(const struct pt_packet *packet)
{
    uint64_t value = 0, extra = 0;
    switch (packet->type) {
    case ppt_tnt_8:
    case ppt_tnt_64:
        value = packet->payload.tnt.payload | (uint64_t)packet->payload.tnt.bit_size << 48;
        break;
    case ppt_tip:
    case ppt_tip_pge:
    case ppt_tip_pgd:
    case ppt_fup:
        value = packet->payload.ip.ip;
        extra = packet->payload.ip.ipc;
        break;
    case ppt_mode:
        value = packet->payload.mode.leaf == pt_mol_exec
                    ? packet->payload.mode.bits.exec.csl | packet->payload.mode.bits.exec.csd << 1
                    : packet->payload.mode.bits.tsx.intx | packet->payload.mode.bits.tsx.abrt << 1;
        break;
    case ppt_pip: value = packet->payload.pip.cr3 | packet->payload.pip.nr; break;
    case ppt_vmcs: value = packet->payload.vmcs.base; break;
    case ppt_cbr: value = packet->payload.cbr.ratio; break;
    case ppt_tsc: value = packet->payload.tsc.tsc; break;
    case ppt_tma: value = packet->payload.tma.ctc | (uint64_t)packet->payload.tma.fc << 16; break;
    case ppt_mtc: value = packet->payload.mtc.ctc; break;
    case ppt_cyc: value = packet->payload.cyc.value; break;
    case ppt_mnt: value = packet->payload.mnt.payload; break;
    case ppt_exstop: value = packet->payload.exstop.ip; break;
    case ppt_mwait:
        value = (packet->payload.mwait.hints & 0xff) | (uint64_t)(packet->payload.mwait.ext & 3) << 32;
        break;
    case ppt_pwre: value = packet->payload.pwre.state << 12 | packet->payload.pwre.sub_state << 8; break;
    case ppt_pwrx:
        value = packet->payload.pwrx.last << 4 | packet->payload.pwrx.deepest | packet->payload.pwrx.interrupt << 8 |
                packet->payload.pwrx.store << 10 | packet->payload.pwrx.autonomous << 11;
        break;
    case ppt_ptw:
        value = packet->payload.ptw.payload;
        extra = packet->payload.ptw.plc | packet->payload.ptw.ip << 2;
        break;
    default: break;
    }
    return value + ((uint64_t)(kind_of(packet) | extra << 5) << 56);
}

/* What came of one pass. */
struct pass {
    uint64_t packets, errors, checksum, differing;
    double seconds;
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void bench_decode(struct pt_packet_decoder *decoder, const struct pt_config *config, struct pass *pass)
{
    uint64_t sum = 0, packets = 0, size = (uint64_t)(config->end - config->begin);
    double begun = now();
    for (;;) {
        struct pt_packet packet;
        if (pt_pkt_next(decoder, &packet, sizeof packet) >= 0) {
            sum = rotate(sum) ^ weigh(&packet);
            packets++;
            continue;
        }
        uint64_t offset = size;
        pt_pkt_get_offset(decoder, &offset);
        if (offset == size)
            break;
        pass->errors++;
        if (!resync(decoder, offset))
            break;
    }
    pass->seconds = now() - begun;
    pass->packets = packets;
    pass->checksum = sum;
}

static void bench_sync(struct pt_packet_decoder *decoder, struct pass *pass)
{
    uint64_t sum = 0, packets = 0, offset;
    double begun = now();
    while (pt_pkt_sync_forward(decoder) >= 0 && pt_pkt_get_offset(decoder, &offset) >= 0) {
        sum = rotate(sum) ^ offset;
        packets++;
    }
    pass->seconds = now() - begun;
    pass->packets = packets;
    pass->checksum = sum;
}

static uint64_t add_bytes(uint64_t sum, const uint8_t *bytes, size_t size)
{
    for (size_t at = 0; at < size; at += 8) {
        uint64_t word = 0;
        for (size_t i = 0; i < 8 && at + i < size; i++)
            word |= (uint64_t)bytes[at + i] << (8 * i);
        sum = rotate(sum) ^ word;
    }
    return sum;
}

static int bench_encode(struct pt_packet_decoder *decoder, const struct pt_config *config, struct pass *pass)
{
    static struct pt_packet packets[SLICE];
    static uint8_t out[SLICE * LONGEST];
    uint64_t size = (uint64_t)(config->end - config->begin);
    struct pt_config room;
    pt_config_init(&room);
    room.begin = out;
    room.end = out + sizeof out;
    struct pt_encoder *encoder = pt_alloc_encoder(&room);
    if (!encoder)
        return -pte_nomem;
    for (bool more = true; more;) {
        uint64_t from = 0, to = 0, written = 0;
        size_t count = 0;
        int status = 0;
        pt_pkt_get_offset(decoder, &from);
        while (count < SLICE && (status = pt_pkt_next(decoder, &packets[count], sizeof packets[count])) >= 0)
            count++;
        pt_pkt_get_offset(decoder, &to);

        pt_enc_sync_set(encoder, 0);
        double begun = now();
        for (size_t i = 0; i < count; i++) {
            int made = pt_enc_next(encoder, &packets[i]);
            if (made < 0) {
                pt_free_encoder(encoder);
                return made;
            }
        }
        pass->seconds += now() - begun;

        pt_enc_get_offset(encoder, &written);
        pass->packets += count;
        pass->checksum = add_bytes(pass->checksum, out, written);
        pass->differing += written != to - from || memcmp(out, config->begin + from, written) != 0;
        if (status < 0) {
            more = to < size && resync(decoder, to);
            pass->errors += to < size;
        }
    }
    pt_free_encoder(encoder);
    return 0;
}

static int bench(const struct pt_config *config, unsigned long rounds, const char *mode)
{
    struct pass first = {0};
    double *seconds = calloc(rounds, sizeof *seconds);
    if (!seconds)
        return usage("too many rounds");
    for (unsigned long round = 0; round < rounds; round++) {
        struct pass pass = {0};
        struct pt_packet_decoder *decoder = pt_pkt_alloc_decoder(config);
        int status = 0;
        if (!decoder)
            return usage("libipt has no decoder for this");
        if (!strcmp(mode, "sync")) {
            bench_sync(decoder, &pass);
        } else {
            status = pt_pkt_sync_set(decoder, 0);
            if (status >= 0 && !strcmp(mode, "decode"))
                bench_decode(decoder, config, &pass);
            else if (status >= 0)
                status = bench_encode(decoder, config, &pass);
        }
        pt_pkt_free_decoder(decoder);
        if (status < 0)
            return refuse(mode, status);
        if (round == 0)
            first = pass;
        else if (pass.packets != first.packets || pass.checksum != first.checksum)
            return usage("two passes found different packets");
        seconds[round] = pass.seconds;
    }
    printf("{\"mode\":\"%s\",\"bytes\":%" PRIu64 ",\"packets\":%" PRIu64 ",\"errors\":%" PRIu64
           ",\"differing\":%" PRIu64 ",\"checksum\":\"0x%" PRIx64 "\",\"seconds\":[",
           mode, (uint64_t)(config->end - config->begin), first.packets, first.errors, first.differing, first.checksum);
    for (unsigned long round = 0; round < rounds; round++)
        printf("%s%.6f", round ? "," : "", seconds[round]);
    printf("]}\n");
    free(seconds);
    return 0;
}

int main(int argc, char **argv)
{
    struct pt_config config;
    unsigned long rounds = 0;
    bool dumping = argc == 3 && !strcmp(argv[1], "dump");
    if (!dumping) {
        if (argc != 5 || strcmp(argv[1], "bench"))
            return usage("what to do?");
        char *rest;
        errno = 0;
        rounds = strtoul(argv[3], &rest, 10);
        if (errno || *rest || rounds == 0)
            return usage("ROUNDS is a number, at least 1");
        if (strcmp(argv[4], "decode") && strcmp(argv[4], "encode") && strcmp(argv[4], "sync"))
            return usage("what to measure?");
    }
    size_t size = 0;
    uint8_t *bytes = slurp(argv[2], &size);
    if (!bytes)
        return usage("cannot read the stream");
    pt_config_init(&config);
    config.begin = bytes;
    config.end = bytes + size;
    int ended;
    if (size == 0) {
        ended = dumping ? 0 : usage("the stream is empty");
    } else if (dumping) {
        struct pt_packet_decoder *decoder = pt_pkt_alloc_decoder(&config);
        ended = decoder ? dump(decoder, size) : usage("libipt has no decoder for this");
        pt_pkt_free_decoder(decoder);
    } else {
        ended = bench(&config, rounds, argv[4]);
    }
    if (fflush(stdout) != 0)
        ended = 2;
    free(bytes);
    return ended;
}
