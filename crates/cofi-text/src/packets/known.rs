//! What listings know about the two formats beyond their tables: colours, names for numbers, how addresses are sent.

use crate::digits;
use cofi_packet::intel::{
    self, BlockType, CfeType, IntelPt, IpBytes, Repaired, SpoiltBy, StateValue,
};
use cofi_packet::rtit::{self, LipBytes, Rtit};
use cofi_packet::{Format, Packets, StreamItem, StreamOffset};
use std::fmt;
use std::io::{self, Write};

use super::lines::{PacketLines, PacketStream};

/// What packets are about: those of one family have one colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// Padding.
    Padding,
    /// Stream boundaries.
    Boundary,
    /// Lost packets and stopped traces.
    Loss,
    /// Results of conditional branches.
    Branch,
    /// Addresses.
    Address,
    /// Clocks.
    Time,
    /// What the code that follows runs in: mode, page tables, virtual machine.
    Context,
    /// Events, power, and what the program or the processor writes into its trace.
    Data,
}

/// A name for a field that holds a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// The field.
    pub key: &'static str,
    what: Named,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Named {
    State(StateValue),
    /// The C-state of MWAIT hints (volume 2B, Table 4-11): one less than its number in bits 7:4, its sub-state below.
    CState(u8),
    Exception(&'static str),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            Named::State(value) => value.fmt(f),
            Named::CState(hints) => write!(f, "C{}.{}", ((hints >> 4) + 1) & 0xf, hints & 0xf),
            Named::Exception(name) => f.write_str(name),
        }
    }
}

/// The exceptions by vector (volume 3A, Table 6-1).
const EXCEPTIONS: [&str; 22] = [
    "#DE", "#DB", "NMI", "#BP", "#OF", "#BR", "#UD", "#NM", "#DF", "", "#TS", "#NP", "#SS", "#GP",
    "#PF", "", "#MF", "#AC", "#MC", "#XM", "#VE", "#CP",
];

/// How an address was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpForm {
    /// Which of [`Known::IP_FORMS`].
    pub form: usize,
    /// How many bytes of it there are; none of one that is suppressed.
    pub bytes: usize,
}

/// A format that can be listed.
pub trait Known: Format {
    /// What must be remembered of earlier packets to give names.
    type Memory: Default;
    /// How many bytes an address has that is sent whole.
    const IP_BYTES: u64;
    /// The ways to send an address, in the words of the text form.
    const IP_FORMS: &'static [&'static str];

    /// The kind's place in the table.
    fn index(kind: Self::Kind) -> usize;
    /// What the kind is about.
    fn family(kind: Self::Kind) -> Family;
    /// Takes note of a packet, and names one of its fields if it can.
    fn name(memory: &mut Self::Memory, packet: &Self::Packet) -> Option<Name>;
    /// How the address in a packet was sent.
    fn ip_form(packet: &Self::Packet) -> Option<IpForm>;
    /// The packets of `bytes` from `offset` on, of a processor that has spoilt them as `by` says. `outside` is what must be known beside the bytes.
    fn packets<'a>(
        bytes: &'a [u8],
        offset: StreamOffset,
        outside: Self::Context,
        by: SpoiltBy,
    ) -> impl Iterator<Item = StreamItem<Self>> + 'a;
    /// Writes the text form of the commonest packets, which is that of `Display`; `false`, and nothing, of others.
    fn write_short(packet: &Self::Packet, out: &mut Vec<u8>) -> bool;
    /// Writes the lines of a stream that are wanted.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    fn list(
        lines: &mut PacketLines<'_>,
        stream: &PacketStream<'_>,
        outside: Self::Context,
        out: &mut dyn Write,
    ) -> io::Result<()>;
    /// Visits all items of a stream.
    fn each(
        stream: &PacketStream<'_>,
        outside: Self::Context,
        visit: &mut dyn FnMut(&StreamItem<Self>),
    );
}

