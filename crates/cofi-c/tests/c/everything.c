/* Calls every function of cofi.h, well and badly. */
#include "cofi.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                   \
    do {                                                                                              \
        if (!(what)) {                                                                                \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, cofi_last_error());        \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)

#define IA32_RTIT_OUTPUT_BASE 0x560
#define IA32_RTIT_OUTPUT_MASK_PTRS 0x561
#define IA32_RTIT_CTL 0x570
/* TraceEn, User, DisRETC off, BranchEn. */
#define CTL (1u | 1u << 3 | 1u << 13)

struct machine {
    uint64_t tsc;
    uint8_t memory[1 << 16];
    size_t len;
};

static void now(void *context, uint64_t *tsc, uint64_t *cycles) {
    struct machine *machine = context;
    *tsc = *cycles = machine->tsc;
}

static void store(void *context, uint64_t address, const uint8_t *bytes, size_t len) {
    struct machine *machine = context;
    CHECK(address + len <= sizeof machine->memory);
    memcpy(machine->memory + address, bytes, len);
    if (address + len > machine->len)
        machine->len = address + len;
}

/* dec ecx; jnz -4; call +1; hlt; ret */
static const uint8_t CODE[] = {0xff, 0xc9, 0x75, 0xfc, 0xe8, 1, 0, 0, 0, 0xf4, 0xc3};
#define BASE UINT64_C(0x401000)

static size_t read_code(void *context, uint64_t address, uint8_t *buffer, size_t len) {
    (void)context;
    if (address < BASE || address >= BASE + sizeof CODE)
        return 0;
    size_t there = BASE + sizeof CODE - address;
    if (len > there)
        len = there;
    memcpy(buffer, CODE + (address - BASE), len);
    return len;
}

struct seen {
    uint64_t ips[4096];
    size_t count, blocks, instructions;
    int stops;
};

static int on_insns(void *context, const cofi_insn *insns, size_t count) {
    struct seen *seen = context;
    for (size_t i = 0; i < count; i++) {
        CHECK(seen->count < 4096 && insns[i].length > 0 && insns[i].mode == 64);
        seen->ips[seen->count++] = insns[i].ip;
    }
    return seen->stops;
}

static int on_blocks(void *context, const cofi_block *blocks, size_t count) {
    struct seen *seen = context;
    for (size_t i = 0; i < count; i++) {
        CHECK(blocks[i].instructions > 0 && cofi_class_name(blocks[i].class_));
        seen->blocks++;
        seen->instructions += blocks[i].instructions;
    }
    return 0;
}

static const cofi_context USER = {.mode = 64, .cpl = 3};

static cofi_unit *new_unit(struct machine *machine) {
    cofi_client client = {.size = sizeof client, .context = machine, .now = now, .store = store};
    cofi_unit *unit = NULL;
    CHECK(cofi_unit_new("skylake", NULL, "tnt=short", &client, &USER, &unit) == COFI_OK);
    return unit;
}

/* Of what a unit sends, the decoder makes what it was told. */
static void recordings(const char *folder, const struct machine *machine, const struct seen *wanted);

