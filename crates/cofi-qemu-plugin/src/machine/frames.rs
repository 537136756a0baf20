//! What a handler's first block finds on the stack: where it came from.

use super::code::{End, Variant};
use super::state::{Mode, Segment, State};
use crate::layout::state;
use crate::qemu::Machine;
use alloc::vec::Vec;

const PAGE: u64 = 4096;
/// Handlers that wait for each other, at most: an interrupt before another one's handler has begun.
const DEPTH: usize = 8;
/// Bits of RFLAGS that are always 1, and always 0.
const FLAGS_SET: u64 = 1 << 1;
const FLAGS_CLEAR: u64 = 1 << 3 | 1 << 5 | 1 << 15;

/// The addresses to which a processor's interrupt table leads, as far as they were looked at.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Handlers {
    /// The first and the last of `known`; all places, where none is known.
    range: (u64, u64),
    table: Segment,
    mode: Option<Mode>,
    /// The table's bytes, as far as they could be read.
    bytes: Vec<u8>,
    /// Sorted: offsets in their segments; in real mode linear addresses.
    known: Vec<u64>,
}

impl Handlers {
    pub(super) const fn new() -> Self {
        let table = Segment {
            selector: 0,
            base: 0,
            limit: 0,
        };
        Self {
            table,
            mode: None,
            bytes: Vec::new(),
            known: Vec::new(),
            range: (0, u64::MAX),
        }
    }

    /// From now on these are known.
    fn set_known(&mut self, known: impl IntoIterator<Item = u64>) {
        self.known.clear();
        self.known.extend(known);
        self.known.sort_unstable();
        self.known.dedup();
        self.range = match *self.known {
            [only] => (only, only),
            [first, .., last] => (first, last),
            [] => (0, u64::MAX),
        };
    }

    /// Looks at the table if it is another one, or may have changed.
    pub(super) fn refresh(&mut self, machine: &Machine, state: State, changed: bool) {
        let (table, mode) = (state.idt(), state.mode());
        let is_same = self.table == table && self.mode == Some(mode);
        if !changed && is_same {
            return;
        }
        (self.table, self.mode) = (table, Some(mode));
        let size: usize = match mode {
            Mode::Real => 4,
            Mode::Protected => 8,
            Mode::Long => 16,
        };
        let mut bytes = [0; 256 * 16];
        let len = (table.limit as usize + 1).min(256 * size);
        // A table that reaches into a page that is not there: up to that.
        let mut read = 0;
        while read < len {
            let at = table.base.wrapping_add(read as u64);
            let end = len.min(read + (PAGE - at % PAGE) as usize);
            if !bytes
                .get_mut(read..end)
                .is_some_and(|part| machine.read(at, part))
            {
                break;
            }
            read = end;
        }
        let bytes = bytes.get(..read).unwrap_or_default();
        // It is looked at for each new block behind an indirect branch, and seldom changes.
        if is_same && self.bytes == bytes {
            return;
        }
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.set_known(bytes.chunks_exact(size).filter_map(handler));
    }

    /// Whether no handler can begin where a processor in this mode stands, as far as is known. Handlers stand close together.
    #[inline(always)]
    pub(super) fn is_elsewhere(&self, mode: Mode, state: State) -> bool {
        let (first, last) = self.range;
        let is_outside = state.ip() < first || state.ip() > last;
        is_outside && mode != Mode::Real && self.mode == Some(mode) && self.table == state.idt()
    }

    /// Whether the table leads to a place.
    fn has(&self, ip: u64, linear: u64) -> bool {
        let key = if self.mode == Some(Mode::Real) {
            linear
        } else {
            ip
        };
        self.known.binary_search(&key).is_ok()
    }
}

