/* Prints everything that a libipt's decoders report of a stream, a line an item, so that two libraries can be compared.
 *
 *   flow LEVEL [OPTION...] STREAM [FILE:OFFSET:SIZE:ADDRESS...]
 *
 * LEVEL is `packets`, `queries`, `insns`, or `blocks`. Each item is printed with the status, the offset, the time and the core:bus ratio behind it.
 *   --cpu FAMILY/MODEL   --mtc-freq N   --nom-freq N   --cpuid-15 EAX,EBX
 *   --errata NAME  works around one erratum ("skd010"), again for others
 *   --ticks   --end-on-call   --end-on-jump
 *   --ends         of blocks, prints only where each ends, and the class of its last instruction
 *   --callback     the code is read by a callback, not from sections
 *   --plain        sections are added by pt_image_add_file, without a cache
 *   --change N     behind every N-th instruction or block the image is changed for another of the same code, or filled anew and used by another decoder
 *   --unknown      unknown packets are skipped by a callback, a byte each
 *   --backward     synchronises backward from the end, after each error and after LIMIT items, fifty times
 *   --damage SEED,COUNT   changes COUNT bytes of the stream first
 *   --limit N      so many items a synchronisation
 *   --range N,KIND,A,B   sets a range of addresses (addrN): KIND 1 filters, 2 stops
 *   --no-time      leaves out the time
 *   --digest       one line at the end: how many lines there were, and a digest of them
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <intel-pt.h>

static bool digest, no_time;
static uint64_t lines, sum = 0xcbf29ce484222325;

static void say(const char *format, ...)
{
    char line[512];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (!digest) {
        puts(line);
        return;
    }
    lines++;
    for (int i = 0; i < length && i < (int)sizeof line; i++)
        sum = (sum ^ (uint8_t)line[i]) * 0x100000001b3;
}

struct section {
    const char *file;
    uint64_t offset, size, address;
    uint8_t *bytes;
};

static struct section sections[512];
static size_t section_count;
static struct pt_image_section_cache *cache;
static bool plain, by_callback, backward, ends_alone;
static uint64_t limit = UINT64_MAX, change_every;
static int syncs;

/* Whether to synchronise once more: backward, a decoder may come to the same PSB again and again. */
static bool once_more(void)
{
    return !backward || syncs++ < 50;
}

static uint8_t *slurp(const char *name, size_t *size)
{
    FILE *file = fopen(name, "rb");
    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    uint8_t *bytes = malloc((size_t)length + 1);
    *size = bytes ? fread(bytes, 1, (size_t)length, file) : 0;
    fclose(file);
    return bytes;
}

static int read_code(uint8_t *buffer, size_t size, const struct pt_asid *asid, uint64_t ip, void *context)
{
    (void)context;
    if (asid->size != sizeof *asid)
        return -pte_invalid;
    for (size_t i = section_count; i-- > 0;) {
        const struct section *section = &sections[i];
        if (ip < section->address || ip - section->address >= section->size)
            continue;
        uint64_t at = ip - section->address;
        if (size > section->size - at)
            size = section->size - at;
        memcpy(buffer, section->bytes + at, size);
        return (int)size;
    }
    return -pte_nomap;
}

static int skip_unknown(struct pt_packet_unknown *unknown, const struct pt_config *config, const uint8_t *pos, void *context)
{
    (void)config;
    unknown->packet = pos;
    unknown->priv = context;
    return 1;
}

static bool fill(struct pt_image *image)
{
    int status = 0;
    if (by_callback) {
        status = pt_image_set_callback(image, read_code, NULL);
        return status >= 0;
    }
    for (size_t i = 0; i < section_count && status >= 0; i++) {
        const struct section *s = &sections[i];
        if (plain) {
            status = pt_image_add_file(image, s->file, s->offset, s->size, NULL, s->address);
        } else {
            status = pt_iscache_add_file(cache, s->file, s->offset, s->size, s->address);
            if (status > 0)
                status = pt_image_add_cached(image, cache, status, NULL);
        }
        if (status < 0)
            say("section %s: %s", s->file, pt_errstr(pt_errcode(status)));
    }
    return status >= 0;
}

