//! The operations of a scenario: each is read from its table and done to the unit at once.

use super::values::{patched, remember};
use super::world::World;
use crate::unit::play::Machine;
use crate::unit::reader::{Read, Table};
use crate::unit::record::{Note, Record};
use crate::unit::values::{at, clock, flag, ip_or, later, need_ip};
use cofi_packet::Ip;
use cofi_packet::intel::{IntelPt, ItemSize, Kind, Payload};
use cofi_unit::spec::{Ctl, Status, msr};
use cofi_unit::{
    At, Client, Context, Destination, Event, Fault, PhysAddr, Ptwrite, Retired, Rsm,
    TransitionError, Unit, XsaveArea,
};

/// So many operational errors are explained.
const MOST_EXPLAINED: usize = 100;

/// VMX operation, as far as the scenario has told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Vmx {
    /// Outside VMX operation: no VMXON came.
    Off,
    Root,
    NonRoot,
}

/// A scenario under way.
pub(super) struct Run {
    pub(super) unit: Unit,
    pub(super) world: World,
    pub(super) context: Context,
    /// Where the next operation happens if it does not say.
    pub(super) ip: Ip,
    /// What XSAVES saved last.
    saved: Option<XsaveArea>,
    /// Stopped or Error was set when last looked at.
    has_ended: bool,
    /// In SMM, by an SMI.
    in_smm: bool,
    /// In a C-state.
    asleep: bool,
    /// Behind an INIT, until SIPI.
    waits_for_sipi: bool,
    pub(super) vmx: Vmx,
}

impl Run {
    pub(super) fn new(unit: Unit, world: World, context: Context, ip: Ip) -> Self {
        Self {
            unit,
            world,
            context,
            ip,
            saved: None,
            has_ended: false,
            in_smm: false,
            asleep: false,
            waits_for_sipi: false,
            vmx: Vmx::Off,
        }
    }

    pub(super) fn at(&self, op: &Table<'_>) -> Read<At> {
        at(op, self.ip)
    }

    pub(super) fn from(&self, op: &Table<'_>) -> Read<Ip> {
        ip_or(op, "from", self.ip)
    }

    /// The keys `to` and `context`.
    pub(super) fn to(&self, op: &Table<'_>) -> Read<Destination> {
        Ok(Destination {
            ip: need_ip(op, "to")?,
            context: self.after(op)?,
        })
    }

    /// The context that holds after an operation.
    pub(super) fn after(&self, op: &Table<'_>) -> Read<Context> {
        match op.get("context") {
            Some(field) => patched(self.context, &field),
            None => Ok(self.context),
        }
    }

    pub(super) fn go(&mut self, to: Destination) {
        self.ip = to.ip;
        self.context = to.context;
    }

    /// Error was set (33.3.10): what of the output registers is wrong.
    fn explain_error(&mut self) {
        let read = |msr| self.unit.rdmsr(msr).unwrap_or(0);
        let ctl = Ctl(read(msr::IA32_RTIT_CTL));
        let base = read(msr::IA32_RTIT_OUTPUT_BASE);
        let pointers = read(msr::IA32_RTIT_OUTPUT_MASK_PTRS);
        let (offset, mask) = (pointers >> 32, pointers & 0xffff_ffff);
        let why = if ctl.topa() {
            if base & 0xfff != 0 {
                format!(
                    "OUTPUT_BASE {base:#x} is where a ToPA table begins, and no multiple of 4096 (33.2.7.2)"
                )
            } else {
                let entry = base.wrapping_add((mask >> 7) << 3);
                let value = self.world.load(PhysAddr(entry));
                format!(
                    "look at the ToPA entry at {entry:#x}, which is {value:#x}, and at the output offset {offset:#x} (33.2.7.2)"
                )
            }
        } else if mask & (mask + 1) != 0 {
            format!("the mask {mask:#x} in OUTPUT_MASK_PTRS is not contiguous (33.2.7.1)")
        } else if base & mask != 0 {
            let size = mask + 1;
            format!(
                "OUTPUT_BASE {base:#x} is no multiple of {size:#x}, the size of the range by the mask in OUTPUT_MASK_PTRS (33.2.7.1)"
            )
        } else {
            format!(
                "the output offset {offset:#x} is beyond the mask {mask:#x} in OUTPUT_MASK_PTRS (33.2.7.1)"
            )
        };
        let record = &mut self.world.record;
        if record.errors.len() < MOST_EXPLAINED {
            let place = match record.op {
                0 => "[start]".to_owned(),
                op => format!("operation {op}"),
            };
            let error =
                format!("{place}: IA32_RTIT_STATUS.Error is set, and nothing is traced: {why}");
            record.errors.push(error);
        }
    }

