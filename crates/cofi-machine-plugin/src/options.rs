//! What the command line says to the plugin: `key=value` each.

use cofi_unit::{Capabilities, Generation, Signature};
use std::path::PathBuf;

/// The options.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) caps: Capabilities,
    pub(crate) signature: Signature,
    /// Say at the end how much was traced.
    pub(crate) says: bool,
    /// The folder for lists of what ran.
    pub(crate) list: Option<PathBuf>,
}

/// QEMU's emulated processors have physical addresses of so many bits.
const PHYSICAL_BITS: u8 = 40;

impl Options {
    /// Reads them.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut generation = Generation::Skylake;
        let mut says = false;
        let mut list = None;
        for word in words {
            match word.split_once('=') {
                Some(("processor", name)) => {
                    generation = name
                        .parse()
                        .map_err(|error| format!("processor={name}: {error}"))?;
                }
                Some(("says", "on")) => says = true,
                Some(("says", "off")) => says = false,
                Some(("list", folder)) => list = Some(PathBuf::from(folder)),
                _ => return Err(format!("{word}: no such option")),
            }
        }
        let mut caps = generation.capabilities();
        // Guests of the guest there are none, and nothing but memory takes trace output.
        (caps.vmx, caps.transport) = (false, false);
        caps.max_phys_addr = PHYSICAL_BITS;
        caps.validate()
            .map_err(|error| format!("{generation}: {error}"))?;
        Ok(Self {
            caps,
            signature: generation.signature(),
            says,
            list,
        })
    }
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
    fn what_is_wrong_is_said() {
        let said = |word: &str| Options::parse([word].into_iter()).unwrap_err();
        assert_eq!(
            said("processor=z80"),
            "processor=z80: no such processor generation"
        );
        assert_eq!(said("colour=red"), "colour=red: no such option");
    }
}
