/* Prints the address of every instruction that libipt finds in an Intel PT stream, one a line.
 *
 *   ptinsn [OPTION…] STREAM [SECTION | --at TSC | --clear]…
 *
 * SECTION is FILE:OFFSET:SIZE:ADDRESS: SIZE bytes of FILE from OFFSET on stand at ADDRESS. Sections are added in the
 * order given; a later one replaces what it overlaps. What follows `--at TSC` happens when the trace's clock has reached
 * that time, so that code may change as the program runs; `--clear` empties the address space (an exec).
 * `--count N` decodes the stream N times, each time from nothing, and prints one line instead: the instructions of one
 * pass, the sum of their addresses (modulo 2^64), and the processor time of all passes in seconds. With `--blocks` before it, the
 * block decoder does it, the sum being that of the blocks' first addresses; no section may then come later. With `--warm` a pass
 * keeps what libipt can keep (mapped sections and, of blocks, their cache); one more pass comes before, whose time does not count.
 * `--events` prints everything that a decoder tells, a line each: `insn ADDRESS BITS TX`, TX being 1 in a transaction, and the
 * events (see `print_event`), status updates left out; `error OFFSET WORDS` stands where the flow breaks off.
 * `--times` adds to each address the time stamp counter that libipt estimates for it, `-` where it knows none.
 * Every error is told on standard error with its offset and ends the run of instructions up to the next PSB.
 * Exit status: 0 without errors, 1 with errors, 2 for wrong usage.
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

struct change {
    uint64_t at;
    bool clear;
    const char *file;
    uint64_t offset, size, address;
};

static int usage(const char *what)
{
    fprintf(stderr,
            "ptinsn: %s\nusage: ptinsn [--cpu FAMILY/MODEL/STEPPING] [--mtc-freq N] [--nom-freq N] [--cpuid-15 EAX,EBX] "
            "[--blocks] [--warm] [--count N] [--events] [--times] STREAM [FILE:OFFSET:SIZE:ADDRESS | --at TSC | --clear]...\n",
            what);
    return 2;
}

static bool number(const char *text, const char *end, uint64_t *out)
{
    char copy[32], *rest;
    size_t length = (size_t)(end - text);
    if (length == 0 || length >= sizeof copy)
        return false;
    memcpy(copy, text, length);
    copy[length] = 0;
    errno = 0;
    *out = strtoull(copy, &rest, 0);
    return errno == 0 && *rest == 0;
}

/* Cuts FILE:OFFSET:SIZE:ADDRESS at its last three colons (a file's name may hold some of its own). */
static bool section(char *text, struct change *change)
{
    uint64_t *fields[] = {&change->address, &change->size, &change->offset};
    char *end = text + strlen(text);
    for (int i = 0; i < 3; i++) {
        char *colon = end;
        while (colon > text && colon[-1] != ':')
            colon--;
        if (colon == text || !number(colon, end, fields[i]))
            return false;
        end = colon - 1;
        *end = 0;
    }
    change->file = text;
    return end > text;
}

static uint8_t *slurp(const char *name, size_t *size)
{
    FILE *file = fopen(name, "rb");
    uint8_t *bytes = NULL;
    size_t room = 0, used = 0;
    if (!file)
        return NULL;
    for (;;) {
        if (used == room) {
            uint8_t *grown = realloc(bytes, room = room ? room * 2 : 1 << 16);
            if (!grown)
                break;
            bytes = grown;
        }
        size_t got = fread(bytes + used, 1, room - used, file);
        if (got == 0) {
            fclose(file);
            *size = used;
            return bytes;
        }
        used += got;
    }
    free(bytes);
    fclose(file);
    return NULL;
}

/* The address space as the changes up to now made it. */
struct space {
    const struct change *changes;
    size_t count, applied;
    struct pt_image *image;
    /* Keeps files mapped: without it, libipt maps them anew whenever control goes from one to another. */
    struct pt_image_section_cache *files;
};

