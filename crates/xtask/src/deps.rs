//! `cargo xtask deps`: which crate may know which, checked against what cargo itself says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::source;

/// The whole of the allowed direct edges between the workspace's crates; ARCHITECTURE.md draws them.
const ALLOWED: &[(&str, &[&str])] = &[
    ("cofi-host", &[]),
    ("cofi-packet", &[]),
    ("cofi-unit", &["cofi-packet"]),
    ("cofi-insn", &["cofi-packet"]),
    ("cofi-flow", &["cofi-packet", "cofi-insn"]),
    ("cofi-image", &["cofi-host", "cofi-packet", "cofi-insn"]),
    ("cofi-perf", &["cofi-packet"]),
    (
        "cofi-session",
        &[
            "cofi-host",
            "cofi-packet",
            "cofi-insn",
            "cofi-flow",
            "cofi-image",
            "cofi-perf",
        ],
    ),
    (
        "cofi-c",
        &[
            "cofi-packet",
            "cofi-unit",
            "cofi-insn",
            "cofi-flow",
            "cofi-image",
            "cofi-session",
        ],
    ),
    ("cofi-libipt", &["cofi-packet", "cofi-insn"]),
    ("cofi-file", &["cofi-session"]),
    ("cofi-text", &["cofi-packet"]),
    (
        "cofi-archive",
        &[
            "cofi-host",
            "cofi-packet",
            "cofi-flow",
            "cofi-image",
            "cofi-session",
        ],
    ),
    ("cofi-qemu-plugin", &[]),
    (
        "cofi-machine-plugin",
        &["cofi-packet", "cofi-insn", "cofi-unit"],
    ),
    ("cofi-machine", &["cofi-machine-plugin"]),
    (
        "cofi-capture",
        &[
            "cofi-packet",
            "cofi-insn",
            "cofi-unit",
            "cofi-perf",
            "cofi-qemu-plugin",
        ],
    ),
    (
        "cofi-analysis",
        &[
            "cofi-host",
            "cofi-packet",
            "cofi-insn",
            "cofi-flow",
            "cofi-image",
            "cofi-session",
        ],
    ),
    (
        "cofi-export",
        &["cofi-packet", "cofi-session", "cofi-analysis"],
    ),
    (
        "cofi-dap",
        &["cofi-packet", "cofi-session", "cofi-analysis", "cofi-index"],
    ),
    (
        "cofi-serve",
        &["cofi-packet", "cofi-session", "cofi-analysis", "cofi-index"],
    ),
    (
        "cofi-index",
        &[
            "cofi-packet",
            "cofi-insn",
            "cofi-flow",
            "cofi-image",
            "cofi-perf",
            "cofi-session",
            "cofi-analysis",
        ],
    ),
    (
        "cofi",
        &[
            "cofi-host",
            "cofi-packet",
            "cofi-unit",
            "cofi-insn",
            "cofi-flow",
            "cofi-image",
            "cofi-perf",
            "cofi-session",
            "cofi-file",
            "cofi-text",
            "cofi-archive",
            "cofi-capture",
            "cofi-machine",
            "cofi-analysis",
            "cofi-export",
            "cofi-index",
            "cofi-serve",
            "cofi-dap",
        ],
    ),
    (
        "cofi-law",
        &[
            "cofi-packet",
            "cofi-unit",
            "cofi-insn",
            "cofi-flow",
            "cofi-test",
        ],
    ),
    ("cofi-test", &[]),
    ("cofi-exam", &["cofi-perf", "cofi-test"]),
    ("xtask", &["cofi-exam", "cofi-perf", "cofi-test"]),
];

/// The model and the decoder, each other's only judges, must not share anything but the packets.
const STRANGERS: (&str, &str) = ("cofi-unit", "cofi-flow");

/// The crates that work without an operating system.
const CORES: &[&str] = &["cofi-packet", "cofi-unit", "cofi-insn", "cofi-flow"];

/// Crates of others that one crate alone may name.
const OWNED: &[(&str, &str)] = &[("iced-x86", "cofi-insn")];

/// One edge as its author wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Edge {
    to: String,
    normal: bool,
}

type Graph = BTreeMap<String, Vec<Edge>>;