/* Has another decoder of the stream look in an image for the first `count` instructions or blocks. */
#define SEARCH(name, type, item_type, prefix)                                                                                  \
    static void name(const struct pt_config *config, struct pt_image *image, uint64_t count)                                  \
    {                                                                                                                         \
        type *decoder = prefix##alloc_decoder(config);                                                                        \
        int status = decoder ? prefix##set_image(decoder, image) : -pte_nomem;                                                \
        if (status >= 0)                                                                                                      \
            status = prefix##sync_forward(decoder);                                                                           \
        for (uint64_t n = 0; n < count && status >= 0; n++) {                                                                 \
            struct pt_event event;                                                                                            \
            item_type item;                                                                                                   \
            while (status >= 0 && status & pts_event_pending)                                                                 \
                status = prefix##event(decoder, &event, sizeof event);                                                        \
            if (status >= 0)                                                                                                  \
                status = prefix##next(decoder, &item, sizeof item);                                                           \
        }                                                                                                                     \
        prefix##free_decoder(decoder);                                                                                        \
    }

SEARCH(search_insns, struct pt_insn_decoder, struct pt_insn, pt_insn_)
SEARCH(search_blocks, struct pt_block_decoder, struct pt_block, pt_blk_)

/* The image that a decoder is to have next, having handed out `item` instructions or blocks: NULL is its own. `false` if nothing changes. */
static bool change(const struct pt_config *config, uint64_t item, struct pt_image *own, struct pt_image *other, struct pt_image **next)
{
    if (!change_every || item % change_every)
        return false;
    uint64_t turn = item / change_every % 4;
    *next = turn < 2 ? other : NULL;
    /* (Another number of them each time: a decoder that takes what it knew of the image before for what is there now goes astray.) */
    if (turn % 2) {
        struct pt_image *image = turn == 1 ? other : own;
        if (!fill(image))
            say("not filled");
        search_insns(config, image, item * 37 % 1500);
        search_blocks(config, image, item * 41 % 500);
    }
    return turn % 2 == 0;
}

static const char *status_name(int status)
{
    static char text[16];
    if (status < 0)
        return pt_errstr(pt_errcode(status));
    snprintf(text, sizeof text, "%d", status);
    return text;
}

struct more {
    char text[160];
};

#define MORE(name, type, get_offset, get_sync, get_time, get_cbr)                                                              \
    static struct more name(type *decoder)                                                                                    \
    {                                                                                                                         \
        struct more more;                                                                                                     \
        uint64_t offset = 77, sync = 77, time = 77;                                                                           \
        uint32_t mtc = 77, cyc = 77, cbr = 77;                                                                                \
        int a = get_offset(decoder, &offset), b = get_sync(decoder, &sync), c = get_time(decoder, &time, &mtc, &cyc),        \
            d = get_cbr(decoder, &cbr);                                                                                       \
        if (no_time) {                                                                                                        \
            snprintf(more.text, sizeof more.text, "@%" PRIu64 ",%d sync %" PRIu64 ",%d cbr %u,%d", offset, a, sync, b, cbr, d); \
            return more;                                                                                                      \
        }                                                                                                                     \
        snprintf(more.text, sizeof more.text, "@%" PRIu64 ",%d sync %" PRIu64 ",%d time %" PRIu64 ",%u,%u,%d cbr %u,%d", offset, a, sync, b, time, \
                 mtc, cyc, c, cbr, d);                                                                                        \
        return more;                                                                                                          \
    }

MORE(qry_more, struct pt_query_decoder, pt_qry_get_offset, pt_qry_get_sync_offset, pt_qry_time, pt_qry_core_bus_ratio)
MORE(insn_more, struct pt_insn_decoder, pt_insn_get_offset, pt_insn_get_sync_offset, pt_insn_time, pt_insn_core_bus_ratio)
MORE(blk_more, struct pt_block_decoder, pt_blk_get_offset, pt_blk_get_sync_offset, pt_blk_time, pt_blk_core_bus_ratio)