/// Where a gate of the interrupt table leads.
fn handler(gate: &[u8]) -> Option<u64> {
    let word = |at: usize| {
        Some(u64::from(u16::from_le_bytes([
            *gate.get(at)?,
            *gate.get(at + 1)?,
        ])))
    };
    if gate.len() == 4 {
        let (ip, cs) = (word(0)?, word(2)?);
        return (ip | cs != 0).then_some((cs << 4) + ip);
    }
    let attributes = gate.get(5)?;
    if attributes & 0x80 == 0 {
        return None;
    }
    let low = word(0)?;
    match (attributes & 0xf, gate.len()) {
        (0x6 | 0x7, 8) => Some(low),
        (0xe | 0xf, 8) => Some(low | word(6)? << 16),
        (0xe | 0xf, 16) => Some(low | word(6)? << 16 | word(8)? << 32 | word(10)? << 48),
        _ => None,
    }
}

/// What ran last, and how its code segment was.
#[derive(Clone, Copy)]
pub(super) struct Before {
    pub(super) variant: &'static Variant,
    pub(super) cs: u16,
    pub(super) cs_base: u64,
}

/// An interrupt's frame.
#[derive(Clone, Copy, Debug)]
struct Frame {
    ip: u64,
    cs: u16,
    /// The stack's top when it was interrupted.
    stack: u64,
}

/// Looks at one processor's stack.
pub(super) struct Look<'a> {
    pub(super) machine: &'a Machine,
    pub(super) state: State,
    pub(super) handlers: &'a Handlers,
}

/// A place that was interrupted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) linear: u64,
    pub(super) cs: u16,
}

/// Places before which interrupts came: they led to the next one in the list, a handler that had not begun, and the last one to
/// what runs now.
pub(super) type Hops = Vec<Place>;

