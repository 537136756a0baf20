//! `cargo xtask dist DIR`: what is handed to others: an archive and Debian packages of the program, its manual and completions, and of the library for C.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::capi;
use cofi_exam::build::tool;

/// Who answers for the packages. (dpkg wants a name; there is no address.)
const MAINTAINER: &str = "The founders of Cofi";
/// Completion scripts: the shell, and where Debian has them.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/cofi"),
    ("zsh", "usr/share/zsh/vendor-completions/_cofi"),
    ("fish", "usr/share/fish/vendor_completions.d/cofi.fish"),
];

/// Builds everything into a folder.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let [into] = arguments else {
        bail!("dist wants one folder, into which it builds");
    };
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
    for path in made? {
        let name = path.file_name().unwrap_or_default().display().to_string();
        println!("{name:<44} {:>10} bytes", fs::metadata(&path)?.len());
    }
    Ok(true)
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
    fn all(&self) -> Result<Vec<PathBuf>> {
        let tree = self.work.join("cofi");
        let debug = self.program(&tree)?;
        let archive = self.archive(&tree)?;
        let needs = needed_libc(&tree.join("usr/bin/cofi"))?;
        let cofi = self.package(
            &tree,
            &Package {
                name: "cofi",
                section: "devel",
                depends: format!("libc6 (>= {needs}), libgcc-s1"),
                recommends: "qemu-user",
                words: "Processor Trace in software: record any program, know what it did",
            },
        )?;
        let mut made = vec![archive, debug, cofi];
        made.extend(self.library()?);
        Ok(made)
    }

    /// The program, its manual pages and completions, as they lie in a system; its debugging information goes into a file apart.
    fn program(&self, tree: &Path) -> Result<PathBuf> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        tool(
            Command::new(cargo)
                .args(["build", "--quiet", "--profile", "dist", "--package", "cofi"])
                .current_dir(&self.root),
        )?;
        let built = capi::target(&self.root).join("dist/cofi");
        let program = tree.join("usr/bin/cofi");
        folder_of(&program)?;
        let debug = self.into.join(format!("cofi-{}.debug", self.version));
        tool(
            Command::new("objcopy")
                .arg("--only-keep-debug")
                .arg(&built)
                .arg(&debug),
        )?;
        tool(Command::new("strip").arg("-o").arg(&program).arg(&built))?;
        tool(
            Command::new("objcopy")
                .arg(format!("--add-gnu-debuglink={}", debug.display()))
                .arg(&program),
        )?;
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

    /// For systems that have no packages of Debian's: to be unpacked in /, or elsewhere.
    fn archive(&self, tree: &Path) -> Result<PathBuf> {
        readable(tree)?;
        let name = format!("cofi-{}-x86_64-linux-gnu.tar.gz", self.version);
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
    let symbols = tool(Command::new("objdump").arg("-T").arg(program))?;
    let symbols = String::from_utf8_lossy(&symbols);
    let versions = symbols.split(['(', ')', ' ']).filter_map(|word| {
        let numbers = word.trim().strip_prefix("GLIBC_")?;
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
