/*
 * Processor Trace (Intel PT, RTIT) for C and C++: packets, the trace unit, recordings. Link with -lcofi.
 *
 * Rules that hold for all functions:
 * - A function that can fail returns a cofi_status; but for COFI_END, cofi_last_error() then says why, to the thread that called. What it was to store is stored with COFI_OK alone
 *   (but for the length that a buffer must have).
 * - A pointer to an object (cofi_packets, cofi_unit, cofi_recording, cofi_flow) is what its own function gave, and has not been freed. Null is COFI_INVALID, and freeing null does nothing.
 * - An object is used by one thread at a time; different objects by different threads. A cofi_recording, which does not change, may be used by several, and may be freed while
 *   flows of it are in use.
 * - A structure with a member `size` is given with that set to sizeof. It may grow at its end: a program that was compiled with an older header goes on working. Other structures never change.
 * - Members called `reserved` (or `reserved_too`) must be 0 in what you give, and mean nothing in what you are given.
 * - Strings are UTF-8 and terminated. Those that are given out last as it is said beside them.
 * - The functions of yours that are called back must return: no longjmp, no C++ exception leaves them. They must not use the object that calls them.
 */
#ifndef COFI_H
#define COFI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cofi_status {
    COFI_OK = 0,
    COFI_END = 1,        /* there is nothing more */
    COFI_FAULT = 2,      /* the processor would have faulted (#GP, #UD); nothing has changed */
    COFI_INVALID = 3,    /* an argument is null, too small, or means nothing */
    COFI_UNREADABLE = 4, /* a file cannot be read, or is none of these */
    COFI_STOPPED = 5,    /* your function asked for it; the flow is at its end */
    COFI_FAILED = 6,     /* an error of the library itself: free the object, and tell us */
    COFI_LOST = 7        /* the output of a trace unit does not hold all that was to be traced */
} cofi_status;

/* The library's version, such as "0.1.0". */
const char *cofi_version(void);

/* Why this thread's last failed function failed; until its next one fails. */
const char *cofi_last_error(void);

/* ------------------------------------------------------------------------------------------------------------------ packets */

typedef enum cofi_format {
    COFI_PT = 0,
    COFI_RTIT = 1,
    COFI_RTIT_CYCLE_ACCURATE = 2
} cofi_format;

typedef struct cofi_packets cofi_packets;

typedef struct cofi_packet {
    uint32_t size;
    uint32_t is_error; /* bytes that are no packet, up to the next PSB */
    uint64_t offset;
    uint64_t len;
    const char *text;  /* as cofi_assemble reads it, "tip.pge 0x401000"; of an error, why; until the next call */
} cofi_packet;

/* The packets of a stream of bytes, which are copied. It begins with a packet. */
cofi_status cofi_packets_new(const uint8_t *data, size_t len, uint32_t format, cofi_packets **out);
/* COFI_END behind the last. */
cofi_status cofi_packets_next(cofi_packets *packets, cofi_packet *out);
void cofi_packets_free(cofi_packets *packets);

/* The bytes of packets, one in a line, as `cofi asm` reads them. *len is the room at `buffer`, and becomes the number of bytes; COFI_INVALID, with *len set, if there is too little room. */
cofi_status cofi_assemble(const char *text, uint32_t format, uint8_t *buffer, size_t *len);

/* ------------------------------------------------------------------------------------------------------------------ the trace unit */

/*
 * A processor's trace unit (chapter 33 of the manual): tell it what retires and what happens, and let it answer RDMSR and WRMSR of its registers; it makes the packets that the processor
 * would. It is for emulators and hypervisors.
 */
typedef struct cofi_unit cofi_unit;

/* What the unit asks of the machine around it. */
typedef struct cofi_client {
    uint32_t size;
    uint32_t reserved;
    void *context;                                                      /* for your functions */
    void (*now)(void *context, uint64_t *tsc, uint64_t *cycles);        /* the time stamp counter and core cycles, which must not go back */
    void (*store)(void *context, uint64_t address, const uint8_t *bytes, size_t len); /* trace output to physical memory */
    uint64_t (*load)(void *context, uint64_t address);                  /* an entry of a Table of Physical Addresses; null: there is no memory */
    void (*topa_pmi)(void *context);                                    /* a ToPA PMI; null: nobody wants it */
} cofi_client;