impl Look<'_> {
    /// How control came from `before` to the block that runs now: `None` if not by an interrupt.
    pub(super) fn interrupts(&self, before: &Before) -> Option<Hops> {
        let here = (self.state.ip(), self.state.linear(self.state.bits()));
        // Where any place may be next, an interrupt is believed only where the table leads.
        if before.variant.end.is_anywhere() && !self.handlers.has(here.0, here.1) {
            return None;
        }
        let mut hops = Hops::new();
        let mut stack = self.state.stack();
        for _ in 0..DEPTH {
            let frames = self.frames(stack);
            let found = frames.iter().flatten().find_map(|frame| {
                let linear = self.came_from(before, frame)?;
                Some(Place {
                    linear,
                    cs: frame.cs,
                })
            });
            if let Some(from) = found {
                hops.insert(0, from);
                return Some(hops);
            }
            // Another handler, which had not begun?
            let deeper = frames.iter().flatten().find_map(|frame| {
                let linear = self.linear(frame.cs, frame.ip)?;
                let place = Place {
                    linear,
                    cs: frame.cs,
                };
                self.handlers
                    .has(frame.ip, linear)
                    .then_some((frame.stack, place))
            });
            let (below, handler) = deeper?;
            hops.insert(0, handler);
            stack = below;
        }
        None
    }

    /// Where a frame says that control was, if it can have come there.
    fn came_from(&self, before: &Before, frame: &Frame) -> Option<u64> {
        let Before {
            variant,
            cs,
            cs_base,
        } = *before;
        let is_same = frame.cs == cs;
        let linear = if is_same {
            let base = if variant.bits & state::BITS_64 != 0 {
                0
            } else {
                cs_base
            };
            let ip = base.wrapping_add(frame.ip);
            if variant.bits & state::BITS_64 != 0 {
                ip
            } else {
                ip & 0xffff_ffff
            }
        } else {
            self.linear(frame.cs, frame.ip)?
        };
        let natural = linear == variant.after || linear == variant.target;
        let within = variant.has_instruction_at(linear);
        let fits = match variant.end {
            End::Plain | End::Repeat | End::Direct(..) => is_same && (natural || within),
            End::Near => is_same,
            // What a far call or INT has left there is no interrupt's frame.
            End::Far | End::FarCall => !(is_same && linear == variant.after),
        };
        fits.then_some(linear)
    }

    /// What the frame at the stack's top may be.
    fn frames(&self, stack: u64) -> [Option<Frame>; 4] {
        match self.state.mode() {
            // The frame of five words is aligned to 16 bytes before it is written; an error code shifts it.
            Mode::Long => [self.frame(stack, 8, stack & 8 == 0), None, None, None],
            Mode::Protected => [
                self.frame(stack, 4, false),
                self.frame(stack, 4, true),
                self.frame(stack, 2, false),
                self.frame(stack, 2, true),
            ],
            Mode::Real => [self.frame(stack, 2, false), None, None, None],
        }
    }

    /// A frame of words of `size` bytes, if it looks like one.
    fn frame(&self, stack: u64, size: usize, has_error_code: bool) -> Option<Frame> {
        let begin = stack.wrapping_add(if has_error_code { size as u64 } else { 0 });
        let mut bytes = [0; 5 * 8];
        let words = if size == 8 { 5 } else { 3 };
        let bytes = bytes.get_mut(..words * size)?;
        if !self.machine.read(begin, bytes) {
            return None;
        }
        let word = |i: usize| {
            let mut word = [0; 8];
            let part = bytes.get(i * size..(i + 1) * size)?;
            word.get_mut(..size)?.copy_from_slice(part);
            Some(u64::from_le_bytes(word))
        };
        let (ip, cs, flags) = (word(0)?, word(1)?, word(2)?);
        // The upper half of a word that holds CS may be anything in 32-bit mode.
        let cs_fits = size != 8 || cs <= 0xffff;
        let flags_fit = flags & FLAGS_SET != 0 && flags & FLAGS_CLEAR == 0 && flags >> 22 == 0;
        if !cs_fits || !flags_fit {
            return None;
        }
        let behind = begin.wrapping_add((3 * size) as u64);
        let stack = match self.state.mode() {
            Mode::Long => word(3)?,
            // From a lower privilege level: its stack is told too.
            Mode::Protected if cs as u16 & 3 != self.state.cs_selector() & 3 => {
                let mut esp = [0; 4];
                self.machine
                    .read(behind, &mut esp)
                    .then_some(u32::from_le_bytes(esp).into())?
            }
            _ => behind,
        };
        Some(Frame {
            ip,
            cs: cs as u16,
            stack,
        })
    }

    /// The linear address of an offset in a code segment.
    fn linear(&self, cs: u16, ip: u64) -> Option<u64> {
        match self.state.mode() {
            Mode::Real => Some((u64::from(cs) << 4).wrapping_add(ip & 0xffff) & 0xffff_ffff),
            Mode::Long | Mode::Protected => {
                const CODE_64: u8 = 1 << 5;
                let table = if cs & 4 == 0 {
                    self.state.gdt()
                } else {
                    self.state.ldt()
                };
                let mut bytes = [0; 8];
                let at = table.base.wrapping_add(u64::from(cs & !7));
                if u32::from(cs | 7) > table.limit || !self.machine.read(at, &mut bytes) {
                    return None;
                }
                let [_, _, a, b, c, _, attributes, d] = bytes;
                if self.state.mode() == Mode::Long && attributes & CODE_64 != 0 {
                    // The base does not count.
                    return Some(ip);
                }
                let base = u64::from(u32::from_le_bytes([a, b, c, d]));
                Some(base.wrapping_add(ip) & 0xffff_ffff)
            }
        }
    }
}

/// Where a system management interrupt came from: the saved state says, in the layout of processors with long mode.
pub(super) fn before_smi(machine: &Machine, state: State) -> Option<Place> {
    const SAVED_CS: u64 = 0xfe10;
    const SAVED_CS_BASE: u64 = 0xfe18;
    const SAVED_RIP: u64 = 0xff78;
    let smbase = state.cs_base();
    let read = |offset: u64| {
        let mut bytes = [0; 8];
        machine
            .read(smbase.wrapping_add(offset), &mut bytes)
            .then_some(u64::from_le_bytes(bytes))
    };
    Some(Place {
        linear: read(SAVED_CS_BASE)?.wrapping_add(read(SAVED_RIP)?),
        cs: read(SAVED_CS)? as u16,
    })
}

#[cfg(test)]
mod tests;
