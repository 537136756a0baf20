//! Bytes as 16-bit units, from which they can be had again: what is UTF-8 is text, and each byte of the rest is a surrogate that belongs to no pair.
//!
//! UTF-8 has no surrogates: so all bytes can be told from text, and different bytes give different units. Python does the same with names of files (PEP 383).

/// The unit of the byte 0; bytes of text have none.
const FIRST: u16 = 0xdc00;

/// The units of these bytes.
pub(crate) fn units_of(bytes: &[u8]) -> Vec<u16> {
    let mut units = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        units.extend(chunk.valid().encode_utf16());
        units.extend(chunk.invalid().iter().map(|byte| FIRST + u16::from(*byte)));
    }
    units
}

/// The bytes of these units. A surrogate that is no byte's, as Windows allows in names of files, stays what it is in bytes: three of them.
pub(crate) fn bytes_of(units: impl Iterator<Item = u16>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for unit in char::decode_utf16(units) {
        match unit {
            Ok(text) => bytes.extend_from_slice(text.encode_utf8(&mut [0; 4]).as_bytes()),
            Err(alone) => {
                let unit = alone.unpaired_surrogate();
                match u8::try_from(unit.wrapping_sub(FIRST)) {
                    Ok(byte) if !byte.is_ascii() => bytes.push(byte),
                    _ => bytes.extend([
                        0xe0 | (unit >> 12) as u8,
                        0x80 | (unit >> 6 & 0x3f) as u8,
                        0x80 | (unit & 0x3f) as u8,
                    ]),
                }
            }
        }
    }
    bytes
}
