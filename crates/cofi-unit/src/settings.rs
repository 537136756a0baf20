//! Capabilities and choices by name, as a command line gives them: the names are those of the fields.

use crate::implementation::{Implementation, InternalBuffer, IpCompression, TntForm};
use crate::rtit;
use crate::spec::{Capabilities, CpuidLeaf};

/// Why a setting is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// Nothing has this name.
    #[error("there is nothing of this name")]
    Unknown,
    /// It takes a number.
    #[error("it takes a number, decimal or hexadecimal behind 0x")]
    NotANumber,
    /// Its numbers are others.
    #[error("it takes a number from {least} to {most:#x}")]
    OutOfRange {
        /// The least that it takes.
        least: u64,
        /// The most.
        most: u64,
    },
    /// It takes certain words.
    #[error("it takes {0}")]
    NotAmong(&'static str),
}

/// A number within a range.
fn number(word: &str, least: u64, most: u64) -> Result<u64, SettingError> {
    let number = match word.strip_prefix("0x") {
        // (A sign would pass.)
        Some(digits) if digits.starts_with(|first: char| first.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16)
        }
        None if word.starts_with(|first: char| first.is_ascii_digit()) => word.parse(),
        _ => return Err(SettingError::NotANumber),
    };
    let number = number.map_err(|_| SettingError::NotANumber)?;
    if !(least..=most).contains(&number) {
        return Err(SettingError::OutOfRange { least, most });
    }
    Ok(number)
}

fn flag(word: &str) -> Result<bool, SettingError> {
    Ok(number(word, 0, 1)? == 1)
}

/// How large an internal buffer may be.
const MOST_BUFFER: u64 = 1 << 24;

impl Capabilities {
    /// Gives a capability another value: a number, which is 0 or 1 where the capability is one bit. The names are those of
    /// [`Capabilities::CPUID`], and `vmx` and `excludes_lbr`. Whether there can be such a processor, [`Capabilities::validate`] says.
    ///
    /// # Errors
    /// There is no such capability, or its field cannot hold the value; nothing has changed.
    pub fn set(&mut self, name: &str, word: &str) -> Result<(), SettingError> {
        match name {
            "vmx" => self.vmx = flag(word)?,
            "excludes_lbr" => self.excludes_lbr = flag(word)?,
            _ => {
                let mut all = Self::CPUID.iter();
                let field = all.find(|field| field.name == name);
                let field = field.ok_or(SettingError::Unknown)?;
                let mut words = self.encode(field.leaf, field.subleaf);
                for (held, mask) in registers(&mut words).into_iter().zip(masks(field.mask)) {
                    if mask != 0 {
                        let low = mask.trailing_zeros();
                        let value = number(word, 0, (mask >> low).into())? as u32;
                        *held = *held & !mask | value << low;
                    }
                }
                self.decode(field.leaf, field.subleaf, words);
            }
        }
        Ok(())
    }
}

const fn registers(words: &mut CpuidLeaf) -> [&mut u32; 4] {
    let CpuidLeaf { eax, ebx, ecx, edx } = words;
    [eax, ebx, ecx, edx]
}

const fn masks(words: CpuidLeaf) -> [u32; 4] {
    let CpuidLeaf { eax, ebx, ecx, edx } = words;
    [eax, ebx, ecx, edx]
}

impl InternalBuffer {
    /// The smallest.
    const LEAST: Self = Self {
        size: 64,
        drain_bytes: 0,
        drain_cycles: 0,
        resume_at: 0,
    };
}

impl Implementation {
    /// The names that [`Implementation::set`] knows.
    pub const NAMES: &[&str] = &[
        "tnt",
        "deferred_tips",
        "ip_compression",
        "cycle_counter_bits",
        "mode_exec_on_enable",
        "stale_reads",
        "buffer.size",
        "buffer.drain_bytes",
        "buffer.drain_cycles",
        "buffer.resume_at",
    ];

