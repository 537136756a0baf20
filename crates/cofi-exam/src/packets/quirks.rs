//! Where perf and libipt read packets otherwise than the manual has it, each case with its argument.

use serde_json::Value;

use super::errors::Place;
use super::generate::Profile;
use super::listing::Entry;

/// Somebody to compare Cofi's list with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    /// The generator: what it meant.
    Intent,
    /// libipt's packet decoder.
    Libipt,
    /// `perf script -D`.
    Perf,
    /// The list of RTIT made from its manual.
    Manual,
}

impl Who {
    /// Everybody who reads Intel PT.
    pub(super) const ALL: [Self; 3] = [Self::Intent, Self::Libipt, Self::Perf];

    /// The name in the tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Intent => "generator",
            Self::Libipt => "libipt",
            Self::Perf => "perf",
            Self::Manual => "the manual",
        }
    }
}

/// A field that a peer reads wrongly or not at all. The comparison is made all the same.
pub(super) struct Quirk {
    /// Whose it is.
    pub(super) who: Who,
    /// The kind of packet.
    pub(super) kind: &'static str,
    /// The field.
    pub(super) key: &'static str,
    /// What the peer says of a packet with these bytes: anything else is a difference. `None`: nothing.
    pub(super) says: fn(&[u8]) -> Option<Value>,
    /// The argument.
    pub(super) why: &'static str,
}

/// Every field of that sort.
pub(super) const QUIRKS: &[Quirk] = &[
    Quirk {
        who: Who::Libipt,
        kind: "mode.exec",
        key: "if",
        says: |_| None,
        why: "libipt 2.0.5 has no field for it (struct pt_packet_mode_exec: csl, csd)",
    },
    Quirk {
        who: Who::Libipt,
        kind: "pwre",
        key: "hw",
        says: |bytes| Some((bytes[2] & 0x08 != 0).into()),
        why: "libipt reads bit 3 of byte 2, which is reserved; HW is bit 7 (Table 33-43), where perf reads it too",
    },
    Quirk {
        who: Who::Libipt,
        kind: "pwrx",
        key: "wake",
        says: |bytes| Some((bytes[3] & 0x0d).into()),
        why: "libipt 2.0.5 has no flag for bit 1, the timer deadline (Table 33-44); perf prints it",
    },
];

/// What is done to a peer's words before they are compared.
pub(super) const ADAPTED: &[(Who, &str)] = &[
    (
        Who::Libipt,
        "gives the payload of IP packets; ptpackets applies Table 33-18 to it",
    ),
    (
        Who::Libipt,
        "gives hints and ext of MWAIT as 32 bits each; ptpackets leaves out the reserved ones (Table 33-42)",
    ),
    (
        Who::Perf,
        "gives the payload of IP packets; Table 33-18 is applied to it, IPBytes being those of the byte it prints",
    ),
    (
        Who::Perf,
        "prints up to eight bytes of PADs with the packet before them; they become packets, and must be zeros",
    ),
    (
        Who::Perf,
        "prints CR3[51:5] of PIP and bits 51:12 of VMCS; they are shifted to their places",
    ),
    (
        Who::Perf,
        "prints CBR with the reserved byte above it, which is left out",
    ),
];

/// Packets that a peer cannot read. They are kept out of the streams it gets, and probed one by one.
pub(super) struct Blind {
    /// Whose it is.
    pub(super) who: Who,
    /// The kinds that the peer never gets to see; empty when only some packets of a kind are kept from it.
    pub(super) kinds: &'static [&'static str],
    /// What the probe holds, in words.
    pub(super) what: &'static str,
    /// Packets to stand behind a PSB; the last is the one that the peer cannot read.
    pub(super) probe: &'static [&'static [u8]],
    /// The argument.
    pub(super) why: &'static str,
}

const NO_TYPE: &str = "libipt 2.0.5 has no such packet (enum pt_packet_type)";

