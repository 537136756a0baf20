//! Intel PT as a [`Format`].

use super::ip::parse_ip_bytes;
use super::psb::decisive;
use super::table::{decode_short, may_be_cut, visit_short};
use super::{Block, IpBytes, IpPayload, Kind, LastIp, PSB, Packet, Payload};
use super::{decode_in, find_psb, sync_backward};
use crate::format::{Format, Misfit, sealed};
use crate::table::Raw;
use crate::text::{Operands, TextError, TextErrorKind, parse_number};
use crate::{DecodeError, Ip, PacketVisitor, Value};

/// Intel PT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntelPt {}

impl sealed::Sealed for IntelPt {}

impl Packet {
    /// The IP payload of TIP, TIP.PGE, TIP.PGD and FUP.
    #[must_use]
    #[inline(always)]
    pub const fn ip_payload(&self) -> Option<IpPayload> {
        match *self {
            Self::Tip { ip } | Self::TipPge { ip } | Self::TipPgd { ip } | Self::Fup { ip } => {
                Some(ip)
            }
            _ => None,
        }
    }

    /// The packet `kind` with this IP payload; `None` for other kinds than TIP, TIP.PGE, TIP.PGD and FUP.
    #[must_use]
    #[inline(always)]
    pub const fn with_ip(kind: Kind, ip: IpPayload) -> Option<Self> {
        Some(match kind {
            Kind::Tip => Self::Tip { ip },
            Kind::TipPge => Self::TipPge { ip },
            Kind::TipPgd => Self::TipPgd { ip },
            Kind::Fup => Self::Fup { ip },
            _ => return None,
        })
    }
}

/// The kind by its name; `tnt` is either TNT, as its length asks for.
fn kind(operands: &Operands<'_>) -> Result<Kind, TextError> {
    let name = operands.name();
    if name.eq_ignore_ascii_case("tnt") {
        return Ok(match operands.longest_bare() {
            0..=6 => Kind::Tnt8,
            _ => Kind::Tnt64,
        });
    }
    Kind::ALL
        .iter()
        .copied()
        .find(|kind| kind.name().eq_ignore_ascii_case(name))
        .ok_or_else(|| TextError::new(TextErrorKind::Name, name))
}

/// `tip 0x401000 [ipc=2]`: an address, compressed as told or else as short as can be.
fn parse_address(
    operands: &mut Operands<'_>,
    last_ip: &mut LastIp,
) -> Result<Option<IpPayload>, TextError> {
    let Some(word) = operands.bare() else {
        return Ok(None);
    };
    let told = operands.key("ipc").map(parse_ip_bytes).transpose()?;
    let ip = match word {
        "-" => None,
        _ => Some(Ip(parse_number(word)?)),
    };
    let payload = match (ip, told) {
        (None, None | Some(IpBytes::Suppressed)) => Some(IpPayload::SUPPRESSED),
        (None, Some(_)) => None,
        (Some(ip), None) => Some(last_ip.compress(ip)),
        (Some(ip), Some(bytes)) => last_ip.compress_as(ip, bytes),
    };
    match payload {
        Some(payload) => Ok(Some(payload)),
        None => Err(TextError::new(TextErrorKind::Compression, word)),
    }
}

impl Format for IntelPt {
    type Kind = Kind;
    type Packet = Packet;
    type Context = Block;
    type LastIp = LastIp;

    const PSB: &'static [u8] = &PSB;
    const PSB_LOOKAHEAD: usize = 2;

    fn find_psb(bytes: &[u8]) -> Option<usize> {
        find_psb(bytes)
    }
    fn sync_backward(bytes: &[u8], before: usize) -> Option<usize> {
        sync_backward(bytes, before)
    }