static int apply(struct space *space, struct pt_insn_decoder *decoder, uint64_t now)
{
    while (space->applied < space->count && space->changes[space->applied].at <= now) {
        const struct change *change = &space->changes[space->applied++];
        if (change->clear) {
            struct pt_image *empty = pt_image_alloc(NULL);
            int status = empty ? pt_insn_set_image(decoder, empty) : -pte_nomem;
            if (status < 0)
                return status;
            pt_image_free(space->image);
            space->image = empty;
            continue;
        }
        int status = pt_iscache_add_file(space->files, change->file, change->offset, change->size, change->address);
        if (status > 0)
            status = pt_image_add_cached(space->image, space->files, status, NULL);
        if (status < 0) {
            fprintf(stderr, "ptinsn: %s at 0x%" PRIx64 ": %s\n", change->file, change->address,
                    pt_errstr(pt_errcode(status)));
            return status;
        }
    }
    return 0;
}

/* Begins a pass with nothing mapped or decoded. */
static bool forget(struct space *space)
{
    if (space->files)
        pt_iscache_free(space->files);
    space->applied = 0;
    space->files = pt_iscache_alloc(NULL);
    space->image = pt_image_alloc(NULL);
    return space->files && pt_iscache_set_limit(space->files, UINT64_MAX) >= 0 && space->image;
}

static int catch_up(struct space *space, struct pt_insn_decoder *decoder)
{
    uint64_t now = 0;
    if (space->applied == space->count)
        return 0;
    if (pt_insn_time(decoder, &now, NULL, NULL) < 0)
        now = 0; /* no clock in the stream: only what stood there from the start */
    return apply(space, decoder, now);
}

static unsigned long complain(struct pt_insn_decoder *decoder, int status, uint64_t ip)
{
    uint64_t offset = 0;
    if (pt_insn_get_offset(decoder, &offset) < 0)
        offset = 0;
    fprintf(stderr, "ptinsn: error at offset 0x%" PRIx64 ", near 0x%" PRIx64 ": %s\n", offset, ip,
            pt_errstr(pt_errcode(status)));
    return 1;
}

/* What `--count` counts. */
struct tally {
    uint64_t instructions, sum;
};

/* An address, or "-" where it is suppressed. */
static void print_at(const char *kind, const struct pt_event *event, uint64_t ip)
{
    if (event->ip_suppressed)
        printf("%s -", kind);
    else
        printf("%s 0x%" PRIx64, kind, ip);
}

static void print_event(const struct pt_event *event)
{
    if (event->status_update)
        return;
    switch (event->type) {
    case ptev_enabled: printf("enabled 0x%" PRIx64, event->variant.enabled.ip); break;
    case ptev_disabled: print_at("disabled", event, event->variant.disabled.ip); break;
    case ptev_async_disabled:
        print_at("async_disabled", event, event->variant.async_disabled.ip);
        printf(" 0x%" PRIx64, event->variant.async_disabled.at);
        break;
    case ptev_async_branch:
        print_at("async_branch", event, event->variant.async_branch.to);
        printf(" 0x%" PRIx64, event->variant.async_branch.from);
        break;
    case ptev_paging:
        printf("paging 0x%" PRIx64 " %u", event->variant.paging.cr3, event->variant.paging.non_root);
        break;
    case ptev_async_paging:
        printf("paging 0x%" PRIx64 " %u", event->variant.async_paging.cr3, event->variant.async_paging.non_root);
        break;
    case ptev_overflow: print_at("overflow", event, event->variant.overflow.ip); break;
    case ptev_tsx:
        print_at("tsx", event, event->variant.tsx.ip);
        printf(" %u %u", event->variant.tsx.speculative, event->variant.tsx.aborted);
        break;
    case ptev_stop: printf("stop"); break;
    case ptev_vmcs: printf("vmcs 0x%" PRIx64, event->variant.vmcs.base); break;
    case ptev_async_vmcs: printf("vmcs 0x%" PRIx64, event->variant.async_vmcs.base); break;
    case ptev_exstop: print_at("exstop", event, event->variant.exstop.ip); break;
    case ptev_mwait:
        printf("mwait %u %u", event->variant.mwait.hints & 0xff, event->variant.mwait.ext & 3);
        break;
    case ptev_pwre: printf("pwre %u %u", event->variant.pwre.state, event->variant.pwre.sub_state); break;
    case ptev_pwrx: printf("pwrx %u %u", event->variant.pwrx.last, event->variant.pwrx.deepest); break;
    case ptev_ptwrite:
        print_at("ptwrite", event, event->variant.ptwrite.ip);
        printf(" 0x%" PRIx64, event->variant.ptwrite.payload);
        break;
    default: return;
    }
    putchar('\n');
}

