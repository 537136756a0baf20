//! Scenarios for Intel PT's unit: the processor, the world around it, and what happens.

mod events;
mod ops;
mod values;
mod vmx;
mod world;

use super::play::{self, Machine};
use super::reader::{Field, Mistake, Read, Table};
use super::record::Record;
use super::registers::given;
use super::scenario::lists_stores;
use super::values::{buffer, clock, fields};
use cofi_packet::Ip;
use cofi_packet::intel::IntelPt;
use cofi_session::compact;
use cofi_unit::spec::msr;
use cofi_unit::{
    At, Capabilities, Context, CrystalRatio, Event, Generation, Implementation, InternalBuffer,
    IpCompression, TntForm, Unit,
};
use ops::Run;
use values::{patched, remember};
use world::World;

/// Where output goes if the scenario does not say: a single range.
const OUTPUT_BASE: u64 = 0x1000_0000;
/// Its size less one.
const OUTPUT_MASK: u64 = 0xff_ffff;

/// Carries a scenario out that begins at `ip`.
pub(super) fn play(document: &Table<'_>, ip: u64) -> Read<Record<IntelPt>> {
    let caps = capabilities(document)?;
    let choices = implementation(document)?;
    let context = match document.get("context") {
        Some(field) => patched(Context::default(), &field)?,
        None => Context::default(),
    };
    let mut unit = Unit::with(caps, choices, context);
    let mut world = World::default();
    world.record.lists_stores = lists_stores(document)?;
    world.record.joins_stores = true;
    if let Some(field) = document.get("clock") {
        let table = field.table()?;
        world.record.clock = clock(&table)?;
        if let Some(ratio) = table.get("cbr") {
            let event = Event::Frequency {
                stopped_at: None,
                ratio: ratio.number()?,
            };
            unit.event(&mut world, event);
        }
        table.finish()?;
    }
    if let Some(field) = document.get("memory") {
        for block in field.array()? {
            let table = block.table()?;
            remember(&mut world, &table)?;
            table.finish()?;
        }
    }
    if let Some(field) = document.get("restricted") {
        for range in field.array()? {
            let table = range.table()?;
            let from = table.need("from")?.number()?;
            let to = table.need("to")?.number()?;
            table.finish()?;
            world.restricted.push(from..=to);
        }
    }
    if let Some(field) = document.get("start") {
        let at = At {
            ip: Ip(ip.wrapping_sub(2)),
            next: Ip(ip),
        };
        start(&mut unit, &mut world, &field, at, choices.buffer.is_some())?;
    }
    let mut run = Run::new(unit, world, context, Ip(ip));
    run.conclude();
    play::list(&mut run, &super::scenario::operations(document)?)?;
    Ok(run.world.record)
}

fn capabilities(document: &Table<'_>) -> Read<Capabilities> {
    let mut caps = Capabilities::default();
    let Some(field) = document.get("capabilities") else {
        return Ok(caps);
    };
    let table = field.table()?;
    if let Some(preset) = table.get("preset") {
        let generations = Generation::ALL.iter();
        let mut presets: Vec<_> = generations
            .map(|generation| (generation.name(), generation.capabilities()))
            .collect();
        presets.push(("everything", Capabilities::default()));
        caps = preset.choice(&presets)?;
    }
    fields!(table, caps, flag: supported cr3_filter psb_cyc ip_filter mtc ptwrite power_event psb_pmi_preservation
        event_trace tnt_disable topa topa_multiple single_range transport lip vmx excludes_lbr);
    fields!(table, caps, number: address_ranges mtc_periods cycle_thresholds psb_frequencies max_phys_addr
        max_linear_addr);
    if let Some(field) = table.get("crystal") {
        let table = field.table()?;
        caps.crystal = CrystalRatio {
            numerator: table.need("numerator")?.number()?,
            denominator: table.need("denominator")?.number()?,
        };
        table.finish()?;
    }
    table.finish()?;
    Ok(caps)
}

fn implementation(document: &Table<'_>) -> Read<Implementation> {
    let mut choices = Implementation::default();
    let Some(field) = document.get("implementation") else {
        return Ok(choices);
    };
    let table = field.table()?;
    if let Some(field) = table.get("tnt") {
        choices.tnt = field.choice(&[
            ("short", TntForm::Short),
            ("long", TntForm::Long),
            ("both", TntForm::Both),
        ])?;
    }
    if let Some(field) = table.get("ip_compression") {
        choices.ip_compression = field.choice(&[
            ("shortest", IpCompression::Shortest),
            ("against zero", IpCompression::AgainstZero),
            ("off", IpCompression::Off),
        ])?;
    }
    fields!(table, choices, flag: deferred_tips mode_exec_on_enable stale_reads);
    if let Some(field) = table.get("cycle_counter_bits") {
        choices.cycle_counter_bits = Some(field.number_in(6..=63)? as u8);
    }
    if let Some(field) = table.get("buffer") {
        let table = field.table()?;
        let [size, drain_bytes, drain_cycles] = buffer(&table, 64)?;
        choices.buffer = Some(InternalBuffer {
            size,
            drain_bytes,
            drain_cycles,
            resume_at: match table.get("resume_at") {
                Some(field) => field.number()?,
                None => 0,
            },
        });
        table.finish()?;
    }
    table.finish()?;
    Ok(choices)
}

/// Writes the registers that `[start]` gives, IA32_RTIT_CTL last.
fn start(
    unit: &mut Unit,
    world: &mut World,
    field: &Field<'_>,
    at: At,
    has_buffer: bool,
) -> Read<()> {
    let table = field.table()?;
    let mut writes = given::<IntelPt>(&table)?;
    let of = |msr| writes.iter().find(|write| write.0 == msr);
    let ctl = cofi_unit::Ctl(of(msr::IA32_RTIT_CTL).map_or(0, |write| write.1));
    if !ctl.topa()
        && !ctl.fabric_en()
        && of(msr::IA32_RTIT_OUTPUT_BASE).is_none()
        && of(msr::IA32_RTIT_OUTPUT_MASK_PTRS).is_none()
        && unit.capabilities().single_range
    {
        writes.push((msr::IA32_RTIT_OUTPUT_BASE, OUTPUT_BASE, field.at));
        writes.push((msr::IA32_RTIT_OUTPUT_MASK_PTRS, OUTPUT_MASK, field.at));
    }
    compact::sort_by_key(&mut writes, |write| write.0 == msr::IA32_RTIT_CTL);
    for (msr, value, place) in writes {
        unit.wrmsr(world, at, msr, value)
            .map_err(|fault| Mistake::new(place, format!("[start] faults: {fault}")))?;
    }
    if has_buffer {
        // Whatever these writes caused is stored before the first operation.
        unit.drain(world, usize::MAX);
    }
    Ok(())
}
