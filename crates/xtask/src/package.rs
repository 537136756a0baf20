//! `cargo xtask package [--verify]`: what crates.io would be given: every published crate says what it is, and can be packed; with `--verify`, each
//! is built from its package alone, against the packages of the others.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{deps, source};

/// What a crate has beside its manifest.
const PAPERS: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];
/// What its manifest says, beyond what cargo wants itself.
const WORDS: [&str; 3] = ["description", "license", "documentation"];
/// crates.io takes no more keywords, and no more categories.
const MOST: usize = 5;

/// Prints what is wrong and returns whether nothing is.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let verify = match arguments {
        [] => false,
        [word] if word == "--verify" => true,
        _ => bail!("package takes --verify, or nothing"),
    };
    let metadata = deps::metadata(root)?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata names no packages")?;
    let mut wrong = judge(packages);
    for package in packages.iter().filter(|package| is_published(package)) {
        wrong.extend(papers(package)?);
    }
    if wrong.is_empty() {
        let target = metadata["target_directory"].as_str();
        let place = Path::new(target.context("cargo metadata names no target")?).join("verify");
        wrong = packed(root, packages, verify.then_some(&place))?;
    }
    for fault in &wrong {
        println!("package: {fault}");
    }
    if wrong.is_empty() {
        let published = packages.iter().filter(|one| is_published(one)).count();
        let done = if verify { "built from it" } else { "packed" };
        println!("package: {published} crates, each can be {done}");
    }
    Ok(wrong.is_empty())
}

/// Whether crates.io is to have it: `publish = false` is an empty list of registries.
pub(crate) fn is_published(package: &Value) -> bool {
    package["publish"].is_null()
}

pub(crate) fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap_or_default()
}

/// What the manifests lack, and which published crates want what is not published.
fn judge(packages: &[Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    let published = packages.iter().filter(|package| is_published(package));
    let names: BTreeSet<&str> = published.clone().map(name).collect();
    let rooms: BTreeSet<&str> = packages.iter().map(name).collect();
    for package in published {
        let name = name(package);
        for word in WORDS {
            if package[word].as_str().is_none_or(str::is_empty) {
                wrong.push(format!("{name} has no {word}"));
            }
        }
        for list in ["keywords", "categories"] {
            let len = package[list].as_array().map_or(0, Vec::len);
            if !(1..=MOST).contains(&len) {
                wrong.push(format!("{name} has {len} {list}; 1 to {MOST} are right"));
            }
        }
        // What docs.rs builds otherwise: the page of a crate without its features, and that once for each system it knows.
        let docs = &package["metadata"]["docs"]["rs"];
        let features = package["features"].as_object();
        let has_features = features.is_some_and(|all| !all.is_empty());
        if has_features && docs["all-features"] != true {
            wrong.push(format!(
                "{name} has features, and docs.rs is not told of them"
            ));
        }
        if docs["targets"].as_array().is_none_or(Vec::is_empty) {
            wrong.push(format!("{name} does not tell docs.rs its targets"));
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = dependency["name"].as_str().unwrap_or_default();
            // (Cargo leaves a dev-dependency without a version out of the package.)
            let is_needed = dependency["kind"] != "dev" || dependency["req"] != "*";
            if is_needed && rooms.contains(to) && !names.contains(to) {
                wrong.push(format!(
                    "{name} is published and depends on {to}, which is not"
                ));
            }
        }
    }
    wrong
}

/// The papers that a crate's folder lacks; a library's README is its documentation, too, so that its example is tested.
fn papers(package: &Value) -> Result<Vec<String>> {
    let manifest = package["manifest_path"].as_str().unwrap_or_default();
    let folder = Path::new(manifest).parent().context("a crate's folder")?;
    let missing = PAPERS.iter().filter(|paper| !folder.join(paper).is_file());
    let mut wrong: Vec<String> = missing
        .map(|paper| format!("{} has no {paper}", name(package)))
        .collect();
    let library = folder.join("src/lib.rs");
    if library.is_file() && !source::text(&library)?.starts_with("#![doc = include_str!(") {
        let name = name(package);
        wrong.push(format!(
            "{name}'s documentation does not begin with its README"
        ));
    }
    Ok(wrong)
}

/// Has cargo pack everything, and build it in the folder, if there is one; its errors and warnings.
fn packed(root: &Path, packages: &[Value], verify: Option<&Path>) -> Result<Vec<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root);
    // What is packed is what lies here, committed or not.
    command.args(["package", "--workspace", "--allow-dirty"]);
    for package in packages.iter().filter(|package| !is_published(package)) {
        command.args(["--exclude", name(package)]);
    }
    match verify {
        Some(folder) => {
            command.env("CARGO_HOME", fresh_home(folder)?);
            command.arg("--target-dir").arg(folder);
        }
        None => {
            command.arg("--no-verify");
        }
    }
    let output = command.output().context("running cargo package")?;
    let words = String::from_utf8_lossy(&output.stderr);
    let mut wrong: Vec<String> = complaints(&words).map(str::to_owned).collect();
    if !output.status.success() && wrong.is_empty() {
        wrong.push(format!("cargo package ends with {}", output.status));
    }
    if !wrong.is_empty() {
        eprintln!("{words}");
    } else if let Some(folder) = verify {
        fs::remove_dir_all(folder)?;
    }
    Ok(wrong)
}

