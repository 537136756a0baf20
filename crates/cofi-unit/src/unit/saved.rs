//! Saving and restoring a unit whole, with what is buffered in it: for snapshots and for migration of the machine. (What
//! software of the machine can save, is [`Unit::xsaves`].)

use super::buffer::Buffer;
use super::vmx::Vmx;
use super::{Cached, Unit};
use crate::clock::Timing;
use crate::compress::{Deferred, Results, ReturnStack};
use crate::event::{Context, GuestTsc};
use crate::implementation::Implementation;
use crate::output::Output;
use crate::registers::{Registers, WriteContext};
use crate::spec::{Capabilities, Status, msr};
use crate::state::{MAGIC, Reader, RestoreError, Writer};
use alloc::vec::Vec;
use cofi_packet::Ip;
use cofi_packet::intel::{IpPayload, LastIp};

/// More results never wait for their packet: those that [`super::Gathering`] gathers, or one less than a long TNT holds.
const MOST_RESULTS: [u32; 2] = [59, 46];

const RTIT_STATUS: &str = "IA32_RTIT_STATUS";

impl Unit {
    /// The whole state of the unit as bytes, from which [`Unit::restore`] makes an equal unit, here or elsewhere, now or
    /// with a later version of this library. Capabilities and choices are the embedder's and not among it.
    ///
    /// Trace output that is in memory already, and the clock, are the embedder's to save, too.
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        let Self {
            caps,
            choices,
            regs,
            output,
            context,
            vmx,
            ratio,
            timing,
            asleep,
            waiting,
            acm,
            last_ip,
            is_first_ip,
            tnt,
            deferred,
            returns,
            told_mode,
            told_tx,
            byte_count,
            psb_owed,
            psb_in_context,
            buffer,
            stale,
            cached: _,
        } = self;
        let mut to = Writer::new(MAGIC);
        let writer = &mut to;
        for spec in msr::ALL {
            writer.u64(regs.read(caps, spec.address).unwrap_or(0));
        }
        save_context(writer, context);
        save_vmx(writer, vmx);
        writer.u8(*ratio);
        for flag in [asleep, waiting, psb_owed, psb_in_context, is_first_ip] {
            writer.bool(*flag);
        }
        writer.option(*acm, |writer, (trace_en, filter_en, overflows)| {
            writer.bool(trace_en);
            writer.bool(filter_en);
            writer.bool(overflows);
        });
        writer.told_mode(*told_mode);
        writer.bool(*told_tx);
        writer.u64(last_ip.get().0);
        writer.u64(*byte_count);
        timing.save(writer);
        writer.u64(tnt.stopped());
        writer.u8(deferred.targets().len() as u8);
        for target in deferred.targets() {
            writer.u64(target.0);
        }
        writer.u8(returns.oldest_first().len() as u8);
        for next in returns.oldest_first() {
            writer.u64(next.0);
        }
        // The internal buffer may still have to drain after TriggerEn was cleared.
        let drains = buffer.as_ref().is_some_and(|buffer| !buffer.is_idle());
        output.save(writer, regs.status.trigger_en() || drains);
        let is_stale = choices.stale_reads && regs.ctl.trace_en();
        writer.option(is_stale.then_some(stale), |writer, stale| {
            for address in STALE {
                writer.u64(stale.read(caps, address).unwrap_or(0));
            }
            writer.u64(stale.status.packet_byte_cnt());
        });
        writer.option(buffer.as_ref(), |writer, buffer| buffer.save(writer));
        to.0
    }

    /// The unit that [`Unit::save`] saved, in a processor with the same capabilities and choices.
    ///
    /// Whatever the bytes are: a unit that comes of them does not panic, and takes no more memory than any other. (The packets
    /// that it makes need not make sense then.)
    ///
    /// # Errors
    /// See [`RestoreError`]: each says where.
    pub fn restore(
        caps: Capabilities,
        choices: Implementation,
        bytes: &[u8],
    ) -> Result<Self, RestoreError> {
        let mut from = Reader::new(bytes, MAGIC)?;
        let reader = &mut from;
        let regs = restore_registers(reader, &caps)?;
        let context = restore_context(reader)?;
        let vmx = restore_vmx(reader)?;
        let ratio = reader.u8("the core:bus ratio")?;
        let asleep = reader.bool("asleep")?;
        let waiting = reader.bool("waiting for SIPI")?;
        let psb_owed = reader.bool("PSB owed")?;
        let psb_in_context = reader.bool("PSB owed in context")?;
        let is_first_ip = reader.bool("no IP since the last PSB")?;
        let acm = reader.option("authenticated code", |reader| {
            let trace_en = reader.bool("TraceEn before authenticated code")?;
            let filter_en = reader.bool("FilterEn before authenticated code")?;
            let overflows = reader.bool("overflow before authenticated code")?;
            Ok((trace_en, filter_en, overflows))
        })?;
        let told_mode = reader.told_mode()?;
        let told_tx = reader.bool("told to be in a transaction")?;
        let mut last_ip = LastIp::new();
        last_ip.apply(IpPayload::full(reader.u64("Last IP")?));
        let byte_count = reader.counter("the bytes since the last PSB")?;
        let timing = Timing::restore(reader)?;
        let tnt = restore_tnt(reader, &regs, &choices)?;
        let deferred = restore_deferred(reader, &regs)?;
        let mut returns = ReturnStack::new();
        for _ in 0..reader.len("the number of return addresses", ReturnStack::DEPTH)? {
            returns.push(Ip(reader.u64("a return address")?));
        }
        let output = Output::restore(reader, &regs, &caps)?;
        let stale = restore_stale(reader, &caps, &regs, &choices)?;
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
            caps,
            choices,
            regs,
            output,
            context,
            vmx,
            ratio,
            timing,
            asleep,
            waiting,
            acm,
            last_ip,
            is_first_ip,
            tnt,
            deferred,
            returns,
            told_mode,
            told_tx,
            byte_count,
            psb_owed,
            psb_in_context,
            buffer,
            stale,
            cached: Cached::default(),
        };
        unit.configure();
        Ok(unit)
    }
}

