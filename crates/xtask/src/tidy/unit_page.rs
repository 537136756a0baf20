//! docs/unit.md: what it names exists, and nothing that it must name is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;

use crate::source;

/// The page.
pub(super) const PAGE: &str = "docs/unit.md";
const CORPUS: &str = "corpus/unit";
/// The chapter's tables; every one has a row.
const TABLES: std::ops::RangeInclusive<u32> = 1..=59;
/// A table of rules begins so.
const HEAD: &str = "| about | rule | where it is tested |";
/// The fenced block that lists the chapter's sections begins so.
const SECTIONS: &str = "```sections";
/// How the third cell of a row begins where no test is named.
const UNTESTED: &[&str] = &[
    "decoder:",
    "software:",
    "platform:",
    "not modelled:",
    "no rule",
];

/// What the repository has.
struct Known {
    /// The files of the corpus.
    scenarios: BTreeSet<String>,
    /// The sources, by path from the root.
    sources: BTreeMap<String, String>,
}

/// A row of a table of rules.
struct Row {
    about: String,
    tests: String,
}

/// What is wrong with the page.
pub(super) fn faults(root: &Path) -> Result<Vec<String>> {
    let page = root.join(PAGE);
    if !page.is_file() {
        return Ok(vec!["it is missing".to_owned()]);
    }
    let mut known = Known {
        scenarios: BTreeSet::new(),
        sources: BTreeMap::new(),
    };
    for entry in std::fs::read_dir(root.join(CORPUS))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".toml") {
            known.scenarios.insert(name);
        }
    }
    for file in source::rust_files(&root.join("crates"))? {
        let path = file.strip_prefix(root).unwrap_or(&file);
        let path = path.display().to_string();
        known.sources.insert(path, source::text(&file)?);
    }
    Ok(check(&source::text(&page)?, &known).unwrap_or_else(|fault| vec![fault]))
}

/// Every fault of the page, in no more than a line each.
fn check(page: &str, known: &Known) -> Result<Vec<String>, String> {
    let mut faults = Vec::new();
    let mut named = BTreeSet::new();
    for code in super::in_backticks(page) {
        if code.ends_with(".toml") {
            if !known.scenarios.contains(&code) {
                faults.push(format!("`{code}` is no file of {CORPUS}"));
            }
            named.insert(code);
        } else if is_test_path(&code) && !known.has_test(&code) {
            faults.push(format!("`{code}` is no test"));
        }
    }
    for file in known.scenarios.difference(&named) {
        faults.push(format!("{CORPUS}/{file} is not named"));
    }
    let rows = rows(page);
    for row in &rows {
        let names_a_test = super::in_backticks(&row.tests)
            .iter()
            .any(|code| code.ends_with(".toml") || is_test_path(code));
        if !names_a_test && !UNTESTED.iter().any(|word| row.tests.starts_with(word)) {
            faults.push(format!(
                "a row of {} says neither where its rule is tested nor why it is not: \"{}\"",
                row.about, row.tests
            ));
        }
    }
    let mut wanted = sections(page)?;
    wanted.extend(TABLES.map(|table| format!("Table 33-{table}")));
    wanted.extend([1, 2].map(|example| format!("Example 33-{example}")));
    let told: BTreeSet<&str> = rows.iter().flat_map(|row| row.about.split(", ")).collect();
    for section in &wanted {
        if !told.contains(section.as_str()) {
            faults.push(format!("{section} has no row"));
        }
    }
    for section in told {
        if !wanted.iter().any(|known| known == section) {
            faults.push(format!(
                "{section}, which a row is about, is not in the chapter"
            ));
        }
    }
    Ok(faults)
}

/// The sections that the page lists, which must have rows.
fn sections(page: &str) -> Result<Vec<String>, String> {
    let (_, list) = page
        .split_once(SECTIONS)
        .ok_or("the list of the chapter's sections is missing")?;
    let (list, _) = list
        .split_once("```")
        .ok_or("the list of the chapter's sections does not end")?;
    let sections: Vec<_> = list.split_whitespace().map(str::to_owned).collect();
    if sections.is_empty() {
        return Err("the list of the chapter's sections is empty".to_owned());
    }
    Ok(sections)
}

/// The rows of the page's tables of rules: those that begin with [`HEAD`].
fn rows(page: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut in_rules = false;
    for line in page.lines().map(str::trim) {
        if line == HEAD {
            in_rules = true;
            continue;
        }
        in_rules &= line.starts_with('|');
        if !in_rules || line.starts_with("|--") {
            continue;
        }
        let line = line.trim_start_matches("| ").trim_end_matches(" |");
        let mut cells = line.split(" | ");
        let about = cells.next().unwrap_or_default();
        let tests = cells.nth(1).unwrap_or_default();
        rows.push(Row {
            about: about.trim().to_owned(),
            tests: tests.trim().to_owned(),
        });
    }
    rows
}

/// `cofi_crate::module::test_name`: a path whose last part is a function's name.
fn is_test_path(code: &str) -> bool {
    let is_lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == ':';
    code.starts_with("cofi") && code.contains("::") && code.chars().all(is_lower)
}

