//! `FILE[:BASE]` and `FILE:ADDR`, as the command line spells them.

use std::path::PathBuf;
use std::str::FromStr;

/// An ELF file and, optionally, the address to move it to: `FILE` or `FILE:0x…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElfSpec {
    /// The file.
    pub path: PathBuf,
    /// Where its lowest segment shall begin.
    pub base: Option<u64>,
}

/// A file and the address its bytes stand at: `FILE:0x…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawSpec {
    /// The file.
    pub path: PathBuf,
    /// Address of its first byte.
    pub address: u64,
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

/// Splits a hexadecimal address off the end.
fn address_at_end(text: &str) -> Option<(&str, u64)> {
    let (path, address) = text.rsplit_once(':')?;
    let digits = address
        .strip_prefix("0x")
        .or_else(|| address.strip_prefix("0X"))?;
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    Some((path, u64::from_str_radix(digits, 16).ok()?))
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
        let (path, base) = match address_at_end(text) {
            Some((path, base)) => (path, Some(base)),
            None => (text, None),
        };
        Ok(ElfSpec {
            path: path_of(path, text)?,
            base,
        })
    }
}

impl FromStr for RawSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (path, address) =
            address_at_end(text).ok_or_else(|| SpecError::NoAddress(text.into()))?;
        Ok(RawSpec {
            path: path_of(path, text)?,
            address,
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
}
