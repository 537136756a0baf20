//! A stream as JSON Lines: the objects of the contract, and names where there are some.

use super::known::{Known, Name};
use crate::Line;
use cofi_packet::{Listed, PacketKind, StreamItem, Value, extent};

/// Writes an item into `line`, all keys but those of the stream.
///
/// `size` is the item's size in bytes. PTW and BBP have a field of that name, which the contract lists as theirs: in their
/// objects `size` is the field, and `length` the item's size.
pub fn describe<F: Known>(
    item: &StreamItem<F>,
    listed: Option<&Listed<F>>,
    name: Option<Name>,
    line: &mut Line,
) {
    let (offset, size) = extent(item);
    line.begin().number("offset", offset.0);
    if let Some(listed) = listed {
        let mut has_size = false;
        listed.visit(&mut |key, _| has_size |= key == "size");
        line.number(if has_size { "length" } else { "size" }, size as u64);
        line.text("packet", listed.raw().kind().name());
        listed.visit(&mut |key, value| {
            field(key, value, line);
            if let Some(name) = name
                && name.key == key
            {
                line.name(key, &name.to_string());
            }
        });
    } else {
        line.number("size", size as u64);
    }
    if let Err(error) = item {
        line.text("error", &error.error.to_string());
    }
}

fn field(key: &'static str, value: Value, line: &mut Line) {
    match value {
        Value::Bool(flag) => line.flag(key, flag),
        Value::Number(number) | Value::Named(number, None) => line.number(key, number),
        Value::Named(number, Some(name)) => line.number(key, number).name(key, name),
        Value::Hex(number) => line.hex(key, number),
        Value::Tnt { bits, len } => line.tnt(key, bits, len),
        Value::Address(ip) => line.hex_or_null(key, ip.map(|ip| ip.0)),
        Value::Payload(bits) => line.hex_or_null(key, bits),
        Value::Mode(mode) => line.number(key, mode.bits()),
        Value::Absent => line.null(key),
        _ => line.text(key, &value.to_string()),
    };
}
