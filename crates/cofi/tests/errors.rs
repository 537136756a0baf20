//! docs/errors.md and the messages in the source name each other.

mod common;

use common::repository;
use std::path::{Path, PathBuf};

/// Where messages come from that concern what is read.
const SOURCES: [&str; 6] = [
    "crates/cofi-flow/src",
    "crates/cofi-packet/src/error.rs",
    "crates/cofi-insn/src/error.rs",
    "crates/cofi-image/src",
    "crates/cofi-perf/src/error.rs",
    "crates/cofi-session/src",
];

fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries =
        std::fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    entries
        .flat_map(|entry| files(&entry.expect("an entry").path()))
        .collect()
}

/// A literal without its line breaks.
fn one_line(literal: &str) -> String {
    let mut parts = literal.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.trim_start())
}

/// The texts of the `error` attributes, without those that only pass on another.
fn messages() -> Vec<String> {
    let mut found = Vec::new();
    for source in SOURCES {
        for file in files(&repository().join(source)) {
            let text = std::fs::read_to_string(&file).expect("UTF-8");
            for part in text.split("#[error(").skip(1) {
                let Some(literal) = part.trim_start().strip_prefix('"') else {
                    continue;
                };
                let (literal, _) = literal.split_once('"').expect("an end");
                let words = literal.split_whitespace();
                // Where several braces make up all of it, another message says the rest.
                let has_words = words.filter(|word| !word.starts_with('{')).count() >= 3;
                // These say where another message belongs.
                if has_words
                    && !literal.contains("at stream offset {")
                    && !literal.contains("(at file")
                {
                    found.push(one_line(literal));
                }
            }
        }
    }
    found
}

#[test]
fn every_message_is_explained_and_every_explanation_is_of_a_message() {
    let page = std::fs::read_to_string(repository().join("docs/errors.md")).expect("the page");
    let messages = messages();
    assert!(messages.len() > 50, "{}", messages.len());
    let missing: Vec<&String> = messages
        .iter()
        .filter(|message| !page.contains(message.as_str()))
        .collect();
    assert!(missing.is_empty(), "docs/errors.md lacks {missing:#?}");
    let all = SOURCES
        .iter()
        .flat_map(|source| files(&repository().join(source)))
        .map(|file| one_line(&std::fs::read_to_string(file).expect("UTF-8")))
        .collect::<String>();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let cell = cells
            .iter()
            .find(|cell| cell.contains(' ') && cell.contains('`'));
        let Some(message) = cell.and_then(|cell| cell.split('`').nth(1)) else {
            continue;
        };
        assert!(
            all.contains(message) || message.contains("--"),
            "{message}: no such message"
        );
    }
}
