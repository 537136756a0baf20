//! RTIT as a [`Format`].

use super::lip::parse_lip_bytes;
use super::table::decode_short;
use super::{CycleCount, Kind, LastLip, LipBytes, LipPayload, Mode, PSB, Packet};
use super::{decode, find_psb, sync_backward};
use crate::field::Printed;
use crate::format::{Format, Misfit, sealed};
use crate::table::Raw;
use crate::text::{Operands, TextError, TextErrorKind, parse_number};
use crate::{DecodeError, EncodeError, Encoder, Ip, Sink, Value};

/// Real Time Instruction Trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rtit {}

impl sealed::Sealed for Rtit {}

impl Packet {
    /// The LIP payload of TIP and FUP packets.
    #[must_use]
    pub const fn lip_payload(&self) -> Option<LipPayload> {
        match *self {
            Self::Tip { ip, .. }
            | Self::FupPge { ip, .. }
            | Self::FupPgd { ip, .. }
            | Self::FupOvf { ip, .. }
            | Self::FupPcc { ip, .. }
            | Self::FupFar { ip, .. } => Some(ip),
            _ => None,
        }
    }

    /// The packet `kind` with this LIP payload; `None` for other kinds than TIP and FUP.
    #[must_use]
    pub const fn with_lip(kind: Kind, ip: LipPayload, cycles: Option<CycleCount>) -> Option<Self> {
        Some(match kind {
            Kind::Tip => Self::Tip { ip, cycles },
            Kind::FupPge => Self::FupPge { ip, cycles },
            Kind::FupPgd => Self::FupPgd { ip, cycles },
            Kind::FupOvf => Self::FupOvf { ip, cycles },
            Kind::FupPcc => Self::FupPcc { ip, cycles },
            Kind::FupFar => Self::FupFar { ip, cycles },
            _ => return None,
        })
    }

    /// The appended cycle count: `None` for a kind that never has one, `Some(None)` where it could be and is not.
    #[must_use]
    pub const fn cycles(&self) -> Option<Option<CycleCount>> {
        match *self {
            Self::Psb | Self::TraceStop | Self::TntPartial { .. } => None,
            Self::Tnt { cycles, .. }
            | Self::Tip { cycles, .. }
            | Self::FupPge { cycles, .. }
            | Self::FupPgd { cycles, .. }
            | Self::FupOvf { cycles, .. }
            | Self::FupPcc { cycles, .. }
            | Self::FupFar { cycles, .. }
            | Self::Pip { cycles, .. }
            | Self::Mtc { cycles, .. }
            | Self::Sts { cycles, .. } => Some(cycles),
        }
    }
}

/// What the LIP of this packet is compressed against. The last LIP is cleared before an overflow packet is sent, which does not become it
/// (3.3.7, 4.2.5): so that packet needs none, and leaves none behind. A PSB clears it too, but some packets later (3.3.9).
const fn before(last_ip: LastLip, kind: Kind) -> LastLip {
    match kind {
        Kind::FupOvf => LastLip::new(),
        _ => last_ip,
    }
}

fn kind(operands: &Operands<'_>) -> Result<Kind, TextError> {
    let name = operands.name();
    if name.eq_ignore_ascii_case("tnt") {
        return Ok(match operands.longest_bare() {
            0..=5 => Kind::TntPartial,
            _ => Kind::Tnt,
        });
    }
    Kind::ALL
        .iter()
        .copied()
        .find(|kind| kind.name().eq_ignore_ascii_case(name))
        .ok_or_else(|| TextError::new(TextErrorKind::Name, name))
}

fn is_lip_kind(kind: Kind) -> bool {
    let any = LipPayload::truncate(LipBytes::Zext16, 0);
    Packet::with_lip(kind, any, None).is_some()
}

impl<S: Sink> Encoder<Rtit, S> {
    /// Writes the packet `kind` with `ip` in its shortest form and an appended cycle count, for cycle-accurate mode.
    ///
    /// # Errors
    /// As [`Encoder::ip`].
    pub fn ip_with_cycles(
        &mut self,
        kind: Kind,
        ip: Ip,
        cycles: CycleCount,
    ) -> Result<(), EncodeError<S::Error>> {
        let packet = Rtit::compress(&mut self.last_ip(), kind, ip)
            .and_then(|packet| Packet::with_lip(kind, packet.lip_payload()?, Some(cycles)));
        match packet {
            Some(packet) => self.packet(&packet),
            None => Err(EncodeError::Ip {
                packet: kind.name(),
                ip,
            }),
        }
    }
}