/* The state of the processor, as far as tracing depends on it. */
typedef struct cofi_context {
    uint64_t cr3;
    uint64_t cs_base;
    uint8_t mode;           /* 16, 32 or 64 */
    uint8_t cpl;            /* 0 to 3 */
    uint8_t pae;            /* PAE paging */
    uint8_t interrupt_flag; /* RFLAGS.IF */
    uint8_t in_tx;          /* in a transaction */
    uint8_t reserved[3];
} cofi_context;

/* Where an instruction stands, and which follows it in memory: linear addresses. */
typedef struct cofi_at {
    uint64_t ip;
    uint64_t next;
} cofi_at;

/*
 * A unit after reset. `processor` is a generation, as `cofi unit generations` names them ("skylake"); `caps` and `options`, which may be null, are other capabilities and what the manual
 * leaves to the processor: "ptwrite=1,cycle_accurate=0", "tnt=long". `client` is copied.
 */
cofi_status cofi_unit_new(const char *processor, const char *caps, const char *options, const cofi_client *client, const cofi_context *context, cofi_unit **out);
void cofi_unit_free(cofi_unit *unit);

/* Saves all of it, as for a machine that is saved. *len as in cofi_assemble. */
cofi_status cofi_unit_save(const cofi_unit *unit, uint8_t *buffer, size_t *len);
/* A unit as it was saved, of the same processor. */
cofi_status cofi_unit_restore(const char *processor, const char *caps, const char *options, const cofi_client *client, const uint8_t *saved, size_t len, cofi_unit **out);

/* What CPUID returns in EAX, EBX, ECX, EDX, as far as Intel PT goes: leaves 14H, 15H and bit 25 of leaf 7's EBX. */
cofi_status cofi_unit_cpuid(const cofi_unit *unit, uint32_t leaf, uint32_t subleaf, uint32_t (*registers)[4]);
/* COFI_FAULT is #GP. */
cofi_status cofi_unit_rdmsr(const cofi_unit *unit, uint32_t msr, uint64_t *value);
cofi_status cofi_unit_wrmsr(cofi_unit *unit, cofi_at at, uint32_t msr, uint64_t value);
/* A warm or a power-on reset. */
cofi_status cofi_unit_reset(cofi_unit *unit, uint32_t warm, const cofi_context *context);
/* Whether what retires now makes packets (PacketEn); whether TraceEn is set. 0 of null. */
uint32_t cofi_unit_packet_en(const cofi_unit *unit);
uint32_t cofi_unit_in_use(const cofi_unit *unit);
/*
 * Whether the output holds all that was to be traced, as far as the registers and the internal buffer know: ask before you take the trace for whole. COFI_LOST: the output is misconfigured
 * (IA32_RTIT_STATUS.Error), or tracing has stopped (IA32_RTIT_STATUS.Stopped), or packets found no room in the internal buffer; cofi_last_error() says which. What a ring of regions has overwritten
 * does not count.
 */
cofi_status cofi_unit_check_output(const cofi_unit *unit);
/* Time has passed, and nothing has happened. */
cofi_status cofi_unit_clock(cofi_unit *unit);

typedef enum cofi_branch {
    COFI_NO_BRANCH = 0,
    COFI_NOT_TAKEN = 1, /* a conditional branch */
    COFI_TAKEN = 2,
    COFI_DIRECT_JUMP = 3,
    COFI_DIRECT_CALL = 4,
    COFI_INDIRECT_JUMP = 5,
    COFI_INDIRECT_CALL = 6,
    COFI_RETURN = 7
} cofi_branch;

/* An instruction other than a far transfer retired, and led to `target` (of no meaning with COFI_NO_BRANCH and COFI_NOT_TAKEN). */
cofi_status cofi_unit_retire(cofi_unit *unit, cofi_at at, uint32_t branch, uint64_t target);

