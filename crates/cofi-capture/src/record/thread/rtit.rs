//! A thread's trace unit: RTIT.

use super::buffer::Buffer;
use super::{KERNEL, Transfer, VirtualClock, retired};
use crate::{ProcessorState, Runs};
use cofi_packet::Ip;
use cofi_unit::rtit::{Context, Ctl, Destination, Event, Unit, msr};
use cofi_unit::{At, Fault, Retired};

/// The output region that the unit is given: as much as there can be, written round and round.
const LIMIT_MASK: u64 = 0x3f_ffff;
/// RTIT_EVENTS: FilterEn is always set, nothing stops tracing (Table 7).
const EVENTS: u64 = 0b110_111;

impl From<ProcessorState> for Context {
    fn from(state: ProcessorState) -> Self {
        Self {
            cpl: state.cpl,
            cr3: state.cr3,
            paging: true,
        }
    }
}

/// The unit, and its configuration without Trace_En and TraceActive.
#[derive(Debug)]
pub(super) struct Rtit {
    unit: Unit,
    ctl: Ctl,
    core_bus_ratio: u8,
}

impl Rtit {
    /// A unit that traces from now on.
    ///
    /// # Errors
    /// The #GP of the first register write that the unit refuses.
    pub(super) fn start(
        (ctl, pkt_cnt): (Ctl, u64),
        core_bus_ratio: u8,
        state: ProcessorState,
        ip: Option<Ip>,
        buffer: &mut Buffer,
    ) -> Result<Self, Fault> {
        let unit = Unit::new(state.into());
        let mut this = Self {
            unit,
            ctl,
            core_bus_ratio,
        };
        // Nothing else may be accessed before this register was read (3.3.1).
        this.unit.rdmsr(msr::RTIT_CTL)?;
        this.write(buffer, ip, msr::RTIT_LIMIT_MASK, LIMIT_MASK)?;
        this.write(buffer, ip, msr::RTIT_EVENTS, EVENTS)?;
        this.write(buffer, ip, msr::RTIT_PKT_CNT, pkt_cnt)?;
        let enabled = ctl.with_trace_en(true);
        this.write(buffer, ip, msr::RTIT_CTL, enabled.0)?;
        this.write(buffer, ip, msr::RTIT_CTL, enabled.with_trace_active(true).0)?;
        this.tell_time(buffer);
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

    /// Lets ContextEn become 1 or 0 by the bits that choose privilege levels: only so does a FUP.PGD tell where tracing ends, which one
    /// for TriggerEn need not do (4.2.8).
    pub(super) fn set_tracing(&mut self, buffer: &mut Buffer, on: bool, ip: Option<Ip>) {
        let ctl = self.ctl.with_trace_en(true).with_trace_active(true);
        let ctl = if on {
            ctl
        } else {
            ctl.with_os(false).with_user(false)
        };
        let result = self.write(buffer, ip, msr::RTIT_CTL, ctl.0);
        debug_assert_eq!(result, Ok(()), "the register took these bits at the start");
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
        for run in runs.by_ref() {
            clock.ticks(run.instructions());
            buffer.clock = clock.0;
            let at = At {
                ip: run.last(),
                next: run.after(),
            };
            self.unit.retire(buffer, retired(run.class(), at, run.next));
        }
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
            // The address behind a software interrupt, which is a trap (Table 1).
            Transfer::Event(from) | Transfer::Software(At { next: from, .. }) => {
                Event::Interrupt { from, to }
            }
            // How many prefixes there are matters for an erratum only, which the unit does not have.
            Transfer::Branch(at) => Event::FarBranch {
                at,
                to,
                prefixes: 0,
            },
        };
        self.unit.event(buffer, event);
    }

    pub(super) fn mov_cr3(&mut self, buffer: &mut Buffer, at: At, cr3: u64) {
        self.unit.event(buffer, Event::MovCr3 { at, cr3 });
    }

    /// Sends an STS packet: the frequency has changed, to what it was before.
    pub(super) fn tell_time(&mut self, buffer: &mut Buffer) {
        let ratio = self.core_bus_ratio;
        let event = Event::Frequency {
            actual: ratio,
            effective: ratio,
        };
        self.unit.event(buffer, event);
    }

    pub(super) const fn packet_en(&self) -> bool {
        self.unit.packet_en()
    }
}