static void law(const char *folder) {
    static struct machine machine;
    static struct seen wanted, found;
    cofi_unit *unit = new_unit(&machine);
    cofi_at at = {BASE, BASE};
    CHECK(!cofi_unit_in_use(unit) && !cofi_unit_packet_en(unit));
    CHECK(cofi_unit_wrmsr(unit, at, IA32_RTIT_OUTPUT_MASK_PTRS, 0xffff) == COFI_OK);
    CHECK(cofi_unit_wrmsr(unit, at, IA32_RTIT_CTL, CTL) == COFI_OK);
    CHECK(cofi_unit_in_use(unit) && cofi_unit_packet_en(unit));
    uint64_t value = 0;
    CHECK(cofi_unit_rdmsr(unit, IA32_RTIT_CTL, &value) == COFI_OK && value == CTL);
    for (int turn = 0; turn < 100; turn++) {
        machine.tsc += 7;
        wanted.ips[wanted.count++] = BASE;
        wanted.ips[wanted.count++] = BASE + 2;
        CHECK(cofi_unit_retire(unit, (cofi_at){BASE, BASE + 2}, COFI_NO_BRANCH, 0) == COFI_OK);
        CHECK(cofi_unit_retire(unit, (cofi_at){BASE + 2, BASE + 4}, turn < 99 ? COFI_TAKEN : COFI_NOT_TAKEN, BASE) == COFI_OK);
        if (turn == 50) {
            /* It is saved, and goes on as another object. */
            size_t len = 0;
            CHECK(cofi_unit_save(unit, NULL, &len) == COFI_INVALID && len > 0);
            uint8_t *saved = malloc(len);
            CHECK(cofi_unit_save(unit, saved, &len) == COFI_OK);
            cofi_unit_free(unit);
            cofi_client client = {.size = sizeof client, .context = &machine, .now = now, .store = store};
            CHECK(cofi_unit_restore("skylake", NULL, "tnt=short", &client, saved, len - 1, &unit) == COFI_INVALID);
            CHECK(cofi_unit_restore("skylake", NULL, "tnt=short", &client, saved, len, &unit) == COFI_OK);
            free(saved);
        }
    }
    wanted.ips[wanted.count++] = BASE + 4;
    wanted.ips[wanted.count++] = BASE + 10;
    CHECK(cofi_unit_retire(unit, (cofi_at){BASE + 4, BASE + 9}, COFI_DIRECT_CALL, BASE + 10) == COFI_OK);
    CHECK(cofi_unit_retire(unit, (cofi_at){BASE + 10, BASE + 11}, COFI_RETURN, BASE + 9) == COFI_OK);
    CHECK(cofi_unit_clock(unit) == COFI_OK);
    /* A page fault at HLT ends what users see. */
    cofi_event fault = {.size = sizeof fault, .kind = COFI_INTERRUPT, .at = {BASE + 9, BASE + 10}, .to = 0xffffffff81000000, .context = {.mode = 64}, .vector = 13};
    CHECK(cofi_unit_event(unit, &fault) == COFI_OK);
    CHECK(!cofi_unit_packet_en(unit));
    CHECK(cofi_unit_wrmsr(unit, at, IA32_RTIT_CTL, 0) == COFI_OK);
    CHECK(machine.len > 16);

    cofi_flow *flow = NULL;
    cofi_item item = {.size = sizeof item};
    CHECK(cofi_flow_of_bytes(machine.memory, machine.len, read_code, NULL, &flow) == COFI_OK);
    cofi_status status;
    int events = 0;
    while ((status = cofi_flow_instructions(flow, on_insns, &found, &item)) == COFI_OK) {
        CHECK(item.kind == COFI_EVENT && item.name);
        for (size_t i = 0; i < item.field_count; i++)
            CHECK(item.fields[i].name);
        events++;
    }
    CHECK(status == COFI_END && events >= 2);
    CHECK(cofi_flow_instructions(flow, on_insns, &found, &item) == COFI_END);
    CHECK(found.count == wanted.count && !memcmp(found.ips, wanted.ips, wanted.count * sizeof *wanted.ips));
    cofi_flow_free(flow);

    /* The same in blocks; and left at the first. */
    static struct seen blocks;
    CHECK(cofi_flow_of_bytes(machine.memory, machine.len, read_code, NULL, &flow) == COFI_OK);
    while ((status = cofi_flow_blocks(flow, on_blocks, &blocks, &item)) == COFI_OK)
        ;
    CHECK(status == COFI_END && blocks.instructions == wanted.count && blocks.blocks >= 100);
    cofi_flow_free(flow);
    static struct seen stopped = {.stops = 1};
    CHECK(cofi_flow_of_bytes(machine.memory, machine.len, read_code, NULL, &flow) == COFI_OK);
    while ((status = cofi_flow_instructions(flow, on_insns, &stopped, &item)) == COFI_OK)
        ;
    CHECK(status == COFI_STOPPED && strstr(cofi_last_error(), "asked"));
    CHECK(cofi_flow_instructions(flow, on_insns, &stopped, &item) == COFI_END);
    cofi_flow_free(flow);

    recordings(folder, &machine, &wanted);

    /* Spoilt in the middle: that is a gap. */
    memset(machine.memory + 24, 0xff, 4);
    CHECK(cofi_flow_of_bytes(machine.memory, machine.len, read_code, NULL, &flow) == COFI_OK);
    int gaps = 0;
    while ((status = cofi_flow_blocks(flow, on_blocks, &blocks, &item)) == COFI_OK)
        gaps += item.kind == COFI_GAP && item.name && item.text;
    CHECK(status == COFI_END && gaps > 0);
    cofi_flow_free(flow);
    cofi_unit_free(unit);
}

