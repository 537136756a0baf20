//! Scenarios for RTIT's unit.

mod ops;

use super::play;
use super::reader::{Field, Mistake, Read, Table};
use super::record::Record;
use super::registers::given;
use super::scenario::{lists_stores, operations};
use super::values::{buffer, clock, fields};
use cofi_packet::Ip;
use cofi_packet::rtit::Rtit;
use cofi_session::compact;
use cofi_unit::At;
use cofi_unit::rtit::{
    Context, Ctl, Errata, Event, Events, Implementation, InternalBuffer, Lines, Unit, msr,
};
use ops::{Run, World};

/// Carries a scenario out that begins at `ip`.
pub(super) fn play(document: &Table<'_>, ip: u64) -> Read<Record<Rtit>> {
    let choices = implementation(document)?;
    let context = match document.get("context") {
        Some(field) => patched(Context::default(), &field)?,
        None => Context::default(),
    };
    let mut unit = Unit::with(choices, context);
    let mut world = World::default();
    world.record.lists_stores = lists_stores(document)?;
    if let Some(field) = document.get("clock") {
        let table = field.table()?;
        world.record.clock = clock(&table)?;
        if let Some(actual) = table.get("actual") {
            let event = Event::Frequency {
                actual: actual.number_in(0..=63)? as u8,
                effective: table.need("effective")?.number_in(0..=63)? as u8,
            };
            unit.event(&mut world, event);
        }
        table.finish()?;
    }
    let mut run = Run::new(unit, world, context, Ip(ip));
    if let Some(field) = document.get("start") {
        start(&mut run, &field)?;
    }
    play::list(&mut run, &operations(document)?)?;
    Ok(run.world.record)
}

/// A context with some of its parts changed.
fn patched(old: Context, field: &Field<'_>) -> Read<Context> {
    let mut context = old;
    let table = field.table()?;
    if let Some(field) = table.get("cpl") {
        context.cpl = field.number_in(0..=3)? as u8;
    }
    fields!(table, context, number: cr3);
    fields!(table, context, flag: paging);
    table.finish()?;
    Ok(context)
}

fn implementation(document: &Table<'_>) -> Read<Implementation> {
    let mut choices = Implementation::default();
    let Some(field) = document.get("implementation") else {
        return Ok(choices);
    };
    let table = field.table()?;
    if let Some(field) = table.get("buffer") {
        let table = field.table()?;
        let [size, drain_bytes, drain_cycles] = buffer(&table, 32)?;
        choices.buffer = Some(InternalBuffer {
            size,
            drain_bytes,
            drain_cycles,
        });
        table.finish()?;
    }
    if let Some(field) = table.get("psb_effect_delay") {
        choices.psb_effect_delay = field.number_in(0..=4)? as u8;
    }
    fields!(table, choices, flag: pgd_on_disable);
    if let Some(field) = table.get("lines") {
        choices.lines = field.choice(&[
            ("immediate", Lines::Immediate),
            ("lines", Lines::Lines),
            ("reordered", Lines::Reordered),
        ])?;
    }
    if let Some(field) = table.get("errata") {
        for field in field.array()? {
            let set: fn(&mut Errata) -> &mut bool = field.choice(&ERRATA)?;
            *set(&mut choices.errata) = true;
        }
    }
    fields!(table, choices, number: seed);
    table.finish()?;
    Ok(choices)
}

type Erratum = (&'static str, fn(&mut Errata) -> &mut bool);

/// The errata by their names in Appendix E.
const ERRATA: [Erratum; 8] = [
    ("E1", |errata| &mut errata.e1),
    ("E2", |errata| &mut errata.e2),
    ("E3", |errata| &mut errata.e3),
    ("E4", |errata| &mut errata.e4),
    ("E5", |errata| &mut errata.e5),
    ("E6", |errata| &mut errata.e6),
    ("E7", |errata| &mut errata.e7),
    ("E8", |errata| &mut errata.e8),
];

/// Reads RTIT_CTL, which unlocks the registers, and writes those that `[start]` gives, RTIT_CTL last: first without
/// TraceActive, then whole (3.3.2).
fn start(run: &mut Run, field: &Field<'_>) -> Read<()> {
    let table = field.table()?;
    let mut writes = given::<Rtit>(&table)?;
    if writes.iter().all(|write| write.0 != msr::RTIT_EVENTS) {
        let events = Events::default()
            .with_filter(Events::ALWAYS_ON)
            .with_trace_stop(Events::ALWAYS_OFF);
        writes.push((msr::RTIT_EVENTS, events.0, field.at));
    }
    compact::sort_by_key(&mut writes, |write| write.0 == msr::RTIT_CTL);
    let here = run.ip;
    let before = |bytes| Ip(here.0.wrapping_sub(bytes));
    let [first, last] = [(4, 2), (2, 0)].map(|(from, to)| At {
        ip: before(from),
        next: before(to),
    });
    let faults = |place| move |fault| Mistake::new(place, format!("[start] faults: {fault}"));
    run.read(msr::RTIT_CTL).map_err(faults(field.at))?;
    for (msr, value, place) in writes {
        let ctl = Ctl(value);
        if msr == msr::RTIT_CTL && ctl.trace_en() && ctl.trace_active() {
            let idle = ctl.with_trace_active(false).0;
            run.write(first, msr, idle).map_err(faults(place))?;
            run.write(last, msr, value).map_err(faults(place))?;
        } else {
            run.write(first, msr, value).map_err(faults(place))?;
        }
    }
    // Whatever these writes caused is stored before the first operation.
    run.unit.drain(&mut run.world, usize::MAX);
    run.unit.fence(&mut run.world);
    Ok(())
}