/// [`Known::list`] and [`Known::each`] of a format. They stand in each `impl`, and not in the trait: so they are compiled in this crate, for speed, and not
/// where they are used.
macro_rules! loops {
    () => {
        fn list(
            lines: &mut PacketLines<'_>,
            stream: &PacketStream<'_>,
            outside: Self::Context,
            out: &mut dyn Write,
        ) -> io::Result<()> {
            lines.write::<Self>(stream, outside, out)
        }

        fn each(
            stream: &PacketStream<'_>,
            outside: Self::Context,
            visit: &mut dyn FnMut(&StreamItem<Self>),
        ) {
            stream.items::<Self>(outside).for_each(|item| visit(&item));
        }
    };
}

impl Known for IntelPt {
    /// The type of the last block.
    type Memory = Option<BlockType>;
    const IP_BYTES: u64 = 8;
    const IP_FORMS: &'static [&'static str] =
        &["ipc=0", "ipc=1", "ipc=2", "ipc=3", "ipc=4", "ipc=6"];

    fn packets<'a>(
        bytes: &'a [u8],
        offset: StreamOffset,
        _outside: intel::Block,
        by: SpoiltBy,
    ) -> impl Iterator<Item = StreamItem<Self>> + 'a {
        Repaired::starting_at(bytes, offset, by)
    }

    fn index(kind: intel::Kind) -> usize {
        kind as usize
    }

    fn family(kind: intel::Kind) -> Family {
        use intel::Kind;
        match kind {
            Kind::Pad => Family::Padding,
            Kind::Psb | Kind::PsbEnd => Family::Boundary,
            Kind::Ovf | Kind::TraceStop => Family::Loss,
            Kind::Tnt8 | Kind::Tnt64 => Family::Branch,
            Kind::Tip | Kind::TipPge | Kind::TipPgd | Kind::Fup => Family::Address,
            Kind::Cbr | Kind::Tsc | Kind::Mtc | Kind::Tma | Kind::Cyc => Family::Time,
            Kind::Pip | Kind::ModeExec | Kind::ModeTsx | Kind::Mode | Kind::Vmcs => Family::Context,
            _ => Family::Data,
        }
    }

    fn name(memory: &mut Option<BlockType>, packet: &intel::Packet) -> Option<Name> {
        use intel::Packet;
        let (key, what) = match *packet {
            Packet::Bbp { kind, .. } => {
                *memory = Some(kind);
                return None;
            }
            Packet::Bip { id, .. } => {
                let id = u8::try_from(id.get()).ok()?;
                ("id", Named::State(StateValue::new((*memory)?, id)?))
            }
            Packet::Mwait { hints, .. } => ("hints", Named::CState(hints)),
            Packet::Cfe {
                kind: CfeType::INTR | CfeType::VMEXIT_INTR,
                vector,
                ..
            } => match EXCEPTIONS.get(usize::from(vector)) {
                None | Some(&"") => return None,
                Some(name) => ("vector", Named::Exception(name)),
            },
            _ => return None,
        };
        Some(Name { key, what })
    }

    fn ip_form(packet: &intel::Packet) -> Option<IpForm> {
        let bytes = packet.ip_payload()?.ip_bytes();
        Some(IpForm {
            form: IpBytes::ALL.iter().position(|form| *form == bytes)?,
            bytes: bytes.payload_len(),
        })
    }

    fn write_short(packet: &intel::Packet, out: &mut Vec<u8>) -> bool {
        match packet {
            intel::Packet::Pad => out.extend_from_slice(b"pad"),
            intel::Packet::Tnt8 { bits } => {
                out.extend_from_slice(b"tnt.8 ");
                digits::tnt(out, bits.bits(), bits.len() as u32);
            }
            _ => return false,
        }
        true
    }

    loops!();
}

