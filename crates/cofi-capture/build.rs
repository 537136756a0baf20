//! Builds the QEMU plugin, once for each version of QEMU's plugin interface, for the engine to carry with it, packed.

use lzma_rust2::{LzipOptions, LzipWriter};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn variable(name: &str) -> PathBuf {
    PathBuf::from(env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}")))
}

/// What the plugin is built for: a program that is linked with musl starts the system's QEMU all the same, which is linked with glibc.
fn plugin_target(target: &str) -> &str {
    match target {
        "x86_64-unknown-linux-musl" => "x86_64-unknown-linux-gnu",
        other => other,
    }
}

fn build(source: &Path, out: &Path, cfg: Option<&str>) {
    let target = env::var("TARGET").expect("cargo sets TARGET");
    let plugin_target = plugin_target(&target);
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
            "codegen-units=1",
            "-C",
            "strip=symbols",
        ])
        // What it has instead of the standard library belongs to the plugin alone.
        .args(["--cfg", "cofi_plugin"])
        .args(["--target", plugin_target])
        .arg("-o")
        .arg(out)
        .arg(source);
    // The linker is that of cargo's target.
    let linker = env::var_os("RUSTC_LINKER").filter(|_| plugin_target == target);
    if let Some(linker) = linker {
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
        (7, Some("cofi_plugin_api_7")),
        (4, Some("cofi_plugin_api_4")),
    ];
    for (version, cfg) in versions {
        build(&source, &out.join(format!("plugin_{version}.so")), cfg);
    }
    // All in one: they are nearly the same.
    let mut packed = LzipWriter::new(Vec::new(), LzipOptions::with_preset(9));
    let mut lengths = String::new();
    for (version, _) in versions {
        let path = out.join(format!("plugin_{version}.so"));
        let plugin =
            fs::read(&path).unwrap_or_else(|error| panic!("reading {}: {error}", path.display()));
        assert!(!plugin.is_empty(), "the QEMU plugin is empty");
        packed.write_all(&plugin).expect("memory takes it");
        lengths += &format!("({version}, {}), ", plugin.len());
    }
    let packed = packed.finish().expect("memory takes it");
    fs::write(out.join("plugins.lz"), packed).expect("OUT_DIR can be written");
    fs::write(out.join("plugins.rs"), format!("[{lengths}]")).expect("OUT_DIR can be written");
}
