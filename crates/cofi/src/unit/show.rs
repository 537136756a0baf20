//! What comes out of a scenario, as `cofi dump` would list it: packets, and between them what is no packet.

use super::record::{Note, Output, Record, Where};
use super::registers::{Traced, register_name};
use cofi_packet::{Listed, Listing, Packets, StreamItem, StreamOffset, extent};
use cofi_text::Line;
use cofi_text::packets::{self, Text};
use std::fmt::Write as _;
use std::io::{Result, Write};

/// One thing in the output.
pub(super) enum Entry<'w, F: Traced> {
    /// A packet, or bytes that are none.
    Packet(&'w StreamItem<F>, Option<Listed<F>>),
    /// Something else.
    Note(&'w Note),
}

/// Goes through packets and marks in order. A mark stands before the packet whose last byte came after it. `each` is told
/// the operation too.
pub(super) fn walk<F: Traced>(
    output: &Output<'_, F>,
    mut each: impl FnMut(u64, Entry<'_, F>) -> Result<()>,
) -> Result<()> {
    let mut marks = output.marks.iter().peekable();
    let mut op = 0;
    let mut listing = Listing::<F>::new();
    let mut begin = 0;
    let all = output.stream.len();
    for end in output.cuts.iter().copied().chain([all]) {
        let part = &output.stream[..end.min(all)];
        let packets = Packets::<F>::starting_at(part, StreamOffset(begin as u64));
        begin = part.len();
        for item in packets.in_context(output.context) {
            let (offset, size) = extent(&item);
            let end = offset.0 + size as u64;
            while let Some(mark) = marks.next_if(|mark| (mark.offset as u64) < end) {
                op = mark.op;
                each(op, Entry::Note(&mark.note))?;
            }
            let listed = listing.item(&item);
            each(op, Entry::Packet(&item, listed))?;
        }
    }
    for mark in marks {
        each(mark.op, Entry::Note(&mark.note))?;
    }
    Ok(())
}

/// A note in the text form; `None` of one that is only a place.
pub(super) fn line<F: Traced>(note: &Note) -> Option<String> {
    Some(match note {
        Note::Begin(_) => return None,
        Note::Fault { name, .. } => format!("fault {name}"),
        Note::Pmi => "pmi".to_owned(),
        Note::Read { msr, value, mask } => {
            let name = register_name::<F>(*msr);
            match *mask {
                u64::MAX => format!("msr {name} = {value:#x}"),
                mask => format!("msr {name} & {mask:#x} = {value:#x}"),
            }
        }
        Note::Store { to, bytes } => {
            let bytes = hex(bytes);
            match to {
                Where::Memory(address) => format!("store {address:#x}: {bytes}"),
                Where::Dropped(address) => format!("dropped {address:#x}: {bytes}"),
                Where::Transport => format!("transport: {bytes}"),
            }
        }
    })
}

/// Bytes as two digits each.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        let comma = if text.is_empty() { "" } else { " " };
        let _ = write!(text, "{comma}{byte:02x}");
    }
    text
}

/// Prints the output; whether it holds bytes that form no packet.
pub(super) fn show<F: Traced>(
    record: &Record<F>,
    json: bool,
    colour: bool,
    out: &mut impl Write,
) -> Result<bool> {
    let mut text = Text::new(colour, false);
    let mut object = Line::default();
    let mut memory = F::Memory::default();
    let stream = record.listed().stream;
    let mut errors = false;
    let mut begun: Option<String> = (!record.stream.is_empty()).then(|| "; [start]".into());
    walk(&record.listed(), |op, entry: Entry<'_, F>| {
        match entry {
            Entry::Note(Note::Begin(name)) => begun = Some(format!("; {op}: {name}")),
            Entry::Note(note) if json => {
                note_object::<F>(op, note, &mut object);
                out.write_all(object.end())?;
            }
            Entry::Packet(item, listed) if json => {
                errors |= item.is_err();
                let name = listed
                    .as_ref()
                    .and_then(|listed| F::name(&mut memory, listed.packet()));
                packets::describe(item, listed.as_ref(), name, &mut object);
                object.number("op", op);
                out.write_all(object.end())?;
            }
            Entry::Note(note) => {
                if let Some(begun) = begun.take() {
                    writeln!(out, "{begun}")?;
                }
                write!(out, "          {}", line::<F>(note).unwrap_or_default())?;
                match note {
                    Note::Fault { rule, .. } => writeln!(out, " ; {rule}")?,
                    _ => writeln!(out)?,
                }
            }
            Entry::Packet(item, listed) => {
                if let Some(begun) = begun.take() {
                    writeln!(out, "{begun}")?;
                }
                errors |= item.is_err();
                let name = listed
                    .as_ref()
                    .and_then(|listed| F::name(&mut memory, listed.packet()));
                text.item(item, listed.as_ref(), name, stream, out)?;
            }
        }
        Ok(())
    })?;
    Ok(errors)
}

fn note_object<F: Traced>(op: u64, note: &Note, object: &mut Line) {
    object.begin();
    match note {
        Note::Begin(name) => object.text("begin", name),
        Note::Fault { name, rule } => object
            .text("fault", name)
            .number("op", op)
            .text("rule", rule),
        Note::Pmi => object.flag("pmi", true).number("op", op),
        Note::Read { msr, value, .. } => object
            .hex("msr", u64::from(*msr))
            .text("msr_name", &register_name::<F>(*msr))
            .hex("value", *value)
            .number("op", op),
        Note::Store { to, bytes } => {
            match to {
                Where::Memory(address) => object.hex("store", *address),
                Where::Dropped(address) => object.hex("dropped", *address),
                Where::Transport => object.flag("transport", true),
            };
            object
                .number("size", bytes.len() as u64)
                .text("bytes", &hex(bytes))
                .number("op", op)
        }
    };
}