    fn fault(&mut self, fault: Fault) {
        self.world.record.mark(Note::fault(fault));
    }

    pub(super) fn transition_error(&mut self, error: TransitionError) {
        let name = match error {
            TransitionError::MsrLoad { .. } => "#GP",
            _ => "vm-entry",
        };
        let rule = error.to_string();
        self.world.record.mark(Note::Fault { name, rule });
    }

    fn ptwrite(&mut self, op: &Table<'_>) -> Read<()> {
        let at = self.at(op)?;
        let size = item_size(op)?;
        let operand = Payload::truncate(size, op.need("value")?.number()?);
        let ptwrite = Ptwrite { at, operand };
        match self.unit.ptwrite(&mut self.world, ptwrite) {
            Ok(()) => self.ip = at.next,
            Err(fault) => self.fault(fault),
        }
        Ok(())
    }

    /// No processor does the operation here.
    pub(super) fn impossible<T>(op: &Table<'_>, why: &str) -> Read<T> {
        Err(op.need("op")?.mistake(format!("impossible here: {why}")))
    }

    /// Refuses what no processor does after what the scenario has done.
    fn check_possible(&self, word: &str, op: &Table<'_>) -> Read<()> {
        let why = match (word, self.vmx) {
            ("rsm", _) if !self.in_smm => "RSM outside SMM is #UD, and no `smi` came before",
            ("smi", _) if self.in_smm => "SMIs are blocked in SMM, until `rsm`",
            ("vm_entry" | "vmxon" | "vmxoff" | "vmptrld" | "vmclear", Vmx::NonRoot) => {
                "in VMX non-root operation this instruction makes a `vm_exit`"
            }
            ("vm_entry", Vmx::Off) => {
                "outside VMX operation VMLAUNCH and VMRESUME are #UD, and no `vmxon` came before"
            }
            ("wake", _) if !self.asleep => {
                "the processor is awake, as no `sleep` came before, or a `wake` since"
            }
            ("sipi", _) if !self.waits_for_sipi => {
                "the processor does not wait for SIPI, as no `init_to_wait` came before, or a `sipi` since"
            }
            ("transaction_commit", _) if !self.context.in_tx => {
                "outside a transaction XEND is #GP, and no `transaction_begin` came before"
            }
            ("transaction_abort", _) if !self.context.in_tx => {
                "outside a transaction nothing aborts, and no `transaction_begin` came before"
            }
            _ => return Ok(()),
        };
        Self::impossible(op, why)
    }

    fn rsm(&mut self, op: &Table<'_>) -> Read<()> {
        let rsm = Rsm {
            to: self.to(op)?,
            trace_en: flag(op, "trace_en")?,
            lbr: flag(op, "lbr")?,
        };
        match self.unit.rsm(&mut self.world, rsm) {
            Ok(()) => {
                self.in_smm = false;
                self.go(rsm.to);
            }
            Err(fault) => self.fault(fault),
        }
        Ok(())
    }
}

impl Machine for Run {
    type Format = IntelPt;

    fn record(&mut self) -> &mut Record<IntelPt> {
        &mut self.world.record
    }
    fn ip(&mut self) -> &mut Ip {
        &mut self.ip
    }