/// Prints every broken rule and returns whether there is none.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let graph = graph(&metadata(root)?)?;
    let mut broken = judge(&graph);
    let page = root.join("ARCHITECTURE.md");
    if page.is_file() {
        broken.extend(unlike_the_page(&source::text(&page)?));
    }
    for core in CORES {
        broken.extend(no_std_sins(root, core)?);
    }
    for rule in &broken {
        println!("deps: {rule}");
    }
    if broken.is_empty() {
        let edges: usize = graph.values().map(Vec::len).sum();
        println!(
            "deps: {} crates, {edges} dependencies, all as drawn",
            graph.len()
        );
    }
    Ok(broken.is_empty())
}

/// What cargo says of the workspace's crates.
pub(crate) fn metadata(root: &Path) -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--no-deps"])
        .current_dir(root)
        .output()
        .context("running cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    serde_json::from_slice(&output.stdout).context("reading cargo metadata's answer")
}

fn graph(metadata: &Value) -> Result<Graph> {
    let mut graph = Graph::new();
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata names no packages")?;
    for package in packages {
        let name = package["name"]
            .as_str()
            .context("a package without a name")?;
        let mut edges = Vec::new();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = dependency["name"]
                .as_str()
                .context("a dependency without a name")?;
            edges.push(Edge {
                to: to.to_owned(),
                normal: dependency["kind"].is_null(),
            });
        }
        graph.insert(name.to_owned(), edges);
    }
    Ok(graph)
}

/// Every rule of the tables above that `graph` breaks, as sentences.
fn judge(graph: &Graph) -> Vec<String> {
    let mut broken = Vec::new();
    let rooms: BTreeSet<&str> = graph.keys().map(String::as_str).collect();
    for (name, edges) in graph {
        let Some((_, allowed)) = ALLOWED.iter().find(|(from, _)| from == name) else {
            broken.push(format!("{name} has no place in the table of allowed dependencies (crates/xtask/src/deps.rs)"));
            continue;
        };
        for edge in edges
            .iter()
            .filter(|e| e.normal && rooms.contains(e.to.as_str()))
        {
            if !allowed.contains(&edge.to.as_str()) {
                broken.push(format!("{name} must not depend on {}", edge.to));
            }
        }
        for (theirs, owner) in OWNED {
            if name != owner && edges.iter().any(|e| e.to == *theirs) {
                broken.push(format!("{name} names {theirs}, which is {owner}'s alone"));
            }
        }
    }
    for (name, _) in ALLOWED {
        if !rooms.contains(name) {
            broken.push(format!(
                "{name} stands in the table of allowed dependencies but not in the workspace"
            ));
        }
    }
    for (from, to) in [STRANGERS, (STRANGERS.1, STRANGERS.0)] {
        if let Some(path) = way(graph, from, to) {
            broken.push(format!("{from} reaches {to}: {}", path.join(" → ")));
        }
    }
    broken
}

/// Where the page's table of rooms says something else than [`ALLOWED`].
///
/// A row is `| `crate` | what it is | what it may depend on |`; a last cell in words only ("all of the above") is not judged.
fn unlike_the_page(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (name, allowed) in ALLOWED {
        let head = format!("| `{name}` |");
        let Some(row) = page.lines().find(|line| line.starts_with(&head)) else {
            found.push(format!("ARCHITECTURE.md has no row for {name}"));
            continue;
        };
        let cell = row
            .trim_end()
            .trim_end_matches('|')
            .rsplit('|')
            .next()
            .unwrap_or_default()
            .trim();
        let drawn: BTreeSet<&str> = cell.split('`').skip(1).step_by(2).collect();
        if drawn.is_empty() && cell != "—" {
            continue;
        }
        if drawn != allowed.iter().copied().collect() {
            found.push(format!(
                "ARCHITECTURE.md lets {name} depend on {cell}, the table in deps.rs on {allowed:?}"
            ));
        }
    }
    found
}

/// A way from one crate to another over normal dependencies.
fn way(graph: &Graph, from: &str, to: &str) -> Option<Vec<String>> {
    let mut open = vec![vec![from.to_owned()]];
    let mut seen = BTreeSet::new();
    while let Some(path) = open.pop() {
        let here = path.last()?;
        if here == to {
            return Some(path);
        }
        if !seen.insert(here.clone()) {
            continue;
        }
        for edge in graph.get(here).into_iter().flatten().filter(|e| e.normal) {
            let mut longer = path.clone();
            longer.push(edge.to.clone());
            open.push(longer);
        }
    }
    None
}

