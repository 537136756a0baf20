// The header serves C++, too.
#include "cofi.h"
#include <string>
#include <vector>

int main() {
    std::vector<uint8_t> bytes(64);
    std::size_t len = bytes.size();
    if (cofi_assemble("psb\npsbend", COFI_PT, bytes.data(), &len) != COFI_OK)
        return 1;
    cofi_packets *packets = nullptr;
    if (cofi_packets_new(bytes.data(), len, COFI_PT, &packets) != COFI_OK)
        return 1;
    cofi_packet packet{};
    packet.size = sizeof packet;
    std::string all;
    while (cofi_packets_next(packets, &packet) == COFI_OK)
        all += packet.text, all += ';';
    cofi_packets_free(packets);
    // Structures that need no designated initializers.
    cofi_vm_entry entry{};
    entry.size = sizeof entry;
    entry.outcome = COFI_ENTRY_EARLY_FAILURE;
    cofi_vm_exit leave{};
    leave.size = sizeof leave;
    if (cofi_unit_vm_entry(nullptr, &entry) != COFI_INVALID || cofi_unit_vm_exit(nullptr, &leave) != COFI_INVALID)
        return 1;
    return all == "psb;psbend;" ? 0 : 1;
}