static void packets(void) {
    uint8_t bytes[256];
    size_t len = sizeof bytes;
    CHECK(cofi_assemble("psb\npsbend\ntip.pge 0x401000\ntnt TNT\n", COFI_PT, bytes, &len) == COFI_OK && len == 24);
    size_t little = 3;
    CHECK(cofi_assemble("psb", COFI_PT, bytes + 100, &little) == COFI_INVALID && little == 16);
    CHECK(cofi_assemble("nonsense", COFI_PT, bytes + 100, &little) == COFI_INVALID);
    CHECK(strstr(cofi_last_error(), "line 1"));
    bytes[len++] = 0x02; /* the beginning of a packet */
    cofi_packets *list = NULL;
    CHECK(cofi_packets_new(bytes, len, COFI_PT, &list) == COFI_OK);
    cofi_packet packet = {.size = sizeof packet};
    static const char *const TEXTS[] = {"psb", "psbend", "tip.pge 0x401000", "tnt.8 TNT"};
    for (int i = 0; i < 4; i++)
        CHECK(cofi_packets_next(list, &packet) == COFI_OK && !packet.is_error && !strcmp(packet.text, TEXTS[i]));
    CHECK(cofi_packets_next(list, &packet) == COFI_OK && packet.is_error && packet.offset == 24 && packet.len == 1);
    CHECK(cofi_packets_next(list, &packet) == COFI_END);
    cofi_packets_free(list);
    CHECK(cofi_packets_new(NULL, 0, COFI_RTIT, &list) == COFI_OK);
    CHECK(cofi_packets_next(list, &packet) == COFI_END);
    cofi_packets_free(list);
    CHECK(cofi_packets_new(bytes, len, 7, &list) == COFI_INVALID);
    CHECK(cofi_packets_new(NULL, 5, COFI_PT, &list) == COFI_INVALID);
}

static void unit(void) {
    static struct machine machine;
    cofi_unit *unit = new_unit(&machine);
    cofi_at at = {0, 2};
    uint64_t value;
    CHECK(cofi_unit_rdmsr(unit, 0x10, &value) == COFI_FAULT && strstr(cofi_last_error(), "#GP"));
    CHECK(cofi_unit_wrmsr(unit, at, IA32_RTIT_CTL, UINT64_C(1) << 63) == COFI_FAULT);
    CHECK(cofi_unit_ptwrite(unit, at, 1, 8) == COFI_FAULT && strstr(cofi_last_error(), "#UD"));
    CHECK(cofi_unit_ptwrite(unit, at, 1, 3) == COFI_INVALID);
    uint32_t registers[4];
    CHECK(cofi_unit_cpuid(unit, 0x14, 0, &registers) == COFI_OK && registers[1] != 0);
    CHECK(cofi_unit_cpuid(unit, 0x1234, 0, &registers) == COFI_INVALID);
    CHECK(cofi_unit_retire(unit, at, 99, 0) == COFI_INVALID);
    cofi_event event = {.size = sizeof event, .context = {.mode = 64}};
    for (event.kind = COFI_FAR_BRANCH; event.kind <= COFI_VMCLEAR; event.kind++) {
        event.reason = 1;
        CHECK(cofi_unit_event(unit, &event) == COFI_OK);
    }
    CHECK(cofi_unit_event(unit, &event) == COFI_INVALID);
    event.kind = COFI_FAR_BRANCH;
    event.context.reserved[1] = 1;
    CHECK(cofi_unit_event(unit, &event) == COFI_INVALID && strstr(cofi_last_error(), "reserved"));
    event.context.reserved[1] = 0;
    event.context.mode = 48;
    CHECK(cofi_unit_event(unit, &event) == COFI_INVALID);
    event.size = 8;
    CHECK(cofi_unit_event(unit, &event) == COFI_INVALID);
    CHECK(cofi_unit_reset(unit, 1, &USER) == COFI_OK);
    CHECK(cofi_unit_rsm(unit, 0, &USER, 0, 0) == COFI_OK);
    cofi_unit_free(unit);
    cofi_client client = {.size = sizeof client, .now = now};
    CHECK(cofi_unit_new("skylake", NULL, NULL, &client, &USER, &unit) == COFI_INVALID);
    client.store = store;
    CHECK(cofi_unit_new("pentium", NULL, NULL, &client, &USER, &unit) == COFI_INVALID);
    CHECK(cofi_unit_new("skylake", "nonsense", NULL, &client, &USER, &unit) == COFI_INVALID);
    CHECK(cofi_unit_new("skylake", "ptwrite=1,nonsense=1", NULL, &client, &USER, &unit) == COFI_INVALID);
    CHECK(cofi_unit_new("skylake", "ptwrite=1", NULL, &client, &USER, &unit) == COFI_OK);
    cofi_unit_free(unit);
}

