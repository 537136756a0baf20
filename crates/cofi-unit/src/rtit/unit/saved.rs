//! Saving and restoring a unit whole, with what is buffered in it: for snapshots and for migration of the machine.
//!
//! The form is that of Intel PT's unit: little-endian numbers of fixed width, a truth value is a byte, an optional value a truth
//! value and perhaps the value. In order:
//!
//! | field | bytes |
//! |---|---|
//! | [`MAGIC`], version | 8, 2 |
//! | the registers, in the order of [`msr::ALL`] | 16 × 8 |
//! | unlocked | 1 |
//! | context: CPL, CR3, CR0.PG; in SMM; in VMX root operation; asleep | 1, 8, 1; 1; 1; 1 |
//! | actual and effective core/bus ratio; where INIT led | 1, 1; 8 |
//! | the last moment: TSC, core cycles | 8, 8 |
//! | the TSC from the bits of an MTC on; an MTC is to come early (E7) | 8; 1 |
//! | PSB owed; PSB late; packets until it takes effect | 1; 1; optional 1 |
//! | TraceStop held in an overflow: 0 none, 1 whole, 2 its packet only; resolved overflows | 1; 8 |
//! | state of the random numbers | 8 |
//! | output: lines begun; filled lines: count, lines; an open line | 8; 1, ...; optional ... |
//! | a line: address, number, length, bytes | 8, 8, 1, n |
//! | packets that E8 holds: how many it wants, count, packets of length and bytes | optional 1, 1, ... |
//! | internal buffer: drained at, length, bytes | optional 8, 4, n |

use super::{Buffer, Cached, HeldStop, Scramble, Timing, Unit};
use crate::client::Clock;
use crate::compress::Results;
use crate::rtit::event::Context;
use crate::rtit::implementation::Implementation;
use crate::rtit::msr;
use crate::rtit::output::{Dice, Output};
use crate::rtit::registers::Registers;
use crate::state::{Reader, RestoreError, Writer};
use alloc::vec::Vec;
use cofi_packet::Ip;

/// What a saved RTIT unit begins with.
const MAGIC: [u8; 8] = *b"COFIRTIT";

impl Unit {
    /// The whole state of the unit as bytes, from which [`Unit::restore`] makes an equal unit. The choices are the embedder's and
    /// not among it, and so are trace output that is in memory already, and the clock.
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        let Self {
            choices: _,
            regs: _,
            output,
            dice,
            context,
            smm,
            vmx_root,
            asleep,
            ratios,
            init_ip,
            timing,
            tnt: _,
            psb_owed,
            psb_late,
            psb_clears_in,
            held_stop,
            overflows,
            buffer,
            scramble,
            cached: _,
        } = self;
        let regs = self.current_registers();
        let mut to = Writer::new(MAGIC);
        let writer = &mut to;
        for spec in msr::ALL {
            writer.u64(regs.get(spec.address));
        }
        writer.bool(regs.unlocked);
        writer.u8(context.cpl);
        writer.u64(context.cr3);
        for flag in [context.paging, *smm, *vmx_root, *asleep] {
            writer.bool(flag);
        }
        writer.u8(ratios.0);
        writer.u8(ratios.1);
        writer.u64(init_ip.0);
        writer.u64(timing.now.tsc);
        writer.u64(timing.now.cycles);
        writer.u64(timing.mtc);
        writer.bool(timing.mtc_early);
        writer.bool(*psb_owed);
        writer.bool(*psb_late);
        writer.option(*psb_clears_in, Writer::u8);
        writer.u8(match held_stop {
            None => 0,
            Some(HeldStop::Whole) => 1,
            Some(HeldStop::PacketOnly) => 2,
        });
        writer.u64(*overflows);
        writer.u64(dice.0);
        output.save(writer);
        writer.option(scramble.as_ref(), |writer, scramble| scramble.save(writer));
        writer.option(buffer.as_ref(), |writer, buffer| buffer.save(writer));
        to.0
    }

    /// The unit that [`Unit::save`] saved, in a processor with the same choices.
    ///
    /// Whatever the bytes are: a unit that comes of them does not panic, and takes no more memory than any other. (The packets
    /// that it makes need not make sense then.)
    ///
    /// # Errors
    /// See [`RestoreError`]: each says where.
    pub fn restore(choices: Implementation, bytes: &[u8]) -> Result<Self, RestoreError> {
        let mut from = Reader::new(bytes, MAGIC)?;
        let reader = &mut from;
        let mut regs = restore_registers(reader)?;
        let tnt = core::mem::take(&mut regs.tnt_buff);
        let context = Context {
            cpl: reader.u8("CPL")?,
            cr3: reader.u64("CR3")?,
            paging: reader.bool("CR0.PG")?,
        };
        let smm = reader.bool("in SMM")?;
        let vmx_root = reader.bool("in VMX root operation")?;
        let asleep = reader.bool("asleep")?;
        let ratios = (
            reader.u8("the actual core/bus ratio")? & 0x3f,
            reader.u8("the effective core/bus ratio")? & 0x3f,
        );
        let init_ip = Ip(reader.u64("where INIT led")?);
        let now = Clock {
            tsc: reader.u64("the TSC")?,
            cycles: reader.u64("the core cycles")?,
        };
        let mtc = reader.u64("the TSC bits of the last MTC")?;
        let mtc_early = reader.bool("an early MTC")?;
        let psb_owed = reader.bool("PSB owed")?;
        let psb_late = reader.bool("PSB late")?;
        let field = "the packets until a PSB takes effect";
        let most = Implementation::MOST_PSB_DELAY.into();
        let psb_clears_in = reader.option(field, |reader| Ok(reader.len(field, most)? as u8))?;
        let held_stop = match reader.len("a held TraceStop", 2)? {
            0 => None,
            1 => Some(HeldStop::Whole),
            _ => Some(HeldStop::PacketOnly),
        };
        let overflows = reader.counter("the number of resolved overflows")?;
        let dice = Dice(reader.u64("the random numbers")?);
        let output = Output::restore(reader, choices.lines)?;
        let scramble = reader.option("packets that E8 holds", Scramble::restore)?;
        let buffer = reader.bool("an internal buffer")?;
        let buffer = match (buffer, choices.buffer) {
            (false, None) => None,
            (true, Some(config)) => Some(Buffer::restore(config, reader)?),
            (value, _) => {
                let rule = "the choices of the processor say otherwise";
                return Err(reader.illegal(1, "an internal buffer", value.into(), rule));
            }
        };
        from.finish()?;
        let mut unit = Self {
            choices,
            regs,
            output,
            dice,
            context,
            smm,
            vmx_root,
            asleep,
            ratios,
            init_ip,
            timing: Timing::restored(now, mtc, mtc_early),
            tnt: Results::from_stopped(tnt.0, 6).unwrap_or_default(),
            psb_owed,
            psb_late,
            psb_clears_in,
            held_stop,
            overflows,
            buffer,
            scramble,
            cached: Cached::default(),
        };
        unit.refresh();
        Ok(unit)
    }
}

fn restore_registers(reader: &mut Reader<'_>) -> Result<Registers, RestoreError> {
    let mut regs = Registers::default();
    for spec in msr::ALL {
        let value = reader.u64(spec.name)?;
        match regs.legal(spec, value) {
            // What software cannot write follows from the rest.
            Ok(held) => regs.commit(spec.address, held),
            Err(rule) => return Err(reader.illegal(8, spec.name, value, rule)),
        }
    }
    regs.unlocked = reader.bool("unlocked")?;
    Ok(regs)
}