    /// Makes a choice by its name, with a value in words. Any of the internal buffer's makes one, of 64 bytes if no size is given.
    ///
    /// # Errors
    /// There is no such choice, or no such value; nothing has changed.
    pub fn set(&mut self, name: &str, word: &str) -> Result<(), SettingError> {
        let buffer = self.buffer.unwrap_or(InternalBuffer::LEAST);
        let any = || Ok(number(word, 0, u32::MAX.into())? as u32);
        match name {
            "tnt" => {
                self.tnt = match word {
                    "short" => TntForm::Short,
                    "long" => TntForm::Long,
                    "both" => TntForm::Both,
                    _ => return Err(SettingError::NotAmong("short, long or both")),
                }
            }
            "deferred_tips" => self.deferred_tips = flag(word)?,
            "ip_compression" => {
                self.ip_compression = match word {
                    "shortest" => IpCompression::Shortest,
                    "against-zero" => IpCompression::AgainstZero,
                    "off" => IpCompression::Off,
                    _ => return Err(SettingError::NotAmong("shortest, against-zero or off")),
                }
            }
            "cycle_counter_bits" => {
                self.cycle_counter_bits = Some(number(word, 6, 63)? as u8);
            }
            "mode_exec_on_enable" => self.mode_exec_on_enable = flag(word)?,
            "stale_reads" => self.stale_reads = flag(word)?,
            "buffer.size" => {
                let size = number(word, InternalBuffer::LEAST.size.into(), MOST_BUFFER)? as u32;
                self.buffer = Some(InternalBuffer { size, ..buffer });
            }
            "buffer.drain_bytes" => {
                self.buffer = Some(InternalBuffer {
                    drain_bytes: any()?,
                    ..buffer
                });
            }
            "buffer.drain_cycles" => {
                self.buffer = Some(InternalBuffer {
                    drain_cycles: any()?,
                    ..buffer
                });
            }
            "buffer.resume_at" => {
                self.buffer = Some(InternalBuffer {
                    resume_at: any()?,
                    ..buffer
                });
            }
            _ => return Err(SettingError::Unknown),
        }
        Ok(())
    }
}

impl rtit::InternalBuffer {
    /// The smallest.
    const LEAST: Self = Self {
        size: 32,
        drain_bytes: 0,
        drain_cycles: 0,
    };
}

impl rtit::Implementation {
    /// The names that [`rtit::Implementation::set`] knows.
    pub const NAMES: &[&str] = &[
        "psb_effect_delay",
        "pgd_on_disable",
        "lines",
        "errata",
        "seed",
        "buffer.size",
        "buffer.drain_bytes",
        "buffer.drain_cycles",
    ];

