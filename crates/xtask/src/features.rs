//! `cargo xtask features`: each published crate that has features compiles with every set of them, by itself: in the workspace, cargo unites
//! the features that its members ask for, and hides what one lacks.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{deps, package};

/// More features than this have too many sets.
const MOST: usize = 6;

/// Checks all, prints what does not compile, and returns whether all does.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let metadata = deps::metadata(root)?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata names no packages")?;
    let (mut checked, mut wrong) = (0, 0);
    for one in packages.iter().filter(|one| package::is_published(one)) {
        let features = features(one);
        ensure!(
            features.len() <= MOST,
            "{} has {} features: too many to try every set of them",
            package::name(one),
            features.len()
        );
        if features.is_empty() {
            continue;
        }
        for set in sets(&features) {
            checked += 1;
            if !compiles(root, package::name(one), &set)? {
                println!(
                    "features: {} does not compile with [{set}]",
                    package::name(one)
                );
                wrong += 1;
            }
        }
    }
    ensure!(checked > 0, "no published crate has features");
    println!("features: {checked} sets, {wrong} do not compile");
    Ok(wrong == 0)
}

/// The features of a package, without that which names those that are on by themselves.
fn features(package: &Value) -> Vec<&str> {
    let all = package["features"].as_object().into_iter().flatten();
    let names = all.map(|(name, _)| name.as_str());
    names.filter(|name| *name != "default").collect()
}

/// Every set of these, as cargo is told of it.
fn sets(features: &[&str]) -> Vec<String> {
    let all = 0..1_u32 << features.len();
    let set = |bits: u32| {
        let chosen = features.iter().enumerate();
        let chosen = chosen.filter(|(place, _)| bits >> place & 1 == 1);
        let names: Vec<&str> = chosen.map(|(_, name)| *name).collect();
        names.join(",")
    };
    all.map(set).collect()
}

fn compiles(root: &Path, name: &str, features: &str) -> Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["check", "--quiet", "--locked", "--package", name])
        .args(["--no-default-features", "--features", features])
        .current_dir(root)
        .status()
        .context("running cargo check")?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_once() {
        assert_eq!(sets(&["a", "b"]), ["", "a", "b", "a,b"]);
        assert_eq!(sets(&[]), [""]);
    }

    #[test]
    fn the_set_of_defaults_is_none() {
        let one = serde_json::json!({"features": {"default": ["a"], "a": []}});
        assert_eq!(features(&one), ["a"]);
    }
}
