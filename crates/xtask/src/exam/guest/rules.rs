//! The trace registers, access by access, against the table `exam/guest/rules.txt`.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::super::build::tool;
use super::Exam;

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    writes: bool,
    register: u32,
    /// What is written, or is to be read.
    value: u64,
    /// The bits of it that are looked at.
    mask: u64,
    faults: bool,
}

/// The program's table, and the rows, of a text.
fn rows(text: &str) -> Result<Vec<Row>> {
    text.lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
        .map(|line| row(line).with_context(|| format!("{line:?} is no row")))
        .collect()
}

fn row(line: &str) -> Result<Row> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let faults = words.last() == Some(&"-");
    let words = &words[..words.len() - usize::from(faults)];
    let hex = |word: &str| u64::from_str_radix(word, 16);
    let writes = words.first() == Some(&"w");
    ensure!(writes || words.first() == Some(&"r"), "neither r nor w");
    let register = hex(words.get(1).context("no register")?)? as u32;
    let (value, mask) = match words.get(2) {
        Some(word) => match word.split_once('/') {
            Some((value, mask)) => (hex(value)?, hex(mask)?),
            None => (hex(word)?, u64::MAX),
        },
        None => {
            ensure!(faults && !writes, "no value");
            (0, 0)
        }
    };
    Ok(Row {
        writes,
        register,
        value,
        mask,
        faults,
    })
}

impl Exam {
    /// Runs the program, and compares.
    pub(super) fn rules(&self) -> Result<String> {
        let sources = self.root.join("exam/guest");
        let text = fs::read_to_string(sources.join("rules.txt")).context("reading rules.txt")?;
        let rows = rows(&text)?;
        let mut table = String::new();
        for row in &rows {
            let kind = if row.writes { 'w' } else { 'r' };
            // What is read where nothing should be: all ones, to be seen if it stays.
            let value = if row.writes { row.value } else { u64::MAX };
            writeln!(
                table,
                ".long '{kind}', {:#x}, {:#x}, {:#x}",
                row.register,
                value & 0xffff_ffff,
                value >> 32
            )?;
        }
        fs::write(self.path("table.inc"), table)?;
        let (object, program) = (self.path("rules.o"), self.path("rules.elf"));
        tool(
            Command::new("gcc")
                .args(["-m32", "-c", "-I"])
                .arg(&self.folder)
                .arg(sources.join("rules.S"))
                .arg("-o")
                .arg(&object),
        )?;
        tool(
            Command::new("ld")
                .args(["-m", "elf_i386", "-Ttext", "0x100000", "-o"])
                .args([&program, &object]),
        )?;
        let output = self
            .machine(&["--processor", "skylake"])
            .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"])
            .args(["-debugcon", "file:rules.out", "-kernel"])
            .arg(&program)
            .output()
            .context("running cofi machine")?;
        let words = String::from_utf8_lossy(&output.stderr);
        ensure!(
            words.is_empty() && output.status.code() == Some(1),
            "the machine ended with {}: {words}",
            output.status
        );
        let said = fs::read_to_string(self.path("rules.out")).context("reading what it said")?;
        let said: Vec<&str> = said.lines().collect();
        ensure!(
            said.len() == rows.len(),
            "{} answers to {} accesses",
            said.len(),
            rows.len()
        );
        for (row, said) in rows.iter().zip(said) {
            ensure!(row.holds(said)?, "{row:x?} got {said}");
        }
        let faults = rows.iter().filter(|row| row.faults).count();
        Ok(format!(
            "{} accesses as the manual has them, {faults} of them #GP",
            rows.len()
        ))
    }
}

impl Row {
    /// Whether this is the program's line about it: kind, ECX, EDX, EAX, and how it ended.
    fn holds(&self, said: &str) -> Result<bool> {
        let kind = if self.writes { "w" } else { "r" };
        let end = if self.faults { "-" } else { "+" };
        let (body, last) = said.split_at_checked(said.len() - 1).context("no line")?;
        let words: Vec<&str> = body.split_whitespace().collect();
        let [told, register, high, low] = words[..] else {
            return Ok(false);
        };
        let hex = |word: &str| u64::from_str_radix(word, 16);
        let value = hex(high)? << 32 | hex(low)?;
        // A read that faults leaves the registers alone.
        let is_value = match (self.writes, self.faults) {
            (false, true) => value == u64::MAX,
            (false, false) => value & self.mask == self.value & self.mask,
            (true, _) => value == self.value,
        };
        Ok(told == kind && last == end && hex(register)? == u64::from(self.register) && is_value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_say_what_is_expected() {
        let rows = rows("# words\nw 560 1001 -\n\nr 571 5/ff\nr 584 -\n").unwrap();
        assert!(rows[0].holds("w 00000560 00000000 00001001-").unwrap());
        assert!(!rows[0].holds("w 00000560 00000000 00001001+").unwrap());
        assert!(rows[1].holds("r 00000571 00000001 00000005+").unwrap());
        assert!(!rows[1].holds("r 00000571 00000001 00000004+").unwrap());
        assert!(rows[2].holds("r 00000584 ffffffff ffffffff-").unwrap());
        assert!(!rows[2].holds("r 00000584 00000000 ffffffff-").unwrap());
        assert!(super::rows("x 1 2").is_err() && super::rows("w 560").is_err());
    }
}