fn no_std_sins(root: &Path, core: &str) -> Result<Vec<String>> {
    let folder = root.join("crates").join(core).join("src");
    let mut sins = Vec::new();
    if !source::text(&folder.join("lib.rs"))?
        .lines()
        .any(|line| line.trim() == "#![no_std]")
    {
        sins.push(format!("{core} is a core and must be #![no_std]"));
    }
    for file in source::rust_files(&folder)? {
        let is_test = file
            .file_stem()
            .is_some_and(|s| s.to_string_lossy().ends_with("tests"))
            || file.components().any(|c| c.as_os_str() == "tests");
        if is_test {
            continue;
        }
        for (number, line) in source::code_only(&source::text(&file)?).lines().enumerate() {
            if names_std(line) {
                let place = file.strip_prefix(root).unwrap_or(&file);
                sins.push(format!(
                    "{}:{}: a core names std",
                    place.display(),
                    number + 1
                ));
            }
        }
    }
    Ok(sins)
}

/// Whether the line names the crate `std` (and not some `…_std::`).
fn names_std(line: &str) -> bool {
    line.match_indices("std::").any(|(at, _)| {
        !line[..at]
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() || c == '_')
    }) || line.contains("extern crate std")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn() -> Graph {
        ALLOWED
            .iter()
            .map(|(from, to)| {
                let edges = to
                    .iter()
                    .map(|to| Edge {
                        to: (*to).to_owned(),
                        normal: true,
                    })
                    .collect();
                ((*from).to_owned(), edges)
            })
            .collect()
    }

    fn add(graph: &mut Graph, from: &str, to: &str, normal: bool) {
        graph.entry(from.to_owned()).or_default().push(Edge {
            to: to.to_owned(),
            normal,
        });
    }

    #[test]
    fn the_table_itself_breaks_no_rule() {
        assert_eq!(judge(&drawn()), Vec::<String>::new());
    }

    #[test]
    fn an_edge_that_is_not_drawn_is_told() {
        let mut graph = drawn();
        add(&mut graph, "cofi-packet", "cofi-perf", true);
        assert_eq!(judge(&graph), ["cofi-packet must not depend on cofi-perf"]);
    }

    #[test]
    fn the_page_must_say_the_same() {
        let rows: Vec<String> = ALLOWED
            .iter()
            .map(|(name, allowed)| match allowed.len() {
                0 => format!("| `{name}` | a room | — |"),
                9 => format!("| `{name}` | a room | all of the above |"),
                _ => format!("| `{name}` | a `room` | `{}` |", allowed.join("`, `")),
            })
            .collect();
        assert_eq!(unlike_the_page(&rows.join("\n")), Vec::<String>::new());
        let page = rows.join("\n").replace(
            "| `cofi-perf` | a `room` | `cofi-packet` |",
            "| `cofi-perf` | a room | — |",
        );
        assert_eq!(unlike_the_page(&page).len(), 1);
        assert_eq!(
            unlike_the_page(&rows[1..].join("\n")),
            [format!("ARCHITECTURE.md has no row for {}", ALLOWED[0].0)]
        );
    }

    #[test]
    fn a_dev_dependency_may_go_where_it_likes() {
        let mut graph = drawn();
        add(&mut graph, "cofi-unit", "cofi-flow", false);
        assert_eq!(judge(&graph), Vec::<String>::new());
    }

    #[test]
    fn unit_and_flow_must_not_meet_by_a_detour() {
        let mut graph = drawn();
        add(&mut graph, "cofi-packet", "helper", true);
        add(&mut graph, "helper", "cofi-flow", true);
        let broken = judge(&graph);
        assert!(
            broken.iter().any(|b| b
                == "cofi-unit reaches cofi-flow: cofi-unit → cofi-packet → helper → cofi-flow"),
            "{broken:?}"
        );
    }

    #[test]
    fn a_decoder_of_instructions_has_one_owner() {
        let mut graph = drawn();
        add(&mut graph, "cofi-analysis", "iced-x86", false);
        assert_eq!(
            judge(&graph),
            ["cofi-analysis names iced-x86, which is cofi-insn's alone"]
        );
    }

    #[test]
    fn std_is_told_from_names_that_end_in_it() {
        assert!(names_std("use std::vec::Vec;"));
        assert!(names_std("    std::process::abort()"));
        assert!(!names_std("use no_std::vec;"));
        assert!(!names_std("use core::fmt;"));
    }
}
