//! Which line of which source file an instruction was compiled from.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use addr2line::Context;
use gimli::{Dwarf, EndianArcSlice, RunTimeEndian, SectionId};

use crate::contents::Contents;
use crate::file::CodeFile;
use crate::sections::Sections;
use crate::space::Place;
use crate::symbols::demangle;

/// A place in a source file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceLine {
    /// The file, as the debugging information names it.
    pub file: String,
    /// The line, from 1 on; none if the compiler did not tell.
    pub line: Option<u32>,
}

/// A function that was inlined where an instruction stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InlinedFunction {
    /// Its name, demangled.
    pub name: String,
    /// Tells this place where it was inlined from others of the same file.
    pub instance: u64,
    /// The call in the source that it stands for, if that is known.
    pub called_at: Option<SourceLine>,
}

/// Finds source lines and inlined functions, by the DWARF of the code's file or of its file of debugging information. Each file is read once, when it is
/// first needed; a damaged one has no lines.
///
/// Not for several threads at once: each has its own.
#[derive(Default)]
pub struct SourceLines {
    /// By where the [`CodeFile`] is in memory, which is kept so long.
    files: HashMap<*const CodeFile, (Arc<CodeFile>, Option<Rc<Lines>>)>,
}

/// How DWARF is read.
pub(crate) type Reader = EndianArcSlice<RunTimeEndian>;
type Lines = Context<Reader>;

impl std::fmt::Debug for SourceLines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files = self.files.values().map(|(file, _)| file.path());
        f.debug_list().entries(files).finish()
    }
}

impl SourceLines {
    /// Nothing read yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What the instruction at `place` was compiled from, if that is known: of an inlined function, its own line.
    pub fn at(&mut self, place: &Place) -> Option<SourceLine> {
        let (lines, address) = self.of(place)?;
        source_line(lines.find_location(address).ok()??)
    }

    /// The inlined functions of which the instruction at `place` is a part, the outermost first, as the ranges of the DWARF tell; none where
    /// nothing was inlined, and where nothing tells.
    pub fn inlined(&mut self, place: &Place) -> Vec<InlinedFunction> {
        let mut inlined = self.inlined_inside_out(place).unwrap_or_default();
        inlined.reverse();
        inlined
    }

    fn inlined_inside_out(&mut self, place: &Place) -> Option<Vec<InlinedFunction>> {
        let (lines, address) = self.of(place)?;
        let mut frames = lines.find_frames(address).skip_all_loads().ok()?;
        let mut inlined = Vec::new();
        let mut inner = frames.next().ok()??;
        // The last frame is that of the function itself, and each has the place at which the one before it was called.
        while let Some(outer) = frames.next().ok()? {
            let name = inner.function.as_ref();
            let name = name.and_then(|name| Some(demangle(&name.raw_name().ok()?)));
            inlined.push(InlinedFunction {
                name: name.unwrap_or_else(|| "?".into()),
                instance: inner.dw_die_offset.map_or(0, |offset| offset.0 as u64),
                called_at: outer.location.and_then(source_line),
            });
            inner = addr2line::Frame {
                location: None,
                ..outer
            };
        }
        Some(inlined)
    }

    /// The lines of the file of a place, and the address that the place has there.
    fn of(&mut self, place: &Place) -> Option<(&Lines, u64)> {
        let key = Arc::as_ptr(&place.file);
        if !self.files.contains_key(&key) {
            let known = self.of_same_build(&place.file);
            let lines = known.or_else(|| lines_of(&place.file).map(Rc::new));
            self.files.insert(key, (place.file.clone(), lines));
        }
        let (_, lines) = self.files.get(&key)?;
        let address = place.file.address_of_offset(place.offset)?;
        Some((lines.as_deref()?, address))
    }

    /// The lines of a file that is the same one in another recording: what is read of a large program takes more memory than all else.
    fn of_same_build(&self, file: &CodeFile) -> Option<Rc<Lines>> {
        let id_of = |file: &CodeFile| file.build_id().or_else(|| file.own_build_id());
        let id = id_of(file)?;
        let is_same = |other: &CodeFile| other.path() == file.path() && id_of(other) == Some(id);
        let mut others = self.files.values().filter(|(other, _)| is_same(other));
        others.find_map(|(_, lines)| lines.clone())
    }
}

fn source_line(found: addr2line::Location<'_>) -> Option<SourceLine> {
    Some(SourceLine {
        file: found.file?.to_owned(),
        line: found.line.filter(|line| *line != 0),
    })
}

fn lines_of(file: &CodeFile) -> Option<Lines> {
    file.find_with_debug(|contents| Context::from_dwarf(dwarf(contents)?).ok())
}

/// The debugging information of an ELF file that has line tables, without what tells of variables and macros.
fn dwarf(contents: &Contents) -> Option<Dwarf<Reader>> {
    use SectionId::{DebugLoc, DebugLocLists, DebugMacinfo, DebugMacro};
    let sections = Sections::of(contents)?;
    let is_wanted = |id| !matches!(id, DebugLoc | DebugLocLists | DebugMacinfo | DebugMacro);
    dwarf_with(&sections, contents, is_wanted)
}

/// How the numbers of a file are written.
pub(crate) const fn endian_of(sections: &Sections) -> RunTimeEndian {
    match sections.is_little_endian {
        true => RunTimeEndian::Little,
        false => RunTimeEndian::Big,
    }
}