/* The packets of what a machine's memory holds, with spaces between. */
static void packets_of(const struct machine *machine, char *text, size_t room) {
    cofi_packets *list;
    cofi_packet packet = {.size = sizeof packet};
    CHECK(cofi_packets_new(machine->memory, machine->len, COFI_PT, &list) == COFI_OK);
    *text = 0;
    while (cofi_packets_next(list, &packet) == COFI_OK) {
        CHECK(!packet.is_error && strlen(text) + strlen(packet.text) + 2 < room);
        strcat(strcat(text, packet.text), ";");
    }
    cofi_packets_free(list);
}

/* TraceEn, OS, DisRETC off, BranchEn. */
#define CTL_OF_HOST (1u | 1u << 2 | 1u << 13)
static const cofi_context HOST = {.mode = 64, .cr3 = 0x1000}, GUEST = {.mode = 64, .cr3 = 0x2000};

static cofi_unit *new_vmm(struct machine *machine, const char *processor) {
    cofi_client client = {.size = sizeof client, .context = machine, .now = now, .store = store};
    cofi_event event = {.size = sizeof event, .kind = COFI_VMXON, .at = {0x1000, 0x1004}};
    cofi_unit *unit = NULL;
    CHECK(cofi_unit_new(processor, NULL, NULL, &client, &HOST, &unit) == COFI_OK);
    CHECK(cofi_unit_event(unit, &event) == COFI_OK);
    CHECK(cofi_unit_wrmsr(unit, event.at, IA32_RTIT_OUTPUT_MASK_PTRS, 0xffff) == COFI_OK);
    return unit;
}

