//! The internal buffer, and what happens when it overflows (33.3.8).

use super::Unit;
use super::queue::Queue;
use crate::OutputError;
use crate::client::{Client, Clock};
use crate::drain::Drain;
use crate::implementation::InternalBuffer;
use crate::state::{Reader, RestoreError, Writer};
use cofi_packet::ExecMode;
use cofi_packet::Ip;
use cofi_packet::intel::{Kind, Packet};

/// No buffer is smaller: the packets of one operation and a PSB are to have room.
const LEAST: u32 = 64;
/// With so many MTCs lost in a row, MTCs alone no longer tell the time.
const MAX_LOST_MTC: u32 = 128;

/// Packets on their way to memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Buffer {
    config: InternalBuffer,
    bytes: Queue,
    drain: Drain,
    overflow: Option<Overflow>,
    /// How many overflows have been resolved.
    resolved: u64,
}

/// Packets are being lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Overflow {
    /// A packet was lost that told of state; a PSB+ is to tell it.
    state: bool,
    mtcs: u32,
    /// TraceStop was met meanwhile.
    stop: bool,
    /// What the stream had told of the mode.
    told_mode: Option<(ExecMode, bool)>,
}

impl Buffer {
    pub(super) fn new(mut config: InternalBuffer) -> Self {
        config.size = config.size.max(LEAST);
        Self {
            config,
            bytes: Queue::default(),
            drain: Drain::new(config.drain_bytes, config.drain_cycles),
            overflow: None,
            resolved: 0,
        }
    }

    /// Tracing begins.
    pub(super) fn start(&mut self, now: Clock) {
        self.drain.until = now.cycles;
    }

    /// From this core cycle on it must be looked after.
    fn due(&self) -> u64 {
        if self.overflow.is_some() {
            0
        } else if self.bytes.is_empty() {
            // The time that passes until there are some is made up for then.
            u64::MAX
        } else {
            self.drain.next()
        }
    }

    /// What is in it is lost.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.overflow = None;
    }
}

impl Unit {
    /// Whether packets are being lost for want of room in the internal buffer (33.3.8).
    #[must_use]
    #[inline]
    pub fn is_overflowing(&self) -> bool {
        // Only then must it be looked after at any time.
        self.cached.buffer_due == 0
    }

    /// How many overflows have been resolved: so many OVFs have been sent.
    #[must_use]
    pub fn overflows(&self) -> u64 {
        self.buffer.as_ref().map_or(0, |buffer| buffer.resolved)
    }

    /// Whether the output has failed or stopped, or packets were lost, as far as the registers and the internal buffer know: for a caller to ask before it takes
    /// the trace for whole. What the buffer still holds, and what a ring of regions has overwritten, does not count. No operation fails for it, as none does in a processor; and as there, only software clears
    /// IA32_RTIT_STATUS, after which this knows of overflows alone. What [`Client::dropped`](crate::Client::dropped) is told is not counted.
    ///
    /// # Errors
    /// The first of [`OutputError`]'s cases, in their order, that holds.
    pub fn check_output(&self) -> Result<(), OutputError> {
        if self.regs.status.error() {
            return Err(OutputError::Operational);
        }
        if self.regs.status.stopped() {
            return Err(OutputError::Stopped);
        }
        match self.overflows() + u64::from(self.is_overflowing()) {
            0 => Ok(()),
            count => Err(OutputError::Overflow { count }),
        }
    }

