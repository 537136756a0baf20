//! `cargo xtask semver [REV]`: what has changed in the interfaces of the published crates since a revision so that programs may no longer compile. (docs/packages.md)
//!
//! cargo-semver-checks compares two descriptions that rustdoc writes of a crate. It could have them made itself, but would build each crate's dependencies anew, twice;
//! here all crates of a revision are described at once. What a manifest says it does not see that way, so features are compared here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{capi, deps, package};
use cofi_exam::build::tool;

/// The version of the tool, which is built once.
const VERSION: &str = "0.51.0";
/// By this status it says that something breaks; by 101 that it could not compare.
const BREAKS: i32 = 100;
/// Lets a stable rustdoc describe crates as JSON, and has it say what the tool wants to know.
const DESCRIBE: [(&str, &str); 2] = [
    ("RUSTC_BOOTSTRAP", "1"),
    (
        "RUSTDOCFLAGS",
        "-Zunstable-options --output-format=json --document-private-items --document-hidden-items --cap-lints=allow",
    ),
];

/// Prints what breaks, and returns whether nothing does.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let revision = match arguments {
        [] => "HEAD",
        [one] if !one.starts_with('-') => one,
        _ => bail!("semver takes a revision, or nothing"),
    };
    let commit = tool(
        git(root)
            .args(["rev-parse", "--verify", "--quiet"])
            .arg(format!("{revision}^{{commit}}")),
    );
    let commit = String::from_utf8(commit.with_context(|| format!("{revision} is no revision"))?)?;
    let folder = capi::target(root).join("semver");
    let checkout = folder.join("checkout");
    discard(root, &checkout)?;
    tool(
        git(root)
            .args(["worktree", "add", "--detach", "--force"])
            .arg(&checkout)
            .arg(commit.trim()),
    )?;
    let compared = compare(&checkout, root, &folder);
    discard(root, &checkout)?;
    let Compared {
        crates,
        new,
        broken,
    } = compared?;
    println!(
        "semver: {crates} crates compared with {revision} ({}), {broken} break programs",
        commit.trim()
    );
    if !new.is_empty() {
        println!("semver: new since then: {}", new.join(", "));
    }
    Ok(broken == 0)
}

/// What came of it.
struct Compared {
    crates: usize,
    new: Vec<String>,
    broken: usize,
}

/// Compares the crates of two checkouts, and prints what breaks.
fn compare(old: &Path, new: &Path, folder: &Path) -> Result<Compared> {
    let program = program()?;
    let [before, now] = [(old, "old"), (new, "new")]
        .map(|(checkout, name)| Described::made(checkout, folder, name));
    let (before, now) = (before?, now?);
    let mut compared = Compared {
        crates: before.features.len(),
        new: now
            .features
            .keys()
            .filter(|name| !before.features.contains_key(*name))
            .cloned()
            .collect(),
        broken: 0,
    };
    for (name, had) in &before.features {
        let Some(has) = now.features.get(name) else {
            println!("semver: {name} is no longer there");
            compared.broken += 1;
            continue;
        };
        let lost = lost(had, has);
        if !lost.is_empty() {
            println!("semver: {name} has lost features: {}", lost.join(", "));
        }
        let output = Command::new(&program)
            // Whatever the versions say, all is told that only a version for breaks may do.
            .args([
                "semver-checks",
                "check-release",
                "--color",
                "never",
                "--release-type",
                "minor",
            ])
            .arg("--baseline-rustdoc")
            .arg(before.json(name))
            .arg("--current-rustdoc")
            .arg(now.json(name))
            .output()
            .context("running cargo-semver-checks")?;
        let is_same = match output.status.code() {
            Some(0) => true,
            Some(BREAKS) => false,
            _ => bail!(
                "comparing {name}: {}",
                String::from_utf8_lossy(&output.stderr)
            ),
        };
        if !is_same {
            print!(
                "semver: {name} breaks\n{}",
                String::from_utf8_lossy(&output.stdout)
            );
        }
        compared.broken += usize::from(!is_same || !lost.is_empty());
    }
    Ok(compared)
}

/// The published libraries of a checkout, as rustdoc describes them.
struct Described {
    folder: PathBuf,
    /// By the crate's name.
    features: BTreeMap<String, Vec<String>>,
}

