//! Which level of the x86-64 instruction set a program says that it needs, for QEMU's processor has no AVX-512.
//!
//! The linker notes it (`-z x86-64-v4`) as a property of the file: GNU_PROPERTY_X86_ISA_1_NEEDED. Most programs say nothing: those
//! that ask the processor first run anywhere, and those that do not end with SIGILL.

use object::elf::{
    FileHeader64, GNU_PROPERTY_X86_ISA_1_NEEDED, PT_DYNAMIC, PT_INTERP, ProgramHeader64,
};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, ReadRef};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The property's bit for x86-64-v4: AVX-512F, BW, CD, DQ and VL.
const V4: u32 = 1 << 3;
/// So many files are looked at; programs with more libraries are rare, and this is a forecast only.
const MAX_FILES: usize = 200;
/// Where the loader looks last.
const FOLDERS: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// What a file says of itself.
#[derive(Default, Debug)]
struct Says {
    needs_v4: bool,
    interpreter: Option<PathBuf>,
    libraries: Vec<OsString>,
    /// RPATH and RUNPATH.
    folders: Vec<PathBuf>,
}

/// The first file that needs x86-64-v4, of this program, its interpreter and its libraries, as far as they are found.
pub(super) fn needs_v4(program: &Path) -> Option<PathBuf> {
    let given = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let given: Vec<PathBuf> = std::env::split_paths(&given).collect();
    let (mut open, mut seen) = (vec![program.to_owned()], BTreeSet::new());
    while let Some(path) = open.pop() {
        if seen.len() >= MAX_FILES || !seen.insert(path.clone()) {
            continue;
        }
        // What cannot be read is not the forecast's business.
        let Some(says) = read(&path) else { continue };
        if says.needs_v4 {
            return Some(path);
        }
        open.extend(says.interpreter);
        for name in &says.libraries {
            if name.as_bytes().contains(&b'/') {
                open.push(name.into());
                continue;
            }
            let folders = says.folders.iter().chain(&given).map(PathBuf::as_path);
            let mut folders = folders.chain(FOLDERS.iter().map(Path::new));
            open.extend(folders.find_map(|folder| {
                let path = folder.join(name);
                path.is_file().then_some(path)
            }));
        }
    }
    None
}

fn read(path: &Path) -> Option<Says> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let data = &cache;
    let header = FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, data).ok()?;
    let mut says = Says::default();
    for segment in segments {
        if let Ok(Some(mut notes)) = segment.notes(endian, data) {
            while let Ok(Some(note)) = notes.next() {
                let Some(mut properties) = note.gnu_properties(endian) else {
                    continue;
                };
                while let Ok(Some(property)) = properties.next() {
                    let bits = property.data_u32(endian).unwrap_or(0);
                    says.needs_v4 |=
                        property.pr_type() == GNU_PROPERTY_X86_ISA_1_NEEDED && bits & V4 != 0;
                }
            }
        }
        match segment.p_type(endian) {
            PT_INTERP => {
                let path = segment.interpreter(endian, data).ok().flatten();
                says.interpreter = path.map(|path| OsStr::from_bytes(path).into());
            }
            PT_DYNAMIC => {
                dynamic(segment, segments, endian, data, path, &mut says);
            }
            _ => {}
        }
    }
    Some(says)
}

