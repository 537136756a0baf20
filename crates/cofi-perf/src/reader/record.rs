//! One record: its kind, its trailer, its fields.

use super::fields::fields_of;
use super::sample::sample;
use super::{Attr, Body, Cursor, INTEL_PT, RTIT};
use crate::constants::{Misc, RecordKind, SampleType};
use crate::{Error, ErrorKind, PerfTime};

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record<'a> {
    /// Where it stands in the file.
    pub offset: u64,
    /// Its kind.
    pub kind: RecordKind,
    /// Its misc bits.
    pub misc: Misc,
    /// What its trailer says of where and when it comes from.
    pub id: SampleId,
    /// Its fields.
    pub body: Body<'a>,
}

/// Who, when and where: the trailer of a kernel record or the first fields of a sample, as far as it has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SampleId {
    /// Process and thread.
    pub task: Option<(u32, u32)>,
    /// The time.
    pub time: Option<PerfTime>,
    /// The processor.
    pub cpu: Option<u32>,
    /// The event.
    pub id: Option<u64>,
}

impl SampleId {
    /// Reads a trailer, which is all of the cursor.
    fn trailer(c: &mut Cursor<'_>, has: SampleType) -> Option<Self> {
        let mut this = Self::default();
        if has.contains(SampleType::TID) {
            this.task = Some((c.u32()?, c.u32()?));
        }
        if has.contains(SampleType::TIME) {
            this.time = Some(PerfTime(c.u64()?));
        }
        if has.contains(SampleType::ID) {
            this.id = Some(c.u64()?);
        }
        if has.contains(SampleType::STREAM_ID) {
            c.u64()?;
        }
        if has.contains(SampleType::CPU) {
            this.cpu = cpu(c)?;
        }
        if has.contains(SampleType::IDENTIFIER) {
            this.id = Some(c.u64()?);
        }
        Some(this)
    }
}

/// A processor's number, in eight bytes.
pub(super) fn cpu(c: &mut Cursor<'_>) -> Option<Option<u32>> {
    let (cpu, _reserved) = (c.u32()?, c.u32()?);
    Some((cpu != u32::MAX).then_some(cpu))
}

pub(super) fn parse<'a>(
    attr: Option<&Attr>,
    offset: u64,
    kind: RecordKind,
    misc: u16,
    body: &'a [u8],
    payload: &'a [u8],
) -> Result<Record<'a>, Error> {
    let misc = Misc(misc);
    let short = || {
        let size = body.len() as u16 + 8;
        Error::new(offset, ErrorKind::RecordShort { kind, size })
    };
    if kind == RecordKind::AUXTRACE_INFO {
        let found = Cursor::new(body).u32().ok_or_else(short)?;
        if !matches!(found, INTEL_PT | RTIT) {
            return Err(Error::new(offset, ErrorKind::OtherTrace { found }));
        }
    }
    let layout = attr.map_or(SampleType::default(), |attr| attr.sample_type);
    let (fields, id) = if kind == RecordKind::SAMPLE {
        match attr {
            Some(attr) => sample(&mut Cursor::new(body), attr),
            None => Some((Body::Other(body), SampleId::default())),
        }
    } else {
        let trailed = kind.is_kernel() && attr.is_some_and(Attr::has_trailer);
        let layout = if trailed {
            layout
        } else {
            SampleType::default()
        };
        let start = body.len().checked_sub(layout.trailer_size());
        start.and_then(|start| {
            let (fields, trailer) = body.split_at(start);
            let id = SampleId::trailer(&mut Cursor::new(trailer), layout)?;
            Some((fields_of(kind, misc, fields, payload)?, id))
        })
    }
    .ok_or_else(short)?;
    Ok(Record {
        offset,
        kind,
        misc,
        id,
        body: fields,
    })
}
