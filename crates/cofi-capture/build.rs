//! Builds the QEMU plugin, once for each version of QEMU's plugin interface, for the engine to carry with it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn variable(name: &str) -> PathBuf {
    PathBuf::from(env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}")))
}

fn build(source: &Path, out: &Path, cfg: Option<&str>) {
    let mut command = Command::new(variable("RUSTC"));
    command
        .args(["--crate-name", "cofi_qemu_plugin", "--crate-type", "cdylib"])
        .args(["--edition", "2024", "--cap-lints", "allow"])
        .args([
            "-C",
            "opt-level=3",
            "-C",
            "panic=abort",
            "-C",
            "strip=symbols",
        ])
        .arg("--target")
        .arg(variable("TARGET"))
        .arg("-o")
        .arg(out)
        .arg(source);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        command
            .arg("-C")
            .arg(format!("linker={}", linker.display()));
    }
    if let Some(cfg) = cfg {
        command.args(["--cfg", cfg]);
    }
    // What this build is compiled with (coverage, sanitizers) is not for a library that QEMU loads.
    command
        .env_remove("RUSTC_WRAPPER")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    let status = command
        .status()
        .unwrap_or_else(|error| panic!("rustc does not run: {error}"));
    assert!(status.success(), "the QEMU plugin does not compile");
}

fn main() {
    let folder = variable("DEP_COFI_QEMU_PLUGIN_FOLDER").join("src");
    println!("cargo::rerun-if-changed={}", folder.display());
    println!("cargo::rerun-if-changed=build.rs");
    let source = folder.join("lib.rs");
    let out = variable("OUT_DIR");
    let versions = [
        (1, None),
        (4, Some("cofi_plugin_api_4")),
        (7, Some("cofi_plugin_api_7")),
    ];
    for (version, cfg) in versions {
        build(&source, &out.join(format!("plugin_{version}.so")), cfg);
    }
    let size = |version: u32| {
        fs::metadata(out.join(format!("plugin_{version}.so")))
            .map(|data| data.len())
            .unwrap_or(0)
    };
    let is_there = versions.iter().all(|(version, _)| size(*version) > 0);
    assert!(is_there, "the QEMU plugin is empty");
}
