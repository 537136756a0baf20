//! The operations that are events: what each is made of.

use super::ops::{Run, item_size};
use crate::unit::reader::{Field, Read, Table};
use crate::unit::values::{flag, get_ip, ip_or, need_ip};
use cofi_packet::intel::{BlockType, CState, WakeReason};
use cofi_unit::{At, Block, Destination, Event, Mwait, Sleep};

impl Run {
    pub(super) fn pebs(&mut self, op: &Table<'_>) -> Read<()> {
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
    pub(super) fn event(
        &self,
        word: &str,
        op: &Table<'_>,
    ) -> Read<Option<(Event<'static>, Destination)>> {
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

    pub(super) fn sleep(&self, op: &Table<'_>) -> Read<Sleep> {
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
            state: match c_state(op, "state")? {
                CState::C0 => {
                    let what = "C0 is no sleep: the processor executes; expected \"C1\" to \"C15\"";
                    return Err(op.need("state")?.mistake(what));
                }
                state => state,
            },
            sub_state: match op.get("sub_state") {
                Some(field) => field.number_in(0..=15)? as u8,
                None => 0,
            },
        })
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
