//! What the command line says to the plugin: `key=value` each.

use crate::clock::Source;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use cofi_unit::{Capabilities, Generation, Implementation, Signature, rtit};

/// The options.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) caps: Capabilities,
    pub(crate) family: Family,
    pub(crate) signature: Signature,
    pub(crate) clock: Source,
    /// Say at the end how much was traced.
    pub(crate) says: bool,
    /// The folder for lists of what ran.
    pub(crate) list: Option<String>,
}

/// Which trace unit the processors have, and what is left to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    IntelPt(Implementation),
    Rtit(rtit::Implementation),
}

/// The processors that have RTIT: name and CPUID.01H:EAX (1.2 of its reference).
const RTIT: [(&str, Signature); 2] = [
    ("silvermont", Signature(0x0003_0678)),
    ("airmont", Signature(0x0004_06c3)),
];

/// QEMU's emulated processors have physical addresses of so many bits.
const PHYSICAL_BITS: u8 = 40;

impl Options {
    /// Reads them.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut processor = Generation::Skylake.name();
        let mut clock = Source::Host;
        let mut says = false;
        let mut list = None;
        // The processor may be named behind them.
        let (mut caps, mut choices) = (Vec::new(), Vec::new());
        for word in words {
            match word.split_once('=') {
                Some(("processor", name)) => processor = name,
                Some(("clock", "host")) => clock = Source::Host,
                // How many ticks an instruction takes: two to that power.
                Some(("clock", shift)) => match shift.parse() {
                    Ok(shift @ 0..=10) => clock = Source::Instructions(shift),
                    _ => return Err(format!("{word}: host, or a number up to 10")),
                },
                Some(("says", "on")) => says = true,
                Some(("says", "off")) => says = false,
                Some(("list", folder)) => list = Some(folder.to_owned()),
                Some((name, value)) => match name.split_once('.') {
                    Some(("caps", name)) => caps.push((name, value)),
                    Some(("unit", name)) => choices.push((name, value)),
                    _ => return Err(format!("{word}: no such option")),
                },
                None => return Err(format!("{word}: no such option")),
            }
        }
        let known = RTIT.iter().find(|(name, _)| *name == processor);
        let (caps, family, signature) = match known {
            Some((_, signature)) => {
                let mut chosen = rtit::Implementation::default();
                set("caps", &caps, |_, _| {
                    Err("RTIT enumerates nothing".to_owned())
                })?;
                set("unit", &choices, |name, value| {
                    chosen.set(name, value).map_err(|error| error.to_string())
                })?;
                (Capabilities::NONE, Family::Rtit(chosen), *signature)
            }
            None => {
                let generation: Generation = processor
                    .parse()
                    .map_err(|error| format!("processor={processor}: {error}"))?;
                let mut chosen = Implementation::default();
                set("unit", &choices, |name, value| {
                    chosen.set(name, value).map_err(|error| error.to_string())
                })?;
                let caps = capabilities(generation, &caps)?;
                (caps, Family::IntelPt(chosen), generation.signature())
            }
        };
        Ok(Self {
            caps,
            family,
            signature,
            clock,
            says,
            list,
        })
    }
}

/// Has each setting made.
fn set(
    kind: &str,
    settings: &[(&str, &str)],
    mut set: impl FnMut(&str, &str) -> Result<(), String>,
) -> Result<(), String> {
    settings.iter().try_for_each(|(name, value)| {
        set(name, value).map_err(|error| format!("{kind}.{name}={value}: {error}"))
    })
}

/// What the machine's processors of a generation can do, some of it being said.
fn capabilities(generation: Generation, settings: &[(&str, &str)]) -> Result<Capabilities, String> {
    let mut caps = generation.capabilities();
    set("caps", settings, |name, value| {
        caps.set(name, value).map_err(|error| error.to_string())
    })?;
    // Guests of the guest there are none, and nothing but memory takes trace output.
    (caps.vmx, caps.transport) = (false, false);
    caps.max_phys_addr = PHYSICAL_BITS;
    caps.validate()
        .map_err(|error| format!("{generation}: {error}"))?;
    Ok(caps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_generation_can_be_asked_for() {
        for generation in Generation::ALL {
            let word = format!("processor={generation}");
            let options = Options::parse([word.as_str()].into_iter()).unwrap();
            assert_eq!(options.signature, generation.signature());
            assert!(!options.caps.vmx);
        }
    }

    #[test]
    fn capabilities_and_choices_can_be_others() {
        let words = ["caps.ptwrite=1", "unit.tnt=long", "processor=skylake"];
        let options = Options::parse(words.into_iter()).unwrap();
        assert!(options.caps.ptwrite && options.caps.mtc);
        let Family::IntelPt(choices) = options.family else {
            panic!("a Skylake has Intel PT");
        };
        assert_eq!(choices.tnt, cofi_unit::TntForm::Long);
    }

    #[test]
    fn rtit_can_be_asked_for() {
        let words = ["processor=airmont", "unit.pgd_on_disable=1"];
        let options = Options::parse(words.into_iter()).unwrap();
        assert!(!options.caps.supported);
        let (family, model) = (
            options.signature.display_family(),
            options.signature.display_model(),
        );
        let stepping = (options.signature.0 & 0xf) as u8;
        assert!(cofi_packet::rtit::has_rtit(
            family as u16,
            model as u8,
            stepping
        ));
        let Family::Rtit(choices) = options.family else {
            panic!("an Airmont has RTIT");
        };
        assert!(choices.pgd_on_disable);
        let words = ["processor=silvermont", "caps.mtc=1"];
        let said = Options::parse(words.into_iter()).unwrap_err();
        assert_eq!(said, "caps.mtc=1: RTIT enumerates nothing");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let said = |word: &str| Options::parse([word].into_iter()).unwrap_err();
        assert_eq!(
            said("processor=z80"),
            "processor=z80: no such processor generation"
        );
        assert_eq!(said("clock=11"), "clock=11: host, or a number up to 10");
        assert_eq!(said("colour=red"), "colour=red: no such option");
        assert_eq!(
            said("caps.colour=1"),
            "caps.colour=1: there is nothing of this name"
        );
        assert!(said("caps.ip_filter=0").contains("address ranges without IP filtering"));
        assert!(said("unit.tnt=red").contains("short, long or both"));
    }
}