    /// How many bytes the internal buffer holds.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.bytes.len())
    }

    /// When the buffer must be looked after follows from it.
    #[inline]
    pub(super) fn plan_drain(&mut self) {
        self.cached.buffer_due = self.buffer.as_ref().map_or(u64::MAX, Buffer::due);
    }

    /// So many bytes of the internal buffer drain to memory, as far as they are there. (Others drain as time passes, if the
    /// buffer was given a rate.)
    pub fn drain(&mut self, client: &mut impl Client, bytes: usize) {
        let Some(buffer) = &mut self.buffer else {
            return;
        };
        let held = buffer.bytes.as_slice();
        let drained = &held[..held.len().min(bytes)];
        let count = drained.len();
        let is_live = count == 0
            || self
                .output
                .store(&mut self.regs, &self.caps, client, drained);
        buffer.bytes.remove(count);
        self.plan_drain();
        if !is_live {
            return self.ended();
        }
        let stops = self.overflow_mut().is_some_and(|overflow| overflow.stop);
        if stops && self.has_room() {
            self.resolve(client, None, false);
        }
    }

    /// Drains what is due by now; and if an overflow is resolved by that, tracing goes on with the instruction at `ip`.
    #[inline(never)]
    pub(super) fn drain_until(&mut self, client: &mut impl Client, now: Clock, ip: Option<Ip>) {
        let Some(buffer) = &mut self.buffer else {
            return;
        };
        let bytes = buffer.drain.due(now);
        self.drain(client, bytes);
        let is_known = ip.is_some() || !self.packet_en();
        if self.is_overflowing() && self.has_room() && is_known {
            self.resolve(client, ip, false);
        }
    }

    /// Whether an overflow may be resolved.
    fn has_room(&self) -> bool {
        self.buffer.as_ref().is_some_and(|buffer| {
            let (most, size) = (buffer.config.resume_at, buffer.config.size);
            // An OVF, its CYC, TSC, TMA, CBR and a FUP are to have room.
            buffer.bytes.len() <= most.min(size - LEAST) as usize
        })
    }

    /// TraceEn is cleared: everything drains, and an overflow is told of.
    pub(super) fn empty_buffer(&mut self, client: &mut impl Client) {
        self.drain(client, usize::MAX);
        if self.is_overflowing() {
            self.resolve(client, None, true);
        }
        self.drain(client, usize::MAX);
    }

    /// Puts a packet into the internal buffer. `false` and an overflow if there is no room.
    #[inline(never)]
    pub(super) fn send_buffered(&mut self, client: &mut impl Client, bytes: &[u8]) -> bool {
        if !self.reserve(client, bytes.len()) {
            return false;
        }
        if let Some(buffer) = &mut self.buffer {
            buffer.bytes.push(bytes);
            self.cached.buffer_due = buffer.due();
        }
        self.byte_count += bytes.len() as u64;
        true
    }

    /// The overflow that lasts, if one does.
    fn overflow_mut(&mut self) -> Option<&mut Overflow> {
        self.buffer.as_mut()?.overflow.as_mut()
    }

    pub(super) fn begin_overflow(&mut self) {
        if let Some(buffer) = &mut self.buffer {
            buffer.overflow = Some(Overflow {
                told_mode: self.told_mode,
                ..Overflow::default()
            });
        }
        self.plan_drain();
        self.tnt = Default::default();
        self.deferred.clear();
        self.returns.clear();
    }

    /// Whether there is room for so many bytes; if not, an overflow begins.
    #[inline]
    pub(super) fn reserve(&mut self, client: &mut impl Client, bytes: usize) -> bool {
        let Some(buffer) = &mut self.buffer else {
            return true;
        };
        if buffer.overflow.is_some() {
            return false;
        }
        // While it is empty nobody looks; but from now on it is to be known since when something drains.
        let now = client.now();
        if buffer.bytes.is_empty() || now.cycles >= self.cached.buffer_due {
            let due = buffer.drain.due(now);
            self.drain(client, due);
        }
        let has_room = self
            .buffer
            .as_ref()
            .is_none_or(|buffer| buffer.bytes.len() + bytes <= buffer.config.size as usize);
        if !has_room {
            self.begin_overflow();
        }
        has_room
    }

    /// The packet to which a MODE packet before it belongs had no room: so the stream has not told the mode.
    #[cold]
    pub(super) fn mode_is_lost(&mut self) {
        if let Some(overflow) = self.overflow_mut() {
            overflow.state = true;
            overflow.told_mode = None;
        }
        self.told_mode = None;
    }

    /// The FUP of a MODE.TSX had no room: whatever the stream has told of the transaction, it is not so.
    #[cold]
    pub(super) fn transaction_is_lost(&mut self) {
        self.told_tx = !self.context.in_tx;
        self.mode_is_lost();
    }

    /// A packet of this kind had no room.
    #[cold]
    pub(super) fn lost(&mut self, kind: Kind) {
        let Some(overflow) = self.overflow_mut() else {
            return;
        };
        match kind {
            Kind::Mtc => overflow.mtcs = overflow.mtcs.saturating_add(1),
            Kind::Pip
            | Kind::Vmcs
            | Kind::ModeTsx
            | Kind::Cbr
            | Kind::Psb
            | Kind::PsbEnd
            | Kind::Tsc => overflow.state = true,
            _ => {}
        }
    }

    /// TraceStop is met: if packets are being lost, its packet waits (33.2.5.3).
    pub(super) fn stop_in_overflow(&mut self) -> bool {
        match self.overflow_mut() {
            Some(overflow) => {
                overflow.stop = true;
                true
            }
            None => false,
        }
    }

    /// The overflow is resolved, perhaps (`ends`) because TraceEn is cleared: OVF, a FUP where PacketEn is set, and what else was
    /// lost that a reader must know.
    fn resolve(&mut self, client: &mut impl Client, ip: Option<Ip>, ends: bool) {
        let Some(buffer) = &mut self.buffer else {
            return;
        };
        let Some(overflow) = buffer.overflow.take() else {
            return;
        };
        buffer.resolved += 1;
        self.plan_drain();
        self.returns.clear();
        self.told_mode = overflow.told_mode;
        // Not `emit`: where TraceStop was met meanwhile, TriggerEn is 0 already.
        self.cyc(client, Kind::Ovf);
        self.send_packet(client, Packet::Ovf);
        // Of a transaction no reader can know whether its end was lost.
        let mut state = overflow.state || self.told_tx || self.context.in_tx;
        if overflow.stop {
            self.send_packet(client, Packet::TraceStop);
        }
        if overflow.stop || ends {
            // Tracing goes on with a TIP.PGE, some day. A PSB+ comes before it: a small buffer could overflow by it now.
            self.psb_owed |= state;
            return;
        }
        if overflow.mtcs >= MAX_LOST_MTC && self.regs.ctl.tsc_en() {
            self.resync_time(client);
        }
        if let (true, Some(ip)) = (self.packet_en(), ip) {
            self.fup(client, ip);
            let mode = Some(self.context.mode);
            state |= self.told_mode.map(|(mode, _)| mode) != mode;
        }
        if state && self.regs.status.trigger_en() {
            let ip = ip.filter(|_| self.packet_en());
            self.psb_plus(client, ip);
            // Out of context it does not tell all.
            self.psb_in_context = !self.regs.status.context_en();
            self.plan_psb();
        }
    }

    fn send_packet(&mut self, client: &mut impl Client, packet: Packet) {
        let raw = packet.encode();
        self.send(client, &raw.bytes()[..raw.len()]);
    }
}