static void say_event(const struct pt_event *e, const char *status, const char *more)
{
    char what[200];
    switch (e->type) {
#define CASE(name, ...) case ptev_##name: snprintf(what, sizeof what, #name " " __VA_ARGS__); break
    CASE(enabled, "%" PRIx64 " resumed %u", e->variant.enabled.ip, e->variant.enabled.resumed);
    CASE(disabled, "%" PRIx64, e->ip_suppressed ? 0 : e->variant.disabled.ip);
    CASE(async_disabled, "%" PRIx64 " from %" PRIx64, e->ip_suppressed ? 0 : e->variant.async_disabled.ip, e->variant.async_disabled.at);
    CASE(async_branch, "%" PRIx64 " from %" PRIx64, e->ip_suppressed ? 0 : e->variant.async_branch.to, e->variant.async_branch.from);
    CASE(paging, "%" PRIx64 " %u", e->variant.paging.cr3, e->variant.paging.non_root);
    CASE(async_paging, "%" PRIx64 " %u at %" PRIx64, e->variant.async_paging.cr3, e->variant.async_paging.non_root, e->ip_suppressed ? 0 : e->variant.async_paging.ip);
    CASE(overflow, "%" PRIx64, e->ip_suppressed ? 0 : e->variant.overflow.ip);
    CASE(exec_mode, "%d at %" PRIx64, e->variant.exec_mode.mode, e->ip_suppressed ? 0 : e->variant.exec_mode.ip);
    CASE(tsx, "%u %u at %" PRIx64, e->variant.tsx.speculative, e->variant.tsx.aborted, e->ip_suppressed ? 0 : e->variant.tsx.ip);
    CASE(stop, "-");
    CASE(vmcs, "%" PRIx64, e->variant.vmcs.base);
    CASE(async_vmcs, "%" PRIx64 " at %" PRIx64, e->variant.async_vmcs.base, e->ip_suppressed ? 0 : e->variant.async_vmcs.ip);
    CASE(exstop, "%" PRIx64, e->ip_suppressed ? 0 : e->variant.exstop.ip);
    CASE(mwait, "%" PRIx64 " %x %x", e->ip_suppressed ? 0 : e->variant.mwait.ip, e->variant.mwait.hints, e->variant.mwait.ext);
    CASE(pwre, "%u %u %u", e->variant.pwre.state, e->variant.pwre.sub_state, e->variant.pwre.hw);
    CASE(pwrx, "%u %u %u %u %u", e->variant.pwrx.last, e->variant.pwrx.deepest, e->variant.pwrx.interrupt, e->variant.pwrx.store, e->variant.pwrx.autonomous);
    CASE(ptwrite, "%" PRIx64 " size %u %" PRIx64, e->ip_suppressed ? 0 : e->variant.ptwrite.ip, e->variant.ptwrite.size, e->variant.ptwrite.payload);
    CASE(tick, "%" PRIx64, e->ip_suppressed ? 0 : e->variant.tick.ip);
    CASE(cbr, "%u", e->variant.cbr.ratio);
    CASE(mnt, "%" PRIx64, e->variant.mnt.payload);
    default: snprintf(what, sizeof what, "%d", e->type);
    }
    if (no_time) {
        say("  event %s ips %u su %u -> %s %s", what, e->ip_suppressed, e->status_update, status, more);
        return;
    }
    say("  event %s ips %u su %u tsc %u %" PRIu64 ",%u,%u -> %s %s", what, e->ip_suppressed, e->status_update, e->has_tsc,
        e->has_tsc ? e->tsc : 0, e->lost_mtc, e->lost_cyc, status, more);
}

