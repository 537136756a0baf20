//! Where packets go (33.2.7): a single range of memory (33.2.7.1), the regions of a Table of Physical Addresses
//! (33.2.7.2), or the trace transport subsystem (33.2.7.3).
//!
//! # What the manual leaves open
//!
//! - *When a table is read.* "The processor may cache internally any number of entries": here it holds one, the entry
//!   in use. An entry is read once, when proc_trace_table_offset comes to point to it: when TraceEn is set, and when the
//!   region before it is filled by its last byte, even if no byte follows. Later changes of it go unnoticed until TraceEn
//!   is set again.
//! - *When errors are signaled* (33.3.10: not predictable). As soon as the entry is read. What the store that filled the
//!   region before it still had to write is lost. The registers then point to the malformed entry, with an OutputOffset
//!   of 0 where it was reached by filling a region, or else as software left them. On processors with a single output
//!   region this holds for the second entry too: it is looked at when the first region is filled, not before. There, all
//!   entries but the first must be such END entries.
//! - *Entries beyond memory.* A table whose entry in use lies beyond MAXPHYADDR is an error, as a table base there is.
//! - *An END entry in use when TraceEn is set* is followed like any other, and OutputOffset becomes 0.
//! - *The write pointer at the end of a region.* The manual lets it stop at "RegionSize-1" and says in the next sentence
//!   that it points behind the region, which would be an operational error if it stayed (rule 3); the last byte of a
//!   region is no such error. Here a ToPA STOP leaves OutputOffset equal to the region's size: the byte at size-1 is
//!   written, and the pointer is as rule 3 and Linux expect it (`pt_handle_status` compares it with the size).
//! - *What a ToPA STOP cuts off.* The bytes of the store that fit are written, the rest of it is lost.
//! - *STOP and INT.* Stopped is set, then the PMI raised; the entry that follows is not read.
//! - *INT before an error.* The PMI of the filled region is raised even if the next entry is malformed.
//! - *The early PMI* of processors with a single output region comes when the write pointer enters the last
//!   [`EARLY_PMI_BYTES`] of the region, and not a second time when it is filled. If tracing was enabled with the pointer
//!   already there, it comes when the region is filled; so a handler that resumes where it was is not interrupted for
//!   ever.
//! - *Restricted memory* (33.2.7.4, Table 33-5). Whether an output region has any is asked once, when it is reached. Its
//!   restricted bytes are dropped without an error, while the pointer moves on, and output continues behind them. A table
//!   entry in restricted memory is an error when it is reached, and is not read.
//! - *Setting TraceEn while Error or Stopped is set* pends a PMI that is due, and does nothing else: the table is not read.

mod error;
mod saved;
mod single;
mod topa;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

pub use error::OutputError;

use crate::client::{Client, PhysAddr};
use crate::registers::Registers;
use crate::spec::Capabilities;

/// So many bytes before the end of the only output region the PMI is raised, on processors that support no more than one.
/// Linux counts on no more (TOPA_PMI_MARGIN in its driver).
const EARLY_PMI_BYTES: u64 = 512;

/// The output scheme in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Scheme {
    /// None: tracing is disabled or has ended.
    #[default]
    Off,
    Transport,
    SingleRange,
    Topa,
}

/// The output region in use. It ends within 64 bits, and the write pointer is in it whenever a store begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Region {
    base: u64,
    size: u64,
    /// The offset at which there is something to do: the end, or where an early PMI is due.
    watch: u64,
    /// A PMI is due at `watch`.
    int: bool,
    /// Tracing stops when the region is filled.
    stop: bool,
    /// It overlaps with restricted memory.
    restricted: bool,
}

/// The output side of the trace unit. The write pointer itself is in the registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Output {
    scheme: Scheme,
    region: Region,
    /// Stores that end before this offset of the region need nothing but memory.
    plain_until: u64,
}

impl Output {
    /// TraceEn was set. `false`: an operational error (33.3.10) is logged in the status register, or Stopped was set before;
    /// TriggerEn is 0, and nothing is stored.
    #[cold]
    pub(crate) fn start(
        &mut self,
        regs: &mut Registers,
        caps: &Capabilities,
        client: &mut impl Client,
    ) -> bool {
        *self = Self::default();
        if regs.ctl.inject() && regs.status.pend_topa_pmi() {
            client.topa_pmi();
        }
        if regs.status.error() || regs.status.stopped() {
            regs.status = regs.status.with_trigger_en(false);
            return false;
        }
        if regs.ctl.fabric_en() {
            self.scheme = Scheme::Transport;
            return true;
        }
        let (scheme, region) = if regs.ctl.topa() {
            (Scheme::Topa, topa::enter(regs, caps, client).ok())
        } else {
            (Scheme::SingleRange, single::region(regs))
        };
        self.scheme = scheme;
        self.use_region(regs, client, region)
    }