    #[inline]
    fn decode(block: Block, bytes: &[u8]) -> Result<Raw<Kind>, DecodeError> {
        decode_in(block, bytes)
    }
    #[inline(always)]
    fn decode_short(block: Block, bytes: &[u8]) -> Option<Raw<Kind>> {
        match block {
            Block::Outside => decode_short(bytes),
            Block::Inside(_) => None,
        }
    }
    #[inline(always)]
    fn visit_short(
        block: Block,
        bytes: &[u8],
        at: usize,
        visitor: &mut impl PacketVisitor<Self>,
    ) -> usize {
        match block {
            Block::Outside => visit_short(bytes, at, visitor),
            Block::Inside(_) => at,
        }
    }
    fn is_open(raw: &Raw<Kind>, have: usize) -> bool {
        let (len, bytes) = (raw.len(), raw.unmasked_word().to_le_bytes());
        may_be_cut(raw.kind(), len, bytes[len - 1]) && have < decisive(len)
    }
    #[inline(always)]
    fn packet(raw: &Raw<Kind>) -> Packet {
        raw.packet()
    }
    #[inline(always)]
    fn after(block: Block, packet: &Packet) -> (Block, bool) {
        block.after(packet)
    }
    fn after_error(_block: Block) -> Block {
        Block::Outside
    }
    #[inline]
    fn misfit(block: Block, packet: &Packet) -> Option<Misfit> {
        match (block, packet) {
            (Block::Outside, Packet::Bip { .. }) => Some(Misfit::OutsideBlock),
            (Block::Inside(size), Packet::Bip { payload, .. }) if payload.size() != size => {
                Some(Misfit::ItemSize)
            }
            _ if !block.after(packet).1 => Some(Misfit::InBlock),
            _ => None,
        }
    }

    #[inline(always)]
    fn kind(packet: &Packet) -> Kind {
        packet.kind()
    }
    #[inline(always)]
    fn encode(packet: &Packet) -> Raw<Kind> {
        packet.encode()
    }
    #[inline(always)]
    fn encode_byte(block: Block, packet: &Packet) -> Option<u8> {
        match (block, packet) {
            (Block::Outside, Packet::Pad) => Some(0),
            (Block::Outside, Packet::Tnt8 { bits }) => Some((bits.stopped() << 1) as u8),
            _ => None,
        }
    }
    fn visit(packet: &Packet, f: &mut dyn FnMut(&'static str, Value)) {
        packet.visit(f);
    }

    #[inline(always)]
    fn note(last_ip: &mut LastIp, packet: &Packet) {
        if let Some(payload) = packet.ip_payload() {
            last_ip.apply(payload);
        } else if let Packet::Psb = packet {
            last_ip.reset();
        }
    }
    fn resolve(last_ip: &mut LastIp, packet: &Packet) -> Option<(Option<Ip>, bool)> {
        if let Some(payload) = packet.ip_payload() {
            let mut writer = *last_ip;
            let ip = last_ip.apply(payload);
            let natural = ip.is_none_or(|ip| writer.compress(ip) == payload);
            return Some((ip, natural));
        }
        if *packet == Packet::Psb {
            last_ip.reset();
        }
        None
    }

    fn compress(last_ip: &mut LastIp, kind: Kind, ip: Ip) -> Option<Packet> {
        let mut after = *last_ip;
        let packet = Packet::with_ip(kind, after.compress(ip))?;
        *last_ip = after;
        Some(packet)
    }

    fn parse(
        operands: &mut Operands<'_>,
        block: Block,
        last_ip: &mut LastIp,
    ) -> Result<Packet, TextError> {
        let kind = kind(operands)?;
        if Packet::with_ip(kind, IpPayload::SUPPRESSED).is_some() {
            let payload = parse_address(operands, last_ip)?;
            if let Some(packet) = payload.and_then(|payload| Packet::with_ip(kind, payload)) {
                operands.finish()?;
                return Ok(packet);
            }
        }
        operands.item_size = block.item_size().map(|size| size.bytes());
        let packet = Packet::parse(kind, operands)?;
        let is_item = matches!(
            packet,
            Packet::Bip {
                payload: Payload::Four(_) | Payload::Eight(_),
                ..
            }
        );
        if block == Block::Outside && is_item {
            let kind = TextErrorKind::Place("a bip stands only between bbp and bep");
            return Err(TextError::new(kind, operands.name()));
        }
        Ok(packet)
    }
}
