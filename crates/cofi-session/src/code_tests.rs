//! Code that the paths of a trace do not lead to, or no longer.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cofi_flow::{Event, Item};
use cofi_image::ImageError;
use cofi_packet::intel::{Cr3, IpPayload, Packet, U48, Uint, VmcsBase};
use cofi_perf::TimeConv;

use crate::perf::Contents;
use crate::tests::{ONE, contents, encode};
use crate::timeline::{KERNEL, SidebandChange};
use crate::{Diagnostic, Session, SessionError, SessionOptions};

const TEXT: u64 = 0xffff_ffff_8100_0000;

/// Packets of visits to addresses at times.
fn visits(list: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = encode(&[Packet::Psb, Packet::PsbEnd]);
    for (tsc, address) in list {
        let ip = IpPayload::sext48(U48::truncate(*address));
        bytes.extend(encode(&[
            Packet::Tsc {
                tsc: Uint::truncate(*tsc),
            },
            Packet::TipPge { ip },
            Packet::TipPgd {
                ip: IpPayload::SUPPRESSED,
            },
        ]));
    }
    bytes
}

/// So many plain instructions, then a system call.
fn code(plain: usize) -> Vec<u8> {
    let mut bytes = vec![0x90; plain];
    bytes.extend([0x0f, 0x05]);
    bytes
}

/// What each visit ran: how many plain instructions, and the name of the function; none after an error.
fn decoded(session: &Session<'_>) -> Vec<Option<(usize, String)>> {
    let mut visits = Vec::new();
    let mut flow = session.decode(&session.streams()[0]);
    while let Some(item) = flow.next() {
        match item {
            Item::Event(Event::Enabled { ip, .. }) => {
                let place = flow.place(ip).map(|place| place.to_string());
                visits.push(Some((0, place.unwrap_or_default())));
            }
            Item::Insn(insn) if insn.class == cofi_insn::Class::Other => {
                if let Some(Some((count, _))) = visits.last_mut() {
                    *count += 1;
                }
            }
            Item::Error(_) => *visits.last_mut().unwrap() = None,
            _ => {}
        }
    }
    visits
}

fn counts(session: &Session<'_>) -> Vec<Option<usize>> {
    let visits = decoded(session).into_iter();
    visits.map(|visit| visit.map(|(count, _)| count)).collect()
}

/// An ELF file of bytes at an address, with a section of symbols if there are any.
fn elf(address: u64, bytes: &[u8], symbols: &[(&str, u64)]) -> Vec<u8> {
    let mut strings = vec![0];
    let mut table = vec![0; 24];
    for (name, value) in symbols {
        table.extend((strings.len() as u32).to_le_bytes());
        table.extend([0x12, 0, 0xf1, 0xff]);
        table.extend(value.to_le_bytes());
        table.extend([0; 8]);
        strings.extend(name.as_bytes());
        strings.push(0);
    }
    let (code_at, sections) = (64 + 56, 3u16);
    let table_at = (code_at + bytes.len()).next_multiple_of(8);
    let strings_at = table_at + table.len();
    let sections_at = (strings_at + strings.len()).next_multiple_of(8);
    let mut out = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let u64s =
        |out: &mut Vec<u8>, list: &[u64]| out.extend(list.iter().flat_map(|v| v.to_le_bytes()));
    let u32s =
        |out: &mut Vec<u8>, list: &[u32]| out.extend(list.iter().flat_map(|v| v.to_le_bytes()));
    let u16s =
        |out: &mut Vec<u8>, list: &[u16]| out.extend(list.iter().flat_map(|v| v.to_le_bytes()));
    u16s(&mut out, &[4, 62]);
    u32s(&mut out, &[1]);
    u64s(&mut out, &[0, 64, sections_at as u64]);
    u32s(&mut out, &[0]);
    u16s(&mut out, &[64, 56, 1, 64, sections, 2]);
    u32s(&mut out, &[1, 5]);
    let len = bytes.len() as u64;
    u64s(&mut out, &[code_at as u64, address, address, len, len, 1]);
    out.extend(bytes);
    out.resize(table_at, 0);
    out.extend(&table);
    out.extend(&strings);
    out.resize(sections_at + 64, 0);
    for (kind, at, len, link, entry) in [
        (2u32, table_at, table.len(), 2u32, 24u64),
        (3, strings_at, strings.len(), 0, 0),
    ] {
        u32s(&mut out, &[0, kind]);
        u64s(&mut out, &[0, 0, at as u64, len as u64]);
        u32s(&mut out, &[link, 0]);
        u64s(&mut out, &[8, entry]);
    }
    out
}

