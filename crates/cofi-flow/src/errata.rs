//! Published errata of processors that a decoder can work around, each a switch. `docs/errata.md` lists all that were considered.

use cofi_packet::rtit::has_rtit;

use crate::Cpu;

/// One switch of [`Errata`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Erratum {
    /// The switch's name: the number under which the erratum was first published, in lower case.
    pub name: &'static str,
    /// The title under which it was published, and the numbers it has in other processors' lists.
    pub title: &'static str,
}

macro_rules! errata {
    ($($(#[$doc:meta])* $name:ident: $title:literal;)*) => {
        /// Published errata of processors that a decoder can work around, each a switch.
        ///
        /// [`Errata::for_cpu`] chooses them by processor; [`Errata::ALL`] lists them by name, and [`Errata::set`] switches one.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Errata {
            $(
                #[doc = concat!($title, ".")]
                ///
                $(#[$doc])*
                pub $name: bool,
            )*
        }

        impl Errata {
            /// Every switch there is.
            pub const ALL: &'static [Erratum] = &[
                $(Erratum { name: stringify!($name), title: $title },)*
            ];

            /// Whether the switch of this name is on; `None` if there is no such switch.
            #[must_use]
            pub fn get(&self, name: &str) -> Option<bool> {
                match name {
                    $(stringify!($name) => Some(self.$name),)*
                    _ => None,
                }
            }

            /// Switches a workaround on or off by its name; `false` if there is no such switch.
            pub fn set(&mut self, name: &str, on: bool) -> bool {
                match name {
                    $(stringify!($name) => self.$name = on,)*
                    _ => return false,
                }
                true
            }
        }
    };
}

errata! {
    /// Problem: a PSB+ just before a TIP.PGE may hold a FUP and a MODE.Exec although tracing is still off.
    /// Workaround: when the first control packet after a PSB+ is TIP.PGE, the PSB+'s FUP does not switch tracing on.
    bdm70: "BDM70 (also SKD024, SKL021, KBL021), \"PSB+ packets may contain unexpected packets\"";
    /// Problem: when a transaction aborts right after a branch, the branch's target in the trace may be wrong.
    /// Workaround: if the abort's FUP cannot be reached from there without further packets, go to it at once.
    bdm64: "BDM64, \"an incorrect LBR or Processor Trace packet may be recorded following a transactional abort\"";
    /// Problem: an OVF may stand in place of the bytes of a CYC packet after its first.
    /// Workaround: a CYC whose second byte starts an OVF is cut to its first byte.
    skd007: "SKD007 (also SKL049, KBL041), \"buffer overflow may result in incorrect packets\"";
    /// Problem: a FUP precedes the TIP.PGD of a VM entry that switches tracing off by an MSR load.
    /// Workaround: if that FUP names a VM entry, the entry executed and took tracing with it.
    skd022: "SKD022 (also SKL024, KBL023), \"VM entry that clears TraceEn may generate a FUP\"";
    /// Problem: neither FUP nor TIP.PGE may follow an OVF.
    /// Workaround: the place after the overflow is unknown; decoding goes on silently at the next packets that tell it: a TIP with no TNT
    /// between, the FUP of a MODE.TSX, or what ends any loss.
    skd010: "SKD010 (also SKD014, SKL033, KBL030), \"FUP may be dropped after OVF\"";
    /// Problem: a direct unconditional branch that leaves the filter ranges may give a TIP.PGD without IP.
    /// Workaround: with [`FlowConfig::filter`](crate::FlowConfig::filter) known, such a TIP.PGD binds to a direct branch that leaves the
    /// ranges.
    skl014: "SKL014 (also KBL014), \"TIP.PGD may not have target IP payload\"";
    /// Problem: the making of a PSB may swallow one CYC packet, and the MTC that came with it.
    /// Workaround: cycles are not counted over a PSB, neither to bound the time nor to measure the core's frequency; the lost MTC is
    /// noticed by the next one's payload, as always.
    skl168: "SKL168, \"CYC packets can be dropped when immediately preceding PSB\"";
    /// Problem: a FUP may follow an OVF although IP filtering keeps tracing off.
    /// Workaround: when the next control packet after that FUP is TIP.PGE, PSB+s aside, tracing is taken as off.
    apl12: "APL12, \"OVF may be followed by an unexpected FUP packet\"";
    /// Problem: when tracing is switched off just as an overflow ends, a TIP.PGD follows the OVF.
    /// Workaround: tracing is off after such an overflow.
    apl11: "APL11, \"OVF packet may be followed by TIP.PGD packet\"";
    /// Problem: in a guest with TSC scaling or offsetting, TMA packets are wrong and a stray byte follows each.
    /// Workaround: a TMA behind which stands a byte that begins no packet is ignored, and that byte with it. (Where
    /// the byte happens to look like a packet, that cannot be told.)
    skz84: "SKZ84, \"use of VMX TSC scaling or TSC offsetting will result in corrupted packets\"";
    /// Problem: the FUP.FAR of a far transfer instruction with more than 3 prefixes may name an address within the instruction instead of
    /// the one behind it.
    /// Workaround: a FUP.FAR in the middle of a far transfer instruction is taken as if it named the instruction that follows.
    rtit_e1: "RTIT E1, \"RTIT trace may contain FUP.FAR packet with incorrect address\"";
    /// Problem: with IP filtering or TraceStop an instruction or event that both lets ContextEn or TriggerEn become 1, and FilterEn or
    /// TraceActive 0, may give a FUP.PGD although tracing was off before.
    /// Workaround: a FUP.PGD that follows another without a FUP.PGE in between is ignored.
    rtit_e2: "RTIT E2, \"extra RTIT FUP.PGD packets can result from use of IP filtering or TraceStop\"";
    /// Problem: a TraceStop condition during a buffer overflow may leave TraceActive set: the TraceStop packet comes before the FUP.BuffOvf,
    /// and tracing continues.
    /// Workaround: none was identified; such a TraceStop is told, and does not end tracing.
    rtit_e4: "RTIT E4, \"RTIT TraceStop condition detected during buffer overflow may not clear TraceActive\"";
    /// Problem: the TIP of a branch that executed during an overflow may follow the FUP.BuffOvf, with the same IP.
    /// Workaround: a TIP that immediately follows a FUP.BuffOvf and has its IP is ignored.
    rtit_e5: "RTIT E5, \"RTIT FUP.BuffOvf packet may be incorrectly followed by a TIP packet\"";
    /// Problem: cycle counts are one less than the cycles that have passed; a count of 0 may stand for 0 or 1.
    /// Workaround: 1 is added to every count that is not 0.
    rtit_e6: "RTIT E6, \"RTIT CYC packet payload values may be off by 1 cycle\"";
    /// Problem: the first MTC packet after TriggerEn became 1 may be sent at the wrong time.
    /// Workaround: the first MTC that follows the enabling of tracing is ignored.
    rtit_e7: "RTIT E7, \"first MTC packet after RTIT enable may be incorrect\"";
    /// Problem: of the packets that immediately follow a PSB, no more than 21, some may precede or overwrite older packets.
    /// Workaround: none was identified; where these packets contradict the code or each other, what the rest of them tells is not relied
    /// upon either, and the flow goes on behind them.
    rtit_e8: "RTIT E8, \"some RTIT packets following PSB may be sent out of order or dropped\"";
}

impl Errata {
    /// The errata of `cpu`, an Intel processor.
    ///
    /// Known are the processors that libipt 2.1 knows, later ones that Linux names and that have the same families of cores, and those that
    /// have RTIT; of others nothing is assumed. The stepping tells whether there
    /// is RTIT; else it decides nothing yet, as no published list at hand tells steppings of one model apart.
    #[must_use]
    pub fn for_cpu(cpu: Cpu) -> Self {
        let mut errata = Self::default();
        if has_rtit(cpu.family, cpu.model, cpu.stepping) {
            // The reference lists them for all processors that it is about.
            return Self {
                rtit_e1: true,
                rtit_e2: true,
                rtit_e4: true,
                rtit_e5: true,
                rtit_e6: true,
                rtit_e7: true,
                rtit_e8: true,
                ..errata
            };
        }
        let model = match (cpu.family, cpu.model) {
            (6, model) => model,
            // Nova Lake, for which the same holds as for the hybrids before it: Panther Lake.
            (0x12, 1 | 3) => 0xcc,
            // Diamond Rapids, for which the same holds as for the servers before it.
            (0x13, 1) => 0xad,
            _ => return errata,
        };
        // Broadwell: client, Xeon E3, E5/E7 and D.
        let broadwell = matches!(model, 0x3d | 0x47 | 0x4f | 0x56);
        // Skylake, Kaby Lake, Coffee Lake and Comet Lake clients.
        let skylake = matches!(model, 0x4e | 0x5e | 0x8e | 0x9e | 0xa5 | 0xa6);
        // Skylake, Ice Lake, Sapphire Rapids, Emerald Rapids and Granite Rapids servers.
        let server = matches!(model, 0x55 | 0x6a | 0x6c | 0x8f | 0xad | 0xae | 0xcf);
        // Cannon Lake, Ice Lake, Tiger Lake and Rocket Lake clients.
        let later = matches!(model, 0x66 | 0x7d | 0x7e | 0x8c | 0x8d | 0xa7 | 0xa8);
        // Alder Lake, Raptor Lake, Meteor Lake, Arrow Lake, Lunar Lake, Panther Lake, Wildcat Lake: both kinds of cores.
        let hybrid = matches!(
            model,
            0x97 | 0x9a
                | 0xaa
                | 0xac
                | 0xb5
                | 0xb7
                | 0xba
                | 0xbd
                | 0xbf
                | 0xc5
                | 0xc6
                | 0xcc
                | 0xd5
        );
        // Goldmont.
        let goldmont = matches!(model, 0x5c | 0x5f);
        // Goldmont Plus, Tremont, and the Atom servers after them.
        let small = goldmont || matches!(model, 0x7a | 0x86 | 0x96 | 0x9c | 0xaf | 0xb6 | 0xdd);

        errata.bdm64 = broadwell;
        errata.bdm70 = broadwell || skylake || server || later || hybrid;
        errata.skd007 = skylake;
        errata.skd010 = skylake;
        errata.skl168 = skylake;
        errata.skd022 = skylake || server || later || hybrid;
        errata.skl014 = errata.skd022;
        errata.skz84 = server;
        errata.apl11 = small || hybrid;
        errata.apl12 = goldmont;
        errata
    }

    /// The names of the switches that are on.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        Self::ALL
            .iter()
            .map(|erratum| erratum.name)
            .filter(|name| self.get(name) == Some(true))
    }

    /// Changes switches as `words` says: their names, separated by commas; a `-` before a name switches it off, `none` all off.
    ///
    /// # Errors
    /// The first word that names no switch. What stands before it has been done.
    pub fn change<'w>(&mut self, words: &'w str) -> Result<(), &'w str> {
        for word in words
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
        {
            if word == "none" {
                *self = Self::default();
                continue;
            }
            let (name, on) = match word.strip_prefix('-') {
                Some(name) => (name, false),
                None => (word, true),
            };
            if !self.set(name, on) {
                return Err(word);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn errata(family: u16, model: u8) -> Errata {
        Errata::for_cpu(Cpu {
            family,
            model,
            stepping: 1,
        })
    }

    #[test]
    fn errata_by_processor() {
        let names = |family, model| -> Vec<_> { errata(family, model).names().collect() };
        assert_eq!(names(6, 79), ["bdm70", "bdm64"]);
        assert_eq!(names(15, 79), [""; 0]);
        assert_eq!(names(6, 0x1a), [""; 0]);
        assert_eq!(names(6, 0x5c), ["apl12", "apl11"]);
        assert_eq!(names(6, 0xaf), ["apl11"]);
        assert_eq!(names(6, 0xb7), ["bdm70", "skd022", "skl014", "apl11"]);
        assert_eq!(names(0x13, 1), ["bdm70", "skd022", "skl014", "skz84"]);
        // Wildcat Lake and Nova Lake, hybrids as those before them.
        for (family, model) in [(6, 0xd5), (0x12, 1), (0x12, 3)] {
            assert_eq!(names(family, model), names(6, 0xcc), "{family:x}/{model:x}");
        }
        assert_eq!(names(0x12, 2), [""; 0]);
        let skylake = ["bdm70", "skd007", "skd022", "skd010", "skl014", "skl168"];
        assert_eq!(names(6, 0x5e), skylake);
        assert!(!errata(6, 0x55).skd010 && errata(6, 0x55).skz84);
        let airmont = |stepping| Cpu {
            family: 6,
            model: 0x4c,
            stepping,
        };
        let rtit = [
            "rtit_e1", "rtit_e2", "rtit_e4", "rtit_e5", "rtit_e6", "rtit_e7", "rtit_e8",
        ];
        let names = Errata::for_cpu(airmont(3)).names().collect::<Vec<_>>();
        assert_eq!(names, rtit);
        assert_eq!(Errata::for_cpu(airmont(4)), Errata::default());
    }

    #[test]
    fn switches_are_changed_by_name() {
        let mut errata = errata(6, 79);
        assert_eq!(errata.change("skl168,-bdm64, apl11"), Ok(()));
        assert_eq!(
            errata.names().collect::<Vec<_>>(),
            ["bdm70", "skl168", "apl11"]
        );
        assert_eq!(errata.change("none,skz84"), Ok(()));
        assert_eq!(errata.names().collect::<Vec<_>>(), ["skz84"]);
        assert_eq!(errata.change("-skz84,bdm71,apl12"), Err("bdm71"));
        assert_eq!(errata, Errata::default());
    }

    #[test]
    fn every_switch_can_be_reached_by_its_name_and_is_that_erratum() {
        for erratum in Errata::ALL {
            let mut errata = Errata::default();
            assert!(errata.set(erratum.name, true));
            assert_eq!(errata.names().collect::<Vec<_>>(), [erratum.name]);
            let title = erratum.title.to_lowercase().replace(' ', "_");
            assert!(title.starts_with(erratum.name));
        }
        assert_eq!(Errata::default().get("no such"), None);
    }
}
