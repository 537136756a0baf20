//! The operations of a scenario: each is read from its table and done to the unit at once.

use super::reader::{Field, Read, Table};
use super::scenario::{changed, clock, patched, register, remember};
use super::world::{MOST_BYTES, Note, World};
use cofi_packet::Ip;
use cofi_packet::intel::{BlockType, CState, ItemSize, Kind, Payload, WakeReason};
use cofi_unit::{
    At, Block, Branch, Clock, Context, Destination, EntryOutcome, Event, Fault, GuestTsc, Mwait,
    Ptwrite, Retired, Rsm, Sleep, SmmExit, SmmReturn, TransitionError, Unit, VmEntry, VmExit,
    XsaveArea,
};

/// A scenario of more operations than these, repetitions counted, is not run to its end.
const MOST_OPERATIONS: u64 = 1_000_000;
/// An operation comes at most so many cycles after the last.
const LONGEST_PAUSE: u64 = 1 << 32;
/// How long an instruction is if nothing is said.
const LENGTH: u64 = 4;

/// A scenario under way.
pub(super) struct Run {
    unit: Unit,
    world: World,
    context: Context,
    /// Where the next operation happens if it does not say.
    ip: Ip,
    /// What XSAVES saved last.
    saved: Option<XsaveArea>,
    /// How many operations have been done.
    done: u64,
}

impl Run {
    pub(super) fn new(unit: Unit, world: World, context: Context, ip: Ip) -> Self {
        Self {
            unit,
            world,
            context,
            ip,
            saved: None,
            done: 0,
        }
    }

    /// What came out.
    pub(super) fn finish(self) -> World {
        self.world
    }

    /// Does the operations of `[[op]]`.
    pub(super) fn list(&mut self, list: &Field<'_>) -> Read<()> {
        for op in list.array()? {
            self.world.op += 1;
            self.operation(&op)?;
        }
        Ok(())
    }

    fn operation(&mut self, op: &Field<'_>) -> Read<()> {
        let mut table = op.table()?;
        let name = table.need("op")?;
        let word = name.text()?;
        table.rename(format!("the operation `{word}`"));
        let times = match table.get("times") {
            Some(field) => field.number_in(1..=MOST_OPERATIONS)?,
            None => 1,
        };
        for _ in 0..times {
            self.done += 1;
            if self.done > MOST_OPERATIONS {
                let what = format!("the scenario has more than {MOST_OPERATIONS} operations");
                return Err(name.mistake(what));
            }
            self.time(&table)?;
            if word == "repeat" {
                for op in table.need("ops")?.array()? {
                    self.operation(&op)?;
                }
            } else {
                self.world.mark(Note::Begin(word.to_owned()));
                self.one(&name, word, &table)?;
            }
            table.finish()?;
            if self.world.is_full {
                let what = format!("the scenario makes more than {MOST_BYTES} bytes of packets");
                return Err(name.mistake(what));
            }
        }
        Ok(())
    }

    /// The clock goes on, as the keys `after` and `time` say.
    fn time(&mut self, op: &Table<'_>) -> Read<()> {
        let now = self.world.clock;
        if let Some(field) = op.get("after") {
            let table = field.table()?;
            let after = clock(&table)?;
            table.finish()?;
            self.world.clock = later(now, after);
        }
        if let Some(field) = op.get("time") {
            let table = field.table()?;
            let mut time = clock(&table)?;
            if table.get("tsc").is_none() {
                time.tsc = self.world.clock.tsc;
            }
            if table.get("cycles").is_none() {
                time.cycles = self.world.clock.cycles;
            }
            table.finish()?;
            if time.tsc < self.world.clock.tsc || time.cycles < self.world.clock.cycles {
                return Err(field.mistake("the clock does not run backwards"));
            }
            self.world.clock = time;
        }
        if self.world.clock.cycles.wrapping_sub(now.cycles) > LONGEST_PAUSE {
            let what = format!("more than {LONGEST_PAUSE} cycles pass before this operation");
            return Err(op.mistake(what));
        }
        self.world.packet_times.clear();
        if let Some(field) = op.get("packet_times") {
            for field in field.table()?.all() {
                let kind = Kind::ALL.iter().find(|kind| kind.name() == field.key);
                let Some(&kind) = kind else {
                    return Err(field.mistake("there is no packet of this name"));
                };
                let table = field.table()?;
                let time = later(self.world.clock, clock(&table)?);
                table.finish()?;
                self.world.packet_times.push((kind, time));
            }
        }
        Ok(())
    }

