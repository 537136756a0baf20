//! The internal buffer, its drains, and what happens when it overflows (4.2.5).

use super::{Before, Unit};
use crate::drain::Drain;
use crate::rtit::event::Client;
use crate::rtit::implementation::InternalBuffer;
use crate::state::{Reader, RestoreError, Writer};
use alloc::collections::VecDeque;
use cofi_packet::Ip;
use cofi_packet::rtit::Kind;

/// No buffer is smaller: what resolves an overflow is to have room.
const LEAST: u32 = 32;

/// Packets on their way to the memory unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Buffer {
    config: InternalBuffer,
    bytes: VecDeque<u8>,
    drain: Drain,
}

/// A TraceStop that was met in a buffer overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldStop {
    /// It is done when the overflow is resolved.
    Whole,
    /// Its packet is sent before the overflow is resolved, and TraceActive stays (E4).
    PacketOnly,
}

impl Buffer {
    pub(super) fn new(mut config: InternalBuffer) -> Self {
        config.size = config.size.max(LEAST);
        Self {
            config,
            // One more than it ever holds, so that it never grows.
            bytes: VecDeque::with_capacity(config.size as usize + 1),
            drain: Drain::new(config.drain_bytes, config.drain_cycles),
        }
    }
}

impl Unit {
    /// Whether packets are being lost for want of room in the internal buffer: RTIT_STATUS.Buffer_Overflow.
    #[must_use]
    pub const fn is_overflowing(&self) -> bool {
        self.regs.status.buffer_overflow()
    }

    /// How many overflows have been resolved: so many FUP.BuffOvf have been sent.
    #[must_use]
    pub const fn overflows(&self) -> u64 {
        self.overflows
    }

