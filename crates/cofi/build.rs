//! Whether the command can record where it will run; and which commit it is built from, for `cofi --version`: what COFI_COMMIT says, or what
//! git does; nothing where neither is there.

use std::env;
use std::path::Path;
use std::process::Command;

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // What runs programs of x86-64 Linux is for such machines; what reads traces of them is for all. Cargo.toml says the same of the dependencies.
    println!("cargo::rustc-check-cfg=cfg(can_record)");
    // RUSTFLAGS="--cfg cofi_reads_only" asks on x86-64 for what others have.
    let is = |what, wanted| env::var(what).is_ok_and(|found| found == wanted);
    let is_x86_linux = is("CARGO_CFG_TARGET_ARCH", "x86_64") && is("CARGO_CFG_TARGET_OS", "linux");
    if is_x86_linux && env::var_os("CARGO_CFG_COFI_READS_ONLY").is_none() {
        println!("cargo::rustc-cfg=can_record");
    }
    println!("cargo::rerun-if-env-changed=COFI_COMMIT");
    let told = env::var("COFI_COMMIT").ok().filter(|told| !told.is_empty());
    // (Sources that lie in another project's checkout, as a package's do, are none of its commits.)
    let here = git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
    let commit = told.or_else(|| {
        let folder = git(&["rev-parse", "--absolute-git-dir"]).filter(|_| here)?;
        // They change with a commit and with another branch, wherever the branch is kept. (Changes that are in no commit are not told.)
        for name in ["HEAD", "logs/HEAD"] {
            let file = Path::new(&folder).join(name);
            if file.exists() {
                println!("cargo::rerun-if-changed={}", file.display());
            }
        }
        git(&["rev-parse", "--short=12", "HEAD"])
    });
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    match commit {
        Some(commit) => println!("cargo::rustc-env=COFI_VERSION={version} (commit {commit})"),
        None => println!("cargo::rustc-env=COFI_VERSION={version}"),
    }
}
