//! `cargo xtask tidy`: every source file says what it is for and stays readable, and the architecture page and the page
//! about the trace unit name only what exists.

mod unit_page;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use crate::source;

/// A file longer than this is two files.
const LONGEST: usize = 900;

/// Where code is walked: the binder is told there by its methods.
const WALKS: [&str; 2] = [
    "crates/cofi-flow/src/walk",
    "crates/cofi-flow/src/rtit/walk.rs",
];

/// The lines that assign to a field of `bind`.
fn binder_writes(text: &str) -> Vec<usize> {
    let is_write = |line: &str| {
        let line = line.trim_start().trim_start_matches('(');
        let Some(field) = line.strip_prefix("bind.") else {
            return false;
        };
        let path =
            field.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || "_.".contains(c));
        let operator = path
            .trim_start()
            .trim_start_matches(['+', '-', '|', '&', '<', '>']);
        operator.starts_with('=') && !operator.starts_with("==")
            || path.starts_with(',') && line.contains(") = ")
    };
    let lines = text.lines().enumerate();
    lines
        .filter(|(_, line)| is_write(line))
        .map(|(number, _)| number + 1)
        .collect()
}

/// Prints every untidy place and returns whether there is none.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let mut found = Vec::new();
    let mut names = BTreeSet::new();
    let mut files = source::rust_files(&root.join("crates"))?;
    for extra in ["fuzz", "bench", "python/src", "exam/no-std", "examples"] {
        let folder = root.join(extra);
        if folder.is_dir() {
            files.extend(source::rust_files(&folder)?);
        }
    }
    for file in &files {
        let text = source::text(file)?;
        let place = file
            .strip_prefix(root)
            .unwrap_or(file)
            .display()
            .to_string();
        if let Some(fault) = untidy(&text) {
            found.push(format!("{place}: {fault}"));
        }
        if WALKS.iter().any(|walk| place.starts_with(walk)) {
            let writes = binder_writes(&text).into_iter();
            found.extend(
                writes.map(|line| format!("{place}:{line}: a walk writes a field of the binder")),
            );
        }
        collect_names(&text, &mut names);
    }
    let page = root.join("ARCHITECTURE.md");
    if page.is_file() {
        for name in unknown(&source::text(&page)?, &names, &|path| {
            root.join(path).exists()
        }) {
            found.push(format!(
                "ARCHITECTURE.md names `{name}`, which does not exist"
            ));
        }
    } else {
        found.push("ARCHITECTURE.md is missing".to_owned());
    }
    for fault in unit_page::faults(root)? {
        found.push(format!("{}: {fault}", unit_page::PAGE));
    }
    for fault in &found {
        println!("tidy: {fault}");
    }
    if found.is_empty() {
        println!("tidy: {} source files, all in order", files.len());
    }
    Ok(found.is_empty())
}

/// What is wrong with one source file.
fn untidy(text: &str) -> Option<String> {
    let lines = text.lines().count();
    if lines > LONGEST {
        return Some(format!("{lines} lines; {LONGEST} are the most"));
    }
    // (A crate's may be its README.)
    let first = text.lines().find(|line| {
        line.starts_with("#![doc = include_str!(")
            || !line.trim().is_empty() && !line.starts_with("#![")
    });
    match first {
        Some(line) if line.starts_with("//!") || line.starts_with("#![doc") => None,
        _ => Some("no module doc (//!) at its head".to_owned()),
    }
}

/// Adds every name that `text` defines (types, traits, functions, constants, modules, macros, enum variants).
fn collect_names(text: &str, names: &mut BTreeSet<String>) {
    const KEYWORDS: &[&str] = &[
        "struct",
        "enum",
        "trait",
        "fn",
        "const",
        "static",
        "type",
        "mod",
        "union",
        "macro_rules!",
    ];
    for line in text.lines() {
        let mut words = line
            .split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '!'))
            .filter(|w| !w.is_empty());
        let first = words.clone().next();
        while let Some(word) = words.next() {
            if KEYWORDS.contains(&word)
                && let Some(name) = words.next()
            {
                names.insert(name.to_owned());
            }
        }
        // A variant or a field stands first on its line.
        if let Some(first) = first {
            names.insert(first.to_owned());
        }
    }
}

