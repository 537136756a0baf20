/* The sizes of all structures, for the test that compares them. */
#include "cofi.h"
#include <stdio.h>

int main(void) {
    printf("%zu %zu %zu %zu %zu %zu %zu %zu %zu %zu\n", sizeof(cofi_client), sizeof(cofi_context), sizeof(cofi_at), sizeof(cofi_event), sizeof(cofi_thread),
           sizeof(cofi_block), sizeof(cofi_insn), sizeof(cofi_field), sizeof(cofi_item), sizeof(cofi_packet));
    return 0;
}