/* A guest runs, once traced and once not. */
static void transitions(void) {
    static struct machine machine;
    static char text[4096];
    cofi_at at = {0x1000, 0x1003};
    cofi_unit *unit = new_vmm(&machine, "skylake");
    CHECK(cofi_unit_wrmsr(unit, at, IA32_RTIT_CTL, CTL_OF_HOST) == COFI_OK);
    cofi_event vmptrld = {.size = sizeof vmptrld, .kind = COFI_VMPTRLD, .at = at, .value = 0x5000};
    CHECK(cofi_unit_event(unit, &vmptrld) == COFI_OK);
    cofi_vm_entry entry = {.size = sizeof entry, .at = at, .to = 0x8000, .context = GUEST};
    CHECK(cofi_unit_vm_entry(unit, &entry) == COFI_OK);
    CHECK(cofi_unit_retire(unit, (cofi_at){0x8000, 0x8002}, COFI_TAKEN, 0x8010) == COFI_OK);
    cofi_vm_exit leave = {.size = sizeof leave, .from = 0x8010, .to = 0x9000, .context = HOST, .vector = 14, .has_vector = 1};
    CHECK(cofi_unit_vm_exit(unit, &leave) == COFI_OK);
    CHECK(cofi_unit_packet_en(unit));
    packets_of(&machine, text, sizeof text);
    CHECK(strstr(text, "pip 0x2000 nr=1;tip 0x8000;tnt.8 T;fup 0x8010;pip 0x1000 nr=0;tip 0x9000;"));

    /* An entry that fails early goes on behind itself; one whose load faults can only fail late. */
    entry.outcome = COFI_ENTRY_EARLY_FAILURE;
    CHECK(cofi_unit_vm_entry(unit, &entry) == COFI_OK);
    entry.outcome = COFI_ENTRY_SUCCESS;
    cofi_msr_load loads[] = {{.msr = IA32_RTIT_CTL, .value = 0}, {.msr = IA32_RTIT_CTL, .value = UINT64_C(1) << 63}};
    entry.loads = loads;
    entry.load_count = 2;
    CHECK(cofi_unit_vm_entry(unit, &entry) == COFI_FAULT && strstr(cofi_last_error(), "entry 2 of the MSR-load area"));
    CHECK(cofi_unit_in_use(unit));
    entry.outcome = COFI_ENTRY_LATE_FAILURE;
    CHECK(cofi_unit_vm_entry(unit, &entry) == COFI_INVALID && strstr(cofi_last_error(), "mode"));
    entry.host_to = 0x9000;
    entry.host = HOST;
    CHECK(cofi_unit_vm_entry(unit, &entry) == COFI_OK);
    CHECK(cofi_unit_in_use(unit) && cofi_unit_packet_en(unit));

    /* The guest is not traced: the load area clears TraceEn, and sets it on the way back. */
    entry.outcome = COFI_ENTRY_SUCCESS;
    entry.load_count = 1;
    CHECK(cofi_unit_vm_entry(unit, &entry) == COFI_OK && !cofi_unit_in_use(unit));
    loads[0].value = CTL_OF_HOST;
    leave.loads = loads;
    leave.load_count = 1;
    CHECK(cofi_unit_vm_exit(unit, &leave) == COFI_OK && cofi_unit_in_use(unit));
    uint64_t value = 0;
    CHECK(cofi_unit_rdmsr(unit, IA32_RTIT_CTL, &value) == COFI_OK && value == CTL_OF_HOST);
    /* By the controls of their own. */
    entry.load_count = leave.load_count = 0;
    entry.load_ctl = leave.clear_ctl = 1;
    entry.ctl = CTL_OF_HOST;
    CHECK(cofi_unit_vm_entry(unit, &entry) == COFI_OK && cofi_unit_in_use(unit));
    CHECK(cofi_unit_vm_exit(unit, &leave) == COFI_OK && !cofi_unit_in_use(unit));

    /* Concealed, nothing tells of the guest. */
    memset(&machine, 0, sizeof machine);
    CHECK(cofi_unit_wrmsr(unit, at, IA32_RTIT_OUTPUT_MASK_PTRS, 0xffff) == COFI_OK);
    CHECK(cofi_unit_wrmsr(unit, at, IA32_RTIT_CTL, CTL_OF_HOST) == COFI_OK);
    entry.load_ctl = leave.clear_ctl = 0;
    entry.conceal = entry.conceal_guest = leave.conceal = 1;
    CHECK(cofi_unit_vm_entry(unit, &entry) == COFI_OK && cofi_unit_vm_exit(unit, &leave) == COFI_OK);
    packets_of(&machine, text, sizeof text);
    CHECK(strstr(text, "tip 0x8000") && !strstr(text, "nr=1"));

    /* Bad arguments. */
    entry.reserved[2] = 1;
    CHECK(cofi_unit_vm_entry(unit, &entry) == COFI_INVALID && strstr(cofi_last_error(), "reserved"));
    entry.reserved[2] = 0;
    entry.outcome = 3;
    CHECK(cofi_unit_vm_entry(unit, &entry) == COFI_INVALID);
    entry.outcome = COFI_ENTRY_SUCCESS;
    loads[0].reserved = 1;
    entry.load_count = leave.load_count = 1;
    CHECK(cofi_unit_vm_entry(unit, &entry) == COFI_INVALID && cofi_unit_vm_exit(unit, &leave) == COFI_INVALID);
    entry.loads = leave.loads = NULL;
    CHECK(cofi_unit_vm_entry(unit, &entry) == COFI_INVALID && cofi_unit_vm_exit(unit, &leave) == COFI_INVALID);
    entry.loads = loads;
    entry.load_count = SIZE_MAX;
    CHECK(cofi_unit_vm_entry(unit, &entry) == COFI_INVALID);
    leave.load_count = 0;
    leave.reserved_too = 1;
    CHECK(cofi_unit_vm_exit(unit, &leave) == COFI_INVALID);
    leave.size = entry.size = 8;
    CHECK(cofi_unit_vm_entry(unit, &entry) == COFI_INVALID && cofi_unit_vm_exit(unit, &leave) == COFI_INVALID);
    cofi_unit_free(unit);

    /* A processor that knows no such controls; from SMM to the executive monitor and by an SMI to the monitor; a VMX abort. */
    unit = new_vmm(&machine, "broadwell");
    cofi_vm_entry concealed = {.size = sizeof concealed, .at = at, .to = 0x8000, .context = GUEST, .conceal = 1};
    CHECK(cofi_unit_vm_entry(unit, &concealed) == COFI_FAULT && strstr(cofi_last_error(), "33-52"));
    cofi_unit_free(unit);
    unit = new_vmm(&machine, "skylake");
    cofi_vm_exit to_smm = {.size = sizeof to_smm, .from = 0x1000, .to = 0xa000, .context = HOST, .to_smm = 1, .smi = 1, .vmcs = 0x6000};
    CHECK(cofi_unit_wrmsr(unit, at, IA32_RTIT_CTL, CTL_OF_HOST) == COFI_OK);
    machine.len = 0;
    CHECK(cofi_unit_vm_exit(unit, &to_smm) == COFI_OK);
    cofi_vm_entry from_smm = {.size = sizeof from_smm, .at = {0xa000, 0xa003}, .to = 0x1000, .context = HOST, .from_smm = 1, .to_root = 1, .vmcs = 0x5000};
    CHECK(cofi_unit_vm_entry(unit, &from_smm) == COFI_OK);
    from_smm.to_root = 0;
    from_smm.tsc_offset = 1000;
    from_smm.tsc_multiplier = UINT64_C(1) << 47;
    CHECK(cofi_unit_vm_entry(unit, &from_smm) == COFI_OK);
    cofi_vm_exit aborted = {.size = sizeof aborted, .from = 0x1000, .to = 0x9000, .context = HOST, .abort = 1};
    CHECK(cofi_unit_vm_exit(unit, &aborted) == COFI_OK && !cofi_unit_packet_en(unit));
    packets_of(&machine, text, sizeof text);
    CHECK(strstr(text, "fup 0x1000;pip 0x1000 nr=0;vmcs 0x6000;tip 0xa000;pip 0x1000 nr=0;vmcs 0x5000;tip 0x1000;pip 0x1000 nr=1;vmcs 0x5000;tip 0x1000;fup 0x1000;"));
    cofi_unit_free(unit);
}