impl Buffer {
    pub(super) fn is_idle(&self) -> bool {
        self.bytes.is_empty() && self.overflow.is_none()
    }

    pub(super) fn save(&self, writer: &mut Writer) {
        let Self {
            config: _,
            bytes,
            drain,
            overflow,
            resolved,
        } = self;
        writer.u64(drain.until);
        writer.u64(*resolved);
        writer.option(*overflow, |writer, overflow| {
            let Overflow {
                state,
                mtcs,
                stop,
                told_mode,
            } = overflow;
            writer.bool(state);
            writer.u32(mtcs);
            writer.bool(stop);
            writer.told_mode(told_mode);
        });
        // No more than the configured size, which has 32 bits.
        writer.u32(bytes.len() as u32);
        writer.bytes(bytes.as_slice());
    }

    /// The buffer of a unit; the bytes of a saved one are any, as nothing is asked of them again.
    pub(super) fn restore(
        config: InternalBuffer,
        reader: &mut Reader<'_>,
    ) -> Result<Self, RestoreError> {
        let mut buffer = Self::new(config);
        buffer.drain.until = reader.u64("the time of the last drain")?;
        buffer.resolved = reader.counter("the number of resolved overflows")?;
        buffer.overflow = reader.option("an overflow", |reader| {
            Ok(Overflow {
                state: reader.bool("state was lost")?,
                mtcs: reader.u32("the number of lost MTCs")?,
                stop: reader.bool("TraceStop in an overflow")?,
                told_mode: reader.told_mode()?,
            })
        })?;
        let field = "the length of the internal buffer";
        let len = reader.u32(field)?;
        if len > buffer.config.size {
            return Err(reader.illegal(4, field, len.into(), "the buffer is smaller (33.3.8)"));
        }
        let bytes = reader.bytes(len as usize, "the internal buffer")?;
        buffer.bytes.push(bytes);
        Ok(buffer)
    }
}