    /// The keys `ip`, and `next` or `len`.
    fn at(&self, op: &Table<'_>) -> Read<At> {
        let ip = ip_or(op, "ip", self.ip)?;
        let length = match op.get("len") {
            Some(field) => field.number_in(1..=15)?,
            None => LENGTH,
        };
        let next = ip_or(op, "next", ip.wrapping_add(length))?;
        Ok(At { ip, next })
    }

    fn from(&self, op: &Table<'_>) -> Read<Ip> {
        ip_or(op, "from", self.ip)
    }

    /// The keys `to` and `context`.
    fn to(&self, op: &Table<'_>) -> Read<Destination> {
        Ok(Destination {
            ip: need_ip(op, "to")?,
            context: self.after(op)?,
        })
    }

    /// The context that holds after an operation.
    fn after(&self, op: &Table<'_>) -> Read<Context> {
        match op.get("context") {
            Some(field) => patched(self.context, &field),
            None => Ok(self.context),
        }
    }

    fn one(&mut self, name: &Field<'_>, word: &str, op: &Table<'_>) -> Read<()> {
        match word {
            "wrmsr" | "rdmsr" => self.register(word, op),
            "plain" | "jcc" | "jmp" | "call" | "jmp_indirect" | "call_indirect" | "ret" => {
                self.retire(word, op)
            }
            "xsaves" => {
                let at = self.at(op)?;
                self.saved = Some(self.unit.xsaves(&mut self.world, at));
                self.ip = at.next;
                Ok(())
            }
            "xrstors" => {
                let at = self.at(op)?;
                let initial = flag(op, "initial")?;
                let area = self.saved.filter(|_| !initial);
                match self.unit.xrstors(&mut self.world, at, area.as_ref()) {
                    Ok(()) => self.ip = at.next,
                    Err(fault) => self.fault(fault),
                }
                Ok(())
            }
            "ptwrite" => self.ptwrite(op),
            "vm_entry" => self.vm_entry(op),
            "vm_exit" => self.vm_exit(op),
            "rsm" => self.rsm(op),
            "pebs" => self.pebs(op),
            "reset" => {
                let warm = flag(op, "warm")?;
                self.context = self.after(op)?;
                self.ip = ip_or(op, "ip", self.ip)?;
                self.unit.reset(warm, self.context);
                Ok(())
            }
            "clock" => {
                self.unit.clock(&mut self.world);
                Ok(())
            }
            "drain" => {
                let bytes = match op.get("bytes") {
                    Some(field) => field.number()?,
                    None => usize::MAX,
                };
                self.unit.drain(&mut self.world, bytes);
                Ok(())
            }
            "memory" => remember(&mut self.world, op),
            _ => match self.event(word, op)? {
                Some((event, then)) => {
                    self.unit.event(&mut self.world, event);
                    self.go(then);
                    Ok(())
                }
                None => Err(name.mistake(format!("there is no operation {word:?}"))),
            },
        }
    }

    fn go(&mut self, to: Destination) {
        self.ip = to.ip;
        self.context = to.context;
    }

    fn register(&mut self, word: &str, op: &Table<'_>) -> Read<()> {
        let msr = register(&op.need("msr")?)?;
        if word == "rdmsr" {
            match self.unit.rdmsr(msr) {
                Ok(value) => self.world.mark(Note::Read { msr, value }),
                Err(fault) => self.fault(fault),
            }
            return Ok(());
        }
        let at = self.at(op)?;
        let value = match op.get("set") {
            Some(field) => {
                let old = self.unit.rdmsr(msr).unwrap_or(0);
                changed(msr, old, &field.table()?)?
            }
            None => op.need("value")?.number()?,
        };
        match self.unit.wrmsr(&mut self.world, at, msr, value) {
            Ok(()) => self.ip = at.next,
            Err(fault) => self.fault(fault),
        }
        Ok(())
    }

    fn fault(&mut self, fault: Fault) {
        let (name, rule) = match fault {
            Fault::GeneralProtection { rule, .. } => ("#GP", rule),
            Fault::InvalidOpcode { rule } => ("#UD", rule),
            Fault::Shutdown { rule } => ("shutdown", rule),
            _ => ("fault", ""),
        };
        let rule = rule.to_owned();
        self.world.mark(Note::Fault { name, rule });
    }

    fn transition_error(&mut self, error: TransitionError) {
        let name = match error {
            TransitionError::MsrLoad { .. } => "#GP",
            _ => "vm-entry",
        };
        let rule = error.to_string();
        self.world.mark(Note::Fault { name, rule });
    }

