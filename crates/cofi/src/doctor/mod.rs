//! `cofi doctor`: what this machine offers for recording, and what to install or change for what is missing.

mod cpu;
mod kernel;
mod tools;

use crate::args::DoctorArgs;
use crate::{Ended, output};
use anyhow::Result;
use cofi_text::Line;
use serde_json::Value;
use std::io::Write;

/// How well a thing serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Ok,
    /// There, but not all of it.
    Limited,
    Missing,
}

impl Status {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Missing => "missing",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Debug)]
struct Finding {
    /// Its key in JSON.
    key: &'static str,
    /// Its name in text.
    title: &'static str,
    status: Status,
    /// What was found, in one line.
    says: String,
    /// What to do about it.
    hint: Option<String>,
    /// More keys for its object in JSON.
    facts: Vec<(&'static str, Value)>,
}

impl Finding {
    fn new(
        key: &'static str,
        title: &'static str,
        status: Status,
        says: impl Into<String>,
    ) -> Self {
        Self {
            key,
            title,
            status,
            says: says.into(),
            hint: None,
            facts: Vec::new(),
        }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn fact(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.facts.push((key, value.into()));
        self
    }
}

/// Runs the command.
pub(crate) fn run(args: &DoctorArgs) -> Result<Ended> {
    let findings = [
        cpu::processor(),
        cpu::virtualisation(),
        cpu::intel_pt(),
        cpu::rtit(),
        kernel::perf_event_paranoid(),
        kernel::ptrace_scope(),
        kernel::block_step(),
        kernel::breakpoints(),
        tools::qemu_user(),
        tools::qemu_system(),
        tools::machine(),
        tools::perf(),
    ];
    let mut out = output::stdout();
    if args.json {
        let mut line = Line::default();
        line.begin().text("cofi", env!("CARGO_PKG_VERSION"));
        for finding in &findings {
            line.object(finding.key, |line| object(line, finding));
        }
        out.write_all(line.end())?;
    } else {
        out.write_all(text(&findings).as_bytes())?;
    }
    out.flush()?;
    Ok(Ended::Well)
}

fn object(line: &mut Line, finding: &Finding) {
    line.text("status", finding.status.name())
        .text("says", &finding.says);
    match &finding.hint {
        Some(hint) => line.text("hint", hint),
        None => line.null("hint"),
    };
    for (key, value) in &finding.facts {
        line.value(key, value);
    }
}

/// A line for each thing, and its hint below.
fn text(findings: &[Finding]) -> String {
    let width = findings
        .iter()
        .map(|finding| finding.title.len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let (status, title) = (finding.status.name(), finding.title);
        text += &format!("{status:<7}  {title:<width$}  {}\n", plain(&finding.says));
        if let Some(hint) = &finding.hint {
            text += &format!("{:7}  {:width$}  -> {}\n", "", "", plain(hint));
        }
    }
    text
}

/// One line that a terminal shows as it is: other programs' words may hold anything.
fn plain(words: &str) -> String {
    words
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Finding, Status, object, text};
    use cofi_text::Line;

    #[test]
    fn text_has_a_line_a_thing_and_the_hint_below() {
        let findings = [
            Finding::new("a", "first", Status::Ok, "all\nis\x1bwell"),
            Finding::new("b", "number two", Status::Missing, "gone").hint("get it"),
        ];
        let wanted = "ok       first       all is well\n\
                      missing  number two  gone\n                     -> get it\n";
        assert_eq!(text(&findings), wanted);
    }

    #[test]
    fn json_has_all_keys() {
        let finding = Finding::new("a", "first", Status::Limited, "half \"of\" it")
            .fact("value", -1)
            .fact("names", vec!["x", "y"]);
        let mut line = Line::default();
        line.begin()
            .object(finding.key, |line| object(line, &finding));
        let got: serde_json::Value = serde_json::from_slice(line.end()).expect("JSON");
        let wanted = serde_json::json!({
            "a": {"status": "limited", "says": "half \"of\" it", "hint": null, "value": -1, "names": ["x", "y"]}
        });
        assert_eq!(got, wanted);
    }
}