fn kernel(len: u64, name: &'static str) -> (Option<u64>, SidebandChange<'static>) {
    let what = SidebandChange::Map {
        pid: KERNEL,
        start: TEXT,
        len,
        offset: TEXT,
        path: name.as_bytes(),
        build_id: None,
    };
    (None, what)
}

const KALLSYMS: &str = "[kernel.kallsyms]_text";

#[test]
fn the_kernels_memory_from_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("kcore"), elf(TEXT, &code(3), &[])).unwrap();
    let list = |at: u64| format!("{at:016x} T _text\n{TEXT:016x} T do_three\n");
    std::fs::write(folder.path().join("kallsyms"), list(TEXT)).unwrap();
    let bytes = visits(&[(1, TEXT)]);
    let traced = || contents(vec![(ONE, &bytes)], [kernel(0x1000, KALLSYMS)]);

    let none = Session::join(traced(), &SessionOptions::default()).unwrap();
    assert_eq!(decoded(&none), [None]);
    let problems: Vec<_> = none.code_problems().collect();
    assert!(
        matches!(problems[..], [ImageError::KernelCode { .. }]),
        "{problems:?}"
    );

    let mut options = SessionOptions::default();
    for path in [folder.path().to_owned(), folder.path().join("kcore")] {
        options.code.kcore = Some(path);
        let session = Session::join(traced(), &options).unwrap();
        assert_eq!(decoded(&session), [Some((3, "do_three".into()))]);
        assert_eq!(session.code_problems().count(), 0);
    }
    // A kernel that was loaded elsewhere.
    std::fs::write(folder.path().join("kallsyms"), list(TEXT + 0x20_0000)).unwrap();
    let error = Session::join(traced(), &options).unwrap_err();
    assert!(
        matches!(&error, SessionError::Image(ImageError::OtherKernel { found, .. }) if *found == TEXT + 0x20_0000),
        "{error}"
    );
}

#[test]
fn a_vmlinux_is_moved_to_where_the_kernel_ran() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("vmlinux");
    let linked = 0xffff_ffff_8020_0000;
    std::fs::write(&file, elf(linked, &code(4), &[("_text", linked)])).unwrap();
    let bytes = visits(&[(1, TEXT)]);
    let traced = || contents(vec![(ONE, &bytes)], [kernel(0x1000, KALLSYMS)]);
    let mut options = SessionOptions::default();
    options.code.vmlinux = Some(file.clone());
    let session = Session::join(traced(), &options).unwrap();
    assert_eq!(counts(&session), [Some(4)]);
    // Nothing says how far.
    std::fs::write(&file, elf(linked, &code(4), &[])).unwrap();
    let error = Session::join(traced(), &options).unwrap_err();
    assert!(matches!(
        error,
        SessionError::Image(ImageError::BadElf { .. })
    ));
}

#[test]
fn modules_are_not_read_from_files_that_were_not_linked() {
    let folder = tempfile::tempdir().unwrap();
    let module = folder.path().join("some.ko");
    std::fs::write(&module, code(2)).unwrap();
    let bytes = visits(&[(1, TEXT)]);
    let what = SidebandChange::Map {
        pid: KERNEL,
        start: TEXT,
        len: 0x1000,
        offset: 0,
        path: module.as_os_str().as_bytes(),
        build_id: None,
    };
    let session = Session::join(
        contents(vec![(ONE, &bytes)], [(None, what)]),
        &SessionOptions::default(),
    )
    .unwrap();
    assert_eq!(decoded(&session), [None]);
    let problems: Vec<_> = session.code_problems().collect();
    assert!(matches!(&problems[..], [ImageError::KernelCode { path }] if *path == module));
}

