//! The trace registers, access by access, against tables: of a generation, and of one with other capabilities.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::super::build::tool;
use super::Exam;

/// Tables in `exam/guest`, and the machines that they are of: what each is called, and options of `cofi machine`.
pub(super) const TABLES: &[(&str, &str, &[&str])] = &[
    (
        "trace registers, from bare metal",
        "rules.txt",
        &["--processor", "skylake"],
    ),
    (
        "trace registers, other capabilities",
        "rules-caps.txt",
        &[
            "--processor",
            "skylake",
            "--caps",
            "ptwrite=1,power_event=1,tnt_disable=1,address_ranges=1,mtc=0,cr3_filter=0,single_range=0,cycle_thresholds=0x7f",
        ],
    ),
    (
        "RTIT's registers, from bare metal",
        "rules-rtit.txt",
        &["--processor", "silvermont"],
    ),
];

/// What a row has the program do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    /// CPUID of this sub-leaf, and its result in EAX, EBX, ECX or EDX: one of the letters a to d.
    Cpuid(u32, char),
}

impl Access {
    const fn letter(self) -> char {
        match self {
            Self::Read => 'r',
            Self::Write => 'w',
            Self::Cpuid(_, register) => register,
        }
    }
}

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    access: Access,
    /// The MSR, or the leaf.
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
    let (access, words) = match words {
        ["r", rest @ ..] => (Access::Read, rest),
        ["w", rest @ ..] => (Access::Write, rest),
        ["cpuid", leaf, place, rest @ ..] => {
            let (subleaf, register) = place.split_once(".e").context("no register of CPUID")?;
            let letter = register.chars().next().context("no register of CPUID")?;
            ensure!(matches!(register, "ax" | "bx" | "cx" | "dx"), "no register");
            let row = [&[*leaf][..], rest].concat();
            return with_value(Access::Cpuid(hex(subleaf)? as u32, letter), &row, faults);
        }
        _ => bail!("neither r nor w nor cpuid"),
    };
    with_value(access, words, faults)
}

/// The row of an access with these words: register or leaf, and value.
fn with_value(access: Access, words: &[&str], faults: bool) -> Result<Row> {
    let hex = |word: &str| u64::from_str_radix(word, 16);
    let register = hex(words.first().context("no register")?)? as u32;
    let (value, mask) = match words.get(1) {
        Some(word) => match word.split_once('/') {
            Some((value, mask)) => (hex(value)?, hex(mask)?),
            None => (hex(word)?, u64::MAX),
        },
        None => {
            ensure!(faults && access == Access::Read, "no value");
            (0, 0)
        }
    };
    Ok(Row {
        access,
        register,
        value,
        mask,
        faults,
    })
}

impl Exam {
    /// Runs the program with a table on a machine with these options, and compares.
    pub(super) fn rules(&self, table: &str, options: &[&str]) -> Result<String> {
        let sources = self.root.join("exam/guest");
        let text = fs::read_to_string(sources.join(table)).with_context(|| table.to_owned())?;
        let rows = rows(&text)?;
        let mut table = String::new();
        for row in &rows {
            let value = match row.access {
                Access::Write => row.value,
                // What is read where nothing should be: all ones, to be seen if it stays.
                Access::Read => u64::MAX,
                Access::Cpuid(subleaf, _) => subleaf.into(),
            };
            writeln!(
                table,
                ".long '{}', {:#x}, {:#x}, {:#x}",
                row.access.letter(),
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
            .machine(options)
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
        let end = if self.faults { "-" } else { "+" };
        let (body, last) = said.split_at_checked(said.len() - 1).context("no line")?;
        let words: Vec<&str> = body.split_whitespace().collect();
        let [told, register, high, low] = words[..] else {
            return Ok(false);
        };
        let hex = |word: &str| u64::from_str_radix(word, 16);
        let value = hex(high)? << 32 | hex(low)?;
        // A read that faults leaves the registers alone.
        let is_value = match (self.access, self.faults) {
            (Access::Read, true) => value == u64::MAX,
            (Access::Write, _) => value == self.value,
            _ => value & self.mask == self.value & self.mask,
        };
        Ok(told == self.access.letter().to_string()
            && last == end
            && hex(register)? == u64::from(self.register)
            && is_value)
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
        let rows = super::rows("cpuid 14 1.ebx 3f0000/ffff0000\n").unwrap();
        assert_eq!(rows[0].access, Access::Cpuid(1, 'b'));
        assert!(rows[0].holds("b 00000014 00000000 003f1234+").unwrap());
        assert!(!rows[0].holds("b 00000014 00000000 001f1234+").unwrap());
        assert!(super::rows("cpuid 14 1.bx 0").is_err() && super::rows("cpuid 14").is_err());
        assert!(super::rows("x 1 2").is_err() && super::rows("w 560").is_err());
    }
}