/// The registers whose stale values RDMSR may return as a whole.
const STALE: [u32; 2] = [msr::IA32_RTIT_OUTPUT_BASE, msr::IA32_RTIT_OUTPUT_MASK_PTRS];

/// Sets a register to a value that software could have written while TraceEn is 0.
fn restore_register(
    reader: &mut Reader<'_>,
    caps: &Capabilities,
    regs: &mut Registers,
    spec: &msr::RegisterSpec,
) -> Result<u64, RestoreError> {
    let value = reader.u64(spec.name)?;
    if regs.read(caps, spec.address).is_err() {
        // No such register: what it would hold is its value after reset.
        if value != 0 {
            let rule = "the processor does not have this register";
            return Err(reader.illegal(8, spec.name, value, rule));
        }
        return Ok(value);
    }
    let written = match spec.address {
        msr::IA32_RTIT_CTL => value & !1,
        _ => value,
    };
    match regs.write(caps, WriteContext::default(), spec.address, written) {
        Ok(()) => Ok(value),
        Err(_) => {
            let rule = "no value that the register can hold (33.2.8)";
            Err(reader.illegal(8, spec.name, value, rule))
        }
    }
}

fn restore_registers(
    reader: &mut Reader<'_>,
    caps: &Capabilities,
) -> Result<Registers, RestoreError> {
    let mut regs = Registers::new();
    let mut trace_en = false;
    for spec in msr::ALL {
        let value = restore_register(reader, caps, &mut regs, spec)?;
        match spec.address {
            msr::IA32_RTIT_CTL => trace_en = value & 1 != 0,
            msr::IA32_RTIT_STATUS => {
                // What only the processor sets.
                let status = Status(value);
                regs.status = regs
                    .status
                    .with_trigger_en(status.trigger_en())
                    .with_context_en(status.context_en())
                    .with_filter_en(status.filter_en());
                let rule = if status.trigger_en() && (status.error() || status.stopped()) {
                    "TriggerEn, and Error or Stopped (33.2.6.2)"
                } else if value & 7 != 0 && !trace_en {
                    "TriggerEn, ContextEn or FilterEn without TraceEn (33.2.6)"
                } else {
                    continue;
                };
                return Err(reader.illegal(8, RTIT_STATUS, value, rule));
            }
            _ => {}
        }
    }
    if trace_en {
        regs.ctl = regs.ctl.with_trace_en(true);
    }
    Ok(regs)
}