impl Described {
    fn made(checkout: &Path, folder: &Path, name: &str) -> Result<Self> {
        let metadata = deps::metadata(checkout)?;
        let packages = metadata["packages"]
            .as_array()
            .context("cargo metadata names no packages")?;
        let features = libraries(packages);
        ensure!(
            !features.is_empty(),
            "{} has no crates that are published",
            checkout.display()
        );
        let built = folder.join("built");
        // Both checkouts' descriptions have the same names: none may stay from before.
        let (doc, kept) = (built.join("doc"), folder.join(name));
        for folder in [&doc, &kept] {
            if folder.exists() {
                fs::remove_dir_all(folder)?;
            }
        }
        println!(
            "semver: describing {} crates of {}",
            features.len(),
            checkout.display()
        );
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        tool(
            Command::new(cargo)
                .args(["doc", "--quiet", "--locked", "--no-deps", "--all-features"])
                .args(features.keys().flat_map(|name| ["--package", name]))
                .arg("--target-dir")
                .arg(&built)
                .envs(DESCRIBE)
                .current_dir(checkout),
        )?;
        fs::rename(&doc, &kept)?;
        let described = Self {
            folder: kept,
            features,
        };
        for name in described.features.keys() {
            let json = described.json(name);
            ensure!(json.is_file(), "rustdoc has not written {}", json.display());
        }
        Ok(described)
    }

    fn json(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{}.json", name.replace('-', "_")))
    }
}

/// The packages that are published and have a library, with their features. (The command has no interface for programs in Rust.)
fn libraries(packages: &[Value]) -> BTreeMap<String, Vec<String>> {
    let is_library = |package: &&Value| {
        let targets = package["targets"].as_array().into_iter().flatten();
        let mut kinds = targets
            .flat_map(|target| target["kind"].as_array())
            .flatten();
        kinds.any(|kind| kind == "lib")
    };
    let published = packages.iter().filter(|one| package::is_published(one));
    let libraries = published.filter(is_library).map(|package| {
        let features = package["features"].as_object();
        let features = features.into_iter().flatten().map(|(name, _)| name.clone());
        (package::name(package).to_owned(), features.collect())
    });
    libraries.collect()
}

/// The features that are no longer there.
fn lost<'f>(had: &'f [String], has: &[String]) -> Vec<&'f str> {
    let lost = had.iter().filter(|feature| !has.contains(feature));
    lost.map(String::as_str).collect()
}

fn git(root: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(root);
    git
}

/// Removes the checkout, if an earlier run has left one.
fn discard(root: &Path, checkout: &Path) -> Result<()> {
    if checkout.exists() {
        fs::remove_dir_all(checkout)?;
    }
    tool(git(root).args(["worktree", "prune"]))?;
    Ok(())
}

/// The tool, where CI keeps its own; it is built if it is not there.
fn program() -> Result<PathBuf> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(home);
    let root = cache.context("there is no HOME")?.join("cofi-ci/semver");
    let program = root.join("bin/cargo-semver-checks");
    let has = Command::new(&program)
        .args(["semver-checks", "--version"])
        .output();
    if has.is_ok_and(|said| {
        String::from_utf8_lossy(&said.stdout)
            .trim()
            .ends_with(VERSION)
    }) {
        return Ok(program);
    }
    println!("semver: building cargo-semver-checks {VERSION}, once");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    tool(
        Command::new(cargo)
            .args([
                "install",
                "--quiet",
                "--locked",
                "--version",
                VERSION,
                "--root",
            ])
            .arg(&root)
            .arg("cargo-semver-checks"),
    )?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn published_libraries_are_compared() {
        let library = json!([{"kind": ["lib"]}, {"kind": ["test"]}]);
        let packages = [
            json!({"name": "a", "publish": null, "targets": library, "features": {"std": [], "text": ["std"]}}),
            json!({"name": "b", "publish": [], "targets": library, "features": {}}),
            json!({"name": "c", "publish": null, "targets": [{"kind": ["bin"]}], "features": {}}),
        ];
        let found = libraries(&packages);
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [("a".to_owned(), vec!["std".to_owned(), "text".to_owned()])]
        );
    }

    #[test]
    fn a_feature_that_is_gone_is_lost() {
        let [had, has] = [vec!["std", "text"], vec!["more", "text"]]
            .map(|all| all.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(lost(&had, &has), ["std"]);
        assert!(lost(&has[1..], &had).is_empty());
    }
}
