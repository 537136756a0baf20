//! What Cofi's recorder says in a file beside what perf knows: seals, what is missing, signals, how the recording ended.
//!
//! A remark is a record of the kind HEADER_EVENT_TYPE, which perf has not written since Linux 3.3 and skips without a word. Its
//! first eight bytes, where perf had an event's number, are [`MAGIC`]; then follow the remark's kind (`u32`), and its fields.

use crate::reader::Cursor;
use crate::writer::Bytes;
use cofi_packet::StreamOffset;
use std::fmt;

/// What a remark begins with, in the place of an event's number.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"cofi\0\0\0\x01");

/// The kinds of remarks, as files have them.
mod kind {
    pub(super) const BEGAN: u32 = 1;
    pub(super) const SEALS: u32 = 2;
    pub(super) const MISSING: u32 = 3;
    pub(super) const SIGNAL: u32 = 4;
    pub(super) const FINISHED: u32 = 5;
    pub(super) const OMITTED: u32 = 6;
}

/// A remark of the recorder's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remark<'a> {
    /// The recording began. If no [`Remark::Finished`] follows, it did not come to its end.
    Began {
        /// The engine that ran the program, by its name on the command line (UTF-8).
        engine: &'a [u8],
    },
    /// What ran in stretches of a stream.
    Seals {
        /// Number of the stream, as in its AUXTRACE records.
        index: u32,
        /// In the order of the stream.
        seals: Vec<Seal>,
    },
    /// Something ran, or may have run, that the file does not hold.
    Missing(MissingRemark<'a>),
    /// Something ran that the file does not hold because whoever recorded it did not want it.
    Omitted(MissingRemark<'a>),
    /// A signal interrupted a thread, or ended it.
    Signal(SignalRemark),
    /// The recording came to its end: what is missing has been said.
    Finished,
    /// Of a newer version.
    Other {
        /// Its kind.
        kind: u32,
        /// Its fields.
        fields: &'a [u8],
    },
}

/// What ran in a stretch of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Seal {
    /// Where the stretch begins in the stream.
    pub start: StreamOffset,
    /// Where it ends.
    pub end: StreamOffset,
    /// How many instructions ran.
    pub instructions: u64,
    /// A checksum over their addresses and bytes, in their order.
    pub sum: u64,
}

/// Something that the file does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingRemark<'a> {
    /// Of which thread, if of one.
    pub tid: Option<u32>,
    /// How many there are of what the text says.
    pub count: u64,
    /// What is missing and why: one sentence (UTF-8).
    pub text: &'a [u8],
}

impl MissingRemark<'_> {
    fn write<'b>(&self, kind: u32, bytes: &'b mut Bytes) -> &'b mut Bytes {
        bytes
            .u32(kind)
            .u32(self.tid.unwrap_or(u32::MAX))
            .u64(self.count)
            .text(short(self.text), 1)
    }
}

/// One sentence, without a full stop.
impl fmt::Display for MissingRemark<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tid) = self.tid {
            write!(f, "thread {tid}: ")?;
        }
        f.write_str(&String::from_utf8_lossy(self.text))?;
        match self.count {
            0 | 1 => Ok(()),
            count => write!(f, " ({count} times)"),
        }
    }
}

/// A signal that interrupted a thread, or ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalRemark {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Number of the thread's stream.
    pub index: u32,
    /// How far the stream had got.
    pub offset: StreamOffset,
    /// The signal's number.
    pub signal: u32,
    /// Its `si_code`.
    pub code: i32,
    /// Where the thread was, if that is known.
    pub ip: Option<u64>,
    /// The address that a fault was about (`si_addr`), if it was a fault.
    pub address: Option<u64>,
    /// It ended the thread's process.
    pub is_fatal: bool,
}

/// Size of a seal in a file.
const SEAL: usize = 32;

impl<'a> Remark<'a> {
    /// How many seals one remark holds at most. (A record is shorter than 64 KiB.)
    pub const SEALS: usize = 1 << 10;

    /// Whether these fields of a HEADER_EVENT_TYPE record are a remark's.
    pub(crate) fn is_one(fields: &[u8]) -> bool {
        Cursor::new(fields).u64() == Some(MAGIC)
    }

    /// Reads the fields of a HEADER_EVENT_TYPE record; `None` if it is none of ours, or too short for what it says to be.
    pub(crate) fn read(fields: &'a [u8]) -> Option<Self> {
        let mut c = Cursor::new(fields);
        if c.u64()? != MAGIC {
            return None;
        }
        Some(match c.u32()? {
            kind::BEGAN => Self::Began { engine: c.text() },
            kind::SEALS => {
                let (index, count) = (c.u32()?, c.u32()? as usize);
                let bytes = c.take(count.checked_mul(SEAL)?)?;
                let mut c = Cursor::new(bytes);
                let mut seals = Vec::with_capacity(count);
                for _ in 0..count {
                    seals.push(Seal {
                        start: StreamOffset(c.u64()?),
                        end: StreamOffset(c.u64()?),
                        instructions: c.u64()?,
                        sum: c.u64()?,
                    });
                }
                Self::Seals { index, seals }
            }
            kind @ (kind::MISSING | kind::OMITTED) => {
                let tid = c.u32()?;
                let what = MissingRemark {
                    tid: (tid != u32::MAX).then_some(tid),
                    count: c.u64()?,
                    text: c.text(),
                };
                match kind {
                    kind::MISSING => Self::Missing(what),
                    _ => Self::Omitted(what),
                }
            }
            kind::SIGNAL => {
                let (pid, tid, index, signal) = (c.u32()?, c.u32()?, c.u32()?, c.u32()?);
                let (code, has) = (c.u32()?.cast_signed(), c.u32()?);
                let (offset, ip, address) = (c.u64()?, c.u64()?, c.u64()?);
                Self::Signal(SignalRemark {
                    pid,
                    tid,
                    index,
                    offset: StreamOffset(offset),
                    signal,
                    code,
                    ip: (has & has::IP != 0).then_some(ip),
                    address: (has & has::ADDRESS != 0).then_some(address),
                    is_fatal: has & has::FATAL != 0,
                })
            }
            kind::FINISHED => Self::Finished,
            kind => Self::Other {
                kind,
                fields: fields.get(12..)?,
            },
        })
    }