static void say_packet(const struct pt_packet *p, uint64_t offset, uint64_t sync)
{
    char what[200] = "";
    switch (p->type) {
#define SHOW(name, ...) case ppt_##name: snprintf(what, sizeof what, __VA_ARGS__); break
    SHOW(tnt_8, "%u %" PRIx64, p->payload.tnt.bit_size, p->payload.tnt.payload);
    SHOW(tnt_64, "%u %" PRIx64, p->payload.tnt.bit_size, p->payload.tnt.payload);
    SHOW(tip, "%d %" PRIx64, p->payload.ip.ipc, p->payload.ip.ip);
    SHOW(tip_pge, "%d %" PRIx64, p->payload.ip.ipc, p->payload.ip.ip);
    SHOW(tip_pgd, "%d %" PRIx64, p->payload.ip.ipc, p->payload.ip.ip);
    SHOW(fup, "%d %" PRIx64, p->payload.ip.ipc, p->payload.ip.ip);
    SHOW(mode, "%d %u %u", p->payload.mode.leaf, p->payload.mode.bits.exec.csl, p->payload.mode.bits.exec.csd);
    SHOW(pip, "%" PRIx64 " %u", p->payload.pip.cr3, p->payload.pip.nr);
    SHOW(tsc, "%" PRIx64, p->payload.tsc.tsc);
    SHOW(cbr, "%u", p->payload.cbr.ratio);
    SHOW(tma, "%u %u", p->payload.tma.ctc, p->payload.tma.fc);
    SHOW(mtc, "%u", p->payload.mtc.ctc);
    SHOW(cyc, "%" PRIx64, p->payload.cyc.value);
    SHOW(vmcs, "%" PRIx64, p->payload.vmcs.base);
    SHOW(mnt, "%" PRIx64, p->payload.mnt.payload);
    SHOW(exstop, "%u", p->payload.exstop.ip);
    SHOW(mwait, "%x %x", p->payload.mwait.hints, p->payload.mwait.ext);
    SHOW(pwre, "%u %u %u", p->payload.pwre.state, p->payload.pwre.sub_state, p->payload.pwre.hw);
    SHOW(pwrx, "%u %u %u %u %u", p->payload.pwrx.last, p->payload.pwrx.deepest, p->payload.pwrx.interrupt, p->payload.pwrx.store, p->payload.pwrx.autonomous);
    SHOW(ptw, "%u %u %" PRIx64, p->payload.ptw.plc, p->payload.ptw.ip, p->payload.ptw.payload);
    SHOW(unknown, "%02x", *p->payload.unknown.packet);
    default: break;
    }
    say("%" PRIu64 " (%" PRIu64 "): %d size %u: %s", offset, sync, p->type, p->size, what);
}

static void packets(const struct pt_config *config)
{
    struct pt_packet_decoder *decoder = pt_pkt_alloc_decoder(config);
    while (once_more()) {
        int status = backward ? pt_pkt_sync_backward(decoder) : pt_pkt_sync_forward(decoder);
        say("sync %s", status_name(status));
        if (status < 0)
            break;
        for (uint64_t n = 0; n < limit; n++) {
            struct pt_packet packet;
            uint64_t offset = 0, sync = 0;
            pt_pkt_get_offset(decoder, &offset);
            status = pt_pkt_next(decoder, &packet, sizeof packet);
            pt_pkt_get_sync_offset(decoder, &sync);
            if (status < 0) {
                pt_pkt_get_offset(decoder, &offset);
                say("%" PRIu64 ": %s", offset, status_name(status));
                break;
            }
            say_packet(&packet, offset, sync);
        }
    }
    pt_pkt_free_decoder(decoder);
}

static void queries(const struct pt_config *config)
{
    struct pt_query_decoder *decoder = pt_qry_alloc_decoder(config);
    while (once_more()) {
        uint64_t ip = 99;
        int status = backward ? pt_qry_sync_backward(decoder, &ip) : pt_qry_sync_forward(decoder, &ip);
        say("sync %" PRIx64 " %s %s", ip, status_name(status), qry_more(decoder).text);
        if (status == -pte_eos)
            break;
        if (status < 0)
            continue;
        for (uint64_t n = 0; n < limit && status >= 0; n++) {
            if (status & pts_event_pending) {
                struct pt_event event;
                memset(&event, 0, sizeof event);
                status = pt_qry_event(decoder, &event, sizeof event);
                struct more more = qry_more(decoder);
                if (status < 0)
                    say("  event %s %s", status_name(status), more.text);
                else
                    say_event(&event, status_name(status), more.text);
                continue;
            }
            int taken = 5;
            status = pt_qry_cond_branch(decoder, &taken);
            if (status != -pte_bad_query) {
                say("cond %d %s %s", taken, status_name(status), qry_more(decoder).text);
                continue;
            }
            ip = 55;
            status = pt_qry_indirect_branch(decoder, &ip);
            say("indirect %" PRIx64 " %s %s", ip, status_name(status), qry_more(decoder).text);
        }
    }
    pt_qry_free_decoder(decoder);
}

