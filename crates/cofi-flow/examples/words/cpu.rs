//! The processor, on the same command lines.

use std::error::Error;

use cofi_flow::Cpu;

use super::words::number;

/// FAMILY/MODEL/STEPPING.
pub(crate) fn cpu(text: &str) -> Result<Cpu, Box<dyn Error>> {
    let mut fields = text.split('/').map(number);
    let mut field = || fields.next().unwrap_or(Ok(0));
    Ok(Cpu {
        family: field()?.try_into()?,
        model: field()?.try_into()?,
        stepping: field()?.try_into()?,
    })
}