static void print_time(struct pt_insn_decoder *decoder)
{
    uint64_t now = 0;
    if (pt_insn_time(decoder, &now, NULL, NULL) < 0)
        printf(" -\n");
    else
        printf(" %" PRIu64 "\n", now);
}

static void print_insn(struct pt_insn_decoder *decoder, const struct pt_insn *insn, bool events, bool times)
{
    static const char *const bits[] = {[ptem_16bit] = "16", [ptem_32bit] = "32", [ptem_64bit] = "64"};
    if (events)
        printf("insn 0x%" PRIx64 " %s %u\n", insn->ip, insn->mode > ptem_64bit ? "?" : bits[insn->mode] ? bits[insn->mode] : "?",
               insn->speculative);
    else if (times) {
        printf("0x%" PRIx64, insn->ip);
        print_time(decoder);
    } else
        printf("0x%" PRIx64 "\n", insn->ip);
}

static unsigned long decode(struct pt_insn_decoder *decoder, struct space *space, struct tally *tally, bool events, bool times)
{
    unsigned long errors = 0;
    for (;;) {
        struct pt_insn insn = {0};
        int status = pt_insn_sync_forward(decoder);
        if (status < 0) {
            if (status != -pte_eos)
                errors += complain(decoder, status, 0);
            return errors;
        }
        for (;;) {
            int failed = catch_up(space, decoder);
            if (failed < 0)
                return errors + complain(decoder, failed, 0);
            while (status & pts_event_pending) {
                struct pt_event event;
                status = pt_insn_event(decoder, &event, sizeof event);
                if (status < 0)
                    break;
                if (events)
                    print_event(&event);
                failed = catch_up(space, decoder);
                if (failed < 0)
                    return errors + complain(decoder, failed, 0);
            }
            if (status < 0 || (status & pts_eos))
                break;
            /* An error may come together with an instruction that did run: libipt then fills in its class. */
            insn.iclass = ptic_error;
            status = pt_insn_next(decoder, &insn, sizeof insn);
            if (insn.iclass != ptic_error && tally) {
                tally->instructions++;
                tally->sum += insn.ip;
            } else if (insn.iclass != ptic_error) {
                print_insn(decoder, &insn, events, times);
            }
            if (status < 0)
                break;
        }
        if (status < 0 && status != -pte_eos) {
            uint64_t offset = 0;
            errors += complain(decoder, status, insn.ip);
            if (events && pt_insn_get_offset(decoder, &offset) >= 0)
                printf("error %" PRIu64 " %s\n", offset, pt_errstr(pt_errcode(status)));
        }
        else if (status == -pte_eos || (status & pts_eos))
            return errors;
    }
}

static unsigned long decode_blocks(struct pt_block_decoder *decoder, struct tally *tally)
{
    unsigned long errors = 0;
    for (;;) {
        struct pt_block block = {0};
        int status = pt_blk_sync_forward(decoder);
        if (status < 0) {
            if (status != -pte_eos)
                errors++;
            return errors;
        }
        for (;;) {
            while (status & pts_event_pending) {
                struct pt_event event;
                status = pt_blk_event(decoder, &event, sizeof event);
                if (status < 0)
                    break;
            }
            if (status < 0 || (status & pts_eos))
                break;
            block.ninsn = 0;
            status = pt_blk_next(decoder, &block, sizeof block);
            if (block.ninsn) {
                tally->instructions += block.ninsn;
                tally->sum += block.ip;
            }
            if (status < 0)
                break;
        }
        if (status == -pte_eos || (status >= 0 && (status & pts_eos)))
            return errors;
        errors++;
    }
}

/* Begins a pass: with nothing mapped or decoded, unless it is warm and not the first. */
static bool begin_pass(struct space *space, uint64_t pass, bool warm, struct timespec *before)
{
    if (warm && pass == 1)
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, before);
    return (warm && pass > 0) || forget(space);
}

/* As many passes of the block decoder; the number of errors. */
static unsigned long block_passes(const struct pt_config *config, struct space *space, uint64_t passes, bool warm,
                                  struct tally *tally, struct timespec *before)
{
    unsigned long errors = 0;
    for (uint64_t pass = 0; pass < passes + warm; pass++) {
        struct pt_block_decoder *decoder = pt_blk_alloc_decoder(config);
        *tally = (struct tally){0};
        if (!decoder || !begin_pass(space, pass, warm, before) || apply(space, NULL, UINT64_MAX) < 0 ||
            pt_blk_set_image(decoder, space->image) < 0)
            return errors + 1;
        errors += decode_blocks(decoder, tally);
        pt_blk_free_decoder(decoder);
        if (!warm)
            pt_image_free(space->image);
    }
    return errors;
}