/// The libraries and where to look for them.
fn dynamic<'data, R: ReadRef<'data>>(
    segment: &ProgramHeader64<Endianness>,
    segments: &[ProgramHeader64<Endianness>],
    endian: Endianness,
    data: R,
    path: &Path,
    says: &mut Says,
) -> Option<()> {
    use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_STRTAB};
    let entries = segment.dynamic(endian, data).ok()??;
    let value = |entry: &object::elf::Dyn64<Endianness>| entry.d_val(endian);
    let table = entries
        .iter()
        .find(|entry| entry.d_tag(endian) == DT_STRTAB)?;
    let table = value(table);
    // The table is named by its address.
    let offset = segments.iter().find_map(|segment| {
        let at = table.checked_sub(segment.p_vaddr(endian))?;
        let is_in = segment.p_type(endian) == object::elf::PT_LOAD && at < segment.p_filesz(endian);
        is_in.then(|| segment.p_offset(endian).checked_add(at))?
    })?;
    let end = data.len().ok()?;
    let text = |at: u64| {
        let from = offset.checked_add(at)?;
        data.read_bytes_at_until(from..end, 0).ok()
    };
    let origin = path.parent().unwrap_or(Path::new("/"));
    for entry in entries {
        match entry.d_tag(endian) {
            DT_NEEDED => {
                let name = text(value(entry))?;
                says.libraries.push(OsStr::from_bytes(name).to_owned());
            }
            DT_RPATH | DT_RUNPATH => {
                let list = OsString::from_vec(text(value(entry))?.to_vec());
                for folder in std::env::split_paths(&list) {
                    let folder = folder.to_string_lossy();
                    let origin = origin.to_string_lossy();
                    let folder = folder.replace("${ORIGIN}", &origin);
                    says.folders.push(folder.replace("$ORIGIN", &origin).into());
                }
            }
            _ => {}
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::{needs_v4, read};
    use std::path::Path;

    fn build(folder: &Path, name: &str, text: &str, flags: &[&str]) -> Option<std::path::PathBuf> {
        let (source, program) = (folder.join(format!("{name}.c")), folder.join(name));
        std::fs::write(&source, text).expect("a file");
        cofi_test::compile(&source, &program, flags).then_some(program)
    }

    #[test]
    fn a_program_a_library_and_neither() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let main = "int main(void) { return 0; }\n";
        let build = |name, text, flags: &[&str]| build(folder, name, text, flags);
        let plain = build("plain", main, &[]).expect("a C compiler");
        assert_eq!(needs_v4(&plain), None);
        let says = read(&plain).expect("an ELF file");
        assert!(
            says.interpreter.is_some() && says.libraries.iter().any(|name| name == "libc.so.6")
        );
        for (level, needs) in [("x86-64-v3", false), ("x86-64-v4", true)] {
            let option = format!("-Wl,-z,{level}");
            let Some(program) = build(level, main, &[&option]) else {
                continue;
            };
            assert_eq!(needs_v4(&program), needs.then_some(program));
        }
        let shared = &["-shared", "-fPIC", "-Wl,-z,x86-64-v4"];
        let Some(library) = build("libwide.so", "int wide(void) { return 1; }\n", shared) else {
            return;
        };
        let main = "int wide(void); int main(void) { return wide(); }\n";
        let folder = format!("-L{}", folder.display());
        let flags = [folder.as_str(), "-lwide", "-Wl,-rpath,$ORIGIN"];
        let user = build("user", main, &flags).expect("a C compiler");
        assert_eq!(needs_v4(&user), Some(library));
    }

    #[test]
    fn what_is_no_program_says_nothing() {
        assert_eq!(needs_v4(Path::new("/etc/passwd")), None);
        assert_eq!(needs_v4(Path::new("/no/such/file")), None);
    }

    /// Files that were cut off or damaged neither panic nor are believed to need anything.
    #[test]
    fn damaged_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let Some(program) = build(
            folder.path(),
            "whole",
            "int main(void) { return 0; }\n",
            &[],
        ) else {
            return;
        };
        let bytes = std::fs::read(&program).expect("the program");
        let path = folder.path().join("damaged");
        for cut in (0..bytes.len().min(4096)).step_by(61) {
            std::fs::write(&path, &bytes[..cut]).expect("a file");
            assert_eq!(needs_v4(&path), None, "cut at {cut}");
        }
        for at in (4..1024).step_by(3) {
            let mut damaged = bytes.clone();
            damaged[at] = !damaged[at];
            std::fs::write(&path, &damaged).expect("a file");
            needs_v4(&path);
        }
    }
}
