//! Where libipt and perf do not take the trace unit's streams, or take them otherwise: each case by name, with its argument. The same list,
//! in more words, is `docs/strangers.md`.

/// How a case is kept out of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// The machines do not do it: a name that the example `machine` knows.
    Without,
    /// The comparison of a stream ends at a step which the truth names.
    Cut,
    /// The comparison of a stream ends where libipt's words and the packets show exactly this case.
    Rift,
}

/// A case.
#[derive(Debug)]
pub(super) struct Exclusion {
    /// Its name, here, in the records of machines and in the document.
    pub(super) name: &'static str,
    /// How it is kept out.
    pub(super) how: How,
    /// The argument, in short.
    pub(super) why: &'static str,
}

/// What libipt's instruction decoder is not asked about.
pub(super) const FLOW: &[Exclusion] = &[
    Exclusion {
        name: "pebs",
        how: How::Without,
        why: "libipt 2.0.5 knows no BBP, BIP and BEP (33.4.2.26 to 33.4.2.28)",
    },
    Exclusion {
        name: "event-trace",
        how: How::Without,
        why: "libipt 2.0.5 knows no CFE and EVD (33.4.2.29, 33.4.2.30)",
    },
    Exclusion {
        name: "init",
        how: How::Without,
        why: "INIT on a processor that then waits for SIPI is a FUP without TIP (Table 33-55, case 23); libipt wants one",
    },
    Exclusion {
        name: "uncompressed-ret",
        how: How::Cut,
        why: "every RET pops the stack of return addresses (33.4.2.2, step 3); libipt pops for compressed ones only",
    },
    Exclusion {
        name: "disabled-after-cr3",
        how: How::Rift,
        why: "libipt takes a TIP.PGD without IP behind the PIP of a MOV CR3 for that instruction's; it is a later one's",
    },
    Exclusion {
        name: "leaving-branch",
        how: How::Rift,
        why: "a conditional branch that leaves the filter is a TIP.PGD without IP (33.4.2.5); libipt wants a TNT bit or the IP",
    },
    Exclusion {
        name: "compressed-after-overflow",
        how: How::Without,
        why: "an IP behind OVF may be compressed against one before it (33.4.2.16); libipt takes it as compressed against zero",
    },
    Exclusion {
        name: "mode-after-overflow",
        how: How::Rift,
        why: "libipt keeps the mode from before an overflow: a MODE.Exec whose TIP was lost, and the PSB+ behind OVF and FUP",
    },
];

/// What is left out of the streams whose packets libipt reads.
pub(super) const PACKETS: [&str; 2] = ["pebs", "event-trace"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_explained_in_the_document() {
        let document = include_str!("../../../../docs/strangers.md");
        for case in FLOW {
            let name = format!("`{}`", case.name);
            assert!(document.contains(&name), "{name}");
        }
    }
}
