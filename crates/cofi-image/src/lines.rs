//! Which line of which source file an instruction was compiled from.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use addr2line::Context;
use gimli::{
    DW_FORM_implicit_const, DW_FORM_ref_addr, DebugAranges, DebugInfo, Dwarf, DwarfSections,
    EndianArcSlice, Reader as _, RunTimeEndian, Section as _, SectionId,
};

use crate::contents::Contents;
use crate::file::CodeFile;
use crate::lazy::LazyReader;
use crate::sections::Sections;
use crate::space::Place;
use crate::symbols::demangle;
use crate::unit_index::UnitIndex;

/// A place in a source file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct SourceLine {
    /// The file, as the debugging information names it.
    pub file: String,
    /// The line, from 1 on; none if the compiler did not tell.
    pub line: Option<u32>,
}

/// A function that was inlined where an instruction stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
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
pub struct LineFinder {
    /// By where the [`CodeFile`] is in memory, which is kept so long.
    files: HashMap<*const CodeFile, (Arc<CodeFile>, Option<Rc<Lines>>)>,
}

/// How DWARF is read that is read from one end to the other.
pub(crate) type Reader = EndianArcSlice<RunTimeEndian>;

/// Whether an entry of these abbreviations may refer to another unit.
fn refers_to_others(mut abbreviations: LazyReader) -> gimli::Result<bool> {
    while abbreviations.read_uleb128()? != 0 {
        let (_tag, _children) = (abbreviations.read_uleb128()?, abbreviations.read_u8()?);
        loop {
            let (name, form) = (abbreviations.read_uleb128()?, abbreviations.read_uleb128()?);
            if form == u64::from(DW_FORM_ref_addr.0) {
                return Ok(true);
            }
            if form == u64::from(DW_FORM_implicit_const.0) {
                abbreviations.read_sleb128()?;
            }
            if (name, form) == (0, 0) {
                break;
            }
        }
    }
    Ok(false)
}

/// The debugging information of a file. Of its lines only the units are read that are asked for; whoever asks for inlined functions wants names, too, which may
/// stand in any unit.
struct Lines {
    /// Of the units one is there at a time.
    sections: DwarfSections<LazyReader>,
    units: LazyReader,
    index: UnitIndex,
    /// By where a unit stands: its lines.
    read: RefCell<HashMap<usize, Option<Rc<Context<LazyReader>>>>>,
    /// By where a unit stands: whether it [tells all](Self::tells_all).
    apart: RefCell<HashMap<usize, bool>>,
    whole: OnceCell<Option<Context<LazyReader>>>,
    aranges: DebugAranges<LazyReader>,
}

impl Lines {
    fn of(sections: &Sections, contents: &Contents) -> Option<Self> {
        let readers = lazy_sections(sections, contents)?;
        // Of what is read for the index little is wanted again, so nothing of that is kept.
        let index = UnitIndex::of(anew(&readers)?.borrow(Clone::clone))?;
        let mut lazy = anew(&readers)?;
        let nothing = LazyReader::empty_of(endian_of(sections));
        let units = lazy.debug_info.reader().clone();
        // A unit that is read by itself stands elsewhere than the table of all says.
        let aranges = std::mem::replace(&mut lazy.debug_aranges, nothing.into());
        Some(Self {
            aranges,
            sections: lazy,
            units,
            index,
            read: RefCell::default(),
            apart: RefCell::default(),
            whole: OnceCell::new(),
        })
    }

    /// The line of the code at an address.
    fn at(&self, address: u64) -> Option<SourceLine> {
        for unit in self.index.at(address) {
            if let Some(context) = self.unit(&unit)
                && let Some(found) = context.find_location(address).ok()?
            {
                return source_line(found);
            }
        }
        None
    }

    /// Whether all that a unit refers to stands in itself, but for texts and the like.
    fn tells_all(&self, place: &Range<usize>) -> bool {
        let mut known = self.apart.borrow_mut();
        *known.entry(place.start).or_insert_with(|| {
            let refers = || {
                let mut bytes = self.units.clone();
                bytes.skip(place.start)?;
                bytes.truncate(place.len())?;
                let units = DebugInfo::from(bytes);
                let header = units.units().next()?.ok_or(gimli::Error::MissingUnitDie)?;
                let mut abbreviations = self.sections.debug_abbrev.reader().clone();
                abbreviations.skip(header.debug_abbrev_offset().0)?;
                refers_to_others(abbreviations)
            };
            refers().is_ok_and(|refers| !refers)
        })
    }

    /// A unit by itself.
    fn unit(&self, place: &Range<usize>) -> Option<Rc<Context<LazyReader>>> {
        let mut read = self.read.borrow_mut();
        let known = read.entry(place.start).or_insert_with(|| {
            let mut bytes = self.units.clone();
            bytes.skip(place.start).ok()?;
            bytes.truncate(place.len()).ok()?;
            let mut dwarf = self.sections.borrow(Clone::clone);
            dwarf.debug_info = bytes.into();
            Context::from_dwarf(dwarf).ok().map(Rc::new)
        });
        known.clone()
    }

    /// All units.
    fn whole(&self) -> Option<&Context<LazyReader>> {
        let read = || {
            let mut dwarf = self.sections.borrow(Clone::clone);
            dwarf.debug_aranges = self.aranges.clone();
            Context::from_dwarf(dwarf).ok()
        };
        self.whole.get_or_init(read).as_ref()
    }
}

impl std::fmt::Debug for LineFinder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files = self.files.values().map(|(file, _)| file.path());
        f.debug_list().entries(files).finish()
    }
}