/// Everything of that sort.
pub(super) const BLIND: &[Blind] = &[
    Blind {
        who: Who::Libipt,
        kinds: &["bbp", "bip"],
        what: "BBP",
        probe: &[&[0x02, 0x63, 0x01]],
        why: NO_TYPE,
    },
    Blind {
        who: Who::Libipt,
        kinds: &["bep"],
        what: "BEP",
        probe: &[&[0x02, 0x33]],
        why: NO_TYPE,
    },
    Blind {
        who: Who::Libipt,
        kinds: &["cfe"],
        what: "CFE",
        probe: &[&[0x02, 0x13, 0x01, 0x20]],
        why: NO_TYPE,
    },
    Blind {
        who: Who::Libipt,
        kinds: &["evd"],
        what: "EVD",
        probe: &[&[0x02, 0x53, 0x00, 1, 2, 3, 4, 5, 6, 7, 8]],
        why: NO_TYPE,
    },
    Blind {
        who: Who::Libipt,
        kinds: &["trig"],
        what: "TRIG",
        probe: &[&[0xd9, 0x80, 0x01]],
        why: "libipt 2.0.5 has no such packet; 2.1 has",
    },
    Blind {
        who: Who::Libipt,
        kinds: &["mode"],
        what: "MODE of a leaf without definition",
        probe: &[&[0x99, 0x45]],
        why: "the chapter defines leaves 0 and 1 and says of the others nothing; that it is a MODE packet of two bytes is known",
    },
    Blind {
        who: Who::Libipt,
        kinds: &[],
        what: "TMA with a reserved bit of byte 4",
        probe: &[&[0x02, 0x73, 0x34, 0x12, 0x02, 0x07, 0x00]],
        why: "libipt takes set reserved bits for corruption; the manual says that they \"are not guaranteed to be 0\" (33.4.2)",
    },
    Blind {
        who: Who::Libipt,
        kinds: &[],
        what: "TMA with a reserved bit of byte 6",
        probe: &[&[0x02, 0x73, 0x34, 0x12, 0x00, 0x07, 0x02]],
        why: "as above",
    },
    Blind {
        who: Who::Libipt,
        kinds: &[],
        what: "CYC of 2^61 cycles (10 bytes)",
        probe: &[&[0x07, 1, 1, 1, 1, 1, 1, 1, 1, 0x02]],
        why: "libipt refuses every CYC of 10 bytes, as a count in them could have more than 64 bits; this one has 62",
    },
    Blind {
        who: Who::Perf,
        kinds: &[],
        what: "BIP behind a CFE",
        probe: &[
            &[0x02, 0x63, 0x81],
            &[0x02, 0x13, 0x01, 0x20],
            &[0x0c, 1, 2, 3, 4],
        ],
        why: "perf takes CFE and EVD for the end of a block; they are not among what Table 33-15 forbids in one, and only BEP, BBP \
              and OVF end one (33.4.1.1)",
    },
    Blind {
        who: Who::Perf,
        kinds: &[],
        what: "BIP behind an EVD",
        probe: &[
            &[0x02, 0x63, 0x81],
            &[0x02, 0x53, 0x00, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0x0c, 1, 2, 3, 4],
        ],
        why: "as above",
    },
    Blind {
        who: Who::Perf,
        kinds: &["trig"],
        what: "TRIG",
        probe: &[&[0xd9, 0x80, 0x01]],
        why: "perf 6.1 has no such packet (D9 is none of the bytes its intel_pt_do_get_packet knows)",
    },
    Blind {
        who: Who::Perf,
        kinds: &["mode"],
        what: "MODE of a leaf without definition",
        probe: &[&[0x99, 0x45]],
        why: "as for libipt",
    },
];