int main(int argc, char **argv)
{
    struct pt_config config;
    struct change *changes = calloc((size_t)argc, sizeof *changes);
    struct space space = {.changes = changes};
    const char *stream = NULL;
    uint64_t at = 0, passes = 0;
    bool events = false, blocks = false, times = false, warm = false;

    pt_config_init(&config);
    if (!changes)
        return 2;
    for (int i = 1; i < argc; i++) {
        char *word = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        uint64_t n = 0;
        if (!strcmp(word, "--clear")) {
            changes[space.count++] = (struct change){.at = at, .clear = true};
            continue;
        }
        if (!strcmp(word, "--events")) {
            events = true;
            continue;
        }
        if (!strcmp(word, "--blocks")) {
            blocks = true;
            continue;
        }
        if (!strcmp(word, "--warm")) {
            warm = true;
            continue;
        }
        if (!strcmp(word, "--times")) {
            times = true;
            continue;
        }
        if (strncmp(word, "--", 2) == 0) {
            unsigned family = 0, model = 0, stepping = 0, eax = 0, ebx = 0;
            if (!value)
                return usage("an option's value is missing");
            i++;
            if (!strcmp(word, "--cpu") && sscanf(value, "%u/%u/%u", &family, &model, &stepping) >= 2) {
                config.cpu.vendor = pcv_intel;
                config.cpu.family = (uint16_t)family;
                config.cpu.model = (uint8_t)model;
                config.cpu.stepping = (uint8_t)stepping;
                if (pt_cpu_errata(&config.errata, &config.cpu) < 0)
                    return usage("libipt does not know this processor");
            } else if (!strcmp(word, "--cpuid-15") && sscanf(value, "%u,%u", &eax, &ebx) == 2) {
                config.cpuid_0x15_eax = eax;
                config.cpuid_0x15_ebx = ebx;
            } else if (!number(value, value + strlen(value), &n)) {
                return usage("not a number");
            } else if (!strcmp(word, "--mtc-freq")) {
                config.mtc_freq = (uint8_t)n;
            } else if (!strcmp(word, "--nom-freq")) {
                config.nom_freq = (uint8_t)n;
            } else if (!strcmp(word, "--count") && n > 0) {
                passes = n;
            } else if (!strcmp(word, "--at") && n >= at) {
                at = n;
            } else {
                return usage("unknown option, or times that do not rise");
            }
            continue;
        }
        if (!stream) {
            stream = word;
            continue;
        }
        changes[space.count].at = at;
        if (!section(word, &changes[space.count]))
            return usage("a section is FILE:OFFSET:SIZE:ADDRESS");
        space.count++;
    }
    if (!stream)
        return usage("which stream?");

    size_t size = 0;
    uint8_t *bytes = slurp(stream, &size);
    if (!bytes)
        return usage("cannot read the stream");
    for (size_t i = 0; blocks && i < space.count; i++)
        if (changes[i].clear || changes[i].at || !passes || events)
            return usage("--blocks counts, with code that does not change");
    if (warm && !passes)
        return usage("--warm wants --count");
    config.begin = bytes;
    config.end = bytes + size;

    unsigned long errors = 0;
    struct tally tally = {0};
    struct timespec before, after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    if (blocks)
        errors = block_passes(&config, &space, passes, warm, &tally, &before);
    for (uint64_t pass = 0; !blocks && (pass == 0 || pass < passes + warm); pass++) {
        struct pt_insn_decoder *decoder = pt_insn_alloc_decoder(&config);
        tally = (struct tally){0};
        if (!decoder || !begin_pass(&space, pass, warm, &before) || pt_insn_set_image(decoder, space.image) < 0)
            return usage("libipt has no decoder for this");
        errors += decode(decoder, &space, passes ? &tally : NULL, events, times);
        pt_insn_free_decoder(decoder);
        if (!warm)
            pt_image_free(space.image);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    if (passes)
        printf("%" PRIu64 " %" PRIu64 " %.6f\n", tally.instructions, tally.sum,
               (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) / 1e9);
    if (fflush(stdout) != 0)
        return 2;
    pt_iscache_free(space.files);
    free(bytes);
    free(changes);
    return errors ? 1 : 0;
}
