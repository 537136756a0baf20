//! What an interrupt has pushed: the state in which the processor was before it.

use crate::qemu::Qemu;
use crate::state::State;
use alloc::vec::Vec;
use cofi_packet::ExecMode;
use cofi_unit::Context;

/// RFLAGS.IF and RFLAGS.VM.
const INTERRUPT_FLAG: u64 = 1 << 9;
const VIRTUAL_8086: u64 = 1 << 17;
/// So many code segments are remembered.
const MOST: usize = 64;

/// How code ran when CS had these selectors, the last first.
#[derive(Debug, Default)]
pub(crate) struct Selectors(Vec<(u16, ExecMode)>);

impl Selectors {
    /// The processor runs code of its present segment.
    #[inline]
    pub(crate) fn note(&mut self, state: State) {
        let now = (state.cs_selector(), state.mode());
        if self.0.first() != Some(&now) {
            self.0.retain(|(selector, _)| *selector != now.0);
            self.0.truncate(MOST - 1);
            self.0.insert(0, now);
        }
    }

    fn mode(&self, selector: u16) -> Option<ExecMode> {
        let known = self.0.iter().find(|(known, _)| *known == selector)?;
        Some(known.1)
    }
}

/// What held before the interrupt in whose handler the processor is now, and which came at `from`; `None` if its frame is not found.
pub(crate) fn before_interrupt(
    qemu: &Qemu,
    state: State,
    selectors: &Selectors,
    from: u64,
) -> Option<Context> {
    let width = if state.is_long() {
        8
    } else if state.is_protected() {
        4
    } else {
        2
    };
    let mut bytes = [0; 4 * 8];
    let bytes = bytes.get_mut(..4 * width)?;
    if !qemu.read_linear(state.stack(), bytes) {
        return None;
    }
    let words = [0, 1, 2, 3].map(|index| word(bytes, index * width, width));
    let [ip, cs, flags] = without_error_code(words, from, width)?;
    let cs = cs as u16;
    let is_virtual = flags & VIRTUAL_8086 != 0;
    let (cpl, mode) = match width {
        2 => (0, ExecMode::Bits16),
        _ if is_virtual => (3, ExecMode::Bits16),
        _ => ((cs & 3) as u8, selectors.mode(cs)?),
    };
    let cs_base = match mode {
        ExecMode::Bits64 => 0,
        _ => from.wrapping_sub(ip) & 0xffff_ffff,
    };
    Some(Context {
        cpl,
        mode,
        cs_base,
        interrupt_flag: flags & INTERRUPT_FLAG != 0,
        ..state.context()
    })
}

fn word(bytes: &[u8], at: usize, width: usize) -> u64 {
    let mut word = [0; 8];
    if let Some(part) = bytes.get(at..at + width) {
        word[..width].copy_from_slice(part);
    }
    u64::from_le_bytes(word)
}

/// IP, CS and flags, of four words on the stack, of which the first may be an error code. In segments with a base, only IP's distance from
/// `from` tells: that it is a multiple of 16.
fn without_error_code(words: [u64; 4], from: u64, width: usize) -> Option<[u64; 3]> {
    let [a, b, c, d] = words;
    let near = |ip: u64| width != 8 && from.wrapping_sub(ip) & 0xf == 0;
    let has_code = width != 2;
    if a == from {
        Some([a, b, c])
    } else if b == from && has_code {
        Some([b, c, d])
    } else if near(a) {
        Some([a, b, c])
    } else if near(b) && has_code {
        Some([b, c, d])
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_code_is_passed_over() {
        let from = 0xffff_ffff_8100_0010;
        assert_eq!(
            without_error_code([from, 0x33, 0x202, 9], from, 8),
            Some([from, 0x33, 0x202])
        );
        assert_eq!(
            without_error_code([6, from, 0x33, 0x202], from, 8),
            Some([from, 0x33, 0x202])
        );
        assert_eq!(without_error_code([1, 2, 3, 4], from, 8), None);
        // A segment with a base of 0x1000.
        assert_eq!(
            without_error_code([0x234, 8, 2, 0], 0x1234, 4),
            Some([0x234, 8, 2])
        );
    }

    #[test]
    fn words_are_little_endian() {
        assert_eq!(word(&[1, 2, 3, 4], 2, 2), 0x0403);
        assert_eq!(word(&[1], 4, 4), 0, "there is none");
    }
}