/// The names in backticks of `page` that are neither known names nor existing paths.
///
/// Judged are crates (`cofi-…`, `cofi_…`), Rust paths and type names (`Like::this`, `LikeThis`) and file paths (with a
/// slash); everything else in backticks is prose.
fn unknown(page: &str, names: &BTreeSet<String>, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut unknown = Vec::new();
    for code in in_backticks(page) {
        let fine = if code.contains(' ') || code.starts_with("http") || code.contains('…') {
            true
        } else if let Some(command) = code.strip_prefix("cofi-") {
            exists(&format!(
                "crates/cofi-{}",
                command.split('/').next().unwrap_or_default()
            )) && (!code.contains('/') || exists(&format!("crates/{code}")))
        } else if code.contains('/') {
            // FILE.code/ and the like are what a user names, not files of ours.
            let placeholder = code
                .chars()
                .take_while(|c| c.is_alphabetic())
                .all(char::is_uppercase);
            placeholder || exists(&code)
        } else {
            rust_path_known(&code, names, exists)
        };
        if !fine {
            unknown.push(code);
        }
    }
    unknown
}

fn rust_path_known(code: &str, names: &BTreeSet<String>, exists: &dyn Fn(&str) -> bool) -> bool {
    let path = code
        .trim_end_matches("()")
        .split(['<', '('])
        .next()
        .unwrap_or_default();
    let is_path = path.contains("::");
    let is_type = path.chars().next().is_some_and(char::is_uppercase)
        && path.chars().any(char::is_lowercase)
        && path.chars().all(|c| c.is_alphanumeric() || c == '_');
    let is_crate = path.starts_with("cofi_");
    if !(is_path || is_type || is_crate) {
        return true;
    }
    let mut segments = path.split("::").peekable();
    match segments.peek() {
        Some(&("std" | "core" | "alloc")) => return true,
        Some(first) if first.starts_with("cofi_") => {
            if !exists(&format!("crates/{}", first.replace('_', "-"))) {
                return false;
            }
            segments.next();
        }
        _ => {}
    }
    segments.all(|segment| {
        matches!(segment, "intel" | "crate" | "self" | "*") || names.contains(segment)
    })
}

/// Every stretch between single backticks outside fenced blocks.
fn in_backticks(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut fenced = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if !fenced {
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_to_the_binder_is_found() {
        let text = "bind.pending = None;\nif bind.tnt == 0 {}\n    bind.own.is_last |= true;\n(bind.tnt, bind.len) = (0, 0);\n\
            bind.finish();\nlet tnt = bind.tnt;\nbind.tnt <<= 1;";
        assert_eq!(binder_writes(text), [1, 3, 4, 7]);
    }

    #[test]
    fn a_module_doc_comes_first() {
        assert_eq!(untidy("//! What it is.\nfn a() {}\n"), None);
        assert_eq!(untidy("#![no_std]\n\n//! What it is.\n"), None);
        let readme = "#![doc = include_str!(\"../README.md\")]\n#![no_std]\nmod a;\n";
        assert_eq!(untidy(readme), None);
        assert!(untidy("use core::fmt;\n").is_some());
        assert!(untidy("").is_some());
    }

    #[test]
    fn a_long_file_is_told_with_its_length() {
        let long = "//! Long.\n".repeat(LONGEST + 1);
        assert_eq!(
            untidy(&long),
            Some(format!("{} lines; {LONGEST} are the most", LONGEST + 1))
        );
    }

    #[test]
    fn only_names_that_exist_pass() {
        let mut names = BTreeSet::new();
        collect_names(
            "pub struct FlowDecoder<'t> {\n    Pad,\n}\npub fn find_psb() {}\nmod intel;",
            &mut names,
        );
        let exists = |path: &str| path == "crates/cofi-flow" || path == "corpus/";
        let page = "`FlowDecoder` of `cofi-flow` and `cofi_flow::FlowDecoder::Pad`, `find_psb()`, `corpus/`, `--json`, `no_std`.\n\
                    ```\n`Fenced` cofi-gone\n```\n\
                    But `cofi-gone`, `Gone`, `cofi_flow::Gone` and `gone/here`.";
        assert_eq!(
            unknown(page, &names, &exists),
            ["cofi-gone", "Gone", "cofi_flow::Gone", "gone/here"]
        );
    }
}