    /// Stores `bytes` at the write pointer and moves it. `false`: tracing has ended by this, for good or until software acts;
    /// the status register says why (Error or Stopped, and TriggerEn is 0), and nothing more is stored.
    #[inline(always)]
    pub(crate) fn store(
        &mut self,
        regs: &mut Registers,
        caps: &Capabilities,
        client: &mut impl Client,
        bytes: &[u8],
    ) -> bool {
        let offset = regs.mask_ptrs.offset();
        let end = offset + bytes.len() as u64;
        if end < self.plain_until {
            if !bytes.is_empty() {
                client.store(PhysAddr(self.region.base + offset), bytes);
                regs.mask_ptrs = regs.mask_ptrs.with_offset(end);
            }
            true
        } else {
            self.store_slowly(regs, caps, client, bytes)
        }
    }

    /// [`Self::store`] of the lowest `len` bytes of a word.
    #[inline(always)]
    pub(crate) fn store_short(
        &mut self,
        regs: &mut Registers,
        caps: &Capabilities,
        client: &mut impl Client,
        word: u128,
        len: usize,
    ) -> bool {
        let offset = regs.mask_ptrs.offset();
        let end = offset + len as u64;
        if end < self.plain_until {
            client.store_short(PhysAddr(self.region.base + offset), word, len);
            regs.mask_ptrs = regs.mask_ptrs.with_offset(end);
            true
        } else {
            self.store_slowly(regs, caps, client, &word.to_le_bytes()[..len])
        }
    }

    #[cold]
    #[inline(never)]
    fn store_slowly(
        &mut self,
        regs: &mut Registers,
        caps: &Capabilities,
        client: &mut impl Client,
        mut bytes: &[u8],
    ) -> bool {
        match self.scheme {
            Scheme::Off => return false,
            Scheme::Transport => {
                if !bytes.is_empty() {
                    client.transport(bytes);
                }
                return true;
            }
            Scheme::SingleRange | Scheme::Topa => {}
        }
        while !bytes.is_empty() {
            let offset = regs.mask_ptrs.offset();
            let room = self.region.watch.saturating_sub(offset);
            let size = usize::try_from(room).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(bytes.len().min(size));
            let end = offset + now.len() as u64;
            self.region.store(client, offset, now);
            regs.mask_ptrs = regs.mask_ptrs.with_offset(end);
            bytes = later;
            if end >= self.region.watch && !self.reached_watch(regs, caps, client, end) {
                return false;
            }
        }
        true
    }

    /// The write pointer, now `offset`, stands where there is something to do. `false`: tracing has ended.
    fn reached_watch(
        &mut self,
        regs: &mut Registers,
        caps: &Capabilities,
        client: &mut impl Client,
        offset: u64,
    ) -> bool {
        let Region {
            int, stop, size, ..
        } = self.region;
        let filled = offset >= size;
        let stopped = filled && stop;
        if stopped {
            *self = Self::default();
            regs.status = regs.status.with_stopped(true).with_trigger_en(false);
        }
        if int {
            self.region.int = false;
            if regs.ctl.inject() {
                regs.status = regs.status.with_pend_topa_pmi(true);
            }
            client.topa_pmi();
        }
        if stopped {
            return false;
        }
        if !filled {
            self.region.watch = size;
            self.find_plain();
            return true;
        }
        if let Scheme::SingleRange = self.scheme {
            regs.mask_ptrs = regs.mask_ptrs.with_offset(0);
            return true;
        }
        let next = topa::next(regs, caps, client).ok();
        self.use_region(regs, client, next)
    }

    /// Goes on in this region; there is none after an operational error.
    fn use_region(
        &mut self,
        regs: &mut Registers,
        client: &mut impl Client,
        region: Option<Region>,
    ) -> bool {
        let Some(mut region) = region else {
            *self = Self::default();
            regs.status = regs.status.with_error(true).with_trigger_en(false);
            return false;
        };
        region.restricted = client.is_restricted(PhysAddr(region.base), region.size);
        self.region = region;
        self.find_plain();
        true
    }

    fn find_plain(&mut self) {
        self.plain_until = if self.region.restricted {
            0
        } else {
            self.region.watch
        };
    }
}

impl Region {
    /// Stores bytes that are all in the region, but for those in restricted memory.
    fn store(&self, client: &mut impl Client, offset: u64, bytes: &[u8]) {
        let address = self.base + offset;
        if bytes.is_empty() {
            return;
        }
        if !self.restricted || !client.is_restricted(PhysAddr(address), bytes.len() as u64) {
            return client.store(PhysAddr(address), bytes);
        }
        for (address, byte) in (address..=u64::MAX).zip(bytes.chunks(1)) {
            if client.is_restricted(PhysAddr(address), 1) {
                client.dropped(PhysAddr(address), byte);
            } else {
                client.store(PhysAddr(address), byte);
            }
        }
    }
}
