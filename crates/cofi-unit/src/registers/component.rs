//! Saving and restoring the registers as a state component: XSAVES and XRSTORS (33.3.5.2).

use super::{Fault, Registers, WriteContext};
use crate::spec::Capabilities;
use crate::spec::msr;
use crate::xsave::XsaveArea;

/// Where a register stands in the area: all that are there, with IA32_RTIT_CTL last, as 33.3.5.1 would restore them.
const ORDER: [u32; 9] = [
    msr::IA32_RTIT_OUTPUT_BASE,
    msr::IA32_RTIT_OUTPUT_MASK_PTRS,
    msr::IA32_RTIT_STATUS,
    msr::IA32_RTIT_CR3_MATCH,
    msr::IA32_RTIT_ADDR0_A,
    msr::IA32_RTIT_ADDR0_B,
    msr::IA32_RTIT_ADDR1_A,
    msr::IA32_RTIT_ADDR1_B,
    msr::IA32_RTIT_CTL,
];

fn word(area: &mut XsaveArea, address: u32) -> &mut u64 {
    match address {
        msr::IA32_RTIT_OUTPUT_BASE => &mut area.output_base,
        msr::IA32_RTIT_OUTPUT_MASK_PTRS => &mut area.output_mask_ptrs,
        msr::IA32_RTIT_STATUS => &mut area.status,
        msr::IA32_RTIT_CR3_MATCH => &mut area.cr3_match,
        msr::IA32_RTIT_ADDR0_A => &mut area.ranges[0][0],
        msr::IA32_RTIT_ADDR0_B => &mut area.ranges[0][1],
        msr::IA32_RTIT_ADDR1_A => &mut area.ranges[1][0],
        msr::IA32_RTIT_ADDR1_B => &mut area.ranges[1][1],
        _ => &mut area.ctl,
    }
}

impl Registers {
    /// What XSAVES stores. The words of registers that the processor does not have are zero.
    ///
    /// XSAVES then clears TraceEn (33.2.8.1), which is left to the caller; the area keeps it as it was.
    pub(crate) fn save_component(&self, caps: &Capabilities) -> XsaveArea {
        let mut area = XsaveArea::default();
        for address in ORDER {
            *word(&mut area, address) = self.read(caps, address).unwrap_or(0);
        }
        area
    }

    /// The registers after XRSTORS of `area`; of the component's initial configuration, the values after reset, where it
    /// is `None`.
    ///
    /// "The semantics of MSR writes generally apply" (33.2.8.1), so every word is checked as WRMSR would, IA32_RTIT_CTL
    /// last, and the whole is a #GP if one of them or TraceEn, which is set, says so. The manual does not tell what
    /// becomes of words whose register the processor lacks; here they must be zero, as XSAVES leaves them.
    pub(crate) fn check_component(
        &self,
        caps: &Capabilities,
        context: WriteContext,
        area: Option<&XsaveArea>,
    ) -> Result<Self, Fault> {
        let mut area = match area {
            Some(area) => *area,
            None => Self::new().save_component(caps),
        };
        if self.ctl.trace_en() {
            return Err(Fault::GeneralProtection {
                msr: msr::IA32_RTIT_CTL,
                value: area.ctl,
                rule: "XRSTORS of PT state while TraceEn is set (33.2.8.1, 33.3.5.2)",
            });
        }
        let mut new = *self;
        for address in ORDER {
            let value = *word(&mut area, address);
            let absent = self.read(caps, address).is_err();
            if !(absent && value == 0) {
                new.write(caps, context, address, value)?;
            }
        }
        Ok(new)
    }
}