    fn retire(&mut self, word: &str, op: &Table<'_>) -> Read<()> {
        let at = self.at(op)?;
        let branch = match word {
            "plain" => Branch::None,
            "jcc" => Branch::Conditional(get_ip(op, "to")?),
            "jmp" => Branch::DirectJump(need_ip(op, "to")?),
            "call" => Branch::DirectCall(need_ip(op, "to")?),
            "jmp_indirect" => Branch::IndirectJump(need_ip(op, "to")?),
            "call_indirect" => Branch::IndirectCall(need_ip(op, "to")?),
            _ => Branch::Return(need_ip(op, "to")?),
        };
        let insn = Retired { at, branch };
        self.unit.retire(&mut self.world, insn);
        self.ip = insn.destination();
        Ok(())
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

    fn rsm(&mut self, op: &Table<'_>) -> Read<()> {
        let rsm = Rsm {
            to: self.to(op)?,
            trace_en: flag(op, "trace_en")?,
            lbr: flag(op, "lbr")?,
        };
        match self.unit.rsm(&mut self.world, rsm) {
            Ok(()) => self.go(rsm.to),
            Err(fault) => self.fault(fault),
        }
        Ok(())
    }

    fn vm_entry(&mut self, op: &Table<'_>) -> Read<()> {
        let at = self.at(op)?;
        let to = self.to(op)?;
        let mut then = to;
        let outcome = match op.get("outcome") {
            None => EntryOutcome::Success,
            Some(field) => {
                match field.choice(&[("success", 0), ("early failure", 1), ("late failure", 2)])? {
                    0 => EntryOutcome::Success,
                    1 => {
                        then = Destination {
                            ip: at.next,
                            context: self.context,
                        };
                        EntryOutcome::EarlyFailure
                    }
                    _ => {
                        let table = op.need("host")?.table()?;
                        let host = self.to(&table)?;
                        table.finish()?;
                        then = host;
                        EntryOutcome::LateFailure { host }
                    }
                }
            }
        };
        let tsc = match op.get("guest_tsc") {
            Some(field) => {
                let table = field.table()?;
                let mut tsc = GuestTsc::default();
                if let Some(field) = table.get("multiplier") {
                    tsc.multiplier = field.number()?;
                }
                if let Some(field) = table.get("offset") {
                    tsc.offset = field.number()?;
                }
                table.finish()?;
                tsc
            }
            None => GuestTsc::default(),
        };
        let from_smm = match op.get("from_smm") {
            Some(field) => {
                let table = field.table()?;
                let smm = SmmReturn {
                    vmcs: table.need("vmcs")?.number()?,
                    to_root: flag(&table, "to_root")?,
                };
                table.finish()?;
                Some(smm)
            }
            None => None,
        };
        let loads = loads(op)?;
        let entry = VmEntry {
            at,
            to,
            conceal: flag(op, "conceal")?,
            conceal_guest: flag(op, "conceal_guest")?,
            tsc,
            load_ctl: match op.get("load_ctl") {
                Some(field) => Some(field.number()?),
                None => None,
            },
            loads: &loads,
            from_smm,
            outcome,
        };
        match self.unit.vm_entry(&mut self.world, &entry) {
            Ok(()) => self.go(then),
            Err(error) => self.transition_error(error),
        }
        Ok(())
    }

    fn vm_exit(&mut self, op: &Table<'_>) -> Read<()> {
        let to = self.to(op)?;
        let number = |key| match op.get(key) {
            Some(field) => field.number(),
            None => Ok(0),
        };
        let to_smm = match op.get("to_smm") {
            Some(field) => {
                let table = field.table()?;
                let smm = SmmExit {
                    vmcs: table.need("vmcs")?.number()?,
                    smi: flag(&table, "smi")?,
                };
                table.finish()?;
                Some(smm)
            }
            None => None,
        };
        let loads = loads(op)?;
        let exit = VmExit {
            from: self.from(op)?,
            to,
            conceal: flag(op, "conceal")?,
            reason: number("reason")?,
            qualification: number("qualification")?,
            vector: match op.get("vector") {
                Some(field) => Some(field.number()?),
                None => None,
            },
            clear_ctl: flag(op, "clear_ctl")?,
            loads: &loads,
            to_smm,
            abort: flag(op, "abort")?,
        };
        match self.unit.vm_exit(&mut self.world, &exit) {
            Ok(()) => self.go(to),
            Err(error) => self.transition_error(error),
        }
        Ok(())
    }

    fn pebs(&mut self, op: &Table<'_>) -> Read<()> {
        let ip = ip_or(op, "ip", self.ip)?;
        let mut groups = Vec::new();
        for field in op.need("blocks")?.array()? {
            let table = field.table()?;
            let kind = named(
                &table.need("type")?,
                BlockType::NAMED,
                BlockType::name,
                BlockType::new,
            )?;
            let size = item_size(&table)?;
            let mut items = Vec::new();
            for item in table.need("items")?.array()? {
                let [id, value] = item.members()?;
                items.push((id.number_in(0..=31)? as u8, value.number()?));
            }
            table.finish()?;
            groups.push((kind, size, items));
        }
        let blocks: Vec<_> = groups
            .iter()
            .map(|(kind, size, items)| Block {
                kind: *kind,
                size: *size,
                items,
            })
            .collect();
        let event = Event::Pebs {
            ip,
            blocks: &blocks,
        };
        self.unit.event(&mut self.world, event);
        Ok(())
    }

    /// The event that an operation names, and what holds after it; `None` if there is none of this name.
    fn event(&self, word: &str, op: &Table<'_>) -> Read<Option<(Event<'static>, Destination)>> {
        let here = Destination {
            ip: self.ip,
            context: self.context,
        };
        let behind = |at: At| Destination {
            ip: at.next,
            ..here
        };
        let mut then = here;
        let event = match word {
            "far_branch" | "iret" | "uiret" | "enclave_entry" | "enclave_exit" => {
                let (at, to) = (self.at(op)?, self.to(op)?);
                then = to;
                match word {
                    "far_branch" => Event::FarBranch { at, to },
                    "iret" => Event::Iret { at, to },
                    "uiret" => Event::Uiret { at, to },
                    "enclave_entry" => Event::EnclaveEntry { at, to },
                    _ => Event::EnclaveExit { at, to },
                }
            }
            "interrupt" => {
                then = self.to(op)?;
                Event::Interrupt {
                    from: self.from(op)?,
                    vector: op.need("vector")?.number()?,
                    page_fault: match op.get("page_fault") {
                        Some(field) => Some(field.number()?),
                        None => None,
                    },
                    to: then,
                }
            }
            "user_interrupt" => {
                then = self.to(op)?;
                Event::UserInterrupt {
                    from: self.from(op)?,
                    vector: op.need("vector")?.number()?,
                    to: then,
                }
            }
            "mov_cr3" => {
                let at = self.at(op)?;
                let cr3 = op.need("cr3")?.number()?;
                then = behind(at);
                then.context.cr3 = cr3;
                Event::MovCr3 { at, cr3 }
            }
            "flags" => {
                let at = self.at(op)?;
                let interrupt_flag = op.need("if")?.flag()?;
                then = behind(at);
                then.context.interrupt_flag = interrupt_flag;
                Event::Flags { at, interrupt_flag }
            }
            "transaction_begin" => {
                let at = self.at(op)?;
                then = behind(at);
                then.context.in_tx = true;
                Event::TransactionBegin { at }
            }
            "transaction_commit" => {
                let at = self.at(op)?;
                then = behind(at);
                then.context.in_tx = false;
                Event::TransactionCommit { at }
            }
            "transaction_abort" => {
                then.ip = need_ip(op, "to")?;
                then.context.in_tx = false;
                Event::TransactionAbort {
                    from: self.from(op)?,
                    to: then.ip,
                }
            }
            "sleep" => Event::Sleep(self.sleep(op)?),
            "wake" => Event::Wake {
                last: c_state(op, "last")?,
                deepest: c_state(op, "deepest")?,
                reason: named(
                    &op.need("reason")?,
                    WakeReason::NAMED,
                    WakeReason::name,
                    WakeReason::new,
                )?,
            },
            "clocks_resumed" => Event::ClocksResumed,
            "frequency" => Event::Frequency {
                stopped_at: get_ip(op, "stopped_at")?,
                ratio: op.need("ratio")?.number()?,
            },
            "cycle_counter_reset" => Event::CycleCounterReset,
            "init" => {
                then = self.to(op)?;
                let from = self.from(op)?;
                Event::Init { from, to: then }
            }
            "init_to_wait" => {
                then.context = self.after(op)?;
                Event::InitToWait {
                    from: self.from(op)?,
                    context: then.context,
                }
            }
            "sipi" => {
                then = self.to(op)?;
                let vector = op.need("vector")?.number()?;
                Event::Sipi { vector, to: then }
            }
            "shutdown" => Event::Shutdown {
                at: ip_or(op, "ip", self.ip)?,
            },
            "smi" => {
                then = self.to(op)?;
                let from = self.from(op)?;
                Event::Smi { from, to: then }
            }
            "async_enclave_exit" => {
                then = self.to(op)?;
                Event::AsyncEnclaveExit {
                    from: self.from(op)?,
                    aep: need_ip(op, "aep")?,
                    vector: op.need("vector")?.number()?,
                    to: then,
                }
            }
            "senter" | "vmxon" | "vmxoff" | "vmptrld" | "vmclear" => {
                let at = self.at(op)?;
                then = behind(at);
                match word {
                    "senter" => Event::Senter { at },
                    "vmxon" => Event::Vmxon { at },
                    "vmxoff" => Event::Vmxoff { at },
                    "vmclear" => Event::Vmclear { at },
                    _ => Event::Vmptrld {
                        at,
                        vmcs: op.need("vmcs")?.number()?,
                    },
                }
            }
            "acm_begin" => Event::AcmBegin,
            "acm_end" => Event::AcmEnd,
            _ => return Ok(None),
        };
        Ok(Some((event, then)))
    }

    fn sleep(&self, op: &Table<'_>) -> Read<Sleep> {
        let mwait = match op.get("mwait") {
            Some(field) => {
                let table = field.table()?;
                let mwait = Mwait {
                    hints: table.need("hints")?.number()?,
                    ext: match table.get("ext") {
                        Some(field) => field.number_in(0..=3)? as u8,
                        None => 0,
                    },
                };
                table.finish()?;
                Some(mwait)
            }
            None => None,
        };
        Ok(Sleep {
            ip: ip_or(op, "ip", self.ip)?,
            mwait,
            hardware: flag(op, "hardware")?,
            state: c_state(op, "state")?,
            sub_state: match op.get("sub_state") {
                Some(field) => field.number_in(0..=15)? as u8,
                None => 0,
            },
        })
    }
}

fn later(clock: Clock, by: Clock) -> Clock {
    Clock {
        tsc: clock.tsc.saturating_add(by.tsc),
        cycles: clock.cycles.saturating_add(by.cycles),
    }
}

fn get_ip<'t>(op: &Table<'t>, key: &'t str) -> Read<Option<Ip>> {
    match op.get(key) {
        Some(field) => Ok(Some(Ip(field.number()?))),
        None => Ok(None),
    }
}

