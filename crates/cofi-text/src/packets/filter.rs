//! Which packets are wanted.

use super::known::Known;
use cofi_packet::PacketKind;
use std::error::Error;
use std::fmt;

/// The word that stands for bytes that form no packet.
const ERROR: &str = "error";

/// No packet has the name that was asked for.
#[derive(Clone, Debug)]
pub struct UnknownPacket {
    word: String,
    /// Those that there are.
    names: String,
}

impl fmt::Display for UnknownPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { word, names } = self;
        write!(
            f,
            "no packet is called {word:?}; there are {names}, and {ERROR}; * stands for anything"
        )
    }
}

impl Error for UnknownPacket {}

/// Which kinds of packets are wanted, and whether errors are.
#[derive(Clone, Debug)]
pub struct Filter {
    kinds: Vec<bool>,
    errors: bool,
}

/// Whether `name` is what `pattern` describes, in which `*` stands for anything. Both in lower case.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|tail| {
            (0..=tail.len()).any(|skip| tail.is_char_boundary(skip) && matches(rest, &tail[skip..]))
        }),
    }
}

impl Filter {
    /// Reads names of packets, as `tip*`, `tnt` for all of that name, and `error`; without any, everything is wanted.
    ///
    /// # Errors
    ///
    /// [`UnknownPacket`] if no packet has such a name.
    pub fn new<F: Known>(words: &[String]) -> Result<Self, UnknownPacket> {
        let all = F::Kind::ALL;
        if words.is_empty() {
            return Ok(Self {
                kinds: vec![true; all.len()],
                errors: true,
            });
        }
        let mut filter = Self {
            kinds: vec![false; all.len()],
            errors: false,
        };
        for word in words {
            let word = word.trim().to_ascii_lowercase();
            // `tnt` is tnt.8 and tnt.64, but `tip` is the packet of just this name.
            let is_name = word == ERROR || all.iter().any(|kind| kind.name() == word);
            let group = format!("{word}.*");
            let wanted = |name| matches(&word, name) || !is_name && matches(&group, name);
            let mut any = wanted(ERROR);
            filter.errors |= any;
            for kind in all {
                let is_wanted = wanted(kind.name());
                filter.kinds[F::index(*kind)] |= is_wanted;
                any |= is_wanted;
            }
            if !any {
                let mut names: Vec<_> = all.iter().map(|kind| kind.name()).collect();
                names.dedup();
                let names = names.join(", ");
                return Err(UnknownPacket { word, names });
            }
        }
        Ok(filter)
    }

    /// Whether a packet is wanted.
    pub fn has<F: Known>(&self, kind: F::Kind) -> bool {
        self.kinds.get(F::index(kind)).copied().unwrap_or(true)
    }

    /// Whether errors are wanted.
    pub fn has_errors(&self) -> bool {
        self.errors
    }
}

#[cfg(test)]
mod tests {
    use super::{Filter, matches};
    use crate::packets::Known;
    use cofi_packet::PacketKind;
    use cofi_packet::intel::IntelPt;
    use cofi_packet::rtit::Rtit;

    fn names<F: Known>(words: &[&str]) -> String {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let filter = match Filter::new::<F>(&words) {
            Ok(filter) => filter,
            Err(error) => return error.to_string(),
        };
        let kinds = F::Kind::ALL.iter().filter(|kind| filter.has::<F>(**kind));
        let mut names: Vec<_> = kinds.map(|kind| kind.name()).collect();
        names.extend(filter.has_errors().then_some("error"));
        names.join(" ")
    }

    #[test]
    fn words_and_groups() {
        assert_eq!(names::<IntelPt>(&["TIP", " fup"]), "tip fup");
        assert_eq!(names::<IntelPt>(&["tip*"]), "tip tip.pge tip.pgd");
        assert_eq!(names::<IntelPt>(&["tnt", "mode"]), "tnt.8 tnt.64 mode");
        assert_eq!(names::<IntelPt>(&["error"]), "error");
        assert!(names::<IntelPt>(&["*"]).ends_with("trig error"));
        assert!(names::<IntelPt>(&[]).starts_with("pad tnt.8"));
        assert_eq!(names::<Rtit>(&["tnt"]), "tnt tnt");
        assert_eq!(
            names::<Rtit>(&["fup"]),
            "fup.pge fup.pgd fup.ovf fup.pcc fup.far"
        );
    }

    #[test]
    fn unknown_words() {
        let told = names::<Rtit>(&["tip", "cyc"]);
        assert!(
            told.starts_with("no packet is called \"cyc\"; there are psb, tracestop, tnt, tip,")
        );
        assert!(names::<IntelPt>(&[""]).contains("called \"\""));
        assert!(names::<IntelPt>(&["ti"]).contains("called \"ti\""));
    }

    #[test]
    fn patterns() {
        for (pattern, name) in [
            ("*", ""),
            ("t*", "tip"),
            ("*.8", "tnt.8"),
            ("t*.*g*", "tip.pge"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("t", "tip"), ("*x*", "tip"), ("", "pad"), ("é*", "pad")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
