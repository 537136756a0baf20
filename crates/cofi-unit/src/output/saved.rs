//! The output side as part of a saved unit. The table of a ToPA is not read anew by restoring: the entry in use was read when it
//! came into use, and what has become of it since goes unnoticed.

use super::{EARLY_PMI_BYTES, Output, Region, Scheme, single};
use crate::registers::Registers;
use crate::spec::Capabilities;
use crate::spec::topa::PAGE;
use crate::state::{Reader, RestoreError, Writer};

/// The largest region of an entry (Table 33-3).
const LARGEST: u64 = PAGE << 15;

const FIELD: &str = "the output region";

/// The scheme that the registers ask for, as its number.
fn wanted(regs: &Registers) -> u8 {
    if regs.ctl.fabric_en() {
        1
    } else if regs.ctl.topa() {
        3
    } else {
        2
    }
}

impl Output {
    /// `is_used`: something may still be stored before TraceEn is set again.
    pub(crate) fn save(&self, writer: &mut Writer, is_used: bool) {
        let Self {
            scheme,
            region,
            plain_until: _,
        } = *self;
        let Region {
            base,
            size,
            watch,
            int,
            stop,
            restricted,
        } = region;
        match scheme {
            _ if !is_used => writer.u8(0),
            Scheme::Off => writer.u8(0),
            Scheme::Transport => writer.u8(1),
            Scheme::SingleRange => {
                writer.u8(2);
                writer.bool(restricted);
            }
            Scheme::Topa => {
                writer.u8(3);
                writer.bool(restricted);
                writer.u64(base);
                writer.u64(size);
                writer.u64(watch);
                writer.bool(int);
                writer.bool(stop);
            }
        }
    }

    pub(crate) fn restore(
        reader: &mut Reader<'_>,
        regs: &Registers,
        caps: &Capabilities,
    ) -> Result<Self, RestoreError> {
        let mut output = Self::default();
        let scheme = reader.u8("the output scheme")?;
        let is_expected = if regs.status.trigger_en() {
            scheme == wanted(regs)
        } else {
            scheme == 0 || regs.ctl.trace_en() && scheme == wanted(regs)
        };
        if !is_expected {
            let rule = "not the scheme of IA32_RTIT_CTL (33.2.7)";
            return Err(reader.illegal(1, "the output scheme", scheme.into(), rule));
        }
        match scheme {
            0 => return Ok(output),
            1 => {
                output.scheme = Scheme::Transport;
                return Ok(output);
            }
            2 => {
                output.scheme = Scheme::SingleRange;
                let restricted = reader.bool("restricted memory")?;
                let Some(region) = single::region(regs) else {
                    let rule = "an operational error (33.2.7.1)";
                    return Err(reader.illegal(1, FIELD, regs.mask_ptrs.0, rule));
                };
                output.region = Region {
                    restricted,
                    ..region
                };
            }
            _ => {
                output.scheme = Scheme::Topa;
                output.region = topa_region(reader, regs, caps)?;
            }
        }
        output.find_plain();
        Ok(output)
    }
}

/// A region as `topa::enter` would have made it.
fn topa_region(
    reader: &mut Reader<'_>,
    regs: &Registers,
    caps: &Capabilities,
) -> Result<Region, RestoreError> {
    let restricted = reader.bool("restricted memory")?;
    let base = reader.u64(FIELD)?;
    let last_address = u64::MAX >> (64 - u32::from(caps.max_phys_addr.clamp(8, 64)));
    if base > last_address || base % PAGE != 0 {
        return Err(reader.illegal(8, FIELD, base, "no address of a region (33.2.7.2)"));
    }
    let size = reader.u64(FIELD)?;
    let is_size = size.is_power_of_two() && (PAGE..=LARGEST).contains(&size);
    if !is_size || base % size != 0 {
        return Err(reader.illegal(8, FIELD, size, "no size of a region there (Table 33-3)"));
    }
    let watch = reader.u64(FIELD)?;
    let is_early = watch == size - EARLY_PMI_BYTES && !caps.topa_multiple;
    if watch != size && !is_early || regs.mask_ptrs.offset() >= watch {
        let rule = "nothing is to be done there, or it should be done already";
        return Err(reader.illegal(8, FIELD, watch, rule));
    }
    Ok(Region {
        base,
        size,
        watch,
        int: reader.bool("INT")?,
        stop: reader.bool("STOP")?,
        restricted,
    })
}
