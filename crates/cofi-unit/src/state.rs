//! The form of a saved unit: how [`crate::Unit::save`] writes it and [`crate::Unit::restore`] reads it again.
//!
//! All numbers are little-endian and have a fixed width; a truth value is a byte, 0 or 1; an optional value is a truth value
//! and, where that is 1, the value behind it. In order:
//!
//! | field | bytes |
//! |---|---|
//! | [`MAGIC`], [`VERSION`] | 8, 2 |
//! | the registers of 33.2.8, in the order of [`crate::spec::msr::ALL`]; zero where the processor has none | 13 × 8 |
//! | context: CPL, CR3, PAE, mode, base of CS, RFLAGS.IF, in a transaction, enclave | 1, 8, 1, 1, 8, 1, 1, 1 |
//! | VMX: in operation, non-root, conceal, TSC multiplier, TSC offset, VMCS pointer | 1, 1, 1, 8, 8, optional 8 |
//! | core:bus ratio, asleep, waiting for SIPI, PSB owed, PSB owed in context, no IP since the last PSB | 1, 1, 1, 1, 1, 1 |
//! | in an authenticated code module: TraceEn, FilterEn and an overflow before it | optional 1, 1, 1 |
//! | told to the reader: mode and RFLAGS.IF; in a transaction | optional 1, 1; 1 |
//! | Last IP; packet bytes since the last PSB | 8, 8 |
//! | MTC count; origin of the cycle counter; nothing, 0 as written now; CYC sent; CYC owed | 8, 8, 8, 1, 1 |
//! | TNT results: a stop bit, below it the results, the youngest in bit 0 | 8 |
//! | deferred TIPs: count, targets, the oldest first | 1, n × 8 |
//! | return addresses: count, addresses, the oldest first | 1, n × 8 |
//! | output: 0 none, 1 transport, 2 single range, 3 ToPA | 1 |
//! | for 2 and 3: the region overlaps with restricted memory | 1 |
//! | for 3: the region's base, size, where to look up next, INT, STOP | 8, 8, 8, 1, 1 |
//! | for stale reads: IA32_RTIT_OUTPUT_BASE, IA32_RTIT_OUTPUT_MASK_PTRS, PacketByteCnt | optional 8, 8, 8 |
//! | internal buffer (all of the rest): drained at, resolved overflows | optional 8, 8 |
//! | overflow: state is lost, MTCs lost, TraceStop met, told before it as above | optional 1, 4, 1, ... |
//! | number of bytes in the buffer, bytes | 4, n |
//!
//! What follows from the rest is not saved.

use crate::event::Enclave;
use alloc::vec::Vec;
use cofi_packet::ExecMode;

/// What a saved unit of Intel PT begins with.
pub(crate) const MAGIC: [u8; 8] = *b"COFIUNIT";

/// The version that is written, of either kind of unit. Older ones are read.
pub(crate) const VERSION: u16 = 1;

/// Why bytes are no saved unit of this processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// They do not begin as a saved unit does.
    #[error("no saved trace unit of this kind: it does not begin as one")]
    Magic,
    /// A later version of this library saved it.
    #[error("saved in version {0} of the format; version {VERSION} is the latest that is known")]
    Version(u16),
    /// They end too soon.
    #[error("ends at {offset:#x}, in the middle of {field}")]
    Truncated {
        /// How many bytes there are.
        offset: usize,
        /// What is cut off.
        field: &'static str,
    },
    /// Something follows the state.
    #[error(
        "the state ends at {offset:#x}, but {bytes} {follow}",
        bytes = cofi_packet::counted(*count as u64, "byte"),
        follow = cofi_packet::agreeing(*count as u64, "follows", "follow")
    )]
    Trailing {
        /// Where the state ends.
        offset: usize,
        /// How many bytes follow.
        count: usize,
    },
    /// A value that no unit with these capabilities and choices has.
    #[error("{field} at {offset:#x} is {value:#x}: {rule}")]
    Illegal {
        /// Where the value stands.
        offset: usize,
        /// What it belongs to.
        field: &'static str,
        /// The value, or its low 64 bits.
        value: u64,
        /// What is wrong with it.
        rule: &'static str,
    },
}

