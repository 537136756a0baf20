//! An event: `perf_event_attr`, and the ids by which records name it.

use super::Cursor;
use crate::constants::SampleType;

/// The part of an attribute that all versions have.
pub(super) const ATTR_MIN: u64 = 64;

const SAMPLE_ID_ALL: u64 = 1 << 18;

/// An event of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attr {
    /// `perf_event_attr.type`: the PMU's number.
    pub kind: u32,
    /// `perf_event_attr.config`.
    pub config: u64,
    /// What its samples, and the trailers of its records, hold.
    pub sample_type: SampleType,
    /// What a counter's value in a sample consists of.
    pub read_format: u64,
    /// The flag bits.
    pub flags: u64,
    /// What a branch stack in a sample consists of.
    pub branch_sample_type: u64,
    /// The user's registers in a sample.
    pub sample_regs_user: u64,
    /// The registers at the interrupt in a sample.
    pub sample_regs_intr: u64,
    /// How much of the AUX area goes into a sample.
    pub aux_sample_size: u32,
    /// The ids by which records name it.
    pub ids: Vec<u64>,
}

impl Attr {
    /// Whether only what a guest does is traced (`exclude_host`): a whole machine that ran within the one that recorded.
    #[must_use]
    pub const fn is_guest_only(&self) -> bool {
        const EXCLUDE_HOST: u64 = 1 << 19;
        self.flags & EXCLUDE_HOST != 0
    }

    /// An event of which nothing is known but how its records are laid out.
    pub(super) const fn of_layout(sample_type: SampleType) -> Self {
        Self {
            kind: 0,
            config: 0,
            sample_type,
            read_format: 0,
            flags: SAMPLE_ID_ALL,
            branch_sample_type: 0,
            sample_regs_user: 0,
            sample_regs_intr: 0,
            aux_sample_size: 0,
            ids: Vec::new(),
        }
    }

    /// Whether kernel records carry a trailer.
    pub(super) const fn has_trailer(&self) -> bool {
        self.flags & SAMPLE_ID_ALL != 0
    }

    /// The size that an attribute states of itself; 0 in the first version.
    pub(super) fn stated_size(bytes: &[u8]) -> Option<u64> {
        let mut c = Cursor::new(bytes);
        c.u32()?;
        Some(match c.u32()? {
            0 => ATTR_MIN,
            size => size.into(),
        })
    }

    /// Reads an attribute without its ids. Fields that its version does not have are 0.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        let mut c = Cursor::new(bytes);
        let (kind, _size, config) = (c.u32()?, c.u32()?, c.u64()?);
        let (_period, sample_type) = (c.u64()?, c.u64()?);
        let (read_format, flags) = (c.u64()?, c.u64()?);
        // wakeup, bp_type, config1, config2
        let mut newer = Cursor::new(bytes.get(72..).unwrap_or_default());
        let branch_sample_type = newer.u64().unwrap_or(0);
        let sample_regs_user = newer.u64().unwrap_or(0);
        // sample_stack_user, clockid
        newer.u64();
        let sample_regs_intr = newer.u64().unwrap_or(0);
        // aux_watermark, sample_max_stack
        newer.u64();
        let aux_sample_size = newer.u32().unwrap_or(0);
        Some(Self {
            kind,
            config,
            sample_type: SampleType(sample_type),
            read_format,
            flags,
            branch_sample_type,
            sample_regs_user,
            sample_regs_intr,
            aux_sample_size,
            ids: Vec::new(),
        })
    }

    /// Reads the fields of a HEADER_ATTR record: an attribute, then its ids.
    pub(super) fn of_record(fields: &[u8]) -> Option<Self> {
        let size = usize::try_from(Self::stated_size(fields)?).ok()?;
        if (size as u64) < ATTR_MIN {
            return None;
        }
        let (attr, ids) = fields.split_at_checked(size)?;
        let mut this = Self::of(attr)?;
        this.ids = ids_of(ids);
        Some(this)
    }
}

/// Ids, one behind the other.
pub(super) fn ids_of(bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks_exact(8)
        .filter_map(|id| Cursor::new(id).u64())
        .collect()
}