fn save_context(writer: &mut Writer, context: &Context) {
    let Context {
        cpl,
        cr3,
        pae,
        mode,
        cs_base,
        interrupt_flag,
        in_tx,
        enclave,
    } = *context;
    writer.u8(cpl);
    writer.u64(cr3);
    writer.bool(pae);
    writer.mode(mode);
    writer.u64(cs_base);
    writer.bool(interrupt_flag);
    writer.bool(in_tx);
    writer.enclave(enclave);
}

fn restore_context(reader: &mut Reader<'_>) -> Result<Context, RestoreError> {
    Ok(Context {
        cpl: reader.u8("CPL")?,
        cr3: reader.u64("CR3")?,
        pae: reader.bool("PAE paging")?,
        mode: reader.mode("the mode")?,
        cs_base: reader.u64("the base of CS")?,
        interrupt_flag: reader.bool("RFLAGS.IF")?,
        in_tx: reader.bool("in a transaction")?,
        enclave: reader.enclave("the enclave")?,
    })
}

fn save_vmx(writer: &mut Writer, vmx: &Vmx) {
    let Vmx {
        in_operation,
        non_root,
        conceal,
        tsc: GuestTsc { multiplier, offset },
        vmcs,
    } = *vmx;
    writer.bool(in_operation);
    writer.bool(non_root);
    writer.bool(conceal);
    writer.u64(multiplier);
    writer.u64(offset);
    writer.option(vmcs, Writer::u64);
}

fn restore_vmx(reader: &mut Reader<'_>) -> Result<Vmx, RestoreError> {
    Ok(Vmx {
        in_operation: reader.bool("in VMX operation")?,
        non_root: reader.bool("VMX non-root operation")?,
        conceal: reader.bool("conceal VMX from PT")?,
        tsc: GuestTsc {
            multiplier: reader.u64("the TSC multiplier")?,
            offset: reader.u64("the TSC offset")?,
        },
        vmcs: reader.option("a VMCS pointer", |reader| reader.u64("the VMCS pointer"))?,
    })
}

fn restore_tnt(
    reader: &mut Reader<'_>,
    regs: &Registers,
    choices: &Implementation,
) -> Result<Results, RestoreError> {
    let field = "TNT results";
    let stopped = reader.u64(field)?;
    let is_long = choices.tnt != crate::TntForm::Short;
    let most = match regs.status.trigger_en() {
        true => MOST_RESULTS[usize::from(is_long)],
        false => 0,
    };
    Results::from_stopped(stopped, most).ok_or_else(|| {
        reader.illegal(
            8,
            field,
            stopped,
            "no stop bit, or more than ever wait (33.4.2.1)",
        )
    })
}

fn restore_deferred(reader: &mut Reader<'_>, regs: &Registers) -> Result<Deferred, RestoreError> {
    // As soon as there are so many, they are sent.
    let most = match regs.status.trigger_en() {
        true => Deferred::MOST - 1,
        false => 0,
    };
    let mut deferred = Deferred::new();
    for _ in 0..reader.len("the number of deferred TIPs", most)? {
        deferred.push(Ip(reader.u64("a deferred TIP")?));
    }
    Ok(deferred)
}

fn restore_stale(
    reader: &mut Reader<'_>,
    caps: &Capabilities,
    regs: &Registers,
    choices: &Implementation,
) -> Result<Registers, RestoreError> {
    let field = "stale registers";
    let is_stale = choices.stale_reads && regs.ctl.trace_en();
    let is_there = reader.bool(field)?;
    if is_there != is_stale {
        let rule = "TraceEn, or the choices of the processor, say otherwise";
        return Err(reader.illegal(1, field, is_there.into(), rule));
    }
    let mut stale = Registers::new();
    if is_there {
        for address in STALE {
            if let Some(spec) = msr::ALL.iter().find(|spec| spec.address == address) {
                restore_register(reader, caps, &mut stale, spec)?;
            }
        }
        let count = reader.u64("a stale PacketByteCnt")?;
        stale.status = Status(0).with_packet_byte_cnt(count);
    }
    Ok(stale)
}