/// Makes a home for cargo in an empty folder, with what has been fetched, and nothing that has been unpacked: cargo unpacks a package once for each
/// version, so it would build an earlier state of those that have no other version yet.
fn fresh_home(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let home = folder.join("home");
    fs::create_dir_all(home.join("registry"))?;
    let real = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let real = real
        .or_else(|| Some(std::env::home_dir()?.join(".cargo")))
        .context("where is cargo's home?")?;
    for part in ["registry/cache", "registry/index", "config.toml", "config"] {
        if real.join(part).exists() {
            symlink(real.join(part), home.join(part))?;
        }
    }
    Ok(home)
}

/// What cargo complains of.
fn complaints(words: &str) -> impl Iterator<Item = &str> {
    words
        .lines()
        .filter(|line| line.starts_with("warning") || line.starts_with("error"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn good(name: &str) -> Value {
        json!({
            "name": name, "publish": null, "description": "what", "license": "MIT", "documentation": "where",
            "keywords": ["one"], "categories": ["two"], "dependencies": [], "features": {},
            "metadata": {"docs": {"rs": {"targets": ["x86_64-unknown-linux-gnu"]}}},
        })
    }

    #[test]
    fn nothing_is_wrong_with_a_good_one() {
        assert_eq!(judge(&[good("a")]), Vec::<String>::new());
    }

    #[test]
    fn what_the_manifest_lacks_is_told() {
        let mut one = good("a");
        one["license"] = Value::Null;
        one["keywords"] = json!(["1", "2", "3", "4", "5", "6"]);
        assert_eq!(
            judge(&[one]),
            ["a has no license", "a has 6 keywords; 1 to 5 are right"]
        );
    }

    #[test]
    fn docs_rs_is_told_of_features_and_targets() {
        let mut one = good("a");
        one["features"] = json!({"more": []});
        assert_eq!(
            judge(&[one.clone()]),
            ["a has features, and docs.rs is not told of them"]
        );
        one["metadata"]["docs"]["rs"]["all-features"] = json!(true);
        assert_eq!(judge(&[one.clone()]), Vec::<String>::new());
        one["metadata"] = Value::Null;
        assert_eq!(judge(&[one]).len(), 2);
    }

    #[test]
    fn who_is_not_published_needs_nothing_and_is_not_needed() {
        let private = json!({"name": "b", "publish": [], "dependencies": []});
        let mut one = good("a");
        one["dependencies"] = json!([{"name": "b", "kind": "dev", "req": "*"}]);
        assert_eq!(judge(&[one.clone(), private.clone()]), Vec::<String>::new());
        for (kind, req) in [
            (Value::Null, "*"),
            (json!("build"), "^1"),
            (json!("dev"), "^1"),
        ] {
            one["dependencies"] = json!([{"name": "b", "kind": kind, "req": req}]);
            assert_eq!(
                judge(&[one.clone(), private.clone()]),
                ["a is published and depends on b, which is not"]
            );
        }
    }

    #[test]
    fn warnings_are_complaints() {
        let words = "   Packaging a\nwarning: manifest has no license\n    Packaged 3 files\n";
        assert_eq!(
            complaints(words).collect::<Vec<_>>(),
            ["warning: manifest has no license"]
        );
    }
}
