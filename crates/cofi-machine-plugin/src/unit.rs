//! A processor's trace unit: Intel PT's, or RTIT's, which is told the same things.

use crate::bus::Bus;
use crate::options::{Family, Options};
use cofi_packet::Ip;
use cofi_packet::intel::CState;
use cofi_unit::{
    At, Capabilities, Context, Ctl, Destination, Event, Fault, Ptwrite, Retired, Rsm, rtit,
};

/// Of RTIT's processors nothing is enumerated.
static NONE: Capabilities = Capabilities::NONE;

/// Core clock divided by bus clock: the ratio of RTIT's STS packets.
const CORE_BUS_RATIO: u8 = 16;

/// The unit.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one for each processor, and each block asks it"
)]
pub(crate) enum TraceUnit {
    IntelPt(cofi_unit::Unit),
    Rtit(Rtit),
}

/// RTIT's unit, and what the plugin must know beside.
#[derive(Debug)]
pub(crate) struct Rtit {
    unit: rtit::Unit,
    /// The processor's state as Intel PT's unit would know it: how code is read, for one.
    context: Context,
    /// CR0.PG.
    paging: bool,
}

impl Rtit {
    const fn told(&self, context: Context) -> rtit::Context {
        rtit::Context {
            cpl: context.cpl,
            cr3: context.cr3,
            paging: self.paging,
        }
    }

    /// (Apart, so that Intel PT's stands alone where each block comes by.)
    #[inline(never)]
    fn retire(&mut self, bus: &mut Bus, retired: Retired) {
        self.unit.retire(bus, retired);
    }

    const fn arrive(&mut self, to: Destination) -> rtit::Destination {
        self.context = to.context;
        rtit::Destination {
            ip: to.ip,
            context: self.told(to.context),
        }
    }

    fn event(&mut self, bus: &mut Bus, event: Event<'_>, prefixes: u8) {
        let event = match event {
            Event::FarBranch { at, to } | Event::Iret { at, to } => {
                let to = self.arrive(to);
                rtit::Event::FarBranch { at, to, prefixes }
            }
            Event::Interrupt { from, to, .. } => {
                let to = self.arrive(to);
                rtit::Event::Interrupt { from, to }
            }
            Event::MovCr3 { at, cr3 } => {
                self.context.cr3 = cr3;
                rtit::Event::MovCr3 { at, cr3 }
            }
            Event::Sleep(sleep) => rtit::Event::Sleep(match sleep.state {
                CState::C1 => rtit::SleepState::C1,
                CState::C2 => rtit::SleepState::C2,
                CState::C3 | CState::C4 | CState::C5 => rtit::SleepState::C4,
                _ => rtit::SleepState::C6,
            }),
            Event::Wake { .. } => rtit::Event::Wake,
            // Nothing else happens in such a machine, or concerns RTIT.
            _ => return,
        };
        self.unit.event(bus, event);
    }
}

impl TraceUnit {
    /// A unit after a reset.
    pub(crate) fn new(options: &Options) -> Self {
        let context = Context::default();
        match options.family {
            Family::IntelPt(choices) => {
                Self::IntelPt(cofi_unit::Unit::with(options.caps, choices, context))
            }
            Family::Rtit(choices) => Self::Rtit(Rtit {
                unit: rtit::Unit::with(choices, rtit::Context::default()),
                context,
                paging: false,
            }),
        }
    }

    /// Whether it is RTIT's.
    pub(crate) const fn is_rtit(&self) -> bool {
        matches!(self, Self::Rtit(_))
    }

    /// Whether TraceEn (RTIT's Trace_En) is set.
    #[inline]
    pub(crate) fn in_use(&self) -> bool {
        match self {
            Self::IntelPt(unit) => unit.in_use(),
            Self::Rtit(rtit) => rtit.unit.in_use(),
        }
    }

    /// PacketEn.
    #[inline]
    pub(crate) fn packet_en(&self) -> bool {
        match self {
            Self::IntelPt(unit) => unit.packet_en(),
            Self::Rtit(rtit) => rtit.unit.packet_en(),
        }
    }

    /// The processor's state, as last told.
    #[inline]
    pub(crate) fn context(&self) -> &Context {
        match self {
            Self::IntelPt(unit) => unit.context(),
            Self::Rtit(rtit) => &rtit.context,
        }
    }

    /// What CPUID tells.
    #[inline]
    pub(crate) fn capabilities(&self) -> &Capabilities {
        match self {
            Self::IntelPt(unit) => unit.capabilities(),
            Self::Rtit(_) => &NONE,
        }
    }

    /// Whether nothing but time can come of instructions that are no branches, as no range of addresses is configured.
    pub(crate) fn is_unfiltered(&mut self) -> bool {
        /// ADDR0_CFG to ADDR3_CFG of IA32_RTIT_CTL.
        const ADDRESS_RANGES: u64 = 0xffff << 32;
        match self {
            Self::IntelPt(unit) => {
                let ctl = unit.rdmsr(cofi_unit::msr::IA32_RTIT_CTL).unwrap_or(!0);
                ctl & ADDRESS_RANGES == 0
            }
            // (What reads it has written a register, so they are unlocked.)
            Self::Rtit(rtit) => {
                let events = rtit.unit.rdmsr(rtit::msr::RTIT_EVENTS).unwrap_or(0);
                let events = rtit::Events(events);
                events.filter() == rtit::Events::ALWAYS_ON
                    && events.trace_stop() == rtit::Events::ALWAYS_OFF
            }
        }
    }