/// Writes the fields of a saved unit.
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    /// A saved unit of the kind that begins with `magic`.
    pub(crate) fn new(magic: [u8; 8]) -> Self {
        let mut bytes = Vec::from(magic);
        bytes.extend(VERSION.to_le_bytes());
        Self(bytes)
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.0.push(value.into());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn mode(&mut self, mode: ExecMode) {
        self.u8(match mode {
            ExecMode::Bits16 => 0,
            ExecMode::Bits32 => 1,
            ExecMode::Bits64 => 2,
        });
    }

    pub(crate) fn enclave(&mut self, enclave: Enclave) {
        self.u8(match enclave {
            Enclave::None => 0,
            Enclave::Production => 1,
            Enclave::Debug => 2,
        });
    }

    /// An optional value; `write` writes it.
    pub(crate) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub(crate) fn told_mode(&mut self, told: Option<(ExecMode, bool)>) {
        self.option(told, |writer, (mode, flag)| {
            writer.mode(mode);
            writer.bool(flag);
        });
    }
}

/// Reads the fields of a saved unit.
pub(crate) struct Reader<'b> {
    bytes: &'b [u8],
    offset: usize,
}

type Result<T> = core::result::Result<T, RestoreError>;

impl<'b> Reader<'b> {
    /// After magic and version.
    pub(crate) fn new(bytes: &'b [u8], magic: [u8; 8]) -> Result<Self> {
        let mut reader = Self { bytes, offset: 0 };
        if !bytes.starts_with(&magic) {
            return Err(RestoreError::Magic);
        }
        reader.offset = magic.len();
        match u16::from_le_bytes(reader.array("the version")?) {
            VERSION => Ok(reader),
            version => Err(RestoreError::Version(version)),
        }
    }

    /// That was all.
    pub(crate) fn finish(self) -> Result<()> {
        match self.bytes.len() - self.offset {
            0 => Ok(()),
            count => Err(RestoreError::Trailing {
                offset: self.offset,
                count,
            }),
        }
    }

    pub(crate) fn bytes(&mut self, len: usize, field: &'static str) -> Result<&'b [u8]> {
        let rest = &self.bytes[self.offset..];
        let Some((taken, _)) = rest.split_at_checked(len) else {
            return Err(RestoreError::Truncated {
                offset: self.bytes.len(),
                field,
            });
        };
        self.offset += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N, field)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// An error about the value of `width` bytes that was read last.
    pub(crate) const fn illegal(
        &self,
        width: usize,
        field: &'static str,
        value: u64,
        rule: &'static str,
    ) -> RestoreError {
        RestoreError::Illegal {
            offset: self.offset - width,
            field,
            value,
            rule,
        }
    }

    /// One of the values that `find` knows.
    fn one_of<T>(&mut self, field: &'static str, find: impl FnOnce(u8) -> Option<T>) -> Result<T> {
        let value = self.u8(field)?;
        find(value).ok_or_else(|| self.illegal(1, field, value.into(), "there is no such value"))
    }

    pub(crate) fn bool(&mut self, field: &'static str) -> Result<bool> {
        self.one_of(field, |value| match value {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        })
    }

    pub(crate) fn mode(&mut self, field: &'static str) -> Result<ExecMode> {
        self.one_of(field, |value| match value {
            0 => Some(ExecMode::Bits16),
            1 => Some(ExecMode::Bits32),
            2 => Some(ExecMode::Bits64),
            _ => None,
        })
    }

    pub(crate) fn enclave(&mut self, field: &'static str) -> Result<Enclave> {
        self.one_of(field, |value| match value {
            0 => Some(Enclave::None),
            1 => Some(Enclave::Production),
            2 => Some(Enclave::Debug),
            _ => None,
        })
    }

    pub(crate) fn option<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.bool(field)? {
            true => read(self).map(Some),
            false => Ok(None),
        }
    }

    pub(crate) fn told_mode(&mut self) -> Result<Option<(ExecMode, bool)>> {
        let field = "the mode that was told";
        self.option(field, |reader| {
            Ok((reader.mode(field)?, reader.bool(field)?))
        })
    }

    /// A counter that goes on counting: it must not be about to overflow.
    pub(crate) fn counter(&mut self, field: &'static str) -> Result<u64> {
        let value = self.u64(field)?;
        if value >> 62 != 0 {
            return Err(self.illegal(8, field, value, "nothing counts so far"));
        }
        Ok(value)
    }

    /// A length, no more than `most`.
    pub(crate) fn len(&mut self, field: &'static str, most: usize) -> Result<usize> {
        let value = self.u8(field)?;
        if usize::from(value) > most {
            return Err(self.illegal(1, field, value.into(), "there are never so many"));
        }
        Ok(value.into())
    }
}