typedef enum cofi_event_kind {              /* what is read beside `kind` */
    COFI_FAR_BRANCH = 0,                    /* at, to, context: SYSCALL, SYSRET, far JMP, CALL and RET, … */
    COFI_IRET = 1,                          /* at, to, context */
    COFI_UIRET = 2,                         /* at, to, context */
    COFI_INTERRUPT = 3,                     /* at.ip, to, context, vector; with flag 1 value is the address of a page fault */
    COFI_USER_INTERRUPT = 4,                /* at.ip, to, context, vector */
    COFI_MOV_CR3 = 5,                       /* at, value: the new CR3 */
    COFI_FLAGS = 6,                         /* at, flag: RFLAGS.IF after CLI, STI, POPF */
    COFI_TRANSACTION_BEGIN = 7,             /* at */
    COFI_TRANSACTION_COMMIT = 8,            /* at */
    COFI_TRANSACTION_ABORT = 9,             /* at.ip, to */
    COFI_SLEEP = 10,                        /* at.ip, c_state, sub_state; flag bit 0: by MWAIT with hints and ext; bit 1: by the hardware */
    COFI_WAKE = 11,                         /* c_state, deepest, reason (a bit each, as in PWRX) */
    COFI_CLOCKS_RESUMED = 12,
    COFI_FREQUENCY = 13,                    /* value: core clock divided by bus clock; with flag 1 execution stopped at at.ip */
    COFI_CYCLE_COUNTER_RESET = 14,
    COFI_INIT = 15,                         /* at.ip, to, context */
    COFI_INIT_TO_WAIT = 16,                 /* at.ip, context: the processor waits for SIPI */
    COFI_SIPI = 17,                         /* vector, to, context */
    COFI_SHUTDOWN = 18,                     /* at.ip */
    COFI_SMI = 19,                          /* at.ip, to, context; RSM is cofi_unit_rsm */
    COFI_VMXON = 20,                        /* at */
    COFI_VMXOFF = 21,                       /* at */
    COFI_VMPTRLD = 22,                      /* at, value: the VMCS pointer */
    COFI_VMCLEAR = 23                       /* at */
} cofi_event_kind;

/* Something that happened. `at.ip` is where: the next instruction for interrupts, traps, SMI and INIT, the instruction itself for faults. `context` is what holds at `to`. */
typedef struct cofi_event {
    uint32_t size;
    uint32_t kind;
    cofi_at at;
    uint64_t to;
    cofi_context context;
    uint64_t value;
    uint8_t vector;
    uint8_t flag;
    uint8_t c_state;
    uint8_t sub_state;
    uint8_t deepest;
    uint8_t hints;
    uint8_t ext;
    uint8_t reason;
} cofi_event;

cofi_status cofi_unit_event(cofi_unit *unit, const cofi_event *event);
/* PTWRITE of 4 or 8 bytes retired. COFI_FAULT is #UD. */
cofi_status cofi_unit_ptwrite(cofi_unit *unit, cofi_at at, uint64_t operand, uint32_t len);
/* RSM: TraceEn becomes what it was (`trace_en`); `lbr` if it enables LBRs. COFI_FAULT is a shutdown. */
cofi_status cofi_unit_rsm(cofi_unit *unit, uint64_t to, const cofi_context *context, uint32_t trace_en, uint32_t lbr);

/* A trace register and what a VM entry or exit loads into it. */
typedef struct cofi_msr_load {
    uint32_t msr;
    uint32_t reserved;
    uint64_t value;
} cofi_msr_load;

typedef enum cofi_entry_outcome {
    COFI_ENTRY_SUCCESS = 0,       /* the guest runs */
    COFI_ENTRY_EARLY_FAILURE = 1, /* control falls through to the next instruction */
    COFI_ENTRY_LATE_FAILURE = 2   /* it fails when guest state is loaded, and ends like a VM exit, at `host_to` */
} cofi_entry_outcome;