impl Format for Rtit {
    type Kind = Kind;
    type Packet = Packet;
    type Context = Mode;
    type LastIp = LastLip;

    const PSB: &'static [u8] = &PSB;
    const PSB_LOOKAHEAD: usize = 0;

    fn find_psb(bytes: &[u8]) -> Option<usize> {
        find_psb(bytes)
    }
    fn sync_backward(bytes: &[u8], before: usize) -> Option<usize> {
        sync_backward(bytes, before)
    }

    fn decode(mode: Mode, bytes: &[u8]) -> Result<Raw<Kind>, DecodeError> {
        decode(mode, bytes)
    }
    #[inline(always)]
    fn decode_short(mode: Mode, bytes: &[u8]) -> Option<Raw<Kind>> {
        decode_short(mode, bytes)
    }
    #[inline(always)]
    fn packet(raw: &Raw<Kind>) -> Packet {
        raw.packet()
    }
    fn after(mode: Mode, _packet: &Packet) -> (Mode, bool) {
        (mode, true)
    }
    fn after_error(mode: Mode) -> Mode {
        mode
    }
    fn misfit(mode: Mode, packet: &Packet) -> Option<Misfit> {
        match (mode, packet.cycles()) {
            (Mode::CycleAccurate, Some(None)) => Some(Misfit::NoCycles),
            (Mode::Plain, Some(Some(_))) => Some(Misfit::Cycles),
            _ => None,
        }
    }

    fn kind(packet: &Packet) -> Kind {
        packet.kind()
    }
    fn encode(packet: &Packet) -> Raw<Kind> {
        packet.encode()
    }
    fn encode_byte(_mode: Mode, _packet: &Packet) -> Option<u8> {
        None
    }
    fn visit(packet: &Packet, f: &mut dyn FnMut(&'static str, Value)) {
        packet.visit(f);
    }

    fn note(last_ip: &mut LastLip, packet: &Packet) {
        Self::resolve(last_ip, packet);
    }
    fn resolve(last_ip: &mut LastLip, packet: &Packet) -> Option<(Option<Ip>, bool)> {
        if *packet == Packet::Psb {
            last_ip.reset();
        }
        let payload = packet.lip_payload()?;
        let before = before(*last_ip, packet.kind());
        let (mut reader, mut writer) = (before, before);
        let ip = reader.apply(payload);
        let natural = ip.is_some_and(|ip| writer.compress(ip) == Some(payload));
        *last_ip = self::before(reader, packet.kind());
        Some((ip, natural))
    }

    fn compress(last_ip: &mut LastLip, kind: Kind, ip: Ip) -> Option<Packet> {
        let mut after = before(*last_ip, kind);
        let packet = Packet::with_lip(kind, after.compress(ip)?, None)?;
        *last_ip = before(after, kind);
        Some(packet)
    }

    fn parse(
        operands: &mut Operands<'_>,
        mode: Mode,
        last_ip: &mut LastLip,
    ) -> Result<Packet, TextError> {
        let kind = kind(operands)?;
        let address = if is_lip_kind(kind) {
            operands.bare()
        } else {
            None
        };
        let packet = if let Some(word) = address {
            let ip = Ip(parse_number(word)?);
            *last_ip = before(*last_ip, kind);
            let payload = match parse_lip_bytes(operands)? {
                None => last_ip.compress(ip),
                Some(bytes) => last_ip.compress_as(ip, bytes),
            };
            let cycles = Option::<CycleCount>::parse("cycles", operands)?;
            operands.finish()?;
            payload
                .and_then(|payload| Packet::with_lip(kind, payload, cycles))
                .ok_or_else(|| TextError::new(TextErrorKind::Compression, word))?
        } else {
            Packet::parse(kind, operands)?
        };
        match Self::misfit(mode, &packet) {
            None => Ok(packet),
            Some(Misfit::NoCycles) => Err(operands.missing("cycles")),
            Some(_) => {
                let kind = TextErrorKind::Place("cycles= is for cycle-accurate mode only");
                Err(TextError::new(kind, operands.name()))
            }
        }
    }
}
