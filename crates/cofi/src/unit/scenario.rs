//! A scenario as its file describes it: the processor, the world around it, and what happens.

use super::ops::Run;
use super::reader::{Field, Mistake, Read, Table};
use super::values::{changed, clock, fields, patched, register_named, remember};
use super::world::World;
use cofi_packet::Ip;
use cofi_unit::spec::msr;
use cofi_unit::{
    At, Capabilities, Context, CrystalRatio, Event, Generation, Implementation, InternalBuffer,
    IpCompression, TntForm, Unit,
};

/// Where output goes if the scenario does not say: a single range.
const OUTPUT_BASE: u64 = 0x1000_0000;
/// Its size less one.
const OUTPUT_MASK: u64 = 0xff_ffff;

/// What a file describes, carried out.
pub(super) struct Played {
    /// What came out.
    pub(super) world: World,
    /// What the file says should have, and where that stands in its text.
    pub(super) expect: Option<Expect>,
}

/// The expected output.
pub(super) struct Expect {
    pub(super) text: String,
    /// Where the text stands in the file.
    pub(super) at: usize,
}

/// Carries a scenario out.
pub(super) fn play(document: &Table<'_>) -> Read<Played> {
    for key in ["title", "table", "section", "note"] {
        if let Some(field) = document.get(key) {
            field.text()?;
        }
    }
    let expect = match document.get("expect") {
        Some(field) => Some(Expect {
            text: field.text()?.to_owned(),
            at: field.at,
        }),
        None => None,
    };
    let ip: u64 = match document.get("ip") {
        Some(field) => field.number()?,
        None => 0x1000,
    };
    let caps = capabilities(document)?;
    let choices = implementation(document)?;
    let context = match document.get("context") {
        Some(field) => patched(Context::default(), &field)?,
        None => Context::default(),
    };
    let mut unit = Unit::with(caps, choices, context);
    let mut world = World::default();
    if let Some(field) = document.get("clock") {
        let table = field.table()?;
        world.clock = clock(&table)?;
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
    match document.get("op") {
        Some(list) => run.list(&list)?,
        None => return Err(Mistake::new(0, "there are no operations: [[op]]")),
    }
    document.finish()?;
    Ok(Played {
        world: run.finish(),
        expect,
    })
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
        let number = |key| match table.get(key) {
            Some(field) => field.number(),
            None => Ok(0),
        };
        choices.buffer = Some(InternalBuffer {
            size: table.need("size")?.number_in(64..=1 << 24)? as u32,
            drain_bytes: number("drain_bytes")?,
            drain_cycles: number("drain_cycles")?,
            resume_at: number("resume_at")?,
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
    let mut writes = Vec::new();
    for field in table.all() {
        let msr = register_named(&field.key)
            .ok_or_else(|| field.mistake("there is no trace register of this name"))?;
        let value = if field.is_table() {
            changed(msr, 0, &field.table()?)?
        } else {
            field.number()?
        };
        writes.push((msr, value, field.at));
    }
    let given = |msr| writes.iter().find(|write| write.0 == msr);
    let ctl = cofi_unit::Ctl(given(msr::IA32_RTIT_CTL).map_or(0, |write| write.1));
    if !ctl.topa()
        && !ctl.fabric_en()
        && given(msr::IA32_RTIT_OUTPUT_BASE).is_none()
        && given(msr::IA32_RTIT_OUTPUT_MASK_PTRS).is_none()
        && unit.capabilities().single_range
    {
        writes.push((msr::IA32_RTIT_OUTPUT_BASE, OUTPUT_BASE, field.at));
        writes.push((msr::IA32_RTIT_OUTPUT_MASK_PTRS, OUTPUT_MASK, field.at));
    }
    writes.sort_by_key(|write| write.0 == msr::IA32_RTIT_CTL);
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