/* Output that fails, and output that finds no room, are not taken for whole. */
static void output(void) {
    static struct machine machine;
    cofi_client client = {.size = sizeof client, .context = &machine, .now = now, .store = store};
    cofi_at at = {BASE, BASE};
    cofi_unit *unit = new_unit(&machine);
    CHECK(cofi_unit_check_output(unit) == COFI_OK);
    /* A range of 256 bytes that begins in its middle. */
    CHECK(cofi_unit_wrmsr(unit, at, IA32_RTIT_OUTPUT_BASE, 0x80) == COFI_OK);
    CHECK(cofi_unit_wrmsr(unit, at, IA32_RTIT_OUTPUT_MASK_PTRS, 0xff) == COFI_OK);
    CHECK(cofi_unit_wrmsr(unit, at, IA32_RTIT_CTL, CTL) == COFI_OK);
    CHECK(cofi_unit_check_output(unit) == COFI_LOST && strstr(cofi_last_error(), "Error"));
    cofi_unit_free(unit);
    CHECK(cofi_unit_new("skylake", NULL, "buffer.size=64,buffer.drain_bytes=0", &client, &USER, &unit) == COFI_OK);
    CHECK(cofi_unit_wrmsr(unit, at, IA32_RTIT_OUTPUT_MASK_PTRS, 0xffff) == COFI_OK);
    CHECK(cofi_unit_wrmsr(unit, at, IA32_RTIT_CTL, CTL) == COFI_OK);
    CHECK(cofi_unit_check_output(unit) == COFI_OK);
    for (int turn = 0; turn < 100; turn++)
        CHECK(cofi_unit_retire(unit, (cofi_at){BASE, BASE + 2}, COFI_INDIRECT_JUMP, BASE) == COFI_OK);
    CHECK(cofi_unit_check_output(unit) == COFI_LOST && strstr(cofi_last_error(), "overflow"));
    cofi_unit_free(unit);
}

