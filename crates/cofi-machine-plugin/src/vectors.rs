//! Which vector an interrupt had: QEMU tells where it led, and the guest's table of interrupts to which vector that belongs.

use crate::qemu::Qemu;
use crate::state::State;
use alloc::collections::BTreeMap;
use alloc::vec;
use cofi_packet::ExecMode;

const VECTORS: usize = 256;
/// A page fault.
pub(crate) const PAGE_FAULT: u8 = 14;

/// The table, as it was read last.
#[derive(Debug, Default)]
pub(crate) struct Vectors {
    table: (u64, u32),
    /// Vectors by the offset of their handler in its code segment; of several with the same, the lowest.
    known: BTreeMap<u64, u8>,
}

impl Vectors {
    /// The vector whose handler is at a linear address, at which the processor is now. Where the table knows none (a task gate), it is 0.
    pub(crate) fn of(&mut self, qemu: &Qemu, state: State, to: u64) -> u8 {
        let offset = to.wrapping_sub(state.code_base());
        let table = state.interrupt_table();
        if table == self.table
            && let Some(vector) = self.known.get(&offset)
        {
            return *vector;
        }
        self.table = table;
        let size = gate_size(state);
        let len = (table.1 as usize + 1).min(VECTORS * size) / size * size;
        let mut bytes = vec![0; len];
        // A table that reaches into a page that is not there: up to that.
        for (part, at) in bytes.chunks_mut(64).zip((0..).step_by(64)) {
            if !qemu.read_linear(table.0.wrapping_add(at), part) {
                break;
            }
        }
        self.known = handlers(&bytes, size);
        self.known.get(&offset).copied().unwrap_or(0)
    }
}

/// How many bytes a gate has.
fn gate_size(state: State) -> usize {
    if state.is_long() {
        16
    } else if state.is_protected() || state.mode() != ExecMode::Bits16 {
        8
    } else {
        4
    }
}

fn handlers(bytes: &[u8], size: usize) -> BTreeMap<u64, u8> {
    let mut known = BTreeMap::new();
    for (gate, vector) in bytes.chunks_exact(size).zip(0..=u8::MAX) {
        if let Some(offset) = handler(gate) {
            known.entry(offset).or_insert(vector);
        }
    }
    known
}

/// Where a gate leads: an offset into the code segment that it names.
fn handler(gate: &[u8]) -> Option<u64> {
    let word = |at: usize| Some(u64::from(*gate.get(at)?) | u64::from(*gate.get(at + 1)?) << 8);
    let low = word(0)?;
    if gate.len() == 4 {
        return (word(2)? | low != 0).then_some(low);
    }
    let attributes = *gate.get(5)?;
    let is_present = attributes & 0x80 != 0;
    match (attributes & 0xf, gate.len()) {
        _ if !is_present => None,
        (0x6 | 0x7, 8) => Some(low),
        (0xe | 0xf, 8) => Some(low | word(6)? << 16),
        (0xe | 0xf, 16) => Some(low | word(6)? << 16 | word(8)? << 32 | word(10)? << 48),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gate of long mode.
    fn gate(offset: u64, attributes: u8) -> [u8; 16] {
        let mut gate = [0; 16];
        let bytes = offset.to_le_bytes();
        gate[..2].copy_from_slice(&bytes[..2]);
        gate[5] = attributes;
        gate[6..12].copy_from_slice(&bytes[2..]);
        gate
    }

    #[test]
    fn a_gate_leads_to_its_handler() {
        let at = 0xffff_ffff_8120_1234;
        let table = [gate(0, 0), gate(at, 0x8e), gate(at, 0xef), gate(7, 0x0e)].concat();
        assert_eq!(handlers(&table, 16), BTreeMap::from([(at, 1)]));
        // Of protected mode: 32 bits and 16 bits; a task gate has no handler.
        let wide = [0x34, 0x12, 8, 0, 0, 0x8e, 0x78, 0x56];
        let narrow = [0x34, 0x12, 8, 0, 0, 0x86, 0x78, 0x56];
        assert_eq!(handler(&wide), Some(0x5678_1234));
        assert_eq!(handler(&narrow), Some(0x1234));
        assert_eq!(handler(&[0, 0, 8, 0, 0, 0x85, 0, 0]), None);
        // Of real mode.
        assert_eq!(handler(&[0x34, 0x12, 0, 0xf0]), Some(0x1234));
        assert_eq!(handler(&[0; 4]), None);
    }
}
