//! What stands on the command lines of the programs that decode bare packets for a race: numbers, and sections of code.

use std::error::Error;
use std::fs;

/// A decimal number, or a hexadecimal one behind `0x`.
pub(crate) fn number(text: &str) -> Result<u64, Box<dyn Error>> {
    let value = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    value.map_err(|error| format!("{text}: {error}").into())
}

/// FILE:OFFSET:SIZE:ADDRESS, from the right: a file's name may hold colons.
pub(crate) fn section(text: &str) -> Result<(u64, Vec<u8>), Box<dyn Error>> {
    let fields: Vec<&str> = text.rsplitn(4, ':').collect();
    let [address, size, offset, file] = fields[..] else {
        return Err(format!("{text}: a section is FILE:OFFSET:SIZE:ADDRESS").into());
    };
    let mut bytes = fs::read(file).map_err(|error| format!("{file}: {error}"))?;
    bytes.drain(..bytes.len().min(usize::try_from(number(offset)?)?));
    bytes.truncate(usize::try_from(number(size)?)?);
    Ok((number(address)?, bytes))
}
