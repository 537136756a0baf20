//! Linking the program twice of what is compiled once: as a system's, and by itself, with the C library in it.
//!
//! To optimise the whole program takes minutes, and both are the same code. So the chore is the linker of its own build: cargo and rustc start it in the place of
//! `cc`, with the way to the second program in the environment.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Where the program goes that needs no library. Whoever has this set is asked to link.
const STATIC: &str = "COFI_LINKS_STATIC";

/// How the programs are linked, beside what rustc asks for: functions that are the same bytes are one, and addresses that are adjusted as they start are kept in few bytes.
/// (For the latter the system's C library must be of version [`super::PACKED_SINCE`], as Debian 12's is.)
const BOTH: [&str; 2] = ["-Wl,--icf=all", "-Wl,-z,pack-relative-relocs"];

/// Lets a cargo link this program by this chore, as a system's and as one that goes to `to`.
pub(super) fn by_us<'c>(cargo: &'c mut Command, to: &Path) -> Result<&'c mut Command> {
    let this = env::current_exe().context("finding this program")?;
    Ok(cargo
        .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER", this)
        .env(STATIC, to))
}

/// If this is what was started for: links with the arguments of the process, and returns whether that was done.
pub(crate) fn run() -> Option<Result<bool>> {
    let to = PathBuf::from(env::var_os(STATIC)?);
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    Some(link(&arguments, &to))
}

fn link(arguments: &[OsString], to: &Path) -> Result<bool> {
    if !is_program(arguments) {
        return cc(arguments);
    }
    let both = [arguments, &BOTH.map(OsString::from)].concat();
    let alone = alone(arguments, to).context("linking the program without libraries")?;
    let _ = fs::remove_file(beside(to));
    let linked = cc(&both)? && cc(&alone)?;
    if let (true, Some(out)) = (linked, output(arguments)) {
        fs::write(beside(to), mark(out)?).context("noting what was linked")?;
    }
    Ok(linked)
}

/// Whether these two programs were linked at once: the second one's note has the mark of the first one.
pub(super) fn are_one(system: &Path, alone: &Path) -> bool {
    let noted = fs::read_to_string(beside(alone)).ok();
    alone.exists() && noted.is_some() && noted == mark(system).ok()
}

/// Removes the programs of a folder of cargo's, so that it links them again.
pub(super) fn forget(deps: &Path) -> Result<()> {
    for entry in fs::read_dir(deps).with_context(|| format!("reading {}", deps.display()))? {
        let path = entry?.path();
        if is_name(&path) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Where it is noted with which program this one was linked.
fn beside(program: &Path) -> PathBuf {
    program.with_extension("of")
}

/// What tells a program from others: its length, and a hash of its bytes.
fn mark(program: &Path) -> Result<String> {
    let bytes = fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    Ok(format!("{} {:016x}\n", bytes.len(), hasher.finish()))
}

fn cc(arguments: &[OsString]) -> Result<bool> {
    let status = Command::new("cc").args(arguments).status();
    Ok(status.context("running cc")?.success())
}

/// Whether it is the command that is linked, and not a build script or what others are made of.
fn is_program(arguments: &[OsString]) -> bool {
    output(arguments).is_some_and(|out| {
        let is_there = out
            .parent()
            .is_some_and(|folder| folder.ends_with("dist/deps"));
        is_there && is_name(out)
    })
}

/// Where the linker is to write.
fn output(arguments: &[OsString]) -> Option<&Path> {
    let mut words = arguments.iter().skip_while(|word| *word != "-o");
    words.nth(1).map(Path::new)
}

/// Whether cargo calls the command so, by a hash.
fn is_name(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let hash = name.strip_prefix("cofi-").unwrap_or_default();
    !hash.is_empty() && hash.bytes().all(|c| c.is_ascii_hexdigit())
}

/// The arguments with which the same is linked with nothing but itself.
fn alone(arguments: &[OsString], to: &Path) -> Result<Vec<OsString>> {
    let mut words = Vec::new();
    let (mut is_position_independent, mut has_unwinder) = (false, false);
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        match word.to_str() {
            Some("-o") => {
                rest.next();
                words.extend(["-o".into(), to.as_os_str().to_owned()]);
            }
            Some("-pie") => {
                is_position_independent = true;
                words.push("-static-pie".into());
            }
            // The compiler's library is in two parts where it is no shared one.
            Some("-lgcc_s") => {
                has_unwinder = true;
                words.extend(["-lgcc_eh", "-lgcc"].map(OsStr::new).map(OsStr::to_owned));
            }
            Some("-Wl,-Bdynamic") => {}
            _ => words.push(word.clone()),
        }
    }
    ensure!(
        is_position_independent && has_unwinder,
        "rustc asks for neither -pie nor -lgcc_s: this is another linker's language"
    );
    words.extend(BOTH.map(OsString::from));
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn the_command_alone_is_linked_twice() {
        assert!(is_program(&words(
            "a.o -o t/dist/deps/cofi-0123456789abcdef -pie"
        )));
        for other in [
            "-o t/dist/deps/libcofi_machine_plugin.so",
            "-o t/dist/build/cofi-0123/build_script_build-0123",
            "-o t/dist/deps/cofi-dap",
            "a.o -o",
            "a.o",
        ] {
            assert!(!is_program(&words(other)), "{other}");
        }
    }

    #[test]
    fn a_program_alone_has_no_shared_library() -> Result<()> {
        let shared = "-m64 a.o -Wl,-Bstatic b.rlib -Wl,-Bdynamic -lgcc_s -lc -o deps/cofi-01 -pie -nodefaultlibs";
        let alone = alone(&words(shared), Path::new("there"))?;
        let expected = "-m64 a.o -Wl,-Bstatic b.rlib -lgcc_eh -lgcc -lc -o there -static-pie -nodefaultlibs \
                        -Wl,--icf=all -Wl,-z,pack-relative-relocs";
        assert_eq!(alone, words(expected));
        Ok(())
    }

    #[test]
    fn a_program_of_another_build_is_known() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let [system, alone] = ["cofi", "cofi-static"].map(|name| folder.path().join(name));
        fs::write(&system, "first")?;
        fs::write(&alone, "of the first")?;
        assert!(!are_one(&system, &alone), "nothing is noted");
        fs::write(beside(&alone), mark(&system)?)?;
        assert!(are_one(&system, &alone));
        fs::write(&system, "other")?;
        assert!(!are_one(&system, &alone), "of the same length, and another");
        fs::write(&system, "first")?;
        fs::remove_file(&alone)?;
        assert!(!are_one(&system, &alone), "there is no program");
        Ok(())
    }

    #[test]
    fn programs_are_forgotten_and_nothing_else() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let names = [
            "cofi-0123abcd",
            "cofi-0123abcd.d",
            "libcofi_flow-0123.rlib",
            "cofi-dap",
        ];
        for name in names {
            fs::write(folder.path().join(name), "")?;
        }
        forget(folder.path())?;
        let is_left = |name: &&str| folder.path().join(name).exists();
        assert_eq!(
            names
                .iter()
                .copied()
                .filter(|name| is_left(name))
                .collect::<Vec<_>>(),
            &names[1..]
        );
        Ok(())
    }

    #[test]
    fn what_is_not_understood_is_not_linked() {
        assert!(alone(&words("a.o -lgcc_s -o x"), Path::new("y")).is_err());
        assert!(alone(&words("a.o -pie -o x"), Path::new("y")).is_err());
    }
}