impl Known {
    /// Whether there is a test with this path: of a module below the crate's `src`, or of a file in its `tests` or `examples`.
    fn has_test(&self, path: &str) -> bool {
        let mut parts: Vec<_> = path.split("::").collect();
        let Some(test) = parts.pop() else {
            return false;
        };
        let folder = parts.remove(0).replace('_', "-");
        let places = ["src", "tests", "examples"].map(|kind| format!("crates/{folder}/{kind}"));
        places.iter().any(|place| {
            (0..=parts.len()).any(|inline| {
                let (files, modules) = parts.split_at(parts.len() - inline);
                let file = [&[place.as_str()], files].concat().join("/");
                let roots = ["lib.rs", "main.rs", "mod.rs"].map(|root| format!("{file}/{root}"));
                roots
                    .iter()
                    .chain([&format!("{file}.rs")])
                    .filter_map(|file| self.sources.get(file))
                    .any(|text| {
                        modules
                            .iter()
                            .all(|module| text.contains(&format!("mod {module} {{")))
                            && has_test(text, test)
                    })
            })
        })
    }
}

/// Whether `text` has a function of this name right behind `#[test]`, attributes and comments aside.
fn has_test(text: &str, name: &str) -> bool {
    let begin = format!("fn {name}(");
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if line == "#[test]" {
            is_test = true;
        } else if is_test && line.starts_with(&begin) {
            return true;
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            is_test = false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        Known {
            scenarios: ["rule-a.toml", "rule-b.toml"].map(str::to_owned).into(),
            sources: BTreeMap::from([
                file(
                    "crates/cofi-unit/src/output/tests.rs",
                    "#[test]\n// Why.\n#[should_panic]\nfn stop() {}\nfn helper() {}\n",
                ),
                file(
                    "crates/cofi-unit/src/xsave.rs",
                    "mod tests {\n    #[test]\n    fn places() {}\n}\n",
                ),
                file(
                    "crates/cofi-law/tests/law.rs",
                    "    #[test]\n    fn mirrors(config in configs()) {\n",
                ),
            ]),
        }
    }

    /// A page without faults.
    fn page() -> String {
        let mut page = "```sections\n33.1 33.2.1\n```\n\
            | 33.9 | In no table of rules. | |\n\n\
            | about | rule | where it is tested |\n\
            |---|---|---|\n\
            | 33.1 | A rule. | `rule-a.toml`, `rule-b.toml` |\n\
            | 33.2.1, Example 33-1, Example 33-2 | Another. | `cofi_unit::output::tests::stop` |\n\
            | 33.2.1 | More. | `cofi_unit::xsave::tests::places` |\n\
            | 33.2.1 | And more. | `cofi_law::law::mirrors` |\n"
            .to_owned();
        for table in TABLES {
            page += &format!("| Table 33-{table} | What it says. | decoder: reads it |\n");
        }
        page
    }

    #[test]
    fn a_whole_page_has_no_fault() {
        assert_eq!(check(&page(), &known()), Ok(Vec::new()));
    }

    #[test]
    fn a_wrong_name_is_a_fault() {
        for (right, wrong, fault) in [
            (
                "`rule-a.toml`",
                "`rule-c.toml`, `rule-a.toml`",
                "`rule-c.toml` is no file of corpus/unit",
            ),
            (
                "`rule-a.toml`, ",
                "",
                "corpus/unit/rule-a.toml is not named",
            ),
            (
                "tests::stop",
                "tests::stops",
                "`cofi_unit::output::tests::stops` is no test",
            ),
            (
                "tests::stop",
                "tests::helper",
                "`cofi_unit::output::tests::helper` is no test",
            ),
            (
                "output::tests::stop",
                "topa::tests::stop",
                "`cofi_unit::topa::tests::stop` is no test",
            ),
            (
                "cofi_law::law",
                "cofi_unit::law",
                "`cofi_unit::law::mirrors` is no test",
            ),
            (
                "xsave::tests",
                "xsave::others",
                "`cofi_unit::xsave::others::places` is no test",
            ),
            ("33.1 33.2.1\n", "33.1 33.2 33.2.1\n", "33.2 has no row"),
            (
                "33.1 33.2.1\n",
                "33.2.1\n",
                "33.1, which a row is about, is not in the chapter",
            ),
            ("Table 33-17 ", "Table 33-18 ", "Table 33-17 has no row"),
            (
                "`cofi_law::law::mirrors`",
                "",
                "a row of 33.2.1 says neither where its rule is tested nor why it is not: \"\"",
            ),
        ] {
            let page = page();
            assert!(page.contains(right), "{right}");
            let faults = check(&page.replace(right, wrong), &known());
            assert_eq!(faults, Ok(vec![fault.to_owned()]));
        }
    }

    #[test]
    fn the_list_of_sections_must_be_there() {
        assert!(check("", &known()).is_err());
        assert!(check("```sections\n```\n", &known()).is_err());
    }
}