    fn prepare(&mut self, op: &Table<'_>) -> Read<()> {
        self.world.packet_times.clear();
        if let Some(field) = op.get("packet_times") {
            for field in field.table()?.all() {
                let kind = Kind::ALL.iter().find(|kind| kind.name() == field.key);
                let Some(&kind) = kind else {
                    return Err(field.mistake("there is no packet of this name"));
                };
                let table = field.table()?;
                let time = later(self.world.record.clock, clock(&table)?);
                table.finish()?;
                self.world.packet_times.push((kind, time));
            }
        }
        Ok(())
    }

    fn operate(&mut self, word: &str, op: &Table<'_>) -> Read<bool> {
        self.check_possible(word, op)?;
        match word {
            "xsaves" => {
                let at = self.at(op)?;
                self.saved = Some(self.unit.xsaves(&mut self.world, at));
                self.ip = at.next;
            }
            "xrstors" => {
                let at = self.at(op)?;
                let initial = flag(op, "initial")?;
                let area = self.saved.filter(|_| !initial);
                match self.unit.xrstors(&mut self.world, at, area.as_ref()) {
                    Ok(()) => self.ip = at.next,
                    Err(fault) => self.fault(fault),
                }
            }
            "ptwrite" => self.ptwrite(op)?,
            "vm_entry" => self.vm_entry(op)?,
            "vm_exit" => self.vm_exit(op)?,
            "rsm" => self.rsm(op)?,
            "pebs" => self.pebs(op)?,
            "reset" => {
                let warm = flag(op, "warm")?;
                self.context = self.after(op)?;
                self.ip = ip_or(op, "ip", self.ip)?;
                self.unit.reset(warm, self.context);
                (self.in_smm, self.vmx) = (false, Vmx::Off);
                (self.asleep, self.waits_for_sipi) = (false, false);
            }
            "clock" => {
                self.unit.clock(&mut self.world);
            }
            "drain" => {
                let bytes = match op.get("bytes") {
                    Some(field) => field.number()?,
                    None => usize::MAX,
                };
                self.unit.drain(&mut self.world, bytes);
            }
            "memory" => remember(&mut self.world, op)?,
            _ => match self.event(word, op)? {
                Some((event, then)) => {
                    match event {
                        Event::Smi { .. } => self.in_smm = true,
                        Event::Vmxon { .. } => self.vmx = Vmx::Root,
                        Event::Vmxoff { .. } => self.vmx = Vmx::Off,
                        Event::Sleep(_) => self.asleep = true,
                        Event::Wake { .. } => self.asleep = false,
                        Event::InitToWait { .. } => self.waits_for_sipi = true,
                        Event::Init { .. } | Event::Sipi { .. } => self.waits_for_sipi = false,
                        _ => {}
                    }
                    self.unit.event(&mut self.world, event);
                    self.go(then);
                }
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    fn conclude(&mut self) {
        let status = self.unit.rdmsr(msr::IA32_RTIT_STATUS).map(Status);
        let has_ended = status.is_ok_and(|status| status.stopped() || status.error());
        // After a TraceStop the internal buffer drains on; a STOP and an error lose it.
        if has_ended && !self.has_ended && self.unit.buffered() == 0 {
            self.world.record.cut();
            if status.is_ok_and(Status::error) {
                self.explain_error();
            }
        }
        self.has_ended = has_ended;
    }

    fn retire(&mut self, insn: Retired) {
        self.unit.retire(&mut self.world, insn);
    }
    fn rdmsr(&mut self, msr: u32) -> Result<u64, Fault> {
        self.unit.rdmsr(msr)
    }
    fn wrmsr(&mut self, at: At, msr: u32, value: u64) -> Result<(), Fault> {
        self.unit.wrmsr(&mut self.world, at, msr, value)
    }
}

/// The key `size`: 8 if it is left out.
pub(super) fn item_size(op: &Table<'_>) -> Read<ItemSize> {
    match op.get("size") {
        None => Ok(ItemSize::Eight),
        Some(field) => match field.number::<u64>()? {
            4 => Ok(ItemSize::Four),
            8 => Ok(ItemSize::Eight),
            _ => Err(field.mistake("expected 4 or 8")),
        },
    }
}