static void insns(const struct pt_config *config)
{
    struct pt_insn_decoder *decoder = pt_insn_alloc_decoder(config);
    struct pt_image *own = decoder ? pt_insn_get_image(decoder) : NULL, *other = pt_image_alloc("other"), *image;
    uint64_t item = 0;
    if (!decoder || !fill(own) || !fill(other))
        say("no decoder");
    while (decoder && once_more()) {
        int status = backward ? pt_insn_sync_backward(decoder) : pt_insn_sync_forward(decoder);
        say("sync %s %s", status_name(status), insn_more(decoder).text);
        if (status == -pte_eos)
            break;
        for (uint64_t n = 0; n < limit && status >= 0; n++) {
            if (change(config, item++, own, other, &image))
                pt_insn_set_image(decoder, image);
            while (status >= 0 && status & pts_event_pending) {
                struct pt_event event;
                memset(&event, 0, sizeof event);
                status = pt_insn_event(decoder, &event, sizeof event);
                struct more more = insn_more(decoder);
                if (status < 0)
                    say("  event %s %s", status_name(status), more.text);
                else
                    say_event(&event, status_name(status), more.text);
            }
            if (status < 0)
                break;
            struct pt_insn insn;
            memset(&insn, 0, sizeof insn);
            status = pt_insn_next(decoder, &insn, sizeof insn);
            struct more more = insn_more(decoder);
            struct pt_asid asid;
            pt_asid_init(&asid);
            pt_insn_asid(decoder, &asid, sizeof asid);
            if (insn.iclass == ptic_error) {
                say("none %s %s", status_name(status), more.text);
            } else {
                char raw[32] = "";
                for (int i = 0; i < insn.size && i < pt_max_insn_size; i++)
                    snprintf(raw + 2 * i, 3, "%02x", insn.raw[i]);
                say("%" PRIx64 " isid %d mode %d class %d size %u %s spec %u trunc %u cr3 %" PRIx64 " vmcs %" PRIx64 " -> %s %s", insn.ip,
                    insn.isid, insn.mode, insn.iclass, insn.size, raw, insn.speculative, insn.truncated, asid.cr3, asid.vmcs,
                    status_name(status), more.text);
            }
        }
    }
    pt_insn_free_decoder(decoder);
    pt_image_free(other);
}

/* Instructions in a row, of one block or more, up to where the decoder goes on to the next packet: where a library ends a block that needs no packet
 * to go on is its own affair. */
struct run {
    uint64_t ip, end_ip, count;
    int isid, end_isid, mode, speculative;
    uint64_t offset;
    char raw[32];
};

static void say_run(struct run *run, int status, struct more more, uint64_t cr3)
{
    if (run->count)
        say("%" PRIx64 "..%" PRIx64 " isid %d..%d mode %d n %" PRIu64 " spec %d %s cr3 %" PRIx64 " -> %s %s", run->ip, run->end_ip, run->isid,
            run->end_isid, run->mode, run->count, run->speculative, run->raw, cr3, status_name(status), more.text);
    run->count = 0;
    run->raw[0] = 0;
}

static void append(struct run *run, const struct pt_block *block)
{
    if (run->count == 0) {
        run->ip = block->ip;
        run->isid = block->isid;
    }
    run->end_ip = block->end_ip;
    run->end_isid = block->isid;
    run->mode = block->mode;
    run->speculative = block->speculative;
    run->count += block->ninsn;
    for (int i = 0; block->truncated && i < block->size && i < pt_max_insn_size; i++)
        snprintf(run->raw + 2 * i, 3, "%02x", block->raw[i]);
}

