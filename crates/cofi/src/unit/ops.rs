//! The operations of a scenario: each is read from its table and done to the unit at once.

use super::reader::{Field, Read, Table};
use super::values::{changed, clock, patched, register, remember};
use super::world::{MOST_BYTES, Note, World};
use cofi_packet::Ip;
use cofi_packet::intel::{ItemSize, Kind, Payload};
use cofi_unit::{
    At, Branch, Clock, Context, Destination, Fault, Ptwrite, Retired, Rsm, TransitionError, Unit,
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
    pub(super) unit: Unit,
    pub(super) world: World,
    pub(super) context: Context,
    /// Where the next operation happens if it does not say.
    pub(super) ip: Ip,
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
    pub(super) fn at(&self, op: &Table<'_>) -> Read<At> {
        let ip = ip_or(op, "ip", self.ip)?;
        let length = match op.get("len") {
            Some(field) => field.number_in(1..=15)?,
            None => LENGTH,
        };
        let next = ip_or(op, "next", ip.wrapping_add(length))?;
        Ok(At { ip, next })
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

    pub(super) fn go(&mut self, to: Destination) {
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

    pub(super) fn transition_error(&mut self, error: TransitionError) {
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
}

fn later(clock: Clock, by: Clock) -> Clock {
    Clock {
        tsc: clock.tsc.saturating_add(by.tsc),
        cycles: clock.cycles.saturating_add(by.cycles),
    }
}

pub(super) fn get_ip<'t>(op: &Table<'t>, key: &'t str) -> Read<Option<Ip>> {
    match op.get(key) {
        Some(field) => Ok(Some(Ip(field.number()?))),
        None => Ok(None),
    }
}

pub(super) fn need_ip<'t>(op: &Table<'t>, key: &'t str) -> Read<Ip> {
    Ok(Ip(op.need(key)?.number()?))
}

pub(super) fn ip_or<'t>(op: &Table<'t>, key: &'t str, default: Ip) -> Read<Ip> {
    Ok(get_ip(op, key)?.unwrap_or(default))
}

/// A flag that is false if it is left out.
pub(super) fn flag<'t>(op: &Table<'t>, key: &'t str) -> Read<bool> {
    match op.get(key) {
        Some(field) => field.flag(),
        None => Ok(false),
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