    /// Makes a choice by its name, with a value in words; of errata, a `+` joins several. Any of the internal buffer's makes one, of 32 bytes
    /// if no size is given.
    ///
    /// # Errors
    /// There is no such choice, or no such value; nothing has changed.
    pub fn set(&mut self, name: &str, word: &str) -> Result<(), SettingError> {
        let buffer = self.buffer.unwrap_or(rtit::InternalBuffer::LEAST);
        let any = || Ok(number(word, 0, u32::MAX.into())? as u32);
        match name {
            "psb_effect_delay" => {
                self.psb_effect_delay = number(word, 0, Self::MOST_PSB_DELAY.into())? as u8;
            }
            "pgd_on_disable" => self.pgd_on_disable = flag(word)?,
            "lines" => {
                self.lines = match word {
                    "immediate" => rtit::Lines::Immediate,
                    "lines" => rtit::Lines::Lines,
                    "reordered" => rtit::Lines::Reordered,
                    _ => return Err(SettingError::NotAmong("immediate, lines or reordered")),
                }
            }
            "errata" => {
                let mut errata = self.errata;
                for word in word.split('+') {
                    *match word {
                        "E1" => &mut errata.e1,
                        "E2" => &mut errata.e2,
                        "E3" => &mut errata.e3,
                        "E4" => &mut errata.e4,
                        "E5" => &mut errata.e5,
                        "E6" => &mut errata.e6,
                        "E7" => &mut errata.e7,
                        "E8" => &mut errata.e8,
                        _ => return Err(SettingError::NotAmong("E1 to E8, joined by +")),
                    } = true;
                }
                self.errata = errata;
            }
            "seed" => self.seed = number(word, 0, u64::MAX)?,
            "buffer.size" => {
                let least = rtit::InternalBuffer::LEAST.size.into();
                let size = number(word, least, MOST_BUFFER)? as u32;
                self.buffer = Some(rtit::InternalBuffer { size, ..buffer });
            }
            "buffer.drain_bytes" => {
                self.buffer = Some(rtit::InternalBuffer {
                    drain_bytes: any()?,
                    ..buffer
                });
            }
            "buffer.drain_cycles" => {
                self.buffer = Some(rtit::InternalBuffer {
                    drain_cycles: any()?,
                    ..buffer
                });
            }
            _ => return Err(SettingError::Unknown),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Generation;

    #[test]
    fn every_capability_can_be_given_all_that_its_field_holds() {
        for field in Capabilities::CPUID {
            let mut caps = Capabilities::NONE;
            let [mask] = masks(field.mask)
                .into_iter()
                .filter(|mask| *mask != 0)
                .collect::<std::vec::Vec<_>>()[..]
            else {
                panic!("{} stands in one register", field.name);
            };
            let most = u64::from(mask >> mask.trailing_zeros());
            let word = std::format!("{most:#x}");
            assert_eq!(caps.set(field.name, &word), Ok(()), "{}", field.name);
            let mut words = caps.encode(field.leaf, field.subleaf);
            let held: u32 = registers(&mut words).into_iter().map(|held| *held).sum();
            // (Those of Capabilities::NONE stand beside.)
            assert_eq!(held & mask, mask, "{}", field.name);
            let before = caps;
            if most < u64::from(u32::MAX) {
                let error = SettingError::OutOfRange { least: 0, most };
                let word = std::format!("{}", most + 1);
                assert_eq!(caps.set(field.name, &word), Err(error));
            }
            assert_eq!(caps.set(field.name, "yes"), Err(SettingError::NotANumber));
            assert_eq!(caps, before);
        }
    }

    #[test]
    fn a_setting_changes_nothing_else() {
        let mut caps = Generation::Skylake.capabilities();
        caps.set("ptwrite", "1").unwrap();
        caps.set("cycle_thresholds", "0x3f").unwrap();
        let wanted = Capabilities {
            ptwrite: true,
            cycle_thresholds: 0x3f,
            ..Generation::Skylake.capabilities()
        };
        assert_eq!(caps, wanted);
        assert_eq!(caps.set("colour", "1"), Err(SettingError::Unknown));
        assert_eq!(caps.set("mtc", "+1"), Err(SettingError::NotANumber));
        assert_eq!(caps.set("mtc", "0x+1"), Err(SettingError::NotANumber));
    }

    #[test]
    fn choices_are_made_by_name() {
        let mut choices = Implementation::default();
        for (name, word) in [
            ("tnt", "both"),
            ("deferred_tips", "1"),
            ("ip_compression", "off"),
            ("cycle_counter_bits", "14"),
            ("mode_exec_on_enable", "1"),
            ("stale_reads", "1"),
            ("buffer.drain_bytes", "8"),
            ("buffer.size", "0x100"),
            ("buffer.drain_cycles", "2"),
            ("buffer.resume_at", "3"),
        ] {
            assert!(Implementation::NAMES.contains(&name));
            assert_eq!(choices.set(name, word), Ok(()), "{name}");
        }
        let wanted = Implementation {
            tnt: TntForm::Both,
            deferred_tips: true,
            ip_compression: IpCompression::Off,
            cycle_counter_bits: Some(14),
            mode_exec_on_enable: true,
            stale_reads: true,
            buffer: Some(InternalBuffer {
                size: 256,
                drain_bytes: 8,
                drain_cycles: 2,
                resume_at: 3,
            }),
        };
        assert_eq!(choices, wanted);
        for name in Implementation::NAMES {
            assert_ne!(choices.set(name, "?"), Err(SettingError::Unknown), "{name}");
        }
        assert_eq!(choices, wanted);
        assert_eq!(choices.set("errata", "E1"), Err(SettingError::Unknown));
    }

    #[test]
    fn choices_of_rtit_are_made_by_name() {
        let mut choices = rtit::Implementation::default();
        for (name, word) in [
            ("psb_effect_delay", "4"),
            ("pgd_on_disable", "1"),
            ("lines", "reordered"),
            ("errata", "E1+E8"),
            ("seed", "7"),
            ("buffer.size", "32"),
            ("buffer.drain_bytes", "1"),
            ("buffer.drain_cycles", "2"),
        ] {
            assert_eq!(choices.set(name, word), Ok(()), "{name}");
        }
        let wanted = rtit::Implementation {
            buffer: Some(rtit::InternalBuffer {
                size: 32,
                drain_bytes: 1,
                drain_cycles: 2,
            }),
            psb_effect_delay: 4,
            pgd_on_disable: true,
            lines: rtit::Lines::Reordered,
            errata: rtit::Errata {
                e1: true,
                e8: true,
                ..rtit::Errata::default()
            },
            seed: 7,
        };
        assert_eq!(choices, wanted);
        for name in rtit::Implementation::NAMES {
            assert_ne!(choices.set(name, "?"), Err(SettingError::Unknown), "{name}");
        }
        assert_eq!(choices, wanted);
        assert_eq!(choices.set("tnt", "short"), Err(SettingError::Unknown));
    }
}
