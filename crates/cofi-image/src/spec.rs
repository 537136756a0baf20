//! `FILE[:BASE]` and `FILE:ADDR`, as the command line spells them, each with the address spaces in which it is so.

use std::path::PathBuf;
use std::str::FromStr;

/// The address spaces in which a file is mapped: all of them, or those that a processor is in when it told so (PIP and VMCS
/// packets). As text it is `@KEY=VALUE,…` behind the rest, with the keys `cr3`, `vmcs` and `nr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Within {
    /// CR3 points to this page of tables. Its lowest twelve bits do not count.
    pub cr3: Option<u64>,
    /// The current VMCS is at this address.
    pub vmcs: Option<u64>,
    /// The processor is in a virtual machine (VMX non-root operation), or is not.
    pub nr: Option<bool>,
}

/// What a trace has told of the address space that a processor is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paging {
    /// CR3.
    pub cr3: Option<u64>,
    /// The address of the current VMCS.
    pub vmcs: Option<u64>,
    /// Whether the processor is in a virtual machine.
    pub nr: Option<bool>,
}

impl Within {
    /// Whether it says nothing: all address spaces are meant.
    #[must_use]
    pub fn is_everywhere(&self) -> bool {
        *self == Self::default()
    }

    /// How many things of `paging` it names, if all are as it says.
    #[must_use]
    pub fn fits(&self, paging: &Paging) -> Option<usize> {
        let page = |address: Option<u64>| address.map(|address| address >> 12);
        let keys = [
            (self.cr3.is_some(), page(self.cr3) == page(paging.cr3)),
            (self.vmcs.is_some(), page(self.vmcs) == page(paging.vmcs)),
            (self.nr.is_some(), self.nr == paging.nr),
        ];
        let mut named = keys.iter().filter(|(is_named, _)| *is_named);
        let all = named.clone().all(|(_, is_equal)| *is_equal);
        all.then(|| named.by_ref().count())
    }

    /// Splits it off the end of a text. What follows an `@` and is none of it belongs to a file's name.
    fn at_end(text: &str) -> (&str, Self) {
        let split = || {
            let (rest, keys) = text.rsplit_once('@')?;
            let mut within = Self::default();
            for key in keys.split(',') {
                match key.split_once('=')? {
                    ("cr3", value) => within.cr3 = Some(hexadecimal(value)?),
                    ("vmcs", value) => within.vmcs = Some(hexadecimal(value)?),
                    ("nr", "0") => within.nr = Some(false),
                    ("nr", "1") => within.nr = Some(true),
                    _ => return None,
                }
            }
            Some((rest, within))
        };
        split().unwrap_or((text, Self::default()))
    }
}

/// An ELF file and, optionally, the address to move it to: `FILE` or `FILE:0x…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElfSpec {
    /// The file.
    pub path: PathBuf,
    /// Where its lowest segment shall begin.
    pub base: Option<u64>,
    /// In which address spaces.
    pub within: Within,
}

impl ElfSpec {
    /// A file at the addresses that it is linked to, in every address space.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            base: None,
            within: Within::default(),
        }
    }
}

/// A file and the address its bytes stand at: `FILE:0x…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawSpec {
    /// The file.
    pub path: PathBuf,
    /// Address of its first byte.
    pub address: u64,
    /// In which address spaces.
    pub within: Within,
}

/// An argument that is neither.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// There is nothing before the colon.
    #[error("“{0}” names no file")]
    NoFile(String),
    /// What follows the last colon is not an address.
    #[error("“{0}” does not end in an address, as in FILE:0x401000")]
    NoAddress(String),
}

/// A hexadecimal number with 0x.
fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text
        .strip_prefix("0x")
        .or_else(|| text.strip_prefix("0X"))?;
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

/// Splits a hexadecimal address off the end.
fn address_at_end(text: &str) -> Option<(&str, u64)> {
    let (path, address) = text.rsplit_once(':')?;
    Some((path, hexadecimal(address)?))
}