/* A VM entry (33.5). What is not used is 0: that is an entry that succeeds, with no control of Table 33-52. */
typedef struct cofi_vm_entry {
    uint32_t size;
    uint32_t outcome;           /* cofi_entry_outcome */
    cofi_at at;                 /* VMLAUNCH or VMRESUME */
    uint64_t to;                /* the guest's first instruction */
    cofi_context context;       /* what holds there */
    uint64_t host_to;           /* with COFI_ENTRY_LATE_FAILURE: where the host goes on */
    cofi_context host;          /* what holds there; not read otherwise */
    uint64_t tsc_multiplier;    /* of the VMCS, with 48 bits behind the point; 0: the guest's TSC is not scaled */
    uint64_t tsc_offset;        /* of the VMCS: the guest's TSC is (tsc * multiplier >> 48) + offset */
    uint64_t ctl;               /* with load_ctl: the guest's IA32_RTIT_CTL */
    const cofi_msr_load *loads; /* the trace registers of the VM-entry MSR-load area, in its order; null with load_count 0 */
    size_t load_count;
    uint64_t vmcs;              /* with from_smm: the VMCS pointer that is loaded */
    uint8_t conceal;            /* "conceal VMX from PT", the VM-entry control */
    uint8_t conceal_guest;      /* "conceal VMX from PT", the VM-execution control */
    uint8_t load_ctl;           /* "load IA32_RTIT_CTL" */
    uint8_t from_smm;           /* it returns from SMM (33.6) */
    uint8_t to_root;            /* with from_smm: to VMX root operation, the executive monitor itself */
    uint8_t reserved[3];
} cofi_vm_entry;

/*
 * A VM entry. An event that it injects is told by cofi_unit_event behind it. COFI_FAULT: it cannot be done, and nothing has changed; where a load faults, tell the unit how the entry fails by a second
 * call, with COFI_ENTRY_LATE_FAILURE.
 */
cofi_status cofi_unit_vm_entry(cofi_unit *unit, const cofi_vm_entry *entry);

/* A VM exit (33.5). What is not used is 0. */
typedef struct cofi_vm_exit {
    uint32_t size;
    uint32_t reserved;
    uint64_t from;              /* the guest's IP, as saved in the VMCS */
    uint64_t to;                /* the host's first instruction */
    cofi_context context;       /* what holds there */
    uint64_t reason;            /* the exit reason */
    uint64_t qualification;     /* the exit qualification */
    const cofi_msr_load *loads; /* the trace registers of the VM-exit MSR-load area, in its order; null with load_count 0 */
    size_t load_count;
    uint64_t vmcs;              /* with to_smm: the SMM-transfer VMCS pointer */
    uint8_t vector;             /* with has_vector */
    uint8_t has_vector;         /* an interrupt, exception, fault or NMI caused the exit */
    uint8_t conceal;            /* "conceal VMX from PT", the VM-exit control */
    uint8_t clear_ctl;          /* "clear IA32_RTIT_CTL" */
    uint8_t to_smm;             /* it leads to the SMM-transfer monitor (33.6) */
    uint8_t smi;                /* with to_smm: an SMI caused it, and not VMCALL */
    uint8_t abort;              /* it ends in a VMX abort */
    uint8_t reserved_too;
} cofi_vm_exit;

/* A VM exit. COFI_FAULT: a load faults, and nothing has changed; tell the unit the VMX abort by a second call. */
cofi_status cofi_unit_vm_exit(cofi_unit *unit, const cofi_vm_exit *exit);

/* ------------------------------------------------------------------------------------------------------------------ recordings */

/* A perf.data file of Cofi or of perf, or bare packets. */
typedef struct cofi_recording cofi_recording;

/*
 * Opens one. The file is read; what it tells of is decoded when a flow runs. `format` is "perf", "pt" or "rtit", or null if it is to be recognised. `elf` and `raw` are lists that end
 * with null, or null: files of code that every process has mapped, "FILE" or "FILE:ADDRESS".
 */
cofi_status cofi_recording_open(const char *path, const char *format, const char *const *elf, const char *const *raw, cofi_recording **out);
void cofi_recording_free(cofi_recording *recording);

/* What is not in it although it ran, and what is wrong with it as a whole: sentences from index 0 on, null behind the last; as long as the recording. */
const char *cofi_recording_missing(const cofi_recording *recording, size_t index);

