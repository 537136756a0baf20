//! `cargo xtask compilers [PART]...`: what the project says of compilers and systems that are not this machine's, tried with Debian 13's own packages. (docs/packages.md)
//!
//! Debian's systems are made by mmdebstrap into the target folder, and stay there. What is built runs in them, in namespaces of its own, by chroot: so this wants root.

mod hosts;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{capi, deps, package};

/// Where Debian's packages come from.
const MIRROR: &str = "http://deb.debian.org/debian";
/// Where the certificates lie of those from whom cargo fetches.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// In a system: the packages that were asked for.
const HAS: &str = "packages";
/// How cargo reaches its registry, as far as variables say.
const WAYS: [&str; 5] = [
    "CARGO_HTTP_",
    "CARGO_NET_",
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
];

/// Arguments: the system's folder, the checkout, cargo's home, and the command. All that it mounts is gone with its namespaces; the checkout cannot be changed.
const ENTER: &str = r#"
set -e
system=$1 checkout=$2 home=$3
shift 3
mkdir -p "$system/checkout" "$system/cargo/registry" "$home/registry" "$system$(dirname "$CERTIFICATES")"
mount --bind "$checkout" "$system/checkout"
mount -o remount,bind,ro "$system/checkout"
mount --bind "$home/registry" "$system/cargo/registry"
mount -t proc proc "$system/proc"
mount --rbind /dev "$system/dev"
for file in /etc/resolv.conf /etc/hosts "$CERTIFICATES"; do
    [ ! -f "$file" ] || cp -L --remove-destination "$file" "$system$file"
done
for file in config config.toml; do
    [ ! -f "$home/$file" ] || cp -L "$home/$file" "$system/cargo/$file"
done
exec chroot "$system" /usr/bin/env "$@"
"#;

/// Does the parts that are named, or all; says what was compiled.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let (mut parts, mut given) = (Vec::new(), hosts::Given::default());
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            part if part == "oldest" || hosts::is_part(part) => parts.push(part),
            "--traces" => {
                let folder = words.next().context("--traces wants a folder")?;
                given.traces = Some(Path::new(folder).canonicalize()?);
            }
            "--cofi" => {
                let program = words.next().context("--cofi wants a program")?;
                given.cofi = Some(Path::new(program).canonicalize()?);
            }
            other => {
                bail!(
                    "{other}: compilers knows the parts oldest, hosts, aarch64 and windows, --traces FOLDER and --cofi PATH"
                )
            }
        }
    }
    if parts.is_empty() {
        parts = vec!["oldest", "hosts"];
    }
    for part in parts {
        match part {
            "oldest" => oldest(root)?,
            hosts => hosts::run(root, hosts, &given)?,
        }
    }
    Ok(true)
}

/// What says that an older compiler than CI's suffices, with that of Debian 13's release.
fn oldest(root: &Path) -> Result<()> {
    let system = System::made(root, &["trixie"], "amd64", &[])?;
    let version = system.version()?;
    let metadata = deps::metadata(root)?;
    let packages = metadata["packages"].as_array();
    let names = for_compiler(
        packages.context("cargo metadata names no packages")?,
        &version,
    );
    ensure!(
        !names.is_empty(),
        "no crate says that rustc {version} suffices"
    );
    let check = ["check", "--quiet", "--locked", "--all-features"].into_iter();
    system.cargo(
        &check
            .chain(names.iter().flat_map(|name| ["--package", name]))
            .collect::<Vec<_>>(),
        &[],
    )?;
    println!(
        "compilers: rustc {version}: {}, with all features",
        names.join(", ")
    );
    system.cargo(
        &[
            "run",
            "--quiet",
            "--locked",
            "--manifest-path",
            "exam/no-std/Cargo.toml",
        ],
        &[],
    )?;
    println!("compilers: rustc {version}: exam/no-std, which runs");
    Ok(())
}

/// The packages of the workspace that say that this compiler suffices.
fn for_compiler<'p>(packages: &'p [Value], version: &str) -> Vec<&'p str> {
    let numbers = |text: &str| -> Vec<u32> {
        text.split('.')
            .map_while(|part| part.parse().ok())
            .collect()
    };
    let suffices = |one: &&Value| {
        let wanted = one["rust_version"].as_str();
        wanted.is_some_and(|wanted| numbers(wanted) <= numbers(version))
    };
    packages
        .iter()
        .filter(suffices)
        .map(package::name)
        .collect()
}

