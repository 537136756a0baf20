//! A thread's trace unit: Intel PT.

use super::buffer::Buffer;
use super::{KERNEL, Transfer, VirtualClock, retired};
use crate::runs::{Run, Taker};
use crate::{ProcessorState, Runs};
use cofi_insn::{Checksum, Class, RunningChecksum};
use cofi_packet::Ip;
use cofi_unit::{
    At, Capabilities, Context, Ctl, Destination, Event, Fault, Gathering, Retired, Unit, msr,
};

/// The output region that the unit is given: one page of address space, written round and round.
const REGION_MASK: u64 = 0xfff;

impl From<ProcessorState> for Context {
    fn from(state: ProcessorState) -> Self {
        Self {
            cpl: state.cpl,
            cr3: state.cr3,
            mode: state.mode,
            ..Self::default()
        }
    }
}

/// The unit, and its configuration without TraceEn.
#[derive(Debug)]
pub(super) struct Pt {
    unit: Unit,
    ctl: Ctl,
}

/// What makes no packet but results of branches, while that is all that is due.
struct Quick<'g, 'u> {
    unit: &'g mut Gathering<'u>,
    /// How many instructions may still retire.
    left: u64,
    ran: RunningChecksum,
}

impl Taker for Quick<'_, '_> {
    #[inline(always)]
    fn direct(&mut self, checksum: &Checksum, conditional: bool, taken: bool) -> bool {
        let Some(left) = self.left.checked_sub(checksum.instructions()) else {
            return false;
        };
        if !self.unit.result(conditional, taken) {
            return false;
        }
        self.left = left;
        self.ran.add(checksum);
        true
    }

    #[inline(always)]
    fn near(&mut self, run: &Run<'_>) -> bool {
        let Some(left) = self.left.checked_sub(run.instructions()) else {
            return false;
        };
        let takes = match run.class() {
            Class::DirectCall if run.next != run.after() => {
                self.unit.call(run.after());
                true
            }
            Class::Return => self.unit.compressed_return(run.next),
            _ => false,
        };
        if takes {
            self.left = left;
            self.ran.add(&run.checksum());
        }
        takes
    }
}

impl Pt {
    /// A unit that traces from now on.
    ///
    /// # Errors
    /// The #GP of the first register write that the unit refuses: the configuration asks for what it does not have.
    pub(super) fn start(
        (ctl, caps): (Ctl, Capabilities),
        core_bus_ratio: u8,
        state: ProcessorState,
        ip: Option<Ip>,
        buffer: &mut Buffer,
    ) -> Result<Self, Fault> {
        let unit = Unit::new(caps, state.into());
        let mut this = Self { unit, ctl };
        let ratio = Event::Frequency {
            stopped_at: None,
            ratio: core_bus_ratio,
        };
        this.unit.event(buffer, ratio);
        this.write(buffer, ip, msr::IA32_RTIT_OUTPUT_MASK_PTRS, REGION_MASK)?;
        this.write(buffer, ip, msr::IA32_RTIT_CTL, ctl.with_trace_en(true).0)?;
        Ok(this)
    }

    fn write(
        &mut self,
        buffer: &mut Buffer,
        ip: Option<Ip>,
        register: u32,
        value: u64,
    ) -> Result<(), Fault> {
        let ip = ip.unwrap_or(KERNEL);
        self.unit
            .wrmsr(buffer, At { ip, next: ip }, register, value)
    }

    /// Sets or clears TraceEn; the rest of the register has been accepted before, so this cannot fault.
    pub(super) fn set_tracing(&mut self, buffer: &mut Buffer, on: bool, ip: Option<Ip>) {
        let value = self.ctl.with_trace_en(on).0;
        let result = self.write(buffer, ip, msr::IA32_RTIT_CTL, value);
        debug_assert_eq!(result, Ok(()), "the register took this value at the start");
    }

    /// TraceEn is clear, and what happened since is not known. When it is set again a PSB comes first, as CR3 may have changed, of
    /// which PSB+ tells.
    pub(super) fn forget(&mut self, buffer: &mut Buffer) {
        let result = self.write(buffer, None, msr::IA32_RTIT_STATUS, 0);
        debug_assert_eq!(result, Ok(()), "TraceEn is clear");
    }

    pub(super) fn retire(&mut self, buffer: &mut Buffer, retired: Retired) {
        self.unit.retire(buffer, retired);
    }

    /// These blocks ran; `clock` goes on with them.
    pub(super) fn ran(
        &mut self,
        buffer: &mut Buffer,
        clock: &mut VirtualClock,
        runs: &mut Runs<'_>,
    ) {
        let mut now = *clock;
        let mut unit = self.unit.gather(now.0);
        loop {
            let most = now.instructions_until(unit.until());
            let mut quick = Quick {
                unit: &mut unit,
                left: most,
                ran: buffer.seals.ran,
            };
            runs.take_quickly(&mut quick);
            let Quick { left, ran, .. } = quick;
            if left < most {
                now.ticks(most - left);
                buffer.clock = now.0;
            }
            buffer.seals.ran = ran;
            let Some(run) = runs.next() else { break };
            now.ticks(run.instructions());
            buffer.seals.add(&run.checksum());
            buffer.clock = now.0;
            let at = At {
                ip: run.last(),
                next: run.after(),
            };
            unit.retire(buffer, retired(run.class(), at, run.next));
        }
        drop(unit);
        *clock = now;
    }

    /// Control goes to `to`, where `state` holds already.
    pub(super) fn transfer(
        &mut self,
        buffer: &mut Buffer,
        how: Transfer,
        to: Ip,
        state: ProcessorState,
    ) {
        let to = Destination {
            ip: to,
            context: state.into(),
        };
        let event = match how {
            // The vector is told by Event Trace only, which is not recorded.
            Transfer::Event(from) | Transfer::Software(At { ip: from, .. }) => Event::Interrupt {
                from,
                vector: 0,
                page_fault: None,
                to,
            },
            Transfer::Branch(at) => Event::FarBranch { at, to },
        };
        self.unit.event(buffer, event);
    }

    pub(super) fn mov_cr3(&mut self, buffer: &mut Buffer, at: At, cr3: u64) {
        self.unit.event(buffer, Event::MovCr3 { at, cr3 });
    }

    pub(super) fn tell_time(&mut self, buffer: &mut Buffer) {
        self.unit.event(buffer, Event::ClocksResumed);
    }

    pub(super) const fn packet_en(&self) -> bool {
        self.unit.packet_en()
    }
}
