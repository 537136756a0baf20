//! The fields of the records that are not samples.

use super::body::{AuxFlags, Body, IdEntry, ShortClock};
use super::info::info;
use super::{Attr, Cursor, build_ids};
use crate::constants::{Feature, Misc, RecordKind};
use crate::{PerfTime, Remark, TimeConv};

pub(super) fn fields_of<'a>(
    kind: RecordKind,
    misc: Misc,
    fields: &'a [u8],
    payload: &'a [u8],
) -> Option<Body<'a>> {
    let mut c = Cursor::new(fields);
    Some(match kind {
        RecordKind::MMAP => {
            let (pid, tid) = (c.u32()?, c.u32()?);
            let (start, len, pgoff) = (c.u64()?, c.u64()?, c.u64()?);
            Body::Mmap {
                pid,
                tid,
                start,
                len,
                pgoff,
                prot: None,
                build_id: None,
                path: c.text(),
            }
        }
        RecordKind::MMAP2 => {
            let (pid, tid) = (c.u32()?, c.u32()?);
            let (start, len, pgoff) = (c.u64()?, c.u64()?, c.u64()?);
            let identity = c.take(24)?;
            let build_id = if misc.has(Misc::MMAP_BUILD_ID) {
                let size = usize::from(*identity.first()?).min(20);
                identity.get(4..4 + size)
            } else {
                None
            };
            let (prot, _flags) = (c.u32()?, c.u32()?);
            Body::Mmap {
                pid,
                tid,
                start,
                len,
                pgoff,
                prot: Some(prot),
                build_id,
                path: c.text(),
            }
        }
        RecordKind::COMM => Body::Comm {
            pid: c.u32()?,
            tid: c.u32()?,
            exec: misc.has(Misc::EXEC),
            name: c.text(),
        },
        RecordKind::FORK => {
            let (pid, ppid, tid, ptid) = (c.u32()?, c.u32()?, c.u32()?, c.u32()?);
            Body::Fork {
                pid,
                ppid,
                tid,
                ptid,
                apart: misc.has(Misc::EXEC),
            }
        }
        RecordKind::EXIT => {
            let (pid, _ppid, tid) = (c.u32()?, c.u32()?, c.u32()?);
            Body::Exit { pid, tid }
        }
        RecordKind::ITRACE_START => Body::ItraceStart {
            pid: c.u32()?,
            tid: c.u32()?,
        },
        RecordKind::AUX => Body::Aux {
            offset: c.u64()?,
            size: c.u64()?,
            flags: AuxFlags(c.u64()?),
        },
        RecordKind::AUXTRACE => {
            let (stated, offset, reference) = (c.u64()?, c.u64()?, c.u64()?);
            let (idx, tid, cpu) = (c.u32()?, c.u32()?, c.u32()?);
            Body::Auxtrace {
                offset,
                reference,
                idx,
                tid,
                cpu,
                stated,
                payload,
            }
        }
        RecordKind::AUXTRACE_INFO => Body::AuxtraceInfo(info(&mut c)?),
        RecordKind::TIME_CONV => time_conv(&mut c)?,
        RecordKind::SWITCH => Body::Switch {
            out: misc.has(Misc::SWITCH_OUT),
            other: None,
        },
        RecordKind::SWITCH_CPU_WIDE => Body::Switch {
            out: misc.has(Misc::SWITCH_OUT),
            other: Some((c.u32()?, c.u32()?)),
        },
        RecordKind::LOST => {
            c.u64()?;
            Body::Lost { count: c.u64()? }
        }
        RecordKind::FINISHED_ROUND => Body::FinishedRound,
        RecordKind::FINISHED_INIT => Body::FinishedInit,
        RecordKind::LOST_SAMPLES => Body::LostSamples { count: c.u64()? },
        RecordKind::THROTTLE | RecordKind::UNTHROTTLE => Body::Throttle {
            over: kind == RecordKind::UNTHROTTLE,
            time: PerfTime(c.u64()?),
        },
        RecordKind::NAMESPACES => {
            let (pid, tid) = (c.u32()?, c.u32()?);
            let links = list(&mut c, 16, |c| Some((c.u64()?, c.u64()?)))?;
            Body::Namespaces { pid, tid, links }
        }
        RecordKind::KSYMBOL => {
            let (address, len) = (c.u64()?, c.u32()?);
            let (kind, flags) = (c.u16()?, c.u16()?);
            Body::Ksymbol {
                address,
                len,
                kind,
                gone: flags & 1 != 0,
                name: c.text(),
            }
        }
        RecordKind::BPF_EVENT => {
            let (kind, _flags) = (c.u16()?, c.u16()?);
            Body::BpfEvent {
                kind,
                id: c.u32()?,
                tag: c.array()?,
            }
        }
        RecordKind::CGROUP => Body::Cgroup {
            id: c.u64()?,
            path: c.text(),
        },
        RecordKind::TEXT_POKE => {
            let (address, old, new) = (c.u64()?, c.u16()?, c.u16()?);
            Body::TextPoke {
                address,
                old: c.take(old.into())?,
                new: c.take(new.into())?,
            }
        }
        RecordKind::AUX_OUTPUT_HW_ID => Body::AuxOutputHwId { hw_id: c.u64()? },
        RecordKind::HEADER_EVENT_TYPE if Remark::is_one(fields) => {
            Body::Remark(Remark::read(fields)?)
        }
        RecordKind::HEADER_ATTR => Body::HeaderAttr(Attr::of_record(fields)?),
        RecordKind::HEADER_FEATURE => {
            let feature = u32::try_from(c.u64()?).map_or(Feature(u32::MAX), Feature);
            Body::HeaderFeature {
                feature,
                payload: c.rest(),
            }
        }
        RecordKind::HEADER_BUILD_ID => Body::HeaderBuildId(build_ids::fields(misc, &mut c)?),
        RecordKind::HEADER_TRACING_DATA => {
            c.u32()?;
            Body::TracingData(payload)
        }
        RecordKind::ID_INDEX => Body::IdIndex(list(&mut c, 32, |c| {
            let (id, idx, cpu, tid) = (c.u64()?, c.u64()?, c.u64()?, c.u64()?);
            Some(IdEntry { id, idx, cpu, tid })
        })?),
        RecordKind::AUXTRACE_ERROR => auxtrace_error(&mut c)?,
        RecordKind::THREAD_MAP => Body::ThreadMap(list(&mut c, 24, |c| {
            Some((c.u64()?, Cursor::new(c.take(16)?).text()))
        })?),
        RecordKind::CPU_MAP => Body::CpuMap(cpu_map(&mut c)?),
        RecordKind::COMPRESSED => Body::Compressed(fields),
        RecordKind::COMPRESSED2 => {
            let size = usize::try_from(c.u64()?).ok()?;
            Body::Compressed(c.take(size)?)
        }
        _ => Body::Other(fields),
    })
}

