//! `cargo xtask dist DIR`: what is handed to others: an archive and Debian packages of the program, its manual and completions, and of the library for C. What was built
//! is then tried in systems that have next to nothing.

pub(crate) mod link;
mod trial;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::capi;
use cofi_exam::build::tool;

/// Who answers for the packages. (dpkg wants a name; there is no address.)
const MAINTAINER: &str = "The founders of Cofi";
/// What is built is for this.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// So long the package's program may not be, its symbols left out.
const TOO_LONG: u64 = 8_000_000;
/// And so long the one that has the C library in it, too.
const TOO_LONG_ALONE: u64 = 8_900_000;
/// What the C library says it has if it adjusts packed addresses, and since when it does.
const PACKED: &str = "ABI_DT_RELR";
const PACKED_SINCE: &str = "2.36";
/// Completion scripts: the shell, and where Debian has them.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/cofi"),
    ("zsh", "usr/share/zsh/vendor-completions/_cofi"),
    ("fish", "usr/share/fish/vendor_completions.d/cofi.fish"),
];

/// Builds everything into a folder, and tries it.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let (mut into, mut trial, mut system) = (None, true, None);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--untried" => trial = false,
            "--system" => {
                let folder = words.next().context("--system wants a folder")?;
                system = Some(Path::new(folder).canonicalize()?);
            }
            folder if into.is_none() && !folder.starts_with('-') => into = Some(folder),
            _ => {
                bail!("dist takes one folder, into which it builds, --untried and --system FOLDER")
            }
        }
    }
    let into = into.context("dist wants a folder, into which it builds")?;
    if trial {
        trial::is_possible()?;
    }
    fs::create_dir_all(into).with_context(|| format!("making {into}"))?;
    let into = Path::new(into).canonicalize()?;
    let dist = Dist {
        version: capi::version(root)?,
        work: into.join("work"),
        root: root.to_owned(),
        into,
    };
    let _ = fs::remove_dir_all(&dist.work);
    let made = dist.all();
    let _ = fs::remove_dir_all(&dist.work);
    let made = made?;
    for path in [&made.archive, &made.package]
        .into_iter()
        .chain(&made.others)
    {
        let name = path.file_name().unwrap_or_default().display().to_string();
        println!("{name:<44} {:>10} bytes", fs::metadata(path)?.len());
    }
    if trial {
        fs::create_dir_all(&dist.work)?;
        let tried = trial::run(&dist.work, &made, system.as_deref());
        let _ = fs::remove_dir_all(&dist.work);
        tried?;
    }
    Ok(true)
}

/// What was made.
struct Made {
    /// The program that needs no library, with its manual and completions.
    archive: PathBuf,
    /// The command as a Debian package.
    package: PathBuf,
    others: Vec<PathBuf>,
}

struct Dist {
    version: String,
    root: PathBuf,
    into: PathBuf,
    /// What lies here is thrown away.
    work: PathBuf,
}

/// A Debian package.
struct Package<'p> {
    name: &'p str,
    section: &'p str,
    depends: String,
    recommends: &'p str,
    words: &'p str,
}

impl Dist {
    fn all(&self) -> Result<Made> {
        let [system, alone] = self.build()?;
        let (tree, other) = (self.work.join("cofi"), self.work.join("alone"));
        let mut others = vec![
            self.program(&system, &tree, "", TOO_LONG)?,
            self.program(&alone, &other, "-static", TOO_LONG_ALONE)?,
        ];
        let archive = self.archive(&other)?;
        let needs = needed_libc(&tree.join("usr/bin/cofi"))?;
        let package = self.package(
            &tree,
            &Package {
                name: "cofi",
                section: "devel",
                depends: format!("libc6 (>= {needs}), libgcc-s1"),
                recommends: "qemu-user",
                words: "Processor Trace in software: record any program, know what it did",
            },
        )?;
        others.extend(self.library()?);
        Ok(Made {
            archive,
            package,
            others,
        })
    }

