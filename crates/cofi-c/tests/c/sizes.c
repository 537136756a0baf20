/* Sizes of all structures and places of their members, for the test that compares them. */
#include "cofi.h"
#include <stddef.h>
#include <stdio.h>

int main(void) {
    printf("%zu\n", sizeof(cofi_packet));
    printf("%zu\n", offsetof(cofi_packet, size));
    printf("%zu\n", offsetof(cofi_packet, is_error));
    printf("%zu\n", offsetof(cofi_packet, offset));
    printf("%zu\n", offsetof(cofi_packet, len));
    printf("%zu\n", offsetof(cofi_packet, text));
    printf("%zu\n", sizeof(cofi_client));
    printf("%zu\n", offsetof(cofi_client, context));
    printf("%zu\n", offsetof(cofi_client, now));
    printf("%zu\n", offsetof(cofi_client, store));
    printf("%zu\n", offsetof(cofi_client, load));
    printf("%zu\n", offsetof(cofi_client, topa_pmi));
    printf("%zu\n", sizeof(cofi_context));
    printf("%zu\n", offsetof(cofi_context, cr3));
    printf("%zu\n", offsetof(cofi_context, cs_base));
    printf("%zu\n", offsetof(cofi_context, mode));
    printf("%zu\n", offsetof(cofi_context, cpl));
    printf("%zu\n", offsetof(cofi_context, pae));
    printf("%zu\n", offsetof(cofi_context, interrupt_flag));
    printf("%zu\n", offsetof(cofi_context, in_tx));
    printf("%zu\n", sizeof(cofi_at));
    printf("%zu\n", offsetof(cofi_at, ip));
    printf("%zu\n", offsetof(cofi_at, next));
    printf("%zu\n", sizeof(cofi_event));
    printf("%zu\n", offsetof(cofi_event, kind));
    printf("%zu\n", offsetof(cofi_event, at));
    printf("%zu\n", offsetof(cofi_event, to));
    printf("%zu\n", offsetof(cofi_event, context));
    printf("%zu\n", offsetof(cofi_event, value));
    printf("%zu\n", offsetof(cofi_event, vector));
    printf("%zu\n", offsetof(cofi_event, flag));
    printf("%zu\n", offsetof(cofi_event, c_state));
    printf("%zu\n", offsetof(cofi_event, sub_state));
    printf("%zu\n", offsetof(cofi_event, deepest));
    printf("%zu\n", offsetof(cofi_event, hints));
    printf("%zu\n", offsetof(cofi_event, ext));
    printf("%zu\n", offsetof(cofi_event, reason));
    printf("%zu\n", sizeof(cofi_thread));
    printf("%zu\n", offsetof(cofi_thread, kind));
    printf("%zu\n", offsetof(cofi_thread, tid));
    printf("%zu\n", offsetof(cofi_thread, cpu));
    printf("%zu\n", offsetof(cofi_thread, pid));
    printf("%zu\n", offsetof(cofi_thread, name));
    printf("%zu\n", offsetof(cofi_thread, data));
    printf("%zu\n", offsetof(cofi_thread, len));
    printf("%zu\n", sizeof(cofi_block));
    printf("%zu\n", offsetof(cofi_block, ip));
    printf("%zu\n", offsetof(cofi_block, end));
    printf("%zu\n", offsetof(cofi_block, offset));
    printf("%zu\n", offsetof(cofi_block, instructions));
    printf("%zu\n", offsetof(cofi_block, class_));
    printf("%zu\n", offsetof(cofi_block, mode));
    printf("%zu\n", sizeof(cofi_insn));
    printf("%zu\n", offsetof(cofi_insn, ip));
    printf("%zu\n", offsetof(cofi_insn, length));
    printf("%zu\n", offsetof(cofi_insn, class_));
    printf("%zu\n", offsetof(cofi_insn, mode));
    printf("%zu\n", sizeof(cofi_field));
    printf("%zu\n", offsetof(cofi_field, name));
    printf("%zu\n", offsetof(cofi_field, text));
    printf("%zu\n", offsetof(cofi_field, value));
    printf("%zu\n", offsetof(cofi_field, is_known));
    printf("%zu\n", sizeof(cofi_item));
    printf("%zu\n", offsetof(cofi_item, kind));
    printf("%zu\n", offsetof(cofi_item, name));
    printf("%zu\n", offsetof(cofi_item, text));
    printf("%zu\n", offsetof(cofi_item, offset));
    printf("%zu\n", offsetof(cofi_item, instructions));
    printf("%zu\n", offsetof(cofi_item, fields));
    printf("%zu\n", offsetof(cofi_item, field_count));
    return 0;
}