    /// How many bytes the internal buffer holds.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.bytes.len()) + self.held()
    }

    /// Whether all packets have gone on to the memory unit.
    pub(super) fn is_drained(&self) -> bool {
        self.buffered() == 0
    }

    /// So many bytes of the internal buffer drain to the memory unit, as far as they are there. (Others drain as time passes, if the
    /// buffer was given a rate.)
    pub fn drain(&mut self, client: &mut impl Client, bytes: usize) {
        if self.is_overflowing() {
            // No more packets follow for now.
            self.end_scramble(client);
        }
        let Some(buffer) = &mut self.buffer else {
            return;
        };
        let count = bytes.min(buffer.bytes.len());
        let part = &buffer.bytes.make_contiguous()[..count];
        self.output
            .store(&mut self.regs, &mut self.dice, client, part);
        buffer.bytes.drain(..count);
    }

    /// A fence, as a bus lock is one: the line that is being filled is written as far as it goes, and all before it (2.3.2).
    pub fn fence(&mut self, client: &mut impl Client) {
        self.output.fence(&self.regs, &mut self.dice, client);
    }

    /// Drains what is due by now.
    pub(super) fn drain_due(&mut self, client: &mut impl Client) {
        let now = self.now();
        let due = match &mut self.buffer {
            Some(buffer) => buffer.drain.due(now),
            None => 0,
        };
        self.drain(client, due);
    }

    /// The internal buffer drains.
    pub(super) fn drain_buffer(&mut self, client: &mut impl Client) {
        self.end_scramble(client);
        self.drain(client, usize::MAX);
    }

    /// An RTIT drain: everything is in memory after it. It does not resolve an overflow. The packet that caused a PSB has drained by
    /// it, so the PSB takes effect (3.3.9).
    pub(super) fn drain_all(&mut self, client: &mut impl Client) {
        self.drain_buffer(client);
        self.fence(client);
        if self.psb_clears_in.is_some() {
            self.clear_compression();
        }
    }

    /// Nothing has drained up to now.
    pub(super) fn restart_drain(&mut self) {
        let now = self.now();
        if let Some(buffer) = &mut self.buffer {
            buffer.drain.until = now.cycles;
        }
    }

    /// Puts a packet into the internal buffer. `false`, and an overflow, if there is no room.
    pub(super) fn put(&mut self, client: &mut impl Client, bytes: &[u8]) -> bool {
        let held = self.held();
        let has_room = self.buffer.as_ref().is_none_or(|buffer| {
            buffer.bytes.len() + held + bytes.len() <= buffer.config.size as usize
        });
        if !has_room {
            self.regs.status = self.regs.status.with_buffer_overflow(true);
            self.refresh();
            return false;
        }
        if !self.hold(client, bytes) {
            self.hand_on(client, bytes);
        }
        true
    }

    /// A packet for which there is room.
    pub(super) fn hand_on(&mut self, client: &mut impl Client, bytes: &[u8]) {
        match &mut self.buffer {
            Some(buffer) => buffer.bytes.extend(bytes),
            None => self
                .output
                .store(&mut self.regs, &mut self.dice, client, bytes),
        }
    }

    /// At the end of an instruction at whose beginning an overflow could be resolved, with control at `to`: the instruction itself has
    /// sent nothing, but (`is_indirect`) a TIP was lost.
    pub(super) fn resolve(
        &mut self,
        client: &mut impl Client,
        before: Before,
        to: Ip,
        is_indirect: bool,
    ) {
        let status = self.regs.status;
        let holds = status.trigger_en() && status.context_en();
        if !(before.resolves && status.buffer_overflow() && holds) {
            return;
        }
        self.overflows += 1;
        if self.held_stop == Some(HeldStop::PacketOnly) {
            self.held_stop = None;
            self.stop_packet(client);
        }
        self.regs.status = status.with_buffer_overflow(false);
        self.clear_compression();
        let count = self.regs.pkt_cnt.count();
        self.lip(client, Kind::FupOvf, to);
        self.refresh();
        // A PSB has set the count back; a TIP behind it would not follow immediately.
        let is_last = self.regs.pkt_cnt.count() > count;
        let errata = self.choices.errata;
        if errata.e5 && is_indirect && is_last && self.cached.packet_en && self.sometimes() {
            self.tip(client, to);
        }
    }

    /// A TraceStop that an overflow held, when there is none any more: resolved, or cleared by software. Where TraceActive is clear by
    /// then, nothing is left to be done.
    pub(super) fn act_on_held_stop(&mut self, client: &mut impl Client, to: Ip) {
        let status = self.regs.status;
        if self.held_stop.is_none() || status.buffer_overflow() {
            return;
        }
        match self.held_stop.take().filter(|_| status.trigger_en()) {
            Some(HeldStop::Whole) => {
                if self.cached.packet_en && self.choices.pgd_on_disable {
                    self.pgd(client, to);
                }
                self.trace_stop(client);
            }
            Some(HeldStop::PacketOnly) => self.stop_packet(client),
            None => {}
        }
    }
}

impl Buffer {
    pub(super) fn save(&self, writer: &mut Writer) {
        let Self {
            config: _,
            bytes,
            drain,
        } = self;
        writer.u64(drain.until);
        // No more than the configured size, which has 32 bits.
        writer.u32(bytes.len() as u32);
        let (first, second) = bytes.as_slices();
        writer.bytes(first);
        writer.bytes(second);
    }

    /// The buffer of a unit; the bytes of a saved one are any, as nothing is asked of them again.
    pub(super) fn restore(
        config: InternalBuffer,
        reader: &mut Reader<'_>,
    ) -> Result<Self, RestoreError> {
        let mut buffer = Self::new(config);
        buffer.drain.until = reader.u64("the time of the last drain")?;
        let field = "the length of the internal buffer";
        let len = reader.u32(field)?;
        if len > buffer.config.size {
            return Err(reader.illegal(4, field, len.into(), "the buffer is smaller (4.2.5)"));
        }
        let bytes = reader.bytes(len as usize, "the internal buffer")?;
        buffer.bytes.extend(bytes);
        Ok(buffer)
    }
}
