//! The register file: a write is checked whole, then committed; the unit acts on it afterwards.

use super::msr::{
    self, Access, BaseAddr, Cntp, Cr3Match, Ctl, Events, LastCallNlip, LastLipRegister, LimitMask,
    Lip, Offset, PktCnt, RegisterSpec, Status, TntBuff,
};
use crate::registers::Fault;

/// The RTIT registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Registers {
    pub(super) lips: [Lip; 4],
    pub(super) ctl: Ctl,
    pub(super) status: Status,
    pub(super) cntp: Cntp,
    pub(super) events: Events,
    pub(super) last_lip: LastLipRegister,
    pub(super) last_call_nlip: LastCallNlip,
    pub(super) base: BaseAddr,
    pub(super) limit_mask: LimitMask,
    pub(super) offset: Offset,
    pub(super) cr3_match: Cr3Match,
    pub(super) pkt_cnt: PktCnt,
    pub(super) tnt_buff: TntBuff,
    /// RTIT_CTL has been read since reset: the registers can be accessed (3.3.1).
    pub(super) unlocked: bool,
}

/// Bits 63:48 made copies of bit 47.
pub(super) const fn sign_extended(lip: u64) -> u64 {
    ((lip << 16) as i64 >> 16) as u64
}

impl Registers {
    fn find(&self, address: u32) -> Result<&'static RegisterSpec, &'static str> {
        msr::ALL
            .iter()
            .find(|spec| spec.address == address)
            .ok_or("no RTIT register has this address (3.3)")
    }

    const LOCKED: &str = "RTIT_CTL has not been read yet (3.3.1)";

    fn slot(&mut self, address: u32) -> Option<&mut u64> {
        Some(match address {
            msr::RTIT_LIP0..=msr::RTIT_LIP3 => {
                &mut self.lips[(address - msr::RTIT_LIP0) as usize].0
            }
            msr::RTIT_CTL => &mut self.ctl.0,
            msr::RTIT_STATUS => &mut self.status.0,
            msr::RTIT_CNTP => &mut self.cntp.0,
            msr::RTIT_EVENTS => &mut self.events.0,
            msr::RTIT_LAST_LIP => &mut self.last_lip.0,
            msr::RTIT_LAST_CALL_NLIP => &mut self.last_call_nlip.0,
            msr::RTIT_BASE_ADDR => &mut self.base.0,
            msr::RTIT_LIMIT_MASK => &mut self.limit_mask.0,
            msr::RTIT_OFFSET => &mut self.offset.0,
            msr::RTIT_CR3_MATCH => &mut self.cr3_match.0,
            msr::RTIT_PKT_CNT => &mut self.pkt_cnt.0,
            msr::RTIT_TNT_BUFF => &mut self.tnt_buff.0,
            _ => return None,
        })
    }

    /// What the register at this address holds; 0 where there is none.
    pub(super) fn get(mut self, address: u32) -> u64 {
        self.slot(address).map_or(0, |slot| *slot)
    }

    /// RDMSR. That of RTIT_CTL unlocks the others.
    pub(super) fn read(&mut self, address: u32) -> Result<u64, Fault> {
        self.unlocked |= address == msr::RTIT_CTL;
        let found = self.find(address).and_then(|_| match self.unlocked {
            true => Ok(self.get(address)),
            false => Err(Self::LOCKED),
        });
        found.map_err(|rule| Fault::GeneralProtection {
            msr: address,
            value: 0,
            rule,
        })
    }

    /// Checks a WRMSR. Returns what the register holds after it: that is `value` but for bits that software does not write.
    pub(super) fn check(&self, address: u32, value: u64) -> Result<u64, Fault> {
        self.checked(address, value)
            .map_err(|rule| Fault::GeneralProtection {
                msr: address,
                value,
                rule,
            })
    }

    fn checked(&self, address: u32, value: u64) -> Result<u64, &'static str> {
        let spec = self.find(address)?;
        if !self.unlocked {
            return Err(Self::LOCKED);
        }
        self.legal(spec, value)
    }

    /// What the register holds after a write of `value`, once the registers are unlocked.
    pub(super) fn legal(&self, spec: &RegisterSpec, value: u64) -> Result<u64, &'static str> {
        let [writable, read_only, signs, ones] = [
            Access::Rw,
            Access::ReadOnly,
            Access::SignExtension,
            Access::ReservedOne,
        ]
        .map(|access| spec.mask(access));
        if value & !(writable | read_only | signs | ones) != 0 {
            return Err("a reserved bit is set (3.3.1)");
        }
        if value & ones != ones {
            return Err("a bit that is reserved as 1 is clear (3.3.1, 3.3.11)");
        }
        if spec.address == msr::RTIT_TNT_BUFF && value == 0 {
            return Err("RTIT_TNT_BUFF is written as 0 (3.3.13)");
        }
        let held = value & (writable | ones) | self.get(spec.address) & read_only;
        Ok(match signs {
            0 => held,
            _ => sign_extended(held),
        })
    }

    /// Writes what [`Registers::check`] returned.
    pub(super) fn commit(&mut self, address: u32, new: u64) {
        if let Some(slot) = self.slot(address) {
            *slot = new;
        }
    }
}