impl Known for Rtit {
    type Memory = ();
    const IP_BYTES: u64 = 6;
    const IP_FORMS: &'static [&'static str] = &[
        "cnt=0 zext=0",
        "cnt=0 zext=1",
        "cnt=1 zext=0",
        "cnt=1 zext=1",
        "cnt=2",
    ];

    fn packets<'a>(
        bytes: &'a [u8],
        offset: StreamOffset,
        outside: rtit::Mode,
        _by: SpoiltBy,
    ) -> impl Iterator<Item = StreamItem<Self>> + 'a {
        Packets::starting_at(bytes, offset).in_context(outside)
    }

    fn index(kind: rtit::Kind) -> usize {
        kind as usize
    }

    fn family(kind: rtit::Kind) -> Family {
        use rtit::Kind;
        match kind {
            Kind::Psb => Family::Boundary,
            Kind::TraceStop | Kind::FupOvf => Family::Loss,
            Kind::Tnt | Kind::TntPartial => Family::Branch,
            Kind::Pip => Family::Context,
            Kind::Mtc | Kind::Sts => Family::Time,
            _ => Family::Address,
        }
    }

    fn name(_memory: &mut (), _packet: &rtit::Packet) -> Option<Name> {
        None
    }

    fn ip_form(packet: &rtit::Packet) -> Option<IpForm> {
        let bytes = packet.lip_payload()?.lip_bytes();
        Some(IpForm {
            form: LipBytes::ALL.iter().position(|form| *form == bytes)?,
            bytes: bytes.payload_len(),
        })
    }

    fn write_short(packet: &rtit::Packet, out: &mut Vec<u8>) -> bool {
        let (bits, len) = match packet {
            rtit::Packet::TntPartial { bits } => (bits.bits(), bits.len()),
            rtit::Packet::Tnt { bits, cycles: None } => (bits.tnt().bits(), bits.tnt().len()),
            _ => return false,
        };
        out.extend_from_slice(b"tnt ");
        digits::tnt(out, bits, len as u32);
        true
    }

    loops!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofi_packet::{Listing, PacketKind, Packets};

    /// Every packet of one byte, printed in the short way and by the library.
    fn short_is_display<F: Known>() -> usize {
        (0..=u8::MAX)
            .filter(|byte| {
                let bytes = [*byte];
                let Some(Ok(located)) = Packets::<F>::new(&bytes).next() else {
                    return false;
                };
                let mut out = Vec::new();
                let is_short = F::write_short(&located.packet(), &mut out);
                let display = Listing::<F>::new().next(&located.raw).to_string();
                assert!(!is_short || out == display.as_bytes(), "{display}");
                is_short
            })
            .count()
    }

    #[test]
    fn short_forms() {
        assert_eq!(short_is_display::<IntelPt>(), 1 + 126);
        assert_eq!(short_is_display::<Rtit>(), 62 + 64);
    }

    #[test]
    fn places_in_the_table() {
        for (index, kind) in intel::Kind::ALL.iter().enumerate() {
            assert_eq!(IntelPt::index(*kind), index, "{}", kind.name());
        }
        for (index, kind) in <rtit::Kind as PacketKind>::ALL.iter().enumerate() {
            assert_eq!(Rtit::index(*kind), index, "{}", kind.name());
        }
    }

    #[test]
    fn forms_of_addresses() {
        assert_eq!(IntelPt::IP_FORMS.len(), IpBytes::ALL.len());
        for (form, bytes) in IntelPt::IP_FORMS.iter().zip(IpBytes::ALL) {
            assert_eq!(*form, format!("ipc={}", bytes as u8));
        }
        assert_eq!(Rtit::IP_FORMS.len(), LipBytes::ALL.len());
        for (form, bytes) in Rtit::IP_FORMS.iter().zip(LipBytes::ALL) {
            let wanted = format!("cnt={} zext={}", bytes.cnt(), u8::from(bytes.zext()));
            assert!(wanted.starts_with(form), "{form}, {wanted}");
        }
    }

    #[test]
    fn c_states() {
        let name = |hints| {
            let what = Named::CState(hints);
            Name { key: "hints", what }.to_string()
        };
        assert_eq!(
            [0x00, 0x21, 0xe3, 0xf0].map(name),
            ["C1.0", "C3.1", "C15.3", "C0.0"]
        );
    }
}
