//! Random streams of valid packets.

use super::emit::{Emitter, IpPacket};
use super::listing::FORBIDDEN;
use super::rng::{FieldRng, Rng};

/// What may be in a stream, so that some reader can read all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Profile {
    /// Its name.
    pub(super) name: &'static str,
    /// Kinds that are not in it.
    pub(super) without: &'static [&'static str],
    /// Whether TMA's reserved bits may be set.
    pub(super) tma_reserved: bool,
    /// The most bits of a cycle count.
    pub(super) cycle_bits: u32,
    /// Whether CFE and EVD may stand within a block.
    pub(super) events_in_blocks: bool,
}

/// What may stand outside of blocks, each once for every share it has.
const OUTSIDE: &[&str] = &[
    "pad",
    "pad",
    "pad",
    "psb",
    "ovf",
    "tracestop",
    "tnt.8",
    "tnt.8",
    "tnt.8",
    "tnt.8",
    "tnt.8",
    "tnt.64",
    "tnt.64",
    "tip",
    "tip",
    "tip",
    "tip.pge",
    "tip.pgd",
    "fup",
    "fup",
    "pip",
    "mode.exec",
    "mode.tsx",
    "mode",
    "cbr",
    "tsc",
    "mtc",
    "tma",
    "cyc",
    "cyc",
    "cyc",
    "vmcs",
    "mnt",
    "ptw",
    "ptw",
    "exstop",
    "mwait",
    "pwre",
    "pwrx",
    "bbp",
    "bbp",
    "cfe",
    "evd",
    "trig",
];

/// What may stand within a block: anything that Table 33-15 does not forbid. OVF, BBP and BEP end it.
const INSIDE: &[&str] = &[
    "bip", "bip", "bip", "bip", "bip", "bip", "bip", "bip", "bip", "bip", "pad", "tsc", "mtc",
    "tma", "cyc", "cbr", "mnt", "exstop", "pwre", "pwrx", "fup", "cfe", "evd", "ovf", "bbp", "bep",
    "bep",
];

/// What may stand between PSB and PSBEND.
const STATUS: &[&str] = &[
    "pad",
    "tsc",
    "tma",
    "cbr",
    "mtc",
    "cyc",
    "mode.exec",
    "mode.tsx",
    "vmcs",
    "pip",
    "fup",
    "mnt",
];

struct Maker {
    rng: Rng,
    out: Emitter,
    profile: Profile,
}

/// A stream of about `packets` packets, as long as whole words of eight bytes are.
pub(super) fn stream(rng: Rng, profile: Profile, packets: usize) -> Emitter {
    let mut maker = Maker {
        rng,
        out: Emitter::default(),
        profile,
    };
    maker.psb_plus();
    while maker.out.entries.len() < packets {
        let from = match maker.out.item() {
            // A block whose end is missing.
            Some(_) if maker.rng.one_in(16) => FORBIDDEN,
            Some(_) => INSIDE,
            None => OUTSIDE,
        };
        maker.any(from);
    }
    if maker.out.item().is_some() {
        maker.out.bep(false);
    }
    // perf.data holds packets in whole words.
    while !maker.out.bytes.len().is_multiple_of(8) {
        maker.out.pad();
    }
    maker.out
}