static void blocks(const struct pt_config *config)
{
    struct pt_block_decoder *decoder = pt_blk_alloc_decoder(config);
    struct run run = {0};
    bool each = config->flags.variant.block.end_on_call || config->flags.variant.block.end_on_jump;
    struct pt_image *own = decoder ? pt_blk_get_image(decoder) : NULL, *other = pt_image_alloc("other"), *image;
    uint64_t item = 0;
    if (!decoder || !fill(own) || !fill(other))
        say("no decoder");
    while (decoder && once_more()) {
        int status = backward ? pt_blk_sync_backward(decoder) : pt_blk_sync_forward(decoder);
        say("sync %s %s", status_name(status), blk_more(decoder).text);
        if (status == -pte_eos)
            break;
        for (uint64_t n = 0; n < limit && status >= 0; n++) {
            if (change(config, item++, own, other, &image))
                pt_blk_set_image(decoder, image);
            uint64_t offset = 0;
            while (status >= 0 && status & pts_event_pending) {
                struct pt_event event;
                memset(&event, 0, sizeof event);
                status = pt_blk_event(decoder, &event, sizeof event);
                struct more more = blk_more(decoder);
                if (status < 0)
                    say("  event %s %s", status_name(status), more.text);
                else
                    say_event(&event, status_name(status), more.text);
            }
            if (status < 0)
                break;
            pt_blk_get_offset(decoder, &run.offset);
            struct pt_block block;
            memset(&block, 0, sizeof block);
            status = pt_blk_next(decoder, &block, sizeof block);
            struct more more = blk_more(decoder);
            struct pt_asid asid;
            pt_asid_init(&asid);
            pt_blk_asid(decoder, &asid, sizeof asid);
            if (ends_alone) {
                if (block.ninsn)
                    say("end %" PRIx64 " class %d", block.end_ip, block.iclass);
                continue;
            }
            if (block.ninsn)
                append(&run, &block);
            else
                say("none %s %s", status_name(status), more.text);
            pt_blk_get_offset(decoder, &offset);
            if (each || status != 0 || offset != run.offset)
                say_run(&run, status, more, asid.cr3);
        }
        run.count = 0;
    }
    pt_blk_free_decoder(decoder);
    pt_image_free(other);
}