#[test]
fn code_that_the_kernel_changes_is_read_as_it_was_at_the_time() {
    let folder = tempfile::tempdir().unwrap();
    // The copy was made at the end: of the three instructions, the first became a system call.
    let mut last = code(3);
    last[0..2].copy_from_slice(&[0x0f, 0x05]);
    let file = folder.path().join("kcore");
    std::fs::write(&file, elf(TEXT, &last, &[])).unwrap();
    let bytes = visits(&[
        (100, TEXT),
        (300, TEXT),
        (500, TEXT),
        (700, TEXT + 0x2000),
        (900, TEXT + 0x2000),
    ]);
    let new = code(6);
    let poke = |time, address, old, new| (Some(time), SidebandChange::Poke { address, old, new });
    let traced = contents(
        vec![(ONE, &bytes)],
        [
            kernel(0x1000, KALLSYMS),
            // Two changes of the same place, of which one is longer.
            poke(100, TEXT, &[0x90, 0x90][..], &[0xeb, 0x01][..]),
            poke(200, TEXT, &[0xeb, 0x01][..], &[0x0f, 0x05][..]),
            // Code that is new, its name after it, and gone again.
            poke(300, TEXT + 0x2000, &[][..], &new),
            (
                Some(301),
                SidebandChange::KernelSymbol {
                    address: TEXT + 0x2000,
                    len: new.len() as u32,
                    is_program: false,
                    gone: false,
                    name: b"ftrace_trampoline",
                },
            ),
            poke(400, TEXT + 0x2000, &new, &[][..]),
        ],
    );
    let mut options = SessionOptions::default();
    options.code.kcore = Some(file);
    let session = Session::join(traced, &options).unwrap();
    let found = decoded(&session);
    let counts: Vec<_> = found
        .iter()
        .map(|visit| visit.as_ref().map(|(n, _)| *n))
        .collect();
    // A jump is no plain instruction: over one of two, one is left.
    assert_eq!(counts, [Some(3), Some(0), Some(0), Some(6), None]);
    assert_eq!(found[3].as_ref().unwrap().1, "ftrace_trampoline");
}

#[test]
fn programs_that_are_loaded_and_unloaded_have_their_code_and_names() {
    let address = TEXT + 0x3f00_0000;
    let symbol = |time, gone| {
        let what = SidebandChange::KernelSymbol {
            address,
            len: 4,
            is_program: true,
            gone,
            name: b"bpf_prog_6deef7357e7b4530_sd_devices",
        };
        (Some(time), what)
    };
    let bytes = visits(&[(200, address), (600, address)]);
    let entries = || [symbol(50, false), symbol(200, true)];
    let session = Session::join(
        contents(vec![(ONE, &bytes)], entries()),
        &SessionOptions::default(),
    );
    let session = session.unwrap();
    assert_eq!(decoded(&session), [None, None]);
    let told: Vec<_> = session.code_problems().map(ToString::to_string).collect();
    assert!(
        told.len() == 1 && told[0].contains("sd_devices"),
        "{told:?}"
    );

    let mut known: Contents<'_, '_> = contents(vec![(ONE, &bytes)], entries());
    let program = code(2);
    known.code.add_program(address, &program);
    let session = Session::join(known, &SessionOptions::default()).unwrap();
    let found = decoded(&session);
    assert_eq!(
        found[0],
        Some((2, "bpf_prog_6deef7357e7b4530_sd_devices".into()))
    );
    assert_eq!(found[1], None, "it was gone by then");
}