/// A disagreement about what is a packet. The comparison ends there, and begins again at the next PSB that both list.
pub(super) struct Rift {
    /// With whom.
    pub(super) who: Who,
    /// About what, in words.
    pub(super) what: &'static str,
    /// Whether this place is such a one.
    pub(super) applies: fn(&Place<'_>) -> bool,
    /// The argument.
    pub(super) why: &'static str,
}

/// A TNT.64 with no results: no stop bit, or one with nothing below it.
fn empty_tnt(bytes: &[u8]) -> bool {
    matches!(bytes, [0x02, 0xa3, 0 | 1, 0, 0, 0, 0, 0, ..])
}

/// Whether a CFE or EVD stands in the block that is open at the end of the list.
fn event_in_block(before: &[Entry]) -> bool {
    let in_block =
        |e: &&Entry| !e.misplaced() && !matches!(e.name(), "bbp" | "bep" | "ovf" | "error");
    before
        .iter()
        .rev()
        .take_while(in_block)
        .any(|e| matches!(e.name(), "cfe" | "evd"))
}

/// Every disagreement of that sort.
pub(super) const RIFTS: &[Rift] = &[
    Rift {
        who: Who::Libipt,
        what: "BBP, BEP, CFE, EVD, TRIG, and MODE leaves without definition",
        applies: |place| place.only_ours(&["bbp", "bep", "cfe", "evd", "trig", "mode"]),
        why: "see above",
    },
    Rift {
        who: Who::Libipt,
        what: "TMA with reserved bits",
        applies: |place| {
            place.only_ours(&["tma"])
                && matches!(place.bytes, [_, _, _, _, a, _, b, ..] if *a != 0 || *b > 1)
        },
        why: "see above",
    },
    Rift {
        who: Who::Libipt,
        what: "CYC of ten bytes",
        applies: |place| place.only_ours(&["cyc"]) && place.ours.is_some_and(|e| e.size == 10),
        why: "see above",
    },
    Rift {
        who: Who::Libipt,
        what: "MODE.Exec with CS.L and CS.D, MODE.TSX with InTX and TXAbort",
        applies: |place| {
            place.only_theirs(&["mode.exec", "mode.tsx"])
                && matches!(place.bytes, [0x99, mode, ..] if mode & 3 == 3)
        },
        why: "\"N/A\" in Tables 33-26 and 33-27; libipt leaves it to its user, perf refuses both",
    },
    Rift {
        who: Who::Perf,
        what: "TRIG, and MODE leaves without definition",
        applies: |place| place.only_ours(&["trig", "mode"]),
        why: "see above",
    },
    Rift {
        who: Who::Perf,
        what: "TNT.64 without a result",
        applies: |place| place.only_theirs(&["tnt.64"]) && empty_tnt(place.bytes),
        why: "the stop bit is what tells how many results there are (Table 33-16); perf lists none, libipt refuses",
    },
    Rift {
        who: Who::Perf,
        what: "CYC of more than 64 bits",
        applies: |place| place.only_theirs(&["cyc"]) && place.theirs.is_some_and(|e| e.size == 10),
        why: "perf drops the bits above the 64th, and with them the count's size",
    },
    Rift {
        who: Who::Perf,
        what: "BIP behind CFE or EVD",
        applies: |place| {
            place.bytes.first().is_some_and(|b| b & 7 == 4) && event_in_block(place.before)
        },
        why: "see above",
    },
    Rift {
        who: Who::Libipt,
        what: "a PSB inside of a packet",
        applies: cut_by_psb,
        why: CUT,
    },
    Rift {
        who: Who::Perf,
        what: "a PSB inside of a packet",
        applies: cut_by_psb,
        why: CUT,
    },
];

const CUT: &str = "a PSB is nowhere else in a stream (33.4.2.17), so the packet has lost its end; a reader that takes the PSB's first \
                   bytes for that end misses the PSB";

/// Whether Cofi says that a packet is cut where the peer reads it whole.
fn cut_by_psb(place: &Place<'_>) -> bool {
    let ours = place.ours.is_some_and(|e| e.name() == "error");
    let len = place.theirs.map_or(0, |e| e.size as usize);
    let psb = [0x02, 0x82].repeat(8);
    let inside = |at| {
        place
            .bytes
            .get(at..)
            .is_some_and(|rest| rest.starts_with(&psb))
    };
    ours && place.theirs.is_some_and(|e| e.name() != "error") && (1..len).any(inside)
}

/// Streams of everything there is, for nobody but the generator to judge.
pub(super) const WHOLE: Profile = Profile {
    name: "whole",
    without: &[],
    tma_reserved: true,
    cycle_bits: 64,
    events_in_blocks: true,
};
/// Streams that perf can read.
pub(super) const FOR_PERF: Profile = Profile {
    name: "perf",
    without: &["trig", "mode"],
    events_in_blocks: false,
    ..WHOLE
};
/// Streams that libipt can read, and perf too.
pub(super) const FOR_BOTH: Profile = Profile {
    name: "libipt",
    without: &["trig", "mode", "bbp", "cfe", "evd"],
    tma_reserved: false,
    cycle_bits: 61,
    events_in_blocks: false,
};

/// Whether a peer can read this kind at all.
pub(super) fn knows(who: Who, kind: &str) -> bool {
    !BLIND
        .iter()
        .any(|blind| blind.who == who && blind.kinds.contains(&kind))
}
