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
        // The time comes before what needs it to find its code.
        let idle = ctl.with_trace_en(true).with_os(false).with_user(false);
        this.write(buffer, ip, msr::RTIT_CTL, idle.0)?;
        this.write(buffer, ip, msr::RTIT_CTL, idle.with_trace_active(true).0)?;
        this.tell_time(buffer);
        this.set_tracing(buffer, true, ip);
        this.tell_time_late(buffer);
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
            buffer.seals.add(&run.checksum());
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

    /// As [`Self::tell_time`], where no time is told outside of what is traced.
    pub(super) fn tell_time_late(&mut self, buffer: &mut Buffer) {
        if self.ctl.less_pkts() {
            self.tell_time(buffer);
        }
    }

    pub(super) const fn packet_en(&self) -> bool {
        self.unit.packet_en()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Setup, Thread};
    use super::*;
    use crate::Entry;
    use crate::record::Settings;
    use cofi_insn::{Class, Insn};
    use cofi_packet::{ExecMode, Listing, rtit};
    use cofi_perf::{RtitConfig, Subject};

    fn thread(config: RtitConfig) -> Thread {
        let settings = Settings {
            file: std::path::PathBuf::new(),
            raw_output: None,
            config: config.into(),
            command_line: Vec::new(),
            subject: Subject::Processes,
            engine: "ptrace".into(),
            patience: Settings::PATIENCE,
            last: None,
            window: None,
        };
        let setup: Setup = settings.setup();
        Thread::start((1, 1, 0, 0), setup, VirtualClock::new()).expect("the unit takes it")
    }

    fn insn(class: Class, len: u8) -> Insn {
        Insn {
            class,
            len,
            target: None,
            repeats: false,
            digest: 0,
        }
    }

    fn packets(bytes: &[u8]) -> Vec<String> {
        let mut listing = Listing::<rtit::Rtit>::new();
        rtit::Packets::new(bytes)
            .map(|item| listing.next(&item.expect("a packet").raw).to_string())
            .collect()
    }

    #[test]
    fn places_of_changes_and_of_software_interrupts_are_told() {
        let mut thread = thread({
            let mut config = RtitConfig::default();
            config.sts = false;
            config.mtc = false;
            config
        });
        let mut clock = VirtualClock::new();
        clock.pause();
        thread.resume_user(clock, Ip(0x1000), ExecMode::Bits64);
        // A taken branch, which is told before its place is left.
        thread.retired(clock, Ip(0x1000), &insn(Class::Conditional, 2), Ip(0x1010));
        thread.mark_begin(clock);
        clock.pause();
        thread.mark_end(clock);
        let entry = Entry::SoftwareInterrupt {
            ip: Ip(0x1010),
            insn: insn(Class::SoftwareInterrupt, 1),
        };
        thread.enter_kernel(clock, entry);
        // A fault is at the instruction itself.
        thread.resume_user(clock, Ip(0x1011), ExecMode::Bits64);
        thread.enter_kernel(clock, Entry::Event { from: Ip(0x1011) });
        thread.stop(clock);
        let wanted = [
            "psb",
            "fup.pge 0x1000",
            "tnt T",
            "fup.pgd 0x1010",
            "fup.pge 0x1010",
            "fup.pgd 0x1011",
            "fup.pge 0x1011",
            "fup.pgd 0x1011",
        ];
        assert_eq!(packets(&thread.buffer.bytes), wanted);
    }

    #[test]
    fn streams_are_cut_at_psbs_wherever_lines_end() {
        let mut thread = thread({
            let mut config = RtitConfig::default();
            config.psb_period = 0;
            config
        });
        let mut clock = VirtualClock::new();
        thread.resume_user(clock, Ip(0x1000), ExecMode::Bits64);
        let jump = insn(Class::IndirectJump, 2);
        let mut taken = Vec::new();
        for round in 0..20_000_u64 {
            clock.tick();
            // Packets of several sizes, so that PSBs come to stand everywhere in a line.
            let to = Ip(0x1000 + (round % 3) * 0x1_0000_0000);
            let from = thread.ip.expect("in user space");
            thread.retired(clock, from, &jump, to);
            if thread.waiting() > 10_000
                && let Some(chunk) = thread.take(false)
            {
                assert_eq!(chunk.offset.0, taken.len() as u64);
                assert!(chunk.bytes.starts_with(&rtit::PSB));
                taken.extend(chunk.bytes);
            }
        }
        assert!(taken.len() > 40_000, "{}", taken.len());
        taken.extend(thread.take(true).expect("the rest").bytes);
        let psbs = packets(&taken).iter().filter(|text| *text == "psb").count();
        assert!(psbs > 20, "{psbs}");
    }
}