/// A jitdump of code at addresses, at times; a second one at the same address takes the place of the first.
fn jitdump(tsc: bool, list: &[(u64, u64, &str, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for field in [0x4a69_5444u32, 1, 40, 62, 0, 1] {
        out.extend(field.to_le_bytes());
    }
    out.extend(0u64.to_le_bytes());
    out.extend(u64::from(tsc).to_le_bytes());
    for (index, (time, address, name, code)) in (0u64..).zip(list) {
        let size = 16 + 40 + name.len() + 1 + code.len();
        out.extend(0u32.to_le_bytes());
        out.extend((size as u32).to_le_bytes());
        out.extend(time.to_le_bytes());
        out.extend([1u32, 1].iter().flat_map(|v| v.to_le_bytes()));
        for field in [*address, *address, code.len() as u64, index] {
            out.extend(field.to_le_bytes());
        }
        out.extend(name.as_bytes());
        out.push(0);
        out.extend(*code);
    }
    out
}

#[test]
fn generated_code_is_that_of_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (code(1), code(2));
    let list = [
        (400, 0x7000, "first", &*one),
        (800, 0x7000, "second", &*two),
    ];
    let bytes = visits(&[(500, 0x7000), (700, 0x7000), (900, 0x7000)]);
    let expected = [
        Some((1, "first".into())),
        Some((1, "first".into())),
        Some((2, "second".into())),
    ];
    for tsc in [true, false] {
        // perf's time is half of the time stamp counter here.
        let half: Vec<_> = list
            .iter()
            .map(|(t, a, n, c)| (if tsc { *t } else { t / 2 }, *a, *n, *c))
            .collect();
        let path = folder.path().join("jit-1.dump");
        std::fs::write(&path, jitdump(tsc, &half)).unwrap();
        let marker = |path: &'static Path| {
            let what = SidebandChange::Map {
                pid: 1,
                start: 0x10_0000,
                len: 0x1000,
                offset: 0,
                path: path.as_os_str().as_bytes(),
                build_id: None,
            };
            (Some(1), what)
        };
        let leaked: &'static Path = Box::leak(path.clone().into_boxed_path());
        let with_clock = |entries: Vec<(Option<u64>, SidebandChange<'static>)>| {
            let mut traced = contents(vec![(ONE, bytes.as_slice())], entries);
            traced.code.clock = Some(TimeConv {
                shift: 1,
                mult: 1,
                zero: 0,
            });
            traced
        };
        // Found by its mapping, or given.
        let session = Session::join(with_clock(vec![marker(leaked)]), &SessionOptions::default());
        assert_eq!(decoded(&session.unwrap()), expected, "{tsc}");
        let mut options = SessionOptions::default();
        options.code.jitdumps = vec![path.clone()];
        let session = Session::join(with_clock(Vec::new()), &options).unwrap();
        assert_eq!(decoded(&session), expected, "{tsc}");
        assert!(session.diagnostics().is_empty());

        // Cut off: told, and used as far as it goes.
        let mut cut = std::fs::read(&path).unwrap();
        cut.pop();
        std::fs::write(&path, cut).unwrap();
        let session = Session::join(with_clock(Vec::new()), &options).unwrap();
        assert_eq!(decoded(&session)[2], Some((1, "first".into())));
        assert!(
            matches!(session.diagnostics(), [Diagnostic::Code(text)] if text.contains("cut off"))
        );
        std::fs::remove_file(&path).unwrap();
        assert!(
            Session::join(with_clock(Vec::new()), &options).is_err(),
            "given, but not there"
        );
        let session = Session::join(with_clock(vec![marker(leaked)]), &SessionOptions::default());
        assert!(matches!(
            session.unwrap().diagnostics(),
            [Diagnostic::Code(_)]
        ));
    }
}