/// Those sections of the debugging information that are wanted; none if there are no line tables.
pub(crate) fn dwarf_with(
    sections: &Sections,
    contents: &Contents,
    is_wanted: impl Fn(SectionId) -> bool,
) -> Option<Dwarf<Reader>> {
    if !sections.has(".debug_line") {
        return None;
    }
    let endian = endian_of(sections);
    let load = |id: SectionId| {
        let bytes = match is_wanted(id) {
            true => sections.read(id.name(), contents),
            false => None,
        };
        Ok::<_, gimli::Error>(EndianArcSlice::new(bytes.unwrap_or_default(), endian))
    };
    Dwarf::load(load).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AddressSpace, FileStore, ImageView, Version};
    use cofi_packet::Ip;

    /// Compiles a program and gives the lines of its function `main`, address by address; none where that is not possible.
    fn lines(flags: &[&str]) -> Option<Vec<Option<SourceLine>>> {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("lines.c");
        std::fs::write(
            &source,
            "int main(int c, char **v)\n{\n    c += 7;\n    return c;\n}\n",
        )
        .unwrap();
        let program = folder.path().join("lines");
        if !cofi_test::compile(&source, &program, flags) {
            return None;
        }
        let file = FileStore::new().file(&program);
        let size = file.size().unwrap();
        let mut space = AddressSpace::new();
        space.map(0, size, &file, 0, Version(0));
        let view = ImageView::new(&space, Version(0));
        let mut lines = SourceLines::new();
        let in_main = |ip: &u64| {
            let place = view.place(Ip(*ip));
            place.is_some_and(|place| place.symbol().is_some_and(|symbol| symbol.name == "main"))
        };
        Some(
            (0..size)
                .filter(in_main)
                .map(|ip| lines.at(&view.place(Ip(ip)).unwrap()))
                .collect(),
        )
    }

    #[test]
    fn lines_of_a_program() {
        for flags in [
            &["-g", "-O0"][..],
            &["-g", "-O0", "-gz=zlib"],
            &["-gdwarf-4", "-O0"],
        ] {
            let Some(found) = lines(flags) else { continue };
            assert!(!found.is_empty());
            let mut numbers: Vec<u32> = found
                .iter()
                .map(|line| {
                    let line = line.as_ref().expect("every instruction of main has a line");
                    assert!(line.file.ends_with("/lines.c"), "{line:?}");
                    line.line.expect("a number")
                })
                .collect();
            numbers.dedup();
            assert_eq!(numbers, [2, 3, 4, 5], "{flags:?}");
        }
        if let Some(none) = lines(&["-O0"]) {
            assert!(none.iter().all(Option::is_none));
        }
    }

    #[test]
    fn functions_inlined_in_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("inlined.c");
        let text = "static inline __attribute__((always_inline)) int inner(volatile int *p)\n{ return *p * 3; }\n\
                    static inline __attribute__((always_inline)) int outer(volatile int *p)\n{ *p = 5;\n  return inner(p); }\n\
                    int main(void)\n{ volatile int x = 0;\n  x = outer(&x);\n  return outer(&x); }\n";
        std::fs::write(&source, text).unwrap();
        let program = folder.path().join("inlined");
        if !cofi_test::compile(&source, &program, &["-g", "-O1"]) {
            return;
        }
        let file = FileStore::new().file(&program);
        let size = file.size().unwrap();
        let mut space = AddressSpace::new();
        space.map(0, size, &file, 0, Version(0));
        let view = ImageView::new(&space, Version(0));
        let mut lines = SourceLines::new();
        let mut seen = std::collections::BTreeSet::new();
        for place in (0..size).filter_map(|ip| view.place(Ip(ip))) {
            let inlined = lines.inlined(&place);
            let names: Vec<&str> = inlined.iter().map(|it| it.name.as_str()).collect();
            assert!(["outer", "inner"].starts_with(&names), "{names:?}");
            let line = |it: &InlinedFunction| it.called_at.as_ref().and_then(|at| at.line);
            seen.insert(inlined.iter().map(line).collect::<Vec<_>>());
        }
        // Each was called at two lines or one.
        for wanted in [&[][..], &[8], &[9], &[8, 5], &[9, 5]] {
            let wanted: Vec<Option<u32>> = wanted.iter().copied().map(Some).collect();
            assert!(seen.contains(&wanted), "{seen:?}");
        }
    }

    #[test]
    fn what_is_no_program_has_no_lines() {
        let file = CodeFile::from_bytes("bytes", vec![0x7f; 64]);
        assert!(lines_of(&file).is_none());
        assert!(dwarf(&Contents::Whole(b"\x7fELF\x02\x01\x01"[..].into())).is_none());
    }

    /// Two recordings of a program each have a file for it; its debugging information is read once.
    #[test]
    fn the_same_build_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("lines.c");
        std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let program = folder.path().join("lines");
        if !cofi_test::compile(&source, &program, &["-g", "-Wl,--build-id"]) {
            return;
        }
        let mut lines = SourceLines::new();
        for _ in 0..2 {
            let file = FileStore::new().file(&program);
            let mut space = AddressSpace::new();
            space.map(0, file.size().unwrap(), &file, 0, Version(0));
            let place = ImageView::new(&space, Version(0)).place(Ip(0)).unwrap();
            lines.of(&place);
        }
        let all: Vec<_> = lines.files.values().map(|(_, lines)| lines).collect();
        let [Some(one), Some(other)] = all[..] else {
            panic!("two files with lines");
        };
        assert!(Rc::ptr_eq(one, other));
    }
}