static void write_file(const char *path, const void *bytes, size_t len) {
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(bytes, 1, len, file) == len && !fclose(file));
}

/* The same as files, as a recording of bare packets. */
static void recordings(const char *folder, const struct machine *machine, const struct seen *wanted) {
    cofi_recording *recording = NULL;
    CHECK(cofi_recording_open("no such file", NULL, NULL, NULL, &recording) == COFI_UNREADABLE);
    CHECK(strstr(cofi_last_error(), "no such file"));
    char path[4096], code[4096], spec[4200];
    snprintf(path, sizeof path, "%s/x.pt", folder);
    snprintf(code, sizeof code, "%s/code", folder);
    snprintf(spec, sizeof spec, "%s:%#llx", code, (unsigned long long)BASE);
    write_file(path, machine->memory, machine->len);
    write_file(code, CODE, sizeof CODE);
    const char *const none[] = {"no address", NULL}, *const raw[] = {spec, NULL};
    CHECK(cofi_recording_open(path, "nonsense", NULL, NULL, &recording) == COFI_INVALID);
    CHECK(cofi_recording_open(path, NULL, NULL, none, &recording) == COFI_INVALID);
    CHECK(cofi_recording_open(path, "pt", NULL, raw, &recording) == COFI_OK);
    CHECK(cofi_recording_threads(recording) == 1 && !cofi_recording_missing(recording, 0));
    cofi_thread thread = {.size = sizeof thread};
    CHECK(cofi_recording_thread(recording, 1, &thread) == COFI_INVALID);
    CHECK(cofi_recording_thread(recording, 0, &thread) == COFI_OK && thread.size == sizeof thread);
    CHECK(thread.kind == COFI_BARE && !thread.tid && thread.len == machine->len && !*thread.name);
    CHECK(!memcmp(thread.data, machine->memory, machine->len));
    /* A caller that knows less of the structure, and one that knows more. */
    struct {
        cofi_thread thread;
        uint64_t more;
    } larger = {.thread.size = sizeof larger, .more = 7};
    CHECK(cofi_recording_thread(recording, 0, &larger.thread) == COFI_OK && larger.thread.len == machine->len && larger.more == 7);
    thread.size = sizeof thread - 1;
    CHECK(cofi_recording_thread(recording, 0, &thread) == COFI_INVALID);
    cofi_flow *flow;
    CHECK(cofi_flow_of_thread(recording, 5, &flow) == COFI_INVALID);
    CHECK(cofi_flow_of_thread(recording, 0, &flow) == COFI_OK);
    /* The flow keeps what it needs. */
    cofi_recording_free(recording);
    static struct seen seen;
    cofi_item item = {.size = sizeof item};
    cofi_status status;
    while ((status = cofi_flow_instructions(flow, on_insns, &seen, &item)) == COFI_OK)
        CHECK(item.kind == COFI_EVENT);
    CHECK(status == COFI_END && seen.count == wanted->count && !memcmp(seen.ips, wanted->ips, seen.count * sizeof *seen.ips));
    cofi_flow_free(flow);
}

