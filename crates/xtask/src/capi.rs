//! `cargo xtask capi DIR`: the library for C, as it is installed: shared and static, header, pkg-config.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use cofi_exam::build::tool;

/// What programs are linked against by name: it changes when the interface does, for who links.
const SONAME: &str = "libcofi.so.0";

/// What the library needs of others.
const NEEDED: [&str; 3] = ["-lgcc_s", "-lm", "-lc"];

/// Builds it into a folder, which becomes the prefix of its pkg-config.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let [into] = arguments else {
        bail!("capi wants one folder, into which it installs");
    };
    let into = Path::new(into);
    fs::create_dir_all(into).with_context(|| format!("making {}", into.display()))?;
    let into = into.canonicalize()?;
    let prefix = into.display().to_string();
    install(root, &into, &prefix)?;
    let shared = into
        .join("lib")
        .join(format!("libcofi.so.{}", version(root)?));
    let len = fs::metadata(&shared)?.len();
    println!("{prefix}: {len} bytes shared");
    Ok(true)
}

/// Builds it into a folder, of which pkg-config is to say that it is `prefix`.
pub(crate) fn install(root: &Path, into: &Path, prefix: &str) -> Result<()> {
    let (lib, include) = (into.join("lib"), into.join("include"));
    for folder in [&lib.join("pkgconfig"), &include] {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let version = version(root)?;
    build(root, "cofi-c", "release", &["--crate-type", "staticlib"])?;
    let shared = lib.join(format!("libcofi.so.{version}"));
    link(root, &shared)?;
    strip(
        root,
        "release/libcofi_c.a",
        "--strip-debug",
        &lib.join("libcofi.a"),
    )?;
    for name in [SONAME, "libcofi.so"] {
        let link = lib.join(name);
        let _ = fs::remove_file(&link);
        symlink(format!("libcofi.so.{version}"), &link)
            .with_context(|| format!("making {}", link.display()))?;
    }
    fs::copy(
        root.join("crates/cofi-c/include/cofi.h"),
        include.join("cofi.h"),
    )?;
    fs::write(
        lib.join("pkgconfig/cofi.pc"),
        format!(
            "prefix={prefix}\n\nName: cofi\nDescription: Processor Trace: packets, the trace unit, recordings\nVersion: {version}\n\
             Cflags: -I${{prefix}}/include\nLibs: -L${{prefix}}/lib -lcofi\nLibs.private: {}\n",
            NEEDED.join(" "),
        ),
    )?;
    Ok(())
}

/// Links the shared library from the static one: rustc gives the linker a version script without versions, beside which there cannot be another.
fn link(root: &Path, shared: &Path) -> Result<()> {
    let script = root.join("crates/cofi-c/cofi.map");
    tool(
        Command::new("cc")
            .args(["-shared", "-s", "-o"])
            .arg(shared)
            .arg(format!("-Wl,-soname,{SONAME}"))
            .arg(format!("-Wl,--version-script,{}", script.display()))
            .args([
                "-Wl,--no-undefined",
                "-Wl,--gc-sections",
                "-Wl,-z,relro,-z,now",
            ])
            .arg("-Wl,--whole-archive")
            .arg(target(root).join("release/libcofi_c.a"))
            .arg("-Wl,--no-whole-archive")
            .args(NEEDED),
    )?;
    Ok(())
}

/// Builds a package's library in a profile, with these options of `cargo rustc`.
pub(crate) fn build(root: &Path, package: &str, profile: &str, options: &[&str]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    tool(
        Command::new(cargo)
            .args([
                "rustc",
                "--quiet",
                "--lib",
                "--profile",
                profile,
                "--package",
                package,
            ])
            .args(options)
            .current_dir(root),
    )?;
    Ok(())
}

/// Puts what was built, named from the folder where cargo builds on, to its place, without what `option` of strip takes away.
pub(crate) fn strip(root: &Path, built: &str, option: &str, to: &Path) -> Result<()> {
    tool(
        Command::new("strip")
            .args([option, "-o"])
            .arg(to)
            .arg(target(root).join(built)),
    )?;
    Ok(())
}

/// Where cargo, which runs in `root`, builds.
pub(crate) fn target(root: &Path) -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root.join(named)
}

/// The workspace's version.
pub(crate) fn version(root: &Path) -> Result<String> {
    let text = fs::read_to_string(root.join("Cargo.toml"))?;
    let (_, rest) = text
        .split_once("[workspace.package]")
        .context("there is no [workspace.package]")?;
    let line = rest
        .lines()
        .find_map(|line| line.strip_prefix("version = "));
    let version = line.context("it has no version")?.trim_matches('"');
    ensure!(!version.is_empty(), "its version is empty");
    Ok(version.to_owned())
}
