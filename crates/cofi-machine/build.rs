//! Builds the plugin that QEMU loads, to be carried within the program.
//!
//! The plugin is a library of its own with the trace unit in it, always built for speed: so it has a cargo of its own, and a folder of its own.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

const PLUGIN: &str = "cofi-machine-plugin";

fn variable(name: &str) -> PathBuf {
    PathBuf::from(env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}")))
}

fn main() {
    let crates = variable("CARGO_MANIFEST_DIR").join("..");
    for name in [PLUGIN, "cofi-unit", "cofi-insn", "cofi-packet"] {
        for part in ["src", "Cargo.toml"] {
            println!(
                "cargo::rerun-if-changed={}",
                crates.join(name).join(part).display()
            );
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
    let (target, folder) = (variable("TARGET"), variable("OUT_DIR").join("target"));
    let mut command = Command::new(variable("CARGO"));
    command
        .args([
            "rustc",
            "--release",
            "--lib",
            "--quiet",
            "--crate-type",
            "cdylib",
        ])
        .args(["--package", PLUGIN])
        // Everything has been fetched: it is part of the workspace.
        .args(["--locked", "--offline"])
        .arg("--manifest-path")
        .arg(crates.join(PLUGIN).join("Cargo.toml"))
        .arg("--target")
        .arg(&target)
        .arg("--target-dir")
        .arg(&folder)
        .args(["--config", "profile.release.strip=true"])
        .args(["--config", "profile.release.panic='abort'"])
        // A block of the guest's code is a call from the one crate to the other, and back.
        .args(["--config", "profile.release.lto='fat'"])
        .args(["--config", "profile.release.codegen-units=1"]);
    // What this build is compiled with (coverage, sanitizers) is not for a library that QEMU loads.
    for name in [
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_BUILD_RUSTFLAGS",
        "CARGO_BUILD_TARGET",
        "CARGO_TARGET_DIR",
    ] {
        command.env_remove(name);
    }
    let status = command
        .status()
        .unwrap_or_else(|error| panic!("cargo does not run: {error}"));
    assert!(status.success(), "the plugin does not compile");
    let built = folder
        .join(target)
        .join("release/libcofi_machine_plugin.so");
    let to = variable("OUT_DIR").join("plugin.so");
    fs::copy(&built, &to).unwrap_or_else(|error| panic!("copying {}: {error}", built.display()));
}