    /// Compiles the program, and links it as a system's and as one that needs no library.
    fn build(&self) -> Result<[PathBuf; 2]> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let folder = capi::target(&self.root).join(TARGET).join("dist");
        let alone = folder.join("cofi-static");
        let system = folder.join("cofi");
        let build = || {
            let mut cargo = Command::new(&cargo);
            cargo
                .args(["build", "--quiet", "--profile", "dist", "--package", "cofi"])
                // So that what is said here of the program is not said of build scripts.
                .args(["--target", TARGET])
                .env("CARGO_ENCODED_RUSTFLAGS", flags()?)
                .current_dir(&self.root);
            tool(link::by_us(&mut cargo, &alone)?)
        };
        build()?;
        // Cargo may have had nothing to link, and what lies there be of another build.
        if !link::are_one(&system, &alone) {
            link::forget(&folder.join("deps"))?;
            build()?;
        }
        ensure!(
            link::are_one(&system, &alone),
            "{} was not linked with {}",
            alone.display(),
            system.display()
        );
        Ok([system, alone])
    }

    /// The program, its manual pages and completions, as they lie in a system; its debugging information goes into a file apart.
    fn program(&self, built: &Path, tree: &Path, kind: &str, too_long: u64) -> Result<PathBuf> {
        let program = tree.join("usr/bin/cofi");
        folder_of(&program)?;
        let debug = self.into.join(format!("cofi-{}{kind}.debug", self.version));
        tool(
            Command::new("objcopy")
                .arg("--only-keep-debug")
                .arg(built)
                .arg(&debug),
        )?;
        tool(Command::new("strip").arg("-o").arg(&program).arg(built))?;
        tool(
            Command::new("objcopy")
                .arg(format!("--add-gnu-debuglink={}", debug.display()))
                .arg(&program),
        )?;
        let len = fs::metadata(&program)?.len();
        println!("{:<44} {len:>10} bytes", format!("usr/bin/cofi{kind}"));
        ensure!(
            len < too_long,
            "the program has {len} bytes without its symbols, and is to have less than {too_long}"
        );
        for (shell, place) in COMPLETIONS {
            let script = tool(Command::new(&program).args(["completions", shell]))?;
            let place = tree.join(place);
            folder_of(&place)?;
            fs::write(place, script)?;
        }
        let pages = tree.join("usr/share/man/man1");
        tool(Command::new(&program).arg("manual").arg(&pages))?;
        for page in fs::read_dir(&pages)? {
            tool(Command::new("gzip").args(["-9", "-n"]).arg(page?.path()))?;
        }
        self.papers(tree, "cofi")?;
        Ok(debug)
    }

    /// The licences, and what has changed.
    fn papers(&self, tree: &Path, package: &str) -> Result<()> {
        let folder = tree.join("usr/share/doc").join(package);
        fs::create_dir_all(&folder)?;
        let mut text =
            String::from("Licensed under either of Apache License 2.0 or MIT, at your option.\n\n");
        for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
            text += &fs::read_to_string(self.root.join(name))?;
            text += "\n";
        }
        fs::write(folder.join("copyright"), text)?;
        fs::copy(self.root.join("CHANGELOG.md"), folder.join("CHANGELOG.md"))?;
        Ok(())
    }

    /// For all systems: to be unpacked in /, or elsewhere.
    fn archive(&self, tree: &Path) -> Result<PathBuf> {
        readable(tree)?;
        let name = format!("cofi-{}-x86_64-linux-static.tar.gz", self.version);
        let archive = self.into.join(name);
        tool(
            Command::new("tar")
                .args([
                    "--sort=name",
                    "--owner=0",
                    "--group=0",
                    "--mtime=@0",
                    "-czf",
                ])
                .arg(&archive)
                .arg("-C")
                .arg(tree)
                .arg("usr"),
        )?;
        Ok(archive)
    }

    /// The library for C: what programs run with, and what they are built with.
    fn library(&self) -> Result<[PathBuf; 2]> {
        let whole = self.work.join("capi");
        capi::install(&self.root, &whole, "/usr")?;
        let triplet = "usr/lib/x86_64-linux-gnu";
        let shared = format!("libcofi.so.{}", self.version);
        let (runs, builds) = (self.work.join("libcofi0"), self.work.join("libcofi-dev"));
        let lib = whole.join("lib");
        for (tree, from, to) in [
            (&runs, lib.join(&shared), format!("{triplet}/{shared}")),
            (
                &runs,
                lib.join("libcofi.so.0"),
                format!("{triplet}/libcofi.so.0"),
            ),
            (
                &builds,
                lib.join("libcofi.so"),
                format!("{triplet}/libcofi.so"),
            ),
            (
                &builds,
                lib.join("libcofi.a"),
                format!("{triplet}/libcofi.a"),
            ),
            (
                &builds,
                lib.join("pkgconfig/cofi.pc"),
                format!("{triplet}/pkgconfig/cofi.pc"),
            ),
            (
                &builds,
                whole.join("include/cofi.h"),
                "usr/include/cofi.h".to_owned(),
            ),
        ] {
            let to = tree.join(to);
            folder_of(&to)?;
            tool(Command::new("cp").arg("-P").arg(&from).arg(&to))?;
        }
        self.papers(&runs, "libcofi0")?;
        self.papers(&builds, "libcofi-dev")?;
        let needs = needed_libc(&lib.join(&shared))?;
        let runs = self.package(
            &runs,
            &Package {
                name: "libcofi0",
                section: "libs",
                depends: format!("libc6 (>= {needs}), libgcc-s1"),
                recommends: "",
                words: "Processor Trace for C and C++",
            },
        )?;
        let builds = self.package(
            &builds,
            &Package {
                name: "libcofi-dev",
                section: "libdevel",
                depends: format!("libcofi0 (= {}), libc6-dev", self.version),
                recommends: "",
                words: "Processor Trace for C and C++: header, static library",
            },
        )?;
        Ok([runs, builds])
    }

    /// Makes a Debian package of a tree.
    fn package(&self, tree: &Path, package: &Package<'_>) -> Result<PathBuf> {
        let control = tree.join("DEBIAN/control");
        folder_of(&control)?;
        let recommends = match package.recommends {
            "" => String::new(),
            others => format!("Recommends: {others}\n"),
        };
        let Package {
            name,
            section,
            depends,
            words,
            ..
        } = package;
        let version = &self.version;
        fs::write(
            &control,
            format!(
                "Package: {name}\nVersion: {version}\nArchitecture: amd64\nSection: {section}\nPriority: optional\nMaintainer: {MAINTAINER}\n\
                 Depends: {depends}\n{recommends}Description: {words}\n"
            ),
        )?;
        // Whatever mask is set here.
        readable(tree)?;
        let file = self.into.join(format!("{name}_{version}_amd64.deb"));
        tool(
            Command::new("dpkg-deb")
                .args(["--root-owner-group", "--build"])
                .arg(tree)
                .arg(&file),
        )?;
        Ok(file)
    }
}