/* Nothing of it crashes. */
static void null(void) {
    cofi_item item = {.size = sizeof item};
    cofi_packet packet = {.size = 4};
    cofi_thread thread = {.size = 4};
    cofi_packets *list;
    size_t len = 0;
    uint64_t value;
    uint32_t registers[4];
    cofi_at at = {0, 0};
    cofi_packets_free(NULL);
    cofi_unit_free(NULL);
    cofi_recording_free(NULL);
    cofi_flow_free(NULL);
    CHECK(cofi_packets_new(NULL, 0, COFI_PT, NULL) == COFI_INVALID);
    CHECK(cofi_packets_next(NULL, &packet) == COFI_INVALID);
    CHECK(cofi_packets_new(NULL, 0, COFI_PT, &list) == COFI_OK);
    CHECK(cofi_packets_next(list, &packet) == COFI_INVALID && cofi_packets_next(list, NULL) == COFI_INVALID);
    cofi_packets_free(list);
    CHECK(cofi_assemble(NULL, COFI_PT, NULL, &len) == COFI_INVALID && cofi_assemble("", COFI_PT, NULL, NULL) == COFI_INVALID);
    CHECK(cofi_assemble("", COFI_PT, NULL, &len) == COFI_OK && len == 0);
    CHECK(cofi_unit_new(NULL, NULL, NULL, NULL, NULL, NULL) == COFI_INVALID);
    CHECK(cofi_unit_save(NULL, NULL, &len) == COFI_INVALID);
    CHECK(cofi_unit_restore("skylake", NULL, NULL, NULL, NULL, 0, NULL) == COFI_INVALID);
    CHECK(cofi_unit_cpuid(NULL, 0, 0, &registers) == COFI_INVALID);
    CHECK(cofi_unit_rdmsr(NULL, 0, &value) == COFI_INVALID && cofi_unit_wrmsr(NULL, at, 0, 0) == COFI_INVALID);
    CHECK(cofi_unit_reset(NULL, 0, NULL) == COFI_INVALID && cofi_unit_clock(NULL) == COFI_INVALID);
    CHECK(!cofi_unit_packet_en(NULL) && !cofi_unit_in_use(NULL));
    CHECK(cofi_unit_retire(NULL, at, 0, 0) == COFI_INVALID && cofi_unit_event(NULL, NULL) == COFI_INVALID);
    CHECK(cofi_unit_ptwrite(NULL, at, 0, 4) == COFI_INVALID && cofi_unit_rsm(NULL, 0, NULL, 0, 0) == COFI_INVALID);
    CHECK(cofi_unit_vm_entry(NULL, NULL) == COFI_INVALID && cofi_unit_vm_exit(NULL, NULL) == COFI_INVALID);
    CHECK(cofi_unit_check_output(NULL) == COFI_INVALID);
    CHECK(cofi_recording_open(NULL, NULL, NULL, NULL, NULL) == COFI_INVALID);
    CHECK(!cofi_recording_missing(NULL, 0) && !cofi_recording_threads(NULL));
    CHECK(cofi_recording_thread(NULL, 0, &thread) == COFI_INVALID);
    CHECK(cofi_flow_of_thread(NULL, 0, NULL) == COFI_INVALID && cofi_flow_of_bytes(NULL, 0, NULL, NULL, NULL) == COFI_INVALID);
    CHECK(cofi_flow_blocks(NULL, NULL, NULL, &item) == COFI_INVALID && cofi_flow_instructions(NULL, NULL, NULL, &item) == COFI_INVALID);
    CHECK(!cofi_class_name(255));
}

int main(int argc, char **argv) {
    CHECK(*cofi_version() == '0');
    null();
    packets();
    unit();
    transitions();
    output();
    CHECK(argc == 2);
    law(argv[1]);
    return 0;
}