    /// A warm reset.
    pub(crate) fn reset(&mut self, context: Context) {
        match self {
            Self::IntelPt(unit) => unit.reset(true, context),
            Self::Rtit(rtit) => {
                (rtit.context, rtit.paging) = (context, false);
                let told = rtit.told(context);
                rtit.unit.reset(true, told);
            }
        }
    }

    /// Nobody told what happened while TraceEn was 0: the processor is about to run `at`, in this state.
    pub(crate) fn catch_up(&mut self, bus: &mut Bus, at: At, context: Context, paging: bool) {
        if let Self::Rtit(rtit) = self {
            rtit.paging = paging;
            let actual = CORE_BUS_RATIO;
            let event = rtit::Event::Frequency {
                actual,
                effective: actual,
            };
            rtit.unit.event(bus, event);
        }
        let to = Destination { ip: at.ip, context };
        self.event(bus, Event::FarBranch { at, to });
    }

    /// An instruction retired.
    #[inline]
    pub(crate) fn retire(&mut self, bus: &mut Bus, retired: Retired) {
        match self {
            Self::IntelPt(unit) => unit.retire(bus, retired),
            Self::Rtit(rtit) => rtit.retire(bus, retired),
        }
    }

    /// Something happened.
    pub(crate) fn event(&mut self, bus: &mut Bus, event: Event<'_>) {
        self.event_of(bus, event, 0);
    }

    /// As [`Self::event`], of an instruction with so many prefixes.
    pub(crate) fn event_of(&mut self, bus: &mut Bus, event: Event<'_>, prefixes: u8) {
        match self {
            Self::IntelPt(unit) => unit.event(bus, event),
            Self::Rtit(rtit) => rtit.event(bus, event, prefixes),
        }
    }

    /// MOV to CR0 retired.
    pub(crate) fn mov_cr0(&mut self, bus: &mut Bus, retired: Retired, paging: bool) {
        match self {
            Self::IntelPt(unit) => unit.retire(bus, retired),
            Self::Rtit(rtit) => {
                rtit.paging = paging;
                let at = retired.at;
                rtit.unit.event(bus, rtit::Event::MovCr0 { at, paging });
            }
        }
    }

    /// SMI, outside of system management mode: nothing is traced until RSM.
    pub(crate) fn smi(&mut self, bus: &mut Bus, from: Ip, to: Destination) {
        match self {
            Self::IntelPt(unit) => unit.event(bus, Event::Smi { from, to }),
            Self::Rtit(rtit) => {
                rtit.context = to.context;
                rtit.unit.event(bus, rtit::Event::Smi { from });
            }
        }
    }

    /// RSM, at `at`, behind an SMI that came while TraceEn was set. Returns whether TraceEn is set before it, which no handler may do: a processor shuts down
    /// then, and here tracing ends before.
    pub(crate) fn rsm(&mut self, bus: &mut Bus, at: At, to: Destination, paging: bool) -> bool {
        match self {
            Self::IntelPt(unit) => {
                let is_wrong = unit.in_use();
                if is_wrong {
                    let ctl = unit.rdmsr(cofi_unit::msr::IA32_RTIT_CTL).map(Ctl);
                    let ctl = ctl.unwrap_or_default().with_trace_en(false);
                    // Nothing forbids that.
                    let _ = unit.wrmsr(bus, at, cofi_unit::msr::IA32_RTIT_CTL, ctl.0);
                }
                let rsm = Rsm {
                    to,
                    trace_en: true,
                    lbr: false,
                };
                // TraceEn is 0, and there are no LBRs.
                let _ = unit.rsm(bus, rsm);
                is_wrong
            }
            Self::Rtit(rtit) => {
                rtit.paging = paging;
                let to = rtit.arrive(to);
                rtit.unit.event(bus, rtit::Event::Rsm { to });
                false
            }
        }
    }

    /// PTWRITE retired.
    pub(crate) fn ptwrite(&mut self, bus: &mut Bus, insn: Ptwrite) {
        if let Self::IntelPt(unit) = self {
            // It has been asked whether there is PTWRITE.
            let _ = unit.ptwrite(bus, insn);
        }
    }

    /// RDMSR.
    ///
    /// # Errors
    /// #GP.
    pub(crate) fn rdmsr(&mut self, address: u32) -> Result<u64, Fault> {
        match self {
            Self::IntelPt(unit) => unit.rdmsr(address),
            Self::Rtit(rtit) => rtit.unit.rdmsr(address),
        }
    }

    /// WRMSR. Returns whether the instruction itself is one that ran while PacketEn was 1.
    ///
    /// # Errors
    /// #GP.
    pub(crate) fn wrmsr(
        &mut self,
        bus: &mut Bus,
        at: At,
        address: u32,
        value: u64,
    ) -> Result<bool, Fault> {
        let was_traced = self.packet_en();
        match self {
            Self::IntelPt(unit) => {
                unit.wrmsr(bus, at, address, value)?;
                // One that clears TraceEn is none of the trace's: the packets end before it.
                Ok(was_traced && unit.packet_en())
            }
            Self::Rtit(rtit) => {
                rtit.unit.wrmsr(bus, at, address, value)?;
                // FUP.PGD comes behind it.
                Ok(was_traced)
            }
        }
    }
}
