//! Real files, moved, replaced, deleted, stripped: which one is used, and what is said of the others.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cofi_image::{
    AddressSpace, BuildId, CodeChange, CodeFile, FileStore, ImageError, Places, Version,
};

/// A folder with a program in it, built with the system's compiler.
struct Built {
    folder: tempfile::TempDir,
    program: PathBuf,
    id: BuildId,
}

#[track_caller]
fn tool(name: &str, args: &[&str]) -> bool {
    match Command::new(name).args(args).output() {
        Ok(output) => {
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name} {args:?}: {error}");
            true
        }
        Err(error) => {
            cofi_test::skip(format_args!("no {name}: {error}"));
            false
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Builds a program whose build id is `byte`, twenty times.
fn compile(to: &Path, byte: u8) -> bool {
    let source = to.with_extension("c");
    let answer =
        format!("int answer(void) {{ return {byte}; }} int main(void) {{ return answer(); }}");
    std::fs::write(&source, answer).unwrap();
    let id = format!("-Wl,--build-id=0x{}", format!("{byte:02x}").repeat(20));
    tool("cc", &["-g", "-O0", &id, "-o", text(to), text(&source)])
}

fn built() -> Option<Built> {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    compile(&program, 7).then(|| Built {
        folder,
        program,
        id: BuildId::new(&[7; 20]).unwrap(),
    })
}

impl Built {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts the program where `place` is below the test's folder, and takes it away from its own place.
    fn move_to(&self, place: &Path) {
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::rename(&self.program, place).unwrap();
    }

    fn places(&self) -> Places {
        let mut places = Places::default();
        places.build_ids = Some(self.path("debug"));
        places.debuginfod = Some(self.path("fetched"));
        places
    }

    fn file(&self, places: Places) -> Arc<CodeFile> {
        FileStore::with_places(places).file_of(&self.program, Some(self.id))
    }
}

#[test]
fn a_file_that_was_replaced_is_told_and_not_used() {
    let Some(built) = built() else { return };
    assert!(built.file(built.places()).load().is_ok());
    compile(&built.program, 8);
    let file = built.file(built.places());
    assert_eq!(file.read_at(0, &mut [0; 4]), 0);
    let other = BuildId::new(&[8; 20]);
    assert!(
        matches!(file.problem(), Some(ImageError::OtherBuild { path, at, expected, found })
            if path == &built.program && at == &built.program && *expected == built.id && *found == other),
        "{:?}",
        file.problem()
    );
    let said = file.problem().unwrap().to_string();
    assert!(
        said.contains(&"07".repeat(20)) && said.contains(&"08".repeat(20)),
        "{said}"
    );
    // It is used where the user says so, or where nothing is known of it.
    let mut places = built.places();
    places.ignore_build_ids = true;
    assert!(built.file(places).load().is_ok());
    assert!(FileStore::new().file(&built.program).load().is_ok());
    // Something without a build id is not the file either.
    std::fs::write(&built.program, "#!/bin/sh\n").unwrap();
    let file = built.file(built.places());
    assert!(matches!(
        file.load(),
        Err(ImageError::OtherBuild { found: None, .. })
    ));
}

#[test]
fn caches_are_looked_at_by_build_id() {
    let hex = "07".repeat(20);
    let (first, rest) = hex.split_at(2);
    for place in [
        format!("debug/.build-id/{first}/{rest}/elf"),
        format!("debug/.build-id/{first}/{rest}"),
        format!("fetched/{hex}/executable"),
    ] {
        let Some(built) = built() else { return };
        let at = built.path(&place);
        built.move_to(&at);
        let file = built.file(built.places());
        assert_eq!(file.load().map_err(ToString::to_string), Ok(()), "{place}");
        assert_eq!(file.found_at(), Some(&*at));
        // What lies there under a wrong name is not used.
        compile(&at, 9);
        let file = built.file(built.places());
        assert!(matches!(file.load(), Err(ImageError::OtherBuild { .. })));
        // Without a build id nobody looks there.
        let file = FileStore::with_places(built.places()).file(&built.program);
        assert!(matches!(file.load(), Err(ImageError::Missing { .. })));
    }
}

#[test]
fn symfs_takes_the_place_of_the_root() {
    let Some(built) = built() else { return };
    let mut places = Places::default();
    places.symfs = Some(built.path("sys-root"));
    assert!(matches!(
        built.file(places.clone()).load(),
        Err(ImageError::Missing { .. })
    ));
    let at = built
        .path("sys-root")
        .join(built.program.strip_prefix("/").unwrap());
    built.move_to(&at);
    assert_eq!(
        built.file(places).found_at(),
        None,
        "not before it is needed"
    );
    let mut places = Places::default();
    places.symfs = Some(built.path("sys-root"));
    let file = built.file(places);
    assert!(file.load().is_ok());
    assert_eq!(file.found_at(), Some(&*at));
}

#[test]
fn a_deleted_file_is_not_what_stands_at_its_path_now() {
    let Some(built) = built() else { return };
    let name = PathBuf::from(format!("{} (deleted)", built.program.display()));
    let file = |places: Places, id| FileStore::with_places(places).file_of(&name, id);
    // Nobody knows whether it is the same.
    let unknown = file(Places::default(), None);
    assert!(matches!(unknown.load(), Err(ImageError::Deleted { path }) if *path == name));
    // It is the same.
    assert!(file(Places::default(), Some(built.id)).load().is_ok());
    // It is another.
    let other = file(Places::default(), BuildId::new(&[1; 20]));
    assert!(matches!(other.load(), Err(ImageError::OtherBuild { .. })));
    let mut places = Places::default();
    places.ignore_build_ids = true;
    assert!(file(places.clone(), None).load().is_ok());
    assert!(file(places, BuildId::new(&[1; 20])).load().is_ok());
}

/// Where `answer` stands in the program, by its symbols; none when there are none.
fn answer(file: &CodeFile) -> Option<u64> {
    let code = file.segments().iter().find(|segment| segment.executable)?;
    (code.offset..code.offset + code.len).find(|offset| {
        file.symbol_at(*offset)
            .is_some_and(|symbol| symbol.name == "answer")
    })
}

#[test]
fn symbols_come_from_a_file_of_debugging_information() {
    let Some(built) = built() else { return };
    let program = text(&built.program);
    let expected = answer(&built.file(Places::default()));
    assert!(expected.is_some());
    let debug = built.path("program.debug");
    if !tool("objcopy", &["--only-keep-debug", program, text(&debug)]) {
        return;
    }
    tool("strip", &[program]);
    assert_eq!(answer(&built.file(Places::default())), None);
    let hex = "07".repeat(20);
    for place in [
        format!("debug/.build-id/07/{}/debug", &hex[2..]),
        format!("fetched/{hex}/debuginfo"),
        format!("sys-root/usr/lib/debug/.build-id/07/{}.debug", &hex[2..]),
    ] {
        let at = built.path(&place);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::copy(&debug, &at).unwrap();
        let mut places = built.places();
        if place.starts_with("sys-root") {
            places.symfs = Some(built.path("sys-root"));
            let here = built.path("sys-root").join(program.trim_start_matches('/'));
            std::fs::create_dir_all(here.parent().unwrap()).unwrap();
            std::fs::copy(&built.program, here).unwrap();
        }
        assert_eq!(answer(&built.file(places.clone())), expected, "{place}");
        // One of another build tells nothing.
        compile(&at, 9);
        assert_eq!(answer(&built.file(places)), None, "{place}");
        std::fs::remove_file(&at).unwrap();
    }
    // By its name, and by its sum where the program has no build id.
    for (options, name) in [
        (&[][..], "program.debug"),
        (&["-R", ".note.gnu.build-id"][..], "program.debug"),
    ] {
        let link = format!("--add-gnu-debuglink={}", text(&debug));
        let copy = built.path("linked");
        let mut args = options.to_vec();
        args.extend([&*link, program, text(&copy)]);
        tool("objcopy", &args);
        let file = FileStore::new().file(&copy);
        assert_eq!(answer(&file), expected, "{options:?} {name}");
        assert_eq!(file.debug_file(), Some(built.path(name)));
    }
    let copy = built.path("linked");
    let mut damaged = std::fs::read(&debug).unwrap();
    damaged.push(0);
    std::fs::write(&debug, damaged).unwrap();
    assert_eq!(
        answer(&FileStore::new().file(&copy)),
        None,
        "the sum is another"
    );
}

#[test]
fn code_is_read_by_segments_whatever_became_of_the_sections() {
    let Some(built) = built() else { return };
    let before = built.file(Places::default());
    let code = *before.segments().iter().find(|s| s.executable).unwrap();
    let read = |file: &CodeFile| {
        let mut bytes = vec![0; code.len as usize];
        assert_eq!(file.read_at(code.offset, &mut bytes), bytes.len());
        bytes
    };
    let expected = read(&before);
    let program = text(&built.program);
    if !tool("objcopy", &["--compress-debug-sections", program]) {
        return;
    }
    assert_eq!(read(&built.file(Places::default())), expected);
    tool("strip", &["--strip-all", program]);
    assert_eq!(read(&built.file(Places::default())), expected);
    // No sections at all: the build id is found by the segments.
    let mut bytes = std::fs::read(&built.program).unwrap();
    bytes[0x28..0x30].fill(0);
    bytes[0x3a..0x40].fill(0);
    std::fs::write(&built.program, bytes).unwrap();
    let file = built.file(Places::default());
    assert_eq!(file.load().map_err(ToString::to_string), Ok(()));
    assert_eq!(read(&file), expected);
}

#[test]
fn the_running_kernels_vdso_stands_for_an_equal_one() {
    let mut places = Places::default();
    places.this_machine = true;
    let vdso = Path::new("[vdso]");
    let mut store = FileStore::with_places(places);
    let unknown = store.file(vdso);
    assert!(matches!(unknown.load(), Err(ImageError::NotSaved { .. })));
    let other = store.file_of(vdso, BuildId::new(&[3; 20]));
    assert!(matches!(other.load(), Err(ImageError::NotSaved { .. })));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let Some(line) = maps.lines().find(|line| line.ends_with("[vdso]")) else {
        return cofi_test::skip("this kernel gives no vDSO");
    };
    // Its own build id, by way of a copy in a file.
    let range = line.split(' ').next().unwrap();
    let (start, end) = range.split_once('-').unwrap();
    let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
    let mut bytes = vec![0; (end - start) as usize];
    use std::os::unix::fs::FileExt;
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    memory.read_exact_at(&mut bytes, start).unwrap();
    let id = CodeFile::from_bytes("vdso", bytes.clone()).own_build_id();
    let id = id.expect("a vDSO has a build id");
    let found = store.file_of(vdso, Some(id));
    assert_eq!(found.bytes().unwrap()[..], bytes);
    assert!(found.segments().iter().any(|segment| segment.executable));
    // Of a machine that is not this one: from perf's cache, or the kernel's own folder, of 64 or 32 bits.
    let folder = tempfile::tempdir().unwrap();
    let hex = id.to_string();
    for place in [
        format!("cache/.build-id/{}/{}/vdso", &hex[..2], &hex[2..]),
        "modules/vdso32.so".into(),
    ] {
        let at = folder.path().join(&place);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(&at, &bytes).unwrap();
        let mut places = Places::default();
        places.build_ids = Some(folder.path().join("cache"));
        places.vdso = Some(folder.path().join("modules"));
        let mut store = FileStore::with_places(places);
        assert_eq!(store.file_of(vdso, Some(id)).bytes().unwrap()[..], bytes);
        let other = store.file_of(vdso, BuildId::new(&[3; 20]));
        assert!(other.load().is_err());
        std::fs::remove_file(&at).unwrap();
    }
}

/// Of several names of a function, the one that people know.
#[test]
fn a_name_without_underscores_comes_first() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("a.c"), folder.path().join("a"));
    let text_of = "
        int __inner(void) { return 7; }
        extern int known(void) __attribute__((alias(\"__inner\")));
        extern int _other(void) __attribute__((alias(\"__inner\")));
        int main(void) { return known(); }
    ";
    std::fs::write(&source, text_of).unwrap();
    if !tool("cc", &["-O0", "-o", text(&program), text(&source)]) {
        return;
    }
    let file = FileStore::with_places(Places::default()).file_of(&program, None);
    let mut names = Vec::new();
    file.for_each_function(|name, _| names.push(name.to_owned()));
    assert!(names.iter().any(|name| name == "known"), "{names:?}");
    assert!(
        !names
            .iter()
            .any(|name| name.ends_with("_inner") || name == "_other"),
        "{names:?}"
    );
    let mut others = Vec::new();
    file.for_each_other_name(|other, name, offset| {
        assert_eq!(file.symbol_at(offset).map(|symbol| symbol.name), Some(name));
        if name == "known" {
            others.push(other.to_owned());
        }
    });
    others.sort_unstable();
    assert_eq!(others, ["__inner", "_other"]);
}

/// A function ends where its symbol does, or the last part of it, and stubs are listed with theirs.
#[test]
fn functions_and_stubs_have_ends() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("a.c"), folder.path().join("a"));
    let text_of = "
        #include <stdio.h>
        asm(\".globl outer\\n.type outer, @function\\nouter: .skip 4, 0x90\\n\"
            \".type inner, @function\\ninner: .skip 3, 0x90\\n.size inner, 3\\n.skip 5, 0x90\\n.size outer, 12\\n.skip 20, 0x90\");
        int main(void) { return puts(\"\"); }
    ";
    std::fs::write(&source, text_of).unwrap();
    if !tool("cc", &["-O0", "-o", text(&program), text(&source)]) {
        return;
    }
    let file = FileStore::with_places(Places::default()).file_of(&program, None);
    let mut lens = Vec::new();
    file.for_each_function_range(|name, range| {
        if matches!(name, "outer" | "inner") {
            assert_eq!(
                file.symbol_at(range.start).map(|symbol| symbol.name),
                Some(name)
            );
            lens.push((name.to_owned(), range.end - range.start));
        }
    });
    assert_eq!(lens, [("outer".into(), 12), ("inner".into(), 3)]);
    let mut stubs = Vec::new();
    file.for_each_stub(|name, range| {
        for offset in range {
            assert_eq!(file.stub_at(offset).map(|stub| stub.name), Some(name));
        }
        stubs.push(name.to_owned());
    });
    assert!(stubs.iter().any(|name| name == "puts@plt"), "{stubs:?}");
}

/// Code that stands where other code stood has changed; code that is new has not, nor what shows the same bytes as before.
#[test]
fn changes_are_told_where_other_code_stood() {
    let file = |byte: u8| CodeFile::from_bytes("code", vec![byte; 0x100]);
    let (one, other) = (file(0x90), file(0xcc));
    let mut space = AddressSpace::new();
    space.map(0x1000, 0x100, &one, 0, Version(1));
    space.map(0x2000, 0x100, &other, 0, Version(2));
    // A part of what is there, as a loader maps it.
    space.map(0x1040, 0x20, &one, 0x40, Version(3));
    // The same file, elsewhere in it; other code, over both; what goes; all that goes.
    space.map(0x1040, 0x20, &one, 0x50, Version(4));
    space.map(0x10f0, 0x1000, &other, 0, Version(5));
    space.unmap(0x2080, 0x10, Version(6));
    space.unmap(0x3000, 0x10, Version(7));
    space.clear(Version(8));
    space.clear(Version(9));
    let told = |after, to| -> Vec<(u64, u64)> {
        let changes = space.replaced(Version(after), Version(to));
        changes
            .map(|change| (change.first.0, change.last.0))
            .collect()
    };
    let all = [
        (0x1040, 0x105f),
        (0x10f0, 0x20ef),
        (0x2080, 0x208f),
        (0, u64::MAX),
    ];
    assert_eq!(told(0, 9), all);
    assert_eq!(told(3, 5), all[..2]);
    assert_eq!(told(4, 5), all[1..2]);
    assert_eq!(told(6, 7), []);
    let is_whole = |change: CodeChange| change.is_whole();
    let whole: Vec<bool> = space
        .replaced(Version(5), Version(9))
        .map(is_whole)
        .collect();
    assert_eq!(whole, [false, true]);
}
