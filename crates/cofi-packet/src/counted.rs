//! Numbers of things, in messages.

use core::fmt;

/// So many of something: prints as `1 byte`, `2 bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted {
    number: u64,
    what: &'static str,
}

/// So many of something whose plural ends in an s.
///
/// ```
/// use cofi_packet::counted;
///
/// let texts = [0, 1, 2].map(|number| counted(number, "byte").to_string());
/// assert_eq!(texts, ["0 bytes", "1 byte", "2 bytes"]);
/// ```
#[must_use]
pub const fn counted(number: u64, what: &'static str) -> Counted {
    Counted { number, what }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, what } = self;
        write!(f, "{number} {what}{}", if *number == 1 { "" } else { "s" })
    }
}

/// The word that goes with so many of something: `was` or `were`, say.
///
/// ```
/// assert_eq!(cofi_packet::agreeing(1, "was", "were"), "was");
/// ```
#[must_use]
pub const fn agreeing(number: u64, one: &'static str, several: &'static str) -> &'static str {
    if number == 1 { one } else { several }
}