/// A list of entries that are preceded by their number. Its memory is bounded by the record's, whatever the number says.
fn list<'a, T>(
    c: &mut Cursor<'a>,
    entry: usize,
    mut read: impl FnMut(&mut Cursor<'a>) -> Option<T>,
) -> Option<Vec<T>> {
    let count = usize::try_from(c.u64()?).ok()?;
    if count > c.rest().len() / entry {
        return None;
    }
    (0..count).map(|_| read(c)).collect()
}

/// Newer files tell of counters narrower than 64 bits, too.
fn time_conv<'a>(c: &mut Cursor<'_>) -> Option<Body<'a>> {
    let conv = TimeConv {
        shift: c.u64()?,
        mult: c.u64()?,
        zero: c.u64()?,
    };
    let mut newer = || {
        let clock = ShortClock {
            cycles: c.u64()?,
            mask: c.u64()?,
        };
        let [_zero, short] = c.array()?;
        (short != 0).then_some(clock)
    };
    Some(Body::TimeConv {
        conv,
        short: newer(),
    })
}

fn auxtrace_error<'a>(c: &mut Cursor<'a>) -> Option<Body<'a>> {
    let (kind, code, cpu) = (c.u32()?, c.u32()?, c.u32()?);
    let (pid, tid, format) = (c.u32()?, c.u32()?, c.u32()?);
    let ip = c.u64()?;
    // The first format knows no time.
    let time = match format {
        0 => None,
        _ => Some(PerfTime(c.u64()?)),
    };
    let text = c.rest();
    Some(Body::AuxtraceError {
        kind,
        code,
        cpu,
        pid,
        tid,
        ip,
        time,
        text: Cursor::new(&text[..text.len().min(64)]).text(),
    })
}

/// Processors as a list, as bits, or as a range. Bits are at most as many as the record has; a range has at most 65536.
fn cpu_map(c: &mut Cursor<'_>) -> Option<Vec<u16>> {
    match c.u16()? {
        0 => {
            let count = c.u16()?;
            (0..count).map(|_| c.u16()).collect()
        }
        1 => {
            let (words, size) = (usize::from(c.u16()?), c.u16()?);
            let width = match size {
                4 => 4,
                8 => {
                    c.take(2)?;
                    8
                }
                _ => return None,
            };
            let bytes = c.take(words * width)?;
            let bits = bytes.iter().enumerate().flat_map(|(index, byte)| {
                (0..8)
                    .filter(move |bit| byte >> bit & 1 != 0)
                    .map(move |bit| u16::try_from(index * 8 + bit))
            });
            bits.collect::<Result<_, _>>().ok()
        }
        2 => {
            let [_any, _reserved] = c.array()?;
            let (first, last) = (c.u16()?, c.u16()?);
            Some((first..=last).collect())
        }
        _ => None,
    }
}
