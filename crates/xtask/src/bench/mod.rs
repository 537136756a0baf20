//! `cargo xtask bench`: how fast Cofi is, and how fast the others are, in the same run; `libipt`, `packets`, `insn`, `unit`, `record`, `machine`, `sql` and `costs` measure one thing each, and
//! `guard` counts instructions.

mod costs;
mod counted;
mod guard;
mod insn;
mod libipt;
mod machine;
mod packets;
mod race;
mod racers;
mod record;
mod recordings;
mod sql;
mod unit;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use cofi_exam::programs::{Origin, Program};

/// `ls -l` of the folder of the programs' sources.
const LS: Program = Program {
    name: "ls -l",
    origin: Origin::System("/bin/ls"),
    arguments: &["-l", "@PROGRAMS"],
    quirks: &[],
    not_for_qemu: None,
    not_for_plain: None,
};

/// Where the traces of real processors are, if nobody says otherwise.
fn traces(root: &Path) -> PathBuf {
    std::env::var_os("COFI_TRACES").map_or_else(|| root.join("../shared/traces"), PathBuf::from)
}

/// How busy the machine is: the load of the last minute.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// The median; of an even number, the mean of the middle two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        (values[middle - 1] + values[middle]) / 2.0
    } else {
        values[middle]
    }
}

/// Runs the part that is asked for.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    match arguments.split_first() {
        Some((word, rest)) if word == "libipt" => libipt::run(root, rest),
        Some((word, rest)) if word == "packets" => packets::run(root, rest),
        Some((word, rest)) if word == "unit" => unit::run(root, rest),
        Some((word, rest)) if word == "record" => record::run(root, rest),
        Some((word, rest)) if word == "machine" => machine::run(root, rest),
        Some((word, rest)) if word == "insn" => insn::run(root, rest),
        Some((word, rest)) if word == "costs" => costs::run(root, rest),
        Some((word, rest)) if word == "sql" => sql::run(root, rest),
        Some((word, rest)) if word == "guard" => guard::run(root, rest),
        _ => race::run(root, arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_not_moved_by_one_bad_round() {
        assert_eq!(median(vec![3.0, 1000.0, 1.0, 2.0, 2.5]), 2.5);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