static bool set_erratum(struct pt_errata *errata, const char *name)
{
#define ERRATUM(bit)           \
    if (!strcmp(name, #bit)) { \
        errata->bit = 1;       \
        return true;           \
    }
    ERRATUM(bdm70)
    ERRATUM(bdm64)
    ERRATUM(skd007)
    ERRATUM(skd022)
    ERRATUM(skd010)
    ERRATUM(skl014)
    ERRATUM(apl12)
    ERRATUM(apl11)
    ERRATUM(skl168)
    ERRATUM(skz84)
    return false;
}

static bool set_range(struct pt_conf_addr_filter *filter, const char *text)
{
    unsigned n, kind;
    uint64_t a, b;
    if (sscanf(text, "%u,%u,%" SCNx64 ",%" SCNx64, &n, &kind, &a, &b) != 4 || n > 3)
        return false;
    filter->config.addr_cfg |= (uint64_t)kind << 4 * n;
    (&filter->addr0_a)[2 * n] = a;
    (&filter->addr0_b)[2 * n] = b;
    return true;
}

static bool parse_section(char *text)
{
    struct section *s = &sections[section_count];
    uint64_t *fields[] = {&s->address, &s->size, &s->offset};
    for (int i = 0; i < 3; i++) {
        char *colon = strrchr(text, ':');
        if (!colon)
            return false;
        *fields[i] = strtoull(colon + 1, NULL, 0);
        *colon = 0;
    }
    size_t size;
    s->file = text;
    s->bytes = slurp(text, &size);
    if (!s->bytes || s->offset > size)
        return false;
    if (s->size > size - s->offset)
        s->size = size - s->offset;
    memmove(s->bytes, s->bytes + s->offset, s->size);
    section_count++;
    return true;
}

int main(int argc, char **argv)
{
    struct pt_config config;
    const char *stream = NULL;
    uint64_t seed = 0, count = 0;
    pt_config_init(&config);
    if (argc < 3)
        return 2;
    bool is_blocks = !strcmp(argv[1], "blocks");
    for (int i = 2; i < argc; i++) {
        const char *word = argv[i];
        unsigned a = 0, b = 0;
        if (!strcmp(word, "--cpu") && i + 1 < argc && sscanf(argv[++i], "%u/%u", &a, &b) == 2) {
            config.cpu.vendor = pcv_intel;
            config.cpu.family = (uint16_t)a;
            config.cpu.model = (uint8_t)b;
            if (pt_cpu_errata(&config.errata, &config.cpu) < 0)
                return 2;
        } else if (!strcmp(word, "--errata") && i + 1 < argc && set_erratum(&config.errata, argv[i + 1])) {
            i++;
        } else if (!strcmp(word, "--mtc-freq") && i + 1 < argc) {
            config.mtc_freq = (uint8_t)atoi(argv[++i]);
        } else if (!strcmp(word, "--nom-freq") && i + 1 < argc) {
            config.nom_freq = (uint8_t)atoi(argv[++i]);
        } else if (!strcmp(word, "--cpuid-15") && i + 1 < argc && sscanf(argv[++i], "%u,%u", &a, &b) == 2) {
            config.cpuid_0x15_eax = a;
            config.cpuid_0x15_ebx = b;
        } else if (!strcmp(word, "--ticks")) {
            if (is_blocks)
                config.flags.variant.block.enable_tick_events = 1;
            else
                config.flags.variant.insn.enable_tick_events = 1;
        } else if (!strcmp(word, "--end-on-call")) {
            config.flags.variant.block.end_on_call = 1;
        } else if (!strcmp(word, "--end-on-jump")) {
            config.flags.variant.block.end_on_jump = 1;
        } else if (!strcmp(word, "--ends")) {
            ends_alone = true;
        } else if (!strcmp(word, "--callback")) {
            by_callback = true;
        } else if (!strcmp(word, "--plain")) {
            plain = true;
        } else if (!strcmp(word, "--unknown")) {
            config.decode.callback = skip_unknown;
        } else if (!strcmp(word, "--backward")) {
            backward = true;
        } else if (!strcmp(word, "--no-time")) {
            no_time = true;
        } else if (!strcmp(word, "--digest")) {
            digest = true;
        } else if (!strcmp(word, "--limit") && i + 1 < argc) {
            limit = strtoull(argv[++i], NULL, 0);
        } else if (!strcmp(word, "--change") && i + 1 < argc) {
            change_every = strtoull(argv[++i], NULL, 0);
        } else if (!strcmp(word, "--range") && i + 1 < argc && set_range(&config.addr_filter, argv[i + 1])) {
            i++;
        } else if (!strcmp(word, "--damage") && i + 1 < argc && sscanf(argv[++i], "%" SCNu64 ",%" SCNu64, &seed, &count) == 2) {
        } else if (!stream) {
            stream = word;
        } else if (!parse_section(argv[i])) {
            fprintf(stderr, "flow: %s\n", word);
            return 2;
        }
    }
    size_t size = 0;
    uint8_t *bytes = stream ? slurp(stream, &size) : NULL;
    if (!bytes)
        return 2;
    for (uint64_t n = 0, x = seed * 0x9e3779b97f4a7c15 + 1; n < count; n++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        uint8_t *byte = &bytes[(x >> 8) % size];
        *byte = x & 0x80 ? (uint8_t)(*byte ^ (1u << (x & 7))) : (uint8_t)(x >> 40);
    }
    config.begin = bytes;
    config.end = bytes + size;
    cache = pt_iscache_alloc("cache");
    pt_iscache_set_limit(cache, UINT64_MAX);
    if (!strcmp(argv[1], "packets"))
        packets(&config);
    else if (!strcmp(argv[1], "queries"))
        queries(&config);
    else if (!strcmp(argv[1], "insns"))
        insns(&config);
    else if (is_blocks)
        blocks(&config);
    else
        return 2;
    if (digest)
        printf("%" PRIu64 " lines, %016" PRIx64 "\n", lines, sum);
    pt_iscache_free(cache);
    for (size_t i = 0; i < section_count; i++)
        free(sections[i].bytes);
    free(bytes);
    return 0;
}
