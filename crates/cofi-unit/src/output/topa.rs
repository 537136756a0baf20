//! Walking the Table of Physical Addresses (33.2.7.2). The three values that control it, proc_trace_table_base,
//! proc_trace_table_offset and proc_trace_output_offset, are the registers themselves.

use super::{EARLY_PMI_BYTES, Region};
use crate::client::{Client, PhysAddr};
use crate::registers::Registers;
use crate::spec::topa::{ENTRY_BYTES, Entry, LAST_ENTRY_OFFSET, PAGE, RESERVED};
use crate::spec::{Capabilities, OutputBase};

/// Why the entry in use is an operational error: "ToPA Errors" in 33.2.7.2, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Malformed {
    /// 1: a reserved bit is set.
    Reserved,
    /// 2a: a table is not 4K-aligned.
    TableAlignment,
    /// 2b: a region is not aligned to its size.
    RegionAlignment,
    /// 2c: an address is wider than MAXPHYADDR.
    UpperAddressBits,
    /// 3: the write pointer is not in the region.
    OutputOffset,
    /// 4a: STOP or INT with END.
    EndWithStopOrInt,
    /// 4b: END in entry 0.
    EndFirst,
    /// 4c i: no END in the second entry, where a table can have only one region.
    SingleWithoutEnd,
    /// 4c ii: the END entry does not lead back, where a table can have only one region.
    SingleNotCircular,
    /// Table 33-5: the entry lies in restricted memory.
    Restricted,
}

/// Bits 11:10, which are reserved: set in an END entry, they make the address that of no 4K-aligned table.
const END_UNALIGNED: u64 = 0xc00;

/// The region of the entry in use. Where that is an END entry, the one after it comes into use.
pub(super) fn enter(
    regs: &mut Registers,
    caps: &Capabilities,
    client: &mut impl Client,
) -> Result<Region, Malformed> {
    let mut entry = read(regs, caps, client)?;
    if entry.is_end() {
        regs.base = OutputBase(entry.base());
        regs.mask_ptrs = regs.mask_ptrs.with_mask(0).with_offset(0);
        // No END entry again: it would be entry 0 (rule 4b).
        entry = read(regs, caps, client)?;
    }
    let (offset, size) = (regs.mask_ptrs.offset(), entry.size());
    if offset >= size {
        return Err(Malformed::OutputOffset);
    }
    let early = size - EARLY_PMI_BYTES;
    let is_early = entry.int() && !caps.topa_multiple && offset < early;
    Ok(Region {
        base: entry.base(),
        size,
        watch: if is_early { early } else { size },
        int: entry.int(),
        stop: entry.stop(),
        restricted: false,
    })
}

/// The region in use is filled: the region of the next entry. After the last possible entry that is the first.
pub(super) fn next(
    regs: &mut Registers,
    caps: &Capabilities,
    client: &mut impl Client,
) -> Result<Region, Malformed> {
    let table_offset = regs.mask_ptrs.mask() * ENTRY_BYTES;
    let next = if table_offset < LAST_ENTRY_OFFSET {
        regs.mask_ptrs.mask() + 1
    } else {
        0
    };
    regs.mask_ptrs = regs.mask_ptrs.with_mask(next).with_offset(0);
    enter(regs, caps, client)
}

/// Reads the entry in use and checks all of it that does not depend on the write pointer.
fn read(
    regs: &Registers,
    caps: &Capabilities,
    client: &mut impl Client,
) -> Result<Entry, Malformed> {
    let (table, index) = (regs.base.0, regs.mask_ptrs.mask());
    let last_address = u64::MAX >> (64 - u32::from(caps.max_phys_addr.clamp(8, 64)));
    if table % PAGE != 0 {
        return Err(Malformed::TableAlignment);
    }
    let address = table
        .checked_add(index * ENTRY_BYTES)
        .filter(|address| *address <= last_address)
        .ok_or(Malformed::UpperAddressBits)?;
    if client.is_restricted(PhysAddr(address), ENTRY_BYTES) {
        return Err(Malformed::Restricted);
    }
    let entry = Entry(client.load(PhysAddr(address)));
    if entry.is_end() && entry.0 & END_UNALIGNED != 0 {
        return Err(Malformed::TableAlignment);
    }
    if entry.0 & RESERVED != 0 {
        return Err(Malformed::Reserved);
    }
    if entry.base() > last_address {
        return Err(Malformed::UpperAddressBits);
    }
    if entry.is_end() {
        if entry.stop() || entry.int() {
            return Err(Malformed::EndWithStopOrInt);
        }
        if index == 0 {
            return Err(Malformed::EndFirst);
        }
        if !caps.topa_multiple && entry.base() != table {
            return Err(Malformed::SingleNotCircular);
        }
    } else {
        if entry.base() % entry.size() != 0 {
            return Err(Malformed::RegionAlignment);
        }
        if !caps.topa_multiple && index != 0 {
            return Err(Malformed::SingleWithoutEnd);
        }
    }
    Ok(entry)
}
