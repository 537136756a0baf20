//! What is asked of all scenarios of a trace unit, be it Intel PT's or RTIT's.

use super::common::{Scratch, cofi, repository, run_with};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The scenarios of a folder of the repository.
pub(crate) fn scenarios(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(repository().join(folder))
        .expect(folder)
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "toml"))
        .collect();
    files.sort();
    files
}

/// A file's name without its ending.
pub(crate) fn stem(file: &Path) -> String {
    file.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// All come out as they expect, and there are as many as there should be.
pub(crate) fn check_all(folder: &str, count: usize) {
    let files = scenarios(folder);
    assert_eq!(
        files.len(),
        count,
        "scenarios in {folder} (a new one is to be counted here)"
    );
    let mut told = String::new();
    for file in &files {
        let ran = run_with(cofi().args(["unit", "run", "--check"]).arg(file), b"");
        if ran.code() != 0 {
            let (name, code) = (stem(file), ran.code());
            let _ = writeln!(told, "{name}: status {code}\n{}{}", ran.text(), ran.stderr);
        }
    }
    assert!(told.is_empty(), "\n{told}");
}

/// The value of a key with a text on one line.
pub(crate) fn text<'t>(scenario: &'t str, key: &str) -> Option<&'t str> {
    scenario.lines().find_map(|line| {
        let value = line.strip_prefix(key)?.strip_prefix(" = ")?;
        value.strip_prefix(['"', '\''])?.strip_suffix(['"', '\''])
    })
}

/// What a scenario lists as packets is what `cofi dump`, with these options, prints of its raw output.
pub(crate) fn check_listing(file: &Path, dump_options: &[&str]) {
    let scratch = Scratch::new();
    let raw = scratch.path("raw");
    let run = |option: &str| {
        let mut command = cofi();
        command.args(["unit", "run", option, "--raw-output"]);
        let ran = run_with(command.arg(&raw).arg(file), b"");
        assert_eq!(ran.code(), 0, "{}: {}", file.display(), ran.stderr);
        ran.text()
    };
    let json = run("--json");
    let mut dump = cofi();
    dump.args(["dump", "--json"]).args(dump_options);
    let dumped = run_with(dump.arg(&raw), b"");
    let packets: Vec<_> = json
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
        .filter(|object| object.get("offset").is_some())
        .map(|mut object| {
            let op = object
                .as_object_mut()
                .and_then(|object| object.remove("op"));
            assert!(op.is_some_and(|op| op.is_u64()));
            object
        })
        .collect();
    let wanted: Vec<serde_json::Value> = dumped
        .text()
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(packets, wanted, "{}", file.display());
    let lines = run("--color=never");
    let lines = lines.lines().filter(|line| line.get(8..9) == Some(":"));
    assert_eq!(lines.count(), wanted.len(), "{}", file.display());
}