/* How many streams there are: one a thread, or one a processor. 0 of null. */
size_t cofi_recording_threads(const cofi_recording *recording);

typedef enum cofi_thread_kind {
    COFI_THREAD = 0,
    COFI_PROCESSOR = 1,
    COFI_BARE = 2 /* bare packets: nobody knows whose */
} cofi_thread_kind;

typedef struct cofi_thread {
    uint32_t size;
    uint32_t kind;
    uint32_t tid; /* of a thread, else 0 */
    uint32_t cpu; /* of a processor, else 0 */
    uint32_t pid; /* of a thread, else 0 */
    uint32_t reserved;
    const char *name;    /* as long as the recording */
    const uint8_t *data; /* its packets; as long as the recording */
    uint64_t len;
} cofi_thread;

cofi_status cofi_recording_thread(const cofi_recording *recording, size_t index, cofi_thread *out);

/* The flow of a thread: what ran, in its order. */
typedef struct cofi_flow cofi_flow;

cofi_status cofi_flow_of_thread(const cofi_recording *recording, size_t index, cofi_flow **out);

/* Reads code: stores up to `len` bytes of what stands at `address`, and returns how many. That must be the same whenever it is asked: decoded code is remembered. */
typedef size_t (*cofi_read)(void *context, uint64_t address, uint8_t *buffer, size_t len);

/* The flow of bare packets of Intel PT, which are copied, with code that your function reads. */
cofi_status cofi_flow_of_bytes(const uint8_t *data, size_t len, cofi_read read, void *context, cofi_flow **out);
void cofi_flow_free(cofi_flow *flow);

/* What runs up to an instruction of which only the trace tells where it leads, or a piece of that. */
typedef struct cofi_block {
    uint64_t ip;           /* of the first instruction */
    uint64_t end;          /* of the last instruction */
    uint64_t offset;       /* where in the stream the last packet begins that was used */
    uint32_t instructions;
    uint8_t class_;        /* of the last instruction: cofi_class_name */
    uint8_t mode;          /* 16, 32 or 64 */
    uint16_t reserved;
} cofi_block;

typedef struct cofi_insn {
    uint64_t ip;
    uint8_t length;
    uint8_t class_;
    uint8_t mode;
    uint8_t reserved[5];
} cofi_insn;

/* A part of an event, by its name in `cofi events --json`. */
typedef struct cofi_field {
    const char *name;
    const char *text;  /* null of a number */
    uint64_t value;
    uint32_t is_known;
    uint32_t reserved;
} cofi_field;

typedef enum cofi_item_kind {
    COFI_EVENT = 1, /* something that happened between two instructions */
    COFI_GAP = 2    /* a part of the flow is missing: nobody knows what ran there. An overflow is one */
} cofi_item_kind;

typedef struct cofi_item {
    uint32_t size;
    uint32_t kind;
    const char *name;      /* of an event, as in `cofi events --json`; of a gap, the word for its cause, as in `cofi check` */
    const char *text;      /* of a gap, its cause in a sentence, or null */
    uint64_t offset;       /* where in the stream */
    uint64_t instructions; /* how many ran before */
    const cofi_field *fields;
    size_t field_count;
} cofi_item;

/*
 * Runs to the next event or gap, which is stored, and calls `visit` with what ran up to it, many at a time (the array lasts until it returns). COFI_END: the flow is at its end, and what ran
 * last has been visited. If `visit` does not return 0, the flow is left where it stands: COFI_STOPPED, and COFI_END from then on. What `out` points at lasts until the next call.
 */
cofi_status cofi_flow_blocks(cofi_flow *flow, int (*visit)(void *context, const cofi_block *blocks, size_t count), void *context, cofi_item *out);
cofi_status cofi_flow_instructions(cofi_flow *flow, int (*visit)(void *context, const cofi_insn *insns, size_t count), void *context, cofi_item *out);

/* The word for a class of instructions ("conditional", "return"); null if there is no such class. For ever. */
const char *cofi_class_name(uint8_t class_);

#ifdef __cplusplus
}
#endif

#endif