#[test]
fn guests_have_the_code_of_their_page_tables_and_vmcs() {
    let folder = tempfile::tempdir().unwrap();
    let file = |plain: usize| {
        let path = folder.path().join(format!("code-{plain}"));
        std::fs::write(&path, code(plain)).unwrap();
        path.display().to_string()
    };
    let raw =
        |plain: usize, within: &str| format!("{}:0x7000{within}", file(plain)).parse().unwrap();
    let options = SessionOptions {
        format: Some(crate::FileFormat::Pt),
        raw: vec![
            raw(0, ""),
            raw(1, "@cr3=0x1000"),
            raw(2, "@cr3=0x2000,nr=1"),
            raw(3, "@cr3=0x2000,nr=1,vmcs=0x5000"),
            raw(4, "@nr=0,cr3=0x2000"),
        ],
        ..SessionOptions::default()
    };
    let mut bytes = encode(&[Packet::Psb, Packet::PsbEnd]);
    let visit = || {
        [
            Packet::TipPge {
                ip: IpPayload::sext48(U48::truncate(0x7000)),
            },
            Packet::TipPgd {
                ip: IpPayload::SUPPRESSED,
            },
        ]
    };
    let pip = |page: u64, nr| Packet::Pip {
        cr3: Cr3::truncate(page << 12),
        nr,
    };
    bytes.extend(encode(&visit()));
    let vmcs = |page: u64| Packet::Vmcs {
        base: VmcsBase::truncate(page << 12),
    };
    for (packets, _) in [
        (vec![pip(1, false)], 1),
        (vec![pip(1, true)], 1),
        (vec![pip(2, true)], 2),
        (vec![pip(2, false)], 4),
        (vec![vmcs(5), pip(2, true)], 3),
        (vec![vmcs(6)], 2),
        (vec![pip(3, true)], 0),
    ] {
        bytes.extend(encode(&packets));
        bytes.extend(encode(&visit()));
    }
    let session = Session::new(&bytes, &options).unwrap();
    let expected = [0, 1, 1, 2, 4, 3, 2, 0].map(Some);
    assert_eq!(counts(&session), expected);
    // The same beside a sideband, which is right again when no guest runs.
    let map = SidebandChange::Map {
        pid: 1,
        start: 0x7000,
        len: 0x1000,
        offset: 0,
        path: file(6).into_bytes().leak(),
        build_id: None,
    };
    let session = Session::join(contents(vec![(ONE, &bytes)], [(None, map)]), &options).unwrap();
    let mut expected = [6, 1, 1, 2, 4, 3, 2, 0].map(Some);
    // Of a guest that nobody tells of nothing is known.
    expected[7] = None;
    assert_eq!(counts(&session), expected);
}

#[test]
fn generated_code_goes_by_the_names_of_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let inside = |name: &str| folder.path().join(name);
    std::fs::create_dir(inside("tmp")).unwrap();
    std::fs::write(inside("tmp/perf-1.map"), "7000 4 made\n7000 4 made again\n").unwrap();
    std::fs::write(inside("memory"), code(2)).unwrap();
    std::fs::write(inside("program"), elf(0x8000, &code(1), &[])).unwrap();
    let map = |start, path: &'static [u8], offset| SidebandChange::Map {
        pid: 1,
        start,
        len: 0x100,
        offset,
        path,
        build_id: None,
    };
    let bytes = visits(&[(1, 0x7000), (2, 0x7002), (3, 0x8000)]);
    let entries = [
        (None, map(0x7000, b"/memory", 0)),
        (None, map(0x8000, b"/program", 120)),
    ];
    let mut options = SessionOptions::default();
    options.code.places.symfs = Some(folder.path().to_owned());
    let session = Session::join(contents(vec![(ONE, &bytes)], entries), &options).unwrap();
    let found: Vec<_> = decoded(&session).into_iter().flatten().collect();
    assert_eq!(
        found,
        [
            (2, "made again".into()),
            (0, "made again+0x2".into()),
            (1, "/program+0x8000".into())
        ]
    );
    assert_eq!(session.lists_of_generated().count(), 1);
}