fn path_of(path: &str, text: &str) -> Result<PathBuf, SpecError> {
    if path.is_empty() {
        Err(SpecError::NoFile(text.into()))
    } else {
        Ok(path.into())
    }
}

impl FromStr for ElfSpec {
    type Err = SpecError;

    /// A colon that is not followed by `0x` and hexadecimal digits belongs to the file's name.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (rest, within) = Within::at_end(text);
        let (path, base) = match address_at_end(rest) {
            Some((path, base)) => (path, Some(base)),
            None => (rest, None),
        };
        Ok(ElfSpec {
            path: path_of(path, text)?,
            base,
            within,
        })
    }
}

impl FromStr for RawSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (rest, within) = Within::at_end(text);
        let (path, address) =
            address_at_end(rest).ok_or_else(|| SpecError::NoAddress(text.into()))?;
        Ok(RawSpec {
            path: path_of(path, text)?,
            address,
            within,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelled_as_documented() {
        let elf = |text: &str| text.parse::<ElfSpec>().map(|spec| (spec.path, spec.base));
        assert_eq!(elf("a.out"), Ok(("a.out".into(), None)));
        assert_eq!(elf("a.out:0x400000"), Ok(("a.out".into(), Some(0x40_0000))));
        assert_eq!(elf("odd:name"), Ok(("odd:name".into(), None)));
        assert_eq!(elf("odd:name:0x10"), Ok(("odd:name".into(), Some(0x10))));
        assert_eq!(elf(":0x10"), Err(SpecError::NoFile(":0x10".into())));
        assert_eq!(elf(""), Err(SpecError::NoFile("".into())));
        let raw = |text: &str| {
            text.parse::<RawSpec>()
                .map(|spec| (spec.path, spec.address))
        };
        assert_eq!(
            raw("code.bin:0xffffffff81000000"),
            Ok(("code.bin".into(), 0xffff_ffff_8100_0000))
        );
        for bad in [
            "code.bin",
            "code.bin:",
            "code.bin:1000",
            "code.bin:0x",
            "code.bin:0x+1",
            "x:0x11111111111111111",
        ] {
            assert_eq!(raw(bad), Err(SpecError::NoAddress(bad.into())), "{bad}");
        }
    }

    #[test]
    fn address_spaces_behind_the_rest() {
        let within = |text: &str| {
            text.parse::<ElfSpec>()
                .map(|spec| (spec.path, spec.base, spec.within))
        };
        let one = Within {
            cr3: Some(0x1000),
            ..Within::default()
        };
        assert_eq!(within("a@cr3=0x1000"), Ok(("a".into(), None, one)));
        assert_eq!(within("a:0x5@cr3=0x1000"), Ok(("a".into(), Some(5), one)));
        let all = Within {
            vmcs: Some(0x2000),
            nr: Some(true),
            ..one
        };
        assert_eq!(
            within("a@cr3=0x1000,nr=1,vmcs=0x2000"),
            Ok(("a".into(), None, all))
        );
        // Names of files.
        for name in ["a@b", "a@cr3", "a@cr3=1000", "a@cr3=0x1000,x=1", "a@nr=2"] {
            assert_eq!(within(name), Ok((name.into(), None, Within::default())));
        }
        let raw: RawSpec = "b:0x10@nr=0".parse().unwrap();
        assert_eq!((raw.address, raw.within.nr), (0x10, Some(false)));

        let now = Paging {
            cr3: Some(0x1abc),
            vmcs: Some(0x2000),
            nr: Some(true),
        };
        assert_eq!(Within::default().fits(&now), Some(0));
        assert_eq!(one.fits(&now), Some(1), "the lowest bits are no address");
        assert_eq!(all.fits(&now), Some(3));
        assert_eq!(all.fits(&Paging { nr: None, ..now }), None);
        assert_eq!(
            one.fits(&Paging {
                cr3: Some(0x2000),
                ..now
            }),
            None
        );
    }
}
