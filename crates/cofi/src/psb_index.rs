//! Where in a stream decoding may begin: PSBs.

use cofi_flow::TraceFormat;
use cofi_packet::intel::{self, IntelPt};
use cofi_packet::rtit::{self, Mode, Rtit};
use cofi_packet::{Format, StreamOffset, Tsc};
use cofi_session::Session;

/// The PSBs of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PsbIndex<'a> {
    bytes: &'a [u8],
    format: TraceFormat,
    timed: bool,
}

impl<'a> PsbIndex<'a> {
    /// With `timed`, of those from which the time is known.
    pub(crate) fn of(session: &Session<'_>, bytes: &'a [u8], timed: bool) -> Self {
        Self {
            bytes,
            timed,
            format: session.flow_config().format,
        }
    }

    /// The last PSB before `offset` from which decoding knows the flow at `offset`, or the beginning.
    pub(crate) fn before(self, offset: usize) -> usize {
        let offset = offset.min(self.bytes.len());
        match self.format {
            TraceFormat::IntelPt => previous::<IntelPt>(self.bytes, offset),
            TraceFormat::Rtit(config) => {
                let mode = config.cycles;
                let begin = control_before(self.bytes, mode, offset);
                if !self.timed {
                    return begin;
                }
                let tells = |bytes: &[u8], mode, psb| rtit_time(bytes, mode, psb).is_some();
                begin.min(known_before(self.bytes, mode, offset, tells))
            }
        }
    }

    /// A PSB from which decoding knows flow and time at `tsc`, as near as packets tell without being decoded, or the beginning.
    pub(crate) fn by_time(self, tsc: Tsc) -> usize {
        match self.format {
            TraceFormat::IntelPt => {
                let told = |psb| pt_time(self.bytes, psb);
                by_time::<IntelPt>(self.bytes, tsc, told).0
            }
            TraceFormat::Rtit(config) => {
                let told = |psb| rtit_time(self.bytes, config.cycles, psb);
                let (begin, found) = by_time::<Rtit>(self.bytes, tsc, told);
                // A TSC beyond what an STS packet holds is known only to who has counted how often it went round.
                if found == 0 || tsc.0 >= 1 << STS_BITS {
                    return 0;
                }
                begin.min(control_before(self.bytes, config.cycles, found))
            }
        }
    }
}

/// An STS packet holds so many bits of the TSC.
const STS_BITS: u32 = 40;

/// The last PSB that begins before `offset`, or the beginning.
fn previous<F: Format>(bytes: &[u8], offset: usize) -> usize {
    F::sync_backward(bytes, offset).unwrap_or(0)
}

fn next<F: Format>(bytes: &[u8], from: usize) -> Option<usize> {
    Some(from + F::find_psb(bytes.get(from..)?)?)
}

/// The last PSB behind which a time before `tsc` is told, all before it doing so too, and the one before that.
///
/// One more than needed, because the estimate just behind the first time told still depends on what came before: it never goes back.
fn by_time<F: Format>(
    bytes: &[u8],
    tsc: Tsc,
    told: impl Fn(usize) -> Option<Tsc>,
) -> (usize, usize) {
    let (mut begin, mut found, mut at) = (0, 0, 0);
    while let Some(psb) = next::<F>(bytes, at) {
        at = psb + 1;
        match told(psb) {
            Some(told) if told < tsc => (begin, found) = (found, psb),
            Some(_) => break,
            None => {}
        }
    }
    (begin, found)
}

/// The time that a PSB+ tells.
fn pt_time(bytes: &[u8], psb: usize) -> Option<Tsc> {
    use intel::Packet;
    let plus = intel::Packets::starting_at(bytes, StreamOffset(psb as u64));
    let mut packets = plus
        .map_while(|item| item.ok().map(|located| located.packet()))
        .skip(1)
        // A PSB+ that does not end is no place to look further in.
        .take_while(|packet| !matches!(packet, Packet::PsbEnd | Packet::Ovf | Packet::Psb));
    packets.find_map(|packet| match packet {
        Packet::Tsc { tsc } => Some(Tsc(tsc.get())),
        _ => None,
    })
}

/// The packets of RTIT from a PSB to the next.
fn rtit_packets(bytes: &[u8], mode: Mode, psb: usize) -> impl Iterator<Item = rtit::Packet> {
    rtit::Packets::starting_at(bytes, StreamOffset(psb as u64))
        .in_context(mode)
        .map_while(|item| item.ok().map(|located| located.packet()))
        .skip(1)
        .take_while(|packet| !matches!(packet, rtit::Packet::Psb))
}

/// The first time that RTIT tells behind a PSB.
fn rtit_time(bytes: &[u8], mode: Mode, psb: usize) -> Option<Tsc> {
    rtit_packets(bytes, mode, psb).find_map(|packet| match packet {
        rtit::Packet::Sts { tsc, .. } => Some(Tsc(tsc.get())),
        _ => None,
    })
}

/// The last PSB before `offset` behind which a packet `tells`, before `offset`, what is to be known: a PSB of RTIT does not.
fn known_before(
    bytes: &[u8],
    mode: Mode,
    offset: usize,
    tells: impl Fn(&[u8], Mode, usize) -> bool,
) -> usize {
    let (mut begin, mut end) = (previous::<Rtit>(bytes, offset), offset);
    while begin > 0 && !tells(&bytes[..end], mode, begin) {
        (begin, end) = (previous::<Rtit>(bytes, begin), begin);
    }
    begin
}

/// A PSB from which decoding knows, before `offset`, where control is and to where the last call returns.
///
/// A PSB clears what returns are compressed against, but a decoder that learns only later where control is may have missed a call since, and
/// fails at the return. At the next such PSB it has found its way.
fn control_before(bytes: &[u8], mode: Mode, offset: usize) -> usize {
    let known = known_before(bytes, mode, offset, tells_control);
    known_before(bytes, mode, known, tells_control)
}

/// Whether a packet behind a PSB tells where control is.
fn tells_control(bytes: &[u8], mode: Mode, psb: usize) -> bool {
    use rtit::Packet;
    let mut last = rtit::LastLip::new();
    let mut packets = rtit_packets(bytes, mode, psb);
    packets.any(|packet| {
        let known = packet.lip_payload().map(|lip| last.apply(lip));
        let tells = matches!(
            packet,
            Packet::Tip { .. } | Packet::FupPge { .. } | Packet::FupOvf { .. }
        );
        tells && known.flatten().is_some()
    })
}