impl LineFinder {
    /// Nothing read yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What the instruction at `place` was compiled from, if that is known: of an inlined function, its own line.
    pub fn at(&mut self, place: &Place) -> Option<SourceLine> {
        let (lines, address) = self.of(place)?;
        lines.at(address)
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
        let units: Vec<Range<usize>> = lines.index.at(address).collect();
        if !units.iter().all(|unit| lines.tells_all(unit)) {
            return inlined_at(lines.whole()?, address).ok()?;
        }
        for unit in units {
            if let Some(context) = lines.unit(&unit)
                && let Some(inlined) = inlined_at(&context, address).ok()?
            {
                return Some(inlined);
            }
        }
        None
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

/// The functions that are inlined at an address, the innermost first; none if nothing is known of the address.
fn inlined_at(
    context: &Context<LazyReader>,
    address: u64,
) -> gimli::Result<Option<Vec<InlinedFunction>>> {
    let mut frames = context.find_frames(address).skip_all_loads()?;
    let mut inlined = Vec::new();
    let Some(mut inner) = frames.next()? else {
        return Ok(None);
    };
    // The last frame is that of the function itself, and each has the place at which the one before it was called.
    while let Some(outer) = frames.next()? {
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
    Ok(Some(inlined))
}

fn source_line(found: addr2line::Location<'_>) -> Option<SourceLine> {
    Some(SourceLine {
        file: found.file?.to_owned(),
        line: found.line.filter(|line| *line != 0),
    })
}

fn lines_of(file: &CodeFile) -> Option<Lines> {
    file.find_with_debug(|contents| Lines::of(&Sections::of(contents)?, contents))
}

/// The debugging information of an ELF file that has line tables, without what tells of variables and macros.
fn lazy_sections(
    sections: &Sections,
    contents: &Contents,
) -> Option<impl Fn(SectionId) -> LazyReader> {
    use SectionId::{DebugLoc, DebugLocLists, DebugMacinfo, DebugMacro};
    if !sections.has(".debug_line") {
        return None;
    }
    let endian = endian_of(sections);
    let mut readers: HashMap<SectionId, LazyReader> = HashMap::new();
    let load = |id: SectionId| {
        if !matches!(id, DebugLoc | DebugLocLists | DebugMacinfo | DebugMacro) {
            let number = readers.len() as u64 + 1;
            let reader = LazyReader::of(sections, id.name(), contents, endian, number);
            readers.insert(id, reader);
        }
        Ok::<_, gimli::Error>(LazyReader::empty_of(endian))
    };
    DwarfSections::load(load).ok()?;
    Some(move |id| {
        let reader = readers.get(&id).map(LazyReader::anew);
        reader.unwrap_or_else(|| LazyReader::empty_of(endian))
    })
}

/// All sections, nothing of which has been read.
fn anew(readers: &impl Fn(SectionId) -> LazyReader) -> Option<DwarfSections<LazyReader>> {
    DwarfSections::load(|id| Ok::<_, gimli::Error>(readers(id))).ok()
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
        let mut lines = LineFinder::new();
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
        let mut lines = LineFinder::new();
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

    /// A function of one unit is inlined in one of another, which refers to the first for its name.
    #[test]
    fn names_that_stand_in_other_units() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let inner = "int inner(volatile int *p)\n{ return *p * 3; }\n";
        std::fs::write(path("inner.c"), inner).unwrap();
        let main = "int inner(volatile int *);\nint main(void)\n{ volatile int x = 0;\n  x = 5;\n  return inner(&x); }\n";
        std::fs::write(path("main.c"), main).unwrap();
        let other = path("inner.c");
        let flags = ["-g", "-O2", "-flto", other.to_str().unwrap()];
        if !cofi_test::compile(&path("main.c"), &path("program"), &flags) {
            return;
        }
        // As the linker left it, and without the table of the units' addresses.
        for has_aranges in [true, false] {
            if !has_aranges {
                let mut strip = std::process::Command::new("objcopy");
                let strip = strip.args(["--remove-section", ".debug_aranges"]);
                let done = strip.arg(path("program")).status();
                if !done.is_ok_and(|status| status.success()) {
                    return;
                }
            }
            let file = FileStore::new().file(&path("program"));
            let size = file.size().unwrap();
            let mut space = AddressSpace::new();
            space.map(0, size, &file, 0, Version(0));
            let view = ImageView::new(&space, Version(0));
            let mut lines = LineFinder::new();
            let mut seen = std::collections::BTreeSet::new();
            for place in (0..size).filter_map(|ip| view.place(Ip(ip))) {
                let line = lines.at(&place).and_then(|line| line.line);
                for inlined in lines.inlined(&place) {
                    assert_eq!(inlined.name, "inner");
                    assert_eq!(inlined.called_at.and_then(|at| at.line), Some(5));
                    seen.extend(line);
                }
            }
            assert_eq!(Vec::from_iter(seen), [2]);
            let known = lines.files.values().find_map(|(_, lines)| lines.clone());
            let known = known.expect("lines");
            let apart: Vec<bool> = known.apart.borrow().values().copied().collect();
            assert!(apart.contains(&false), "{apart:?}");
        }
    }

    #[test]
    fn what_is_no_program_has_no_lines() {
        let file = CodeFile::from_bytes("bytes", vec![0x7f; 64]);
        assert!(lines_of(&file).is_none());
        assert!(Sections::of(&Contents::Whole(b"\x7fELF\x02\x01\x01"[..].into())).is_none());
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
        let mut lines = LineFinder::new();
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
