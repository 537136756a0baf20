//! Builds the plugin that QEMU loads, to be carried within the program, packed.
//!
//! The plugin is a library of its own with the trace unit in it, always built for speed: so it has a cargo of its own, and a folder of its own.

use lzma_rust2::{LzipOptions, LzipWriter};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const PLUGIN: &str = "cofi-machine-plugin";

fn variable(name: &str) -> PathBuf {
    PathBuf::from(env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}")))
}

/// The crates of which the plugin is made, beside those of others.
const PARTS: [&str; 3] = ["cofi-unit", "cofi-insn", "cofi-packet"];

/// Copies a folder with all that is in it.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// The plugin as a workspace of its own, out of a package; and cargo's arguments that name its parts where they lie beside it. Its lock
/// is left out: it may name versions that have not been fetched.
fn unpacked(source: &Path, manifest: &str, out: &Path) -> std::io::Result<(PathBuf, Vec<String>)> {
    let folder = out.join("plugin");
    let _ = fs::remove_dir_all(&folder);
    copy(source, &folder)?;
    let _ = fs::remove_file(folder.join("Cargo.lock"));
    let manifest = format!("{manifest}\n[workspace]\n");
    fs::write(folder.join("Cargo.toml"), manifest)?;
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    // A registry has the version in the name, vendored sources have not.
    let version = name.strip_prefix(PLUGIN).unwrap_or_default();
    let patches = PARTS.iter().filter_map(|part| {
        let path = source.with_file_name(format!("{part}{version}"));
        let path = path.is_dir().then(|| path.display().to_string())?;
        Some(format!("patch.crates-io.{part}.path={path:?}"))
    });
    Ok((folder, patches.collect()))
}

/// What the plugin is built for: a program that is linked with musl starts the system's QEMU all the same, which is linked with glibc.
fn plugin_target(target: &str) -> &str {
    match target {
        "x86_64-unknown-linux-musl" => "x86_64-unknown-linux-gnu",
        other => other,
    }
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let source = variable("DEP_COFI_MACHINE_PLUGIN_FOLDER");
    for name in [PLUGIN].iter().chain(&PARTS) {
        for part in ["src", "Cargo.toml"] {
            let path = source.with_file_name(name).join(part);
            if path.exists() {
                println!("cargo::rerun-if-changed={}", path.display());
            }
        }
    }
    let target = env::var("TARGET").expect("cargo sets TARGET");
    let (target, out) = (plugin_target(&target), variable("OUT_DIR"));
    let folder = out.join("target");
    let manifest = fs::read_to_string(source.join("Cargo.toml")).expect("a crate has a manifest");
    // A package's says everything itself.
    let is_packed = !manifest.contains(".workspace = true");
    let (source, patches) = match is_packed {
        true => unpacked(&source, &manifest, &out).expect("the plugin's source can be copied"),
        false => (source, Vec::new()),
    };
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
        // Everything has been fetched: this crate depends on it.
        .arg("--offline")
        .arg("--manifest-path")
        .arg(source.join("Cargo.toml"))
        .arg("--target")
        .arg(target)
        .arg("--target-dir")
        .arg(&folder)
        .args(["--config", "profile.release.strip=true"])
        .args(["--config", "profile.release.panic='abort'"])
        // A block of the guest's code is a call from the one crate to the other, and back.
        .args(["--config", "profile.release.lto='fat'"])
        .args(["--config", "profile.release.codegen-units=1"]);
    if !is_packed {
        command.arg("--locked");
    }
    for patch in &patches {
        command.args(["--config", patch]);
    }
    // What it has instead of the standard library belongs to the plugin alone.
    command.args(["--", "--cfg", "cofi_plugin"]);
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
    let plugin =
        fs::read(&built).unwrap_or_else(|error| panic!("reading {}: {error}", built.display()));
    let mut packed = LzipWriter::new(Vec::new(), LzipOptions::with_preset(9));
    packed.write_all(&plugin).expect("memory takes it");
    let packed = packed.finish().expect("memory takes it");
    fs::write(out.join("plugin.so.lz"), packed).expect("OUT_DIR can be written");
}