fn need_ip<'t>(op: &Table<'t>, key: &'t str) -> Read<Ip> {
    Ok(Ip(op.need(key)?.number()?))
}

fn ip_or<'t>(op: &Table<'t>, key: &'t str, default: Ip) -> Read<Ip> {
    Ok(get_ip(op, key)?.unwrap_or(default))
}

/// A flag that is false if it is left out.
fn flag<'t>(op: &Table<'t>, key: &'t str) -> Read<bool> {
    match op.get(key) {
        Some(field) => field.flag(),
        None => Ok(false),
    }
}

/// The key `size`: 8 if it is left out.
fn item_size(op: &Table<'_>) -> Read<ItemSize> {
    match op.get("size") {
        None => Ok(ItemSize::Eight),
        Some(field) => match field.number::<u64>()? {
            4 => Ok(ItemSize::Four),
            8 => Ok(ItemSize::Eight),
            _ => Err(field.mistake("expected 4 or 8")),
        },
    }
}

/// A value by name or by number.
fn named<T: Copy>(
    field: &Field<'_>,
    known: &[T],
    name: fn(T) -> Option<&'static str>,
    new: fn(u8) -> Option<T>,
) -> Read<T> {
    if field.is_number() {
        return new(field.number()?).ok_or_else(|| field.mistake("the number does not fit"));
    }
    let words: Vec<_> = known
        .iter()
        .filter_map(|&value| Some((name(value)?, value)))
        .collect();
    field.choice(&words)
}

fn c_state<'t>(op: &Table<'t>, key: &'t str) -> Read<CState> {
    named(&op.need(key)?, CState::NAMED, CState::name, CState::new)
}

/// The key `loads`: registers and values.
fn loads(op: &Table<'_>) -> Read<Vec<(u32, u64)>> {
    let Some(field) = op.get("loads") else {
        return Ok(Vec::new());
    };
    let mut loads = Vec::new();
    for load in field.array()? {
        let [msr, value] = load.members()?;
        loads.push((register(&msr)?, value.number()?));
    }
    Ok(loads)
}
