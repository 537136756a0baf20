//! Events that the trace unit is told of.

use crate::status::{Growing, Status, given_mut, guarded, invalid, taken};
use crate::unit::{Owned, Place, State};
use cofi_packet::Ip;
use cofi_packet::intel::{CState, WakeReason};
use cofi_unit::{Event, Mwait, Sleep};
use core::mem::offset_of;

/// `cofi_event`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Happening {
    size: u32,
    kind: u32,
    at: Place,
    to: u64,
    state: State,
    value: u64,
    vector: u8,
    flag: u8,
    c_state: u8,
    sub_state: u8,
    deepest: u8,
    hints: u8,
    ext: u8,
    reason: u8,
}

impl Happening {
    fn event(&self) -> Result<Event<'static>, Status> {
        let at = self.at.at();
        let from = at.ip;
        let to = || self.state.destination(self.to);
        let c_state = |number| {
            CState::new(number).ok_or_else(|| invalid(format_args!("there is no C-state {number}")))
        };
        Ok(match self.kind {
            0 => Event::FarBranch { at, to: to()? },
            1 => Event::Iret { at, to: to()? },
            2 => Event::Uiret { at, to: to()? },
            3 => Event::Interrupt {
                from,
                vector: self.vector,
                page_fault: (self.flag != 0).then_some(self.value),
                to: to()?,
            },
            4 => Event::UserInterrupt {
                from,
                vector: self.vector,
                to: to()?,
            },
            5 => Event::MovCr3 {
                at,
                cr3: self.value,
            },
            6 => Event::Flags {
                at,
                interrupt_flag: self.flag != 0,
            },
            7 => Event::TransactionBegin { at },
            8 => Event::TransactionCommit { at },
            9 => Event::TransactionAbort {
                from,
                to: Ip(self.to),
            },
            10 => Event::Sleep(Sleep {
                ip: from,
                mwait: (self.flag & 1 != 0).then_some(Mwait {
                    hints: self.hints,
                    ext: self.ext,
                }),
                hardware: self.flag & 2 != 0,
                state: c_state(self.c_state)?,
                sub_state: self.sub_state,
            }),
            11 => Event::Wake {
                last: c_state(self.c_state)?,
                deepest: c_state(self.deepest)?,
                reason: WakeReason::new(self.reason)
                    .ok_or_else(|| invalid(format_args!("there is no reason {}", self.reason)))?,
            },
            12 => Event::ClocksResumed,
            13 => Event::Frequency {
                stopped_at: (self.flag != 0).then_some(from),
                ratio: u8::try_from(self.value)
                    .map_err(|_| invalid(format_args!("the ratio is {}", self.value)))?,
            },
            14 => Event::CycleCounterReset,
            15 => Event::Init { from, to: to()? },
            16 => Event::InitToWait {
                from,
                context: self.state.context()?,
            },
            17 => Event::Sipi {
                vector: self.vector,
                to: to()?,
            },
            18 => Event::Shutdown { at: from },
            19 => Event::Smi { from, to: to()? },
            20 => Event::Vmxon { at },
            21 => Event::Vmxoff { at },
            22 => Event::Vmptrld {
                at,
                vmcs: self.value,
            },
            23 => Event::Vmclear { at },
            other => return Err(invalid(format_args!("there is no event {other}"))),
        })
    }
}

// SAFETY: numbers.
unsafe impl Growing for Happening {
    const FIRST: usize = 72;
}

/// `cofi_unit_event`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_unit_event(unit: *mut Owned, event: *const Happening) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (owned, event) = unsafe { (given_mut(unit, "unit")?, taken(event, "event")?) };
        let event = event.event()?;
        let (unit, mut world) = owned.parts()?;
        unit.event(&mut world, event);
        Ok(())
    })
}

/// Sizes and members' places, for who compares with cofi.h.
#[must_use]
pub fn layout() -> Vec<usize> {
    vec![
        size_of::<Happening>(),
        offset_of!(Happening, kind),
        offset_of!(Happening, at),
        offset_of!(Happening, to),
        offset_of!(Happening, state),
        offset_of!(Happening, value),
        offset_of!(Happening, vector),
        offset_of!(Happening, flag),
        offset_of!(Happening, c_state),
        offset_of!(Happening, sub_state),
        offset_of!(Happening, deepest),
        offset_of!(Happening, hints),
        offset_of!(Happening, ext),
        offset_of!(Happening, reason),
    ]
}
