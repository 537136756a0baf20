//! The parts of `cofi unit` that print nothing.

#[path = "../../../crates/cofi/src/unit/intel/mod.rs"]
mod intel;
#[path = "../../../crates/cofi/src/unit/play.rs"]
mod play;
#[path = "../../../crates/cofi/src/unit/reader.rs"]
mod reader;
#[path = "../../../crates/cofi/src/unit/record.rs"]
mod record;
#[path = "../../../crates/cofi/src/unit/registers.rs"]
mod registers;
#[path = "../../../crates/cofi/src/unit/rtit/mod.rs"]
mod rtit;
#[path = "../../../crates/cofi/src/unit/scenario.rs"]
mod scenario;
#[path = "../../../crates/cofi/src/unit/values.rs"]
mod values;

use reader::Table;
use scenario::UnitName;

/// The packets of a scenario, or what is wrong with it.
pub(crate) fn packets(text: &str) -> Result<Vec<u8>, String> {
    let wrong = |mistake: reader::Mistake| mistake.told(text);
    let document = reader::parse(text).map_err(wrong)?;
    let table = Table::new("the scenario", 0..0, document.get_ref());
    let (unit, _, ip) = scenario::about(&table).map_err(wrong)?;
    let stream = match unit {
        UnitName::IntelPt => intel::play(&table, ip).map_err(wrong)?.stream,
        UnitName::Rtit => rtit::play(&table, ip).map_err(wrong)?.stream,
    };
    table.finish().map_err(wrong)?;
    Ok(stream)
}