/// One of Debian's systems, with a compiler.
struct System {
    folder: PathBuf,
    checkout: PathBuf,
}

impl System {
    /// A system of these suites, the last of which has precedence, with packages beside the compiler. It is made if it is not there.
    fn made(root: &Path, suites: &[&str], architectures: &str, packages: &[&str]) -> Result<Self> {
        let (first, name) = match suites {
            [first, .., last] => (*first, *last),
            [only] => (*only, *only),
            [] => bail!("a system is of some suite"),
        };
        let systems = capi::target(root).join("compilers");
        let system = Self {
            folder: systems.join(name),
            checkout: root.to_owned(),
        };
        let include = [&["rustc", "cargo", "gcc", "libc6-dev"], packages]
            .concat()
            .join(",");
        if fs::read_to_string(system.folder.join(HAS)).is_ok_and(|has| has == include) {
            return Ok(system);
        }
        // An earlier commit may have wanted other packages.
        if system.folder.exists() {
            fs::remove_dir_all(&system.folder)?;
        }
        fs::create_dir_all(&systems)?;
        // It gets its name when it is whole.
        let begun = systems.join(format!("{name}.begun"));
        let _ = fs::remove_dir_all(&begun);
        println!("compilers: making a Debian of {name}, with {include}");
        let mut make = Command::new("mmdebstrap");
        make.args(["--quiet", "--variant=essential"])
            .arg(format!("--architectures={architectures}"))
            .arg(format!("--include={include}"))
            .arg(format!("--aptopt=APT::Default-Release \"{name}\""))
            .arg(first)
            .arg(&begun)
            .args(
                suites
                    .iter()
                    .map(|suite| format!("deb {MIRROR} {suite} main")),
            );
        let status = make
            .status()
            .context("running mmdebstrap (is it installed?)")?;
        ensure!(
            status.success(),
            "mmdebstrap made no {name} (it wants root, and {MIRROR})"
        );
        fs::write(begun.join(HAS), &include)?;
        fs::rename(&begun, &system.folder)?;
        Ok(system)
    }

    /// Of its compiler.
    fn version(&self) -> Result<String> {
        let rustc = Command::new("chroot")
            .arg(&self.folder)
            .args(["/usr/bin/rustc", "--version"])
            .output()
            .context("running chroot")?;
        let text = String::from_utf8_lossy(&rustc.stdout);
        let version = text.split_whitespace().nth(1);
        Ok(version.context("its rustc says no version")?.to_owned())
    }

    /// Runs its cargo in the checkout; what is built stays in the system.
    fn cargo(&self, arguments: &[&str], variables: &[&str]) -> Result<()> {
        self.run("/checkout", variables, &[&["cargo"], arguments].concat())
    }

    /// Runs a command in a folder of it, with these variables.
    fn run(&self, folder: &str, variables: &[&str], words: &[&str]) -> Result<()> {
        let home = std::env::var_os("CARGO_HOME").map_or_else(
            || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo"),
            PathBuf::from,
        );
        let ways =
            std::env::vars().filter(|(name, _)| WAYS.iter().any(|way| name.starts_with(way)));
        let status = Command::new("unshare")
            .args([
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--propagation",
                "private",
                "sh",
                "-c",
                ENTER,
                "sh",
            ])
            .args([&self.folder, &self.checkout, &home])
            .args([
                &format!("--chdir={folder}"),
                "-i",
                "PATH=/usr/bin:/bin",
                "HOME=/root",
                "CARGO_HOME=/cargo",
                "CARGO_TARGET_DIR=/built",
            ])
            .args(ways.map(|(name, value)| format!("{name}={value}")))
            .args(variables)
            .args(words)
            .env("CERTIFICATES", CERTIFICATES)
            .status()
            .context("running unshare")?;
        ensure!(
            status.success(),
            "{} ({})",
            words.join(" "),
            self.folder.display()
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_and_newer_than_the_compiler() {
        let packages = [("a", "1.85"), ("b", "1.95"), ("c", "1.85.1"), ("d", "1.9")]
            .map(|(name, version)| serde_json::json!({"name": name, "rust_version": version}));
        assert_eq!(for_compiler(&packages, "1.85.1"), ["a", "c", "d"]);
        assert_eq!(for_compiler(&packages, "1.85.0"), ["a", "d"]);
        assert!(for_compiler(&[serde_json::json!({"name": "a"})], "1.85.1").is_empty());
    }
}