impl Maker {
    fn any(&mut self, from: &[&'static str]) {
        let kind = self.rng.pick(from);
        let displaced = matches!(kind, "cfe" | "evd")
            && self.out.item().is_some()
            && !self.profile.events_in_blocks;
        if !displaced && !self.profile.without.contains(&kind) {
            self.one(kind);
        }
    }

    fn psb_plus(&mut self) {
        self.out.psb();
        for _ in 0..self.rng.below(7) {
            self.any(STATUS);
        }
        // An overflow may cut a PSB+ short.
        if self.rng.one_in(8) {
            self.out.ovf();
        } else {
            self.out.psbend();
        }
    }

    fn flag(&mut self) -> bool {
        self.rng.one_in(2)
    }

    fn ip(&mut self, which: IpPacket) {
        let ip_bytes = self.rng.pick(&[0, 1, 2, 3, 4, 6]);
        let bits = [1, 16, 32, 48, 48, 1, 64][usize::from(ip_bytes)];
        let payload = self.rng.edge(bits);
        self.out.ip(which, ip_bytes, payload);
    }

    /// The FUP which a set IP bit announces.
    fn follow(&mut self, announced: bool) {
        if announced {
            self.ip(IpPacket::Fup);
        }
    }

    fn tnt(&mut self, long: bool) {
        let most = if long { 47 } else { 6 };
        let count = match self.rng.below(4) {
            0 => most,
            1 => 1,
            _ => 1 + self.rng.below(most),
        };
        let mut results: Vec<bool> = match self.rng.below(6) {
            0 => vec![true; count as usize],
            1 => vec![false; count as usize],
            _ => (0..count).map(|_| self.flag()).collect(),
        };
        // In a block a byte that ends in 100 is an item.
        if !long && self.out.item().is_some() && matches!(results[..], [false] | [.., true, false])
        {
            results.fill(true);
        }
        self.out.tnt(long, &results);
    }

    fn tma(&mut self) {
        let (ctc, fc) = (self.rng.edge(16) as u16, self.rng.edge(9) as u16);
        let reserved = self.rng.reserved(14);
        let reserved = if self.profile.tma_reserved {
            reserved
        } else {
            0
        };
        self.out.tma(ctc, fc, reserved);
    }

    /// Every length is as likely as every other.
    fn cyc(&mut self) {
        let bytes = 1 + self.rng.below(10) as u32;
        let bits = (5 + 7 * (bytes - 1)).min(self.profile.cycle_bits);
        let cycles = self.rng.edge(bits);
        self.out.cyc(cycles);
    }

    fn block(&mut self) {
        let (short, kind, reserved) = (self.flag(), self.rng.edge(5), self.rng.reserved(2));
        // The types that the manual defines, most of the time.
        let kind = match self.rng.below(3) {
            0 => kind as u8,
            _ => self.rng.pick(&[0x01, 0x04, 0x05, 0x08, 0x09, 0x0a, 0x10]),
        };
        self.out.bbp(short, kind, reserved);
    }

    fn power(&mut self, kind: &str) {
        let (a, b) = (self.rng.edge(4) as u8, self.rng.edge(4) as u8);
        match kind {
            "mwait" => {
                let (hints, ext) = (self.rng.edge(8) as u8, self.rng.edge(2) as u8);
                let reserved = self.rng.reserved(64);
                self.out.mwait(hints, ext, reserved);
            }
            "pwre" => {
                let (hw, reserved) = (self.flag(), self.rng.reserved(7));
                self.out.pwre(hw, a, b, reserved);
            }
            _ => {
                let (wake, reserved) = (1 << self.rng.below(4), self.rng.reserved(28));
                self.out.pwrx(a, b, wake, reserved);
            }
        }
    }

    fn event(&mut self, kind: &str) {
        let (ip, reserved) = (self.flag(), self.rng.reserved(2));
        match kind {
            "cfe" => {
                let (kind, vector) = (self.rng.edge(5) as u8, self.rng.edge(8) as u8);
                self.out.cfe(ip, kind, vector, reserved);
                self.follow(ip);
            }
            "evd" => {
                let (kind, payload) = (self.rng.edge(6) as u8, self.rng.edge(64));
                self.out.evd(kind, payload, reserved);
            }
            _ => {
                let (mult, vector) = (self.flag(), self.rng.edge(8) as u8);
                let icnt = self.flag().then(|| self.rng.edge(16) as u16);
                let reserved = self.rng.reserved(5);
                self.out.trig(ip, mult, vector, icnt, reserved);
                self.follow(ip);
            }
        }
    }

    /// One packet of the kind, or a few that begin with it.
    fn one(&mut self, kind: &'static str) {
        match kind {
            "pad" => {
                // Alone or in a row.
                for _ in 0..self.rng.pick(&[1, 1, 2, 3, 9]) {
                    self.out.pad();
                }
            }
            "psb" => {
                if self.rng.one_in(4) {
                    self.psb_plus();
                }
            }
            "psbend" => self.out.psbend(),
            "ovf" => self.out.ovf(),
            "tracestop" => self.out.tracestop(),
            "tnt.8" => self.tnt(false),
            "tnt.64" => self.tnt(true),
            "tip" => self.ip(IpPacket::Tip),
            "tip.pge" => self.ip(IpPacket::TipPge),
            "tip.pgd" => self.ip(IpPacket::TipPgd),
            "fup" => self.ip(IpPacket::Fup),
            "pip" => {
                let (cr3, nr) = (self.rng.edge(47), self.flag());
                self.out.pip(cr3, nr);
            }
            "mode.exec" => {
                let (mode, interrupts) = (self.rng.pick(&[16, 32, 64]), self.flag());
                let reserved = self.rng.reserved(2);
                self.out.mode_exec(mode, interrupts, reserved);
            }
            "mode.tsx" => {
                let (intx, abort) = self
                    .rng
                    .pick(&[(false, false), (true, false), (false, true)]);
                self.out.mode_tsx(intx, abort);
            }
            "mode" => {
                let (leaf, bits) = (2 + self.rng.below(6) as u8, self.rng.below(32) as u8);
                self.out.mode(leaf, bits);
            }
            "cbr" => {
                let (ratio, reserved) = (self.rng.edge(8) as u8, self.rng.reserved(8));
                self.out.cbr(ratio, reserved);
            }
            "tsc" => {
                let tsc = self.rng.edge(56);
                self.out.tsc(tsc);
            }
            "mtc" => {
                let ctc = self.rng.edge(8) as u8;
                self.out.mtc(ctc);
            }
            "tma" => self.tma(),
            "cyc" => self.cyc(),
            "vmcs" => {
                let pointer = self.rng.edge(40);
                self.out.vmcs(pointer);
            }
            "mnt" => {
                let payload = self.rng.edge(64);
                self.out.mnt(payload);
            }
            "ptw" => {
                let (wide, ip, payload) = (self.flag(), self.flag(), self.rng.edge(64));
                self.out.ptw(wide, payload, ip);
                self.follow(ip);
            }
            "exstop" => {
                let ip = self.flag();
                self.out.exstop(ip);
                self.follow(ip);
            }
            "mwait" | "pwre" | "pwrx" => self.power(kind),
            "bbp" => self.block(),
            "bip" => {
                let (id, payload) = (self.rng.edge(5) as u8, self.rng.edge(64));
                self.out.bip(id, payload);
            }
            "bep" => {
                let ip = self.flag();
                self.out.bep(ip);
                self.follow(ip);
            }
            _ => self.event(kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::listing::{KINDS, keys};
    use super::*;

    const ALL: Profile = Profile {
        name: "all",
        without: &[],
        tma_reserved: true,
        cycle_bits: 64,
        events_in_blocks: true,
    };

    #[test]
    fn a_stream_has_every_kind_with_every_key() {
        let stream = stream(Rng::new(5), ALL, 4000);
        for (kind, _) in KINDS {
            let one = stream
                .entries
                .iter()
                .find(|e| e.name() == *kind)
                .unwrap_or_else(|| panic!("no {kind}"));
            for key in keys(kind) {
                assert!(one.field(key).is_some(), "{kind} without {key}");
            }
        }
    }

    #[test]
    fn entries_lie_one_behind_the_other() {
        let stream = stream(Rng::new(6), ALL, 500);
        let mut at = 0;
        for entry in &stream.entries {
            assert_eq!(entry.offset, at);
            at += entry.size;
        }
        assert_eq!(at, stream.bytes.len() as u64);
        assert_eq!(at % 8, 0);
    }

    #[test]
    fn what_is_forbidden_in_a_block_is_noted_as_such_and_ends_it() {
        let stream = stream(Rng::new(7), ALL, 4000);
        let (mut inside, mut items, mut misplaced) = (false, 0, 0);
        for entry in &stream.entries {
            let forbidden = inside && FORBIDDEN.contains(&entry.name());
            assert_eq!(entry.misplaced(), forbidden, "{entry}");
            misplaced += u64::from(forbidden);
            inside = !forbidden && (inside || entry.name() == "bbp");
            match entry.name() {
                "bep" | "ovf" => inside = false,
                "bip" => {
                    assert!(inside, "an item without a block");
                    items += 1;
                }
                _ => {}
            }
        }
        assert!(items > 100, "{items} items");
        assert!(misplaced > 10, "{misplaced} misplaced packets");
    }

    #[test]
    fn a_profile_keeps_out_what_it_says() {
        let narrow = Profile {
            name: "narrow",
            without: &["bbp", "trig"],
            tma_reserved: false,
            cycle_bits: 61,
            events_in_blocks: true,
        };
        let stream = stream(Rng::new(8), narrow, 2000);
        assert!(
            stream
                .entries
                .iter()
                .all(|e| !["bbp", "bip", "bep", "trig"].contains(&e.name()))
        );
        assert!(
            stream
                .entries
                .iter()
                .all(|e| e.name() != "cyc" || e.size <= 9)
        );
    }
}