/// What the compiler is told: sources of others are named in the program as if they lay where it was built, not in somebody's home. And functions keep a frame
/// pointer: what unwinds then has one rule for a function, and not one for each push; that is a quarter of a megabyte.
fn flags() -> Result<OsString> {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(std::env::home_dir()?.join(".cargo")))
        .context("there is no CARGO_HOME, and no home")?;
    let mut flags = vec![OsString::from("-Cforce-frame-pointers=yes")];
    for registry in fs::read_dir(home.join("registry/src"))
        .into_iter()
        .flatten()
    {
        let mut flag = OsString::from("--remap-path-prefix=");
        flag.push(registry?.path());
        flag.push("=");
        flags.push(flag);
    }
    Ok(flags.join(OsStr::new("\x1f")))
}

/// Makes the folder of a file.
fn folder_of(path: &Path) -> Result<()> {
    let folder = path.parent().context("it has no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))
}

/// Lets everybody read what is in a folder.
fn readable(folder: &Path) -> Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            readable(&path)?;
        } else {
            let is_program = path.parent().is_some_and(|folder| folder.ends_with("bin"));
            let mode = if is_program { 0o755 } else { 0o644 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}

/// The first version of the C library that has all that a program asks of it.
fn needed_libc(program: &Path) -> Result<String> {
    let headers = tool(Command::new("objdump").arg("-p").arg(program))?;
    newest(&String::from_utf8_lossy(&headers))
}

/// The newest of the versions that objdump says a program needs.
fn newest(headers: &str) -> Result<String> {
    let versions = headers.split_whitespace().filter_map(|word| {
        let numbers = match word.strip_prefix("GLIBC_")? {
            PACKED => PACKED_SINCE,
            numbers => numbers,
        };
        let numbers: Vec<u32> = numbers
            .split('.')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        Some(numbers)
    });
    let newest = versions.max().context("it asks nothing of the C library")?;
    let words: Vec<String> = newest.iter().map(u32::to_string).collect();
    Ok(words.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_counts() -> Result<()> {
        let listed = "required from libc.so.6:\n 0x069691b4 0x00 05 GLIBC_2.34\n 0x09691a75 0x00 02 GLIBC_2.4\n";
        assert_eq!(newest(listed)?, "2.34");
        let packed = format!("{listed} 0x0fd0e42 0x00 09 GLIBC_ABI_DT_RELR\n");
        assert_eq!(newest(&packed)?, "2.36");
        assert!(newest("required from libgcc_s.so.1: GCC_3.0").is_err());
        Ok(())
    }
}