    /// The fields of the record.
    pub(crate) fn write(&self) -> Bytes {
        let mut bytes = Bytes::default();
        bytes.u64(MAGIC);
        match self {
            Self::Began { engine } => bytes.u32(kind::BEGAN).text(short(engine), 1),
            Self::Seals { index, seals } => {
                bytes.u32(kind::SEALS).u32(*index).u32(seals.len() as u32);
                for seal in seals {
                    bytes.u64s(&[seal.start.0, seal.end.0, seal.instructions, seal.sum]);
                }
                &mut bytes
            }
            Self::Missing(what) => what.write(kind::MISSING, &mut bytes),
            Self::Omitted(what) => what.write(kind::OMITTED, &mut bytes),
            Self::Signal(signal) => {
                let bit = |is: bool, bit: u32| if is { bit } else { 0 };
                let has = bit(signal.ip.is_some(), has::IP)
                    | bit(signal.address.is_some(), has::ADDRESS)
                    | bit(signal.is_fatal, has::FATAL);
                bytes
                    .u32(kind::SIGNAL)
                    .u32(signal.pid)
                    .u32(signal.tid)
                    .u32(signal.index)
                    .u32(signal.signal)
                    .u32(signal.code.cast_unsigned())
                    .u32(has)
                    .u64s(&[
                        signal.offset.0,
                        signal.ip.unwrap_or(0),
                        signal.address.unwrap_or(0),
                    ])
            }
            Self::Finished => bytes.u32(kind::FINISHED),
            Self::Other { kind, fields } => {
                bytes.u32(*kind);
                bytes.0.extend_from_slice(fields);
                &mut bytes
            }
        }
        .pad_to(8);
        bytes
    }
}

/// As much of a text as has room in a record.
fn short(text: &[u8]) -> &[u8] {
    const LONGEST: usize = 2048;
    text.get(..LONGEST).unwrap_or(text)
}

/// Bits that say what of a signal is known.
mod has {
    pub(super) const IP: u32 = 1;
    pub(super) const ADDRESS: u32 = 2;
    pub(super) const FATAL: u32 = 4;
}

#[cfg(test)]
mod tests {
    use super::{MissingRemark, Remark, Seal, SignalRemark};
    use cofi_packet::StreamOffset;

    fn examples() -> Vec<Remark<'static>> {
        let seal = Seal {
            start: StreamOffset(16),
            end: StreamOffset(4096),
            instructions: 77,
            sum: 0x0123_4567_89ab_cdef,
        };
        let signal = SignalRemark {
            pid: 7,
            tid: 8,
            index: 1,
            offset: StreamOffset(99),
            signal: 11,
            code: -6,
            ip: Some(0x40_1000),
            address: None,
            is_fatal: true,
        };
        vec![
            Remark::Began { engine: b"qemu" },
            Remark::Seals {
                index: 3,
                seals: vec![
                    seal,
                    Seal {
                        start: seal.end,
                        ..seal
                    },
                ],
            },
            Remark::Missing(MissingRemark {
                tid: None,
                count: 172,
                text: b"threads were not traced",
            }),
            Remark::Missing(MissingRemark {
                tid: Some(5),
                count: 1,
                text: b"",
            }),
            Remark::Omitted(MissingRemark {
                tid: Some(6),
                count: 1,
                text: b"what ran first",
            }),
            Remark::Signal(signal),
            Remark::Signal(SignalRemark {
                ip: None,
                address: Some(0),
                is_fatal: false,
                ..signal
            }),
            Remark::Finished,
        ]
    }

    #[test]
    fn remarks_round_trip() {
        for remark in examples() {
            let bytes = remark.write().0;
            assert_eq!(Remark::read(&bytes), Some(remark));
        }
    }

    #[test]
    fn no_truncated_remark_reads_as_another() {
        for remark in examples() {
            let bytes = remark.write().0;
            for len in 0..bytes.len() {
                match (Remark::read(&bytes[..len]), &remark) {
                    (None, _) => {}
                    // A text may be shorter than it was, and padding is none of the fields.
                    (Some(Remark::Began { .. }), Remark::Began { .. }) => {}
                    (Some(Remark::Missing(found)), Remark::Missing(whole))
                    | (Some(Remark::Omitted(found)), Remark::Omitted(whole)) => {
                        assert!(whole.text.starts_with(found.text));
                    }
                    (Some(found), whole) => assert_eq!(&found, whole),
                }
            }
        }
    }

    #[test]
    fn a_seal_count_beyond_the_record_takes_no_memory() {
        let mut bytes = examples()[1].write().0;
        bytes[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Remark::read(&bytes), None);
    }
}
