//! The fields of a sample.

use super::record::{SampleId, cpu};
use super::{Attr, Body, Cursor};
use crate::PerfTime;
use crate::constants::SampleType;

/// Reads a sample's fields as far as they are wanted: those behind the last one of use are passed over unread.
pub(super) fn sample<'a>(c: &mut Cursor<'a>, attr: &Attr) -> Option<(Body<'a>, SampleId)> {
    let has = attr.sample_type;
    let mut id = SampleId::default();
    if has.contains(SampleType::IDENTIFIER) {
        id.id = Some(c.u64()?);
    }
    let mut ip = None;
    if has.contains(SampleType::IP) {
        ip = Some(c.u64()?);
    }
    if has.contains(SampleType::TID) {
        id.task = Some((c.u32()?, c.u32()?));
    }
    if has.contains(SampleType::TIME) {
        id.time = Some(PerfTime(c.u64()?));
    }
    if has.contains(SampleType::ADDR) {
        c.u64()?;
    }
    if has.contains(SampleType::ID) {
        id.id = Some(c.u64()?);
    }
    if has.contains(SampleType::STREAM_ID) {
        c.u64()?;
    }
    if has.contains(SampleType::CPU) {
        id.cpu = cpu(c)?;
    }
    let (mut raw, mut aux) = (None, None);
    if has.contains(SampleType::RAW) || has.contains(SampleType::AUX) {
        raw = up_to_raw(c, attr)?;
    }
    if has.contains(SampleType::AUX) {
        behind_raw(c, attr)?;
        aux = Some(counted(c)?);
    }
    Some((Body::Sample { ip, raw, aux }, id))
}

/// Bytes that their number precedes.
fn counted<'a>(c: &mut Cursor<'a>) -> Option<&'a [u8]> {
    let size = usize::try_from(c.u64()?).ok()?;
    c.take(size)
}

/// Passes over `count` entries of `size` bytes.
fn skip(c: &mut Cursor<'_>, count: u64, size: usize) -> Option<()> {
    let size = usize::try_from(count).ok()?.checked_mul(size)?;
    c.take(size).map(|_| ())
}

/// The fields between the processor and the raw data, and these.
fn up_to_raw<'a>(c: &mut Cursor<'a>, attr: &Attr) -> Option<Option<&'a [u8]>> {
    let has = attr.sample_type;
    if has.contains(SampleType::PERIOD) {
        c.u64()?;
    }
    if has.contains(SampleType::READ) {
        read_values(c, attr.read_format)?;
    }
    if has.contains(SampleType::CALLCHAIN) {
        let count = c.u64()?;
        skip(c, count, 8)?;
    }
    if !has.contains(SampleType::RAW) {
        return Some(None);
    }
    let size = c.u32()? as usize;
    Some(Some(c.take(size)?))
}

/// The values of a counter, or of its group.
fn read_values(c: &mut Cursor<'_>, format: u64) -> Option<()> {
    const ENABLED: u64 = 1;
    const RUNNING: u64 = 2;
    const ID: u64 = 4;
    const GROUP: u64 = 8;
    const LOST: u64 = 16;
    let fields = |bits: u64| (format & bits).count_ones() as usize * 8;
    if format & GROUP == 0 {
        return skip(c, 1, 8 + fields(ENABLED | RUNNING | ID | LOST));
    }
    let count = c.u64()?;
    skip(c, 1, fields(ENABLED | RUNNING))?;
    skip(c, count, 8 + fields(ID | LOST))
}

/// The fields between the raw data and the piece of the AUX area.
fn behind_raw(c: &mut Cursor<'_>, attr: &Attr) -> Option<()> {
    const HW_INDEX: u64 = 1 << 17;
    const COUNTERS: u64 = 1 << 19;
    let has = attr.sample_type;
    if has.contains(SampleType::BRANCH_STACK) {
        let count = c.u64()?;
        if attr.branch_sample_type & HW_INDEX != 0 {
            c.u64()?;
        }
        skip(c, count, 24)?;
        if attr.branch_sample_type & COUNTERS != 0 {
            skip(c, count, 8)?;
        }
    }
    let registers = |c: &mut Cursor<'_>, mask: u64| {
        let abi = c.u64()?;
        // Without an ABI there are none.
        skip(c, u64::from(abi != 0), mask.count_ones() as usize * 8)
    };
    if has.contains(SampleType::REGS_USER) {
        registers(c, attr.sample_regs_user)?;
    }
    if has.contains(SampleType::STACK_USER) && !counted(c)?.is_empty() {
        // How much of it was really copied.
        c.u64()?;
    }
    if has.contains(SampleType::WEIGHT) || has.contains(SampleType::WEIGHT_STRUCT) {
        c.u64()?;
    }
    for field in [SampleType::DATA_SRC, SampleType::TRANSACTION] {
        skip(c, has.contains(field).into(), 8)?;
    }
    if has.contains(SampleType::REGS_INTR) {
        registers(c, attr.sample_regs_intr)?;
    }
    for field in [
        SampleType::PHYS_ADDR,
        SampleType::CGROUP,
        SampleType::DATA_PAGE_SIZE,
        SampleType::CODE_PAGE_SIZE,
    ] {
        skip(c, has.contains(field).into(), 8)?;
    }
    Some(())
}
