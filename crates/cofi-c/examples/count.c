/* Counts what ran in a recording: cc count.c -lcofi -o count && ./count cofi.data */
#include <cofi.h>
#include <stdio.h>

struct counts {
    uint64_t blocks, instructions, by_class[256];
};

static int add(void *context, const cofi_block *blocks, size_t count) {
    struct counts *counts = context;
    for (size_t i = 0; i < count; i++) {
        counts->blocks++;
        counts->instructions += blocks[i].instructions;
        counts->by_class[blocks[i].class_]++;
    }
    return 0;
}

int main(int argc, char **argv) {
    cofi_recording *recording;
    if (argc != 2 || cofi_recording_open(argv[1], NULL, NULL, NULL, &recording) != COFI_OK) {
        fprintf(stderr, "%s\n", argc == 2 ? cofi_last_error() : "count FILE");
        return 2;
    }
    const char *sentence;
    for (size_t i = 0; (sentence = cofi_recording_missing(recording, i)); i++)
        fprintf(stderr, "%s\n", sentence);
    int status = 0;
    for (size_t i = 0; i < cofi_recording_threads(recording); i++) {
        cofi_thread thread = {.size = sizeof thread};
        cofi_flow *flow;
        if (cofi_recording_thread(recording, i, &thread) || cofi_flow_of_thread(recording, i, &flow))
            return 2;
        struct counts counts = {0};
        uint64_t events = 0;
        cofi_item item = {.size = sizeof item};
        cofi_status now;
        while ((now = cofi_flow_blocks(flow, add, &counts, &item)) == COFI_OK) {
            if (item.kind == COFI_GAP) {
                printf("gap at %#llx: %s\n", (unsigned long long)item.offset, item.name);
                status = 1;
            } else {
                events++;
            }
        }
        if (now != COFI_END) {
            fprintf(stderr, "%s\n", cofi_last_error());
            status = 2;
        }
        static const char *const KINDS[] = {"thread", "processor", "stream"};
        printf("%s %u: %llu instructions, %llu events\n", KINDS[thread.kind],
               thread.kind == COFI_PROCESSOR ? thread.cpu : thread.tid, (unsigned long long)counts.instructions, (unsigned long long)events);
        for (int class_ = 0; class_ < 256; class_++)
            if (counts.by_class[class_] && cofi_class_name(class_))
                printf("  %s %llu\n", cofi_class_name(class_), (unsigned long long)counts.by_class[class_]);
        cofi_flow_free(flow);
    }
    cofi_recording_free(recording);
    return status;
}
