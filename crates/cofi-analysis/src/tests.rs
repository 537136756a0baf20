//! Counts of traces made by hand.

use cofi_packet::StreamOffset;
use cofi_packet::intel::{Cr3, IpPayload, Packet, Tnt, U48};
use cofi_session::{Session, SessionOptions, StreamKey, Task};

use crate::{Summary, Tally};

fn ip(address: u64) -> IpPayload {
    IpPayload::sext48(U48::truncate(address))
}

fn tnt(bits: &str) -> Packet {
    Packet::Tnt8 {
        bits: Tnt::collect(bits.chars().map(|bit| bit == 'T')).unwrap(),
    }
}

fn pge(address: u64) -> Packet {
    Packet::TipPge { ip: ip(address) }
}

const PGD: Packet = Packet::TipPgd {
    ip: IpPayload::SUPPRESSED,
};

fn encode(packets: &[Packet]) -> Vec<u8> {
    packets
        .iter()
        .flat_map(|packet| packet.encode().bytes()[..packet.encode().len()].to_vec())
        .collect()
}

fn summary(code: &[u8], packets: &[Packet]) -> Summary {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("code");
    std::fs::write(&path, code).unwrap();
    let mut options = SessionOptions::default();
    options
        .raw
        .push(format!("{}:0x1000", path.display()).parse().unwrap());
    let mut all = vec![Packet::Psb, Packet::PsbEnd];
    all.extend_from_slice(packets);
    let bytes = encode(&all);
    let session = Session::new(&bytes, &options).unwrap();
    let summary = Summary::of(&session);
    // The same trace twice in one tally is everything twice.
    let mut tally = Tally::new();
    let mut other = Tally::new();
    tally.add(&session, &session.streams()[0]);
    other.add(&session, &session.streams()[0]);
    tally.merge(other);
    let twice = tally.finish();
    assert_eq!(twice.total.instructions, 2 * summary.total.instructions);
    assert_eq!(twice.trace_bytes, 2 * bytes.len() as u64);
    assert_eq!(twice.functions.len(), summary.functions.len());
    for (one, two) in summary.functions.iter().zip(&twice.functions) {
        assert_eq!(
            (one.instructions * 2, &one.name),
            (two.instructions, &two.name)
        );
    }
    assert_eq!(
        summary
            .functions
            .iter()
            .map(|f| f.instructions)
            .sum::<u64>(),
        summary.total.instructions
    );
    assert_eq!(
        summary.files.iter().map(|f| f.instructions).sum::<u64>(),
        summary.total.instructions
    );
    summary
}

#[test]
fn branches_by_kind() {
    let code = [
        0x90, // 1000 nop
        0x75, 0xfd, // 1001 jne 1000
        0xe8, 0x08, 0x00, 0x00, 0x00, // 1003 call 1010
        0xff, 0xd0, // 1008 call rax
        0x0f, 0x05, // 100a syscall
        0x90, 0x90, 0x90, 0x90, // 100c
        0xc3, // 1010 ret
        0xff, 0xe0, // 1011 jmp rax
    ];
    let summary = summary(
        &code,
        &[
            pge(0x1000),
            tnt("TTN"),
            Packet::Tip { ip: ip(0x1008) },
            Packet::Tip { ip: ip(0x1011) },
            Packet::Tip { ip: ip(0x100a) },
            PGD,
        ],
    );
    let counts = summary.total;
    // Three times nop and jne; call, ret, call, jmp, syscall.
    assert_eq!(counts.instructions, 11);
    assert_eq!(
        (counts.branches, counts.conditional, counts.taken),
        (8, 3, 2)
    );
    assert_eq!(
        (
            counts.calls,
            counts.indirect_calls,
            counts.returns,
            counts.indirect_jumps
        ),
        (2, 1, 1, 1)
    );
    assert_eq!(
        (counts.system_calls, counts.interruptions, summary.gaps()),
        (1, 0, 0)
    );
    assert_eq!(summary.threads.len(), 1);
    let thread = &summary.threads[0];
    assert_eq!(
        (thread.stream, thread.task),
        (StreamKey::Only, Task { pid: 0, tid: 0 })
    );
    assert_eq!(thread.trace_bytes, summary.trace_bytes);
    let rate = summary.trace_bytes as f64 * 1000.0 / 11.0;
    assert_eq!(summary.bytes_per_1000(), Some(rate));
    assert_eq!(summary.functions.len(), 1);
    assert!(
        summary.functions[0].name.ends_with("/code"),
        "{:?}",
        summary.functions
    );
    assert_eq!(summary.functions[0].address, None);
}

#[test]
fn the_old_system_call_and_interruptions() {
    // nop; int 0x80; nop; jne 1003 (taken when the fault strikes at its target)
    let code = [0x90, 0xcd, 0x80, 0x90, 0x75, 0xfd];
    let fup = |address| Packet::Fup { ip: ip(address) };
    let summary = summary(
        &code,
        &[
            pge(0x1000),
            fup(0x1001),
            PGD,
            pge(0x1003),
            tnt("TTT"),
            fup(0x1003),
            PGD,
            pge(0x1003),
            tnt("N"),
            fup(0x1006),
            PGD,
        ],
    );
    assert_eq!(
        (summary.total.system_calls, summary.total.interruptions),
        (1, 2)
    );
    assert_eq!((summary.total.conditional, summary.total.taken), (4, 3));
    assert_eq!(summary.total.instructions, 1 + 3 * 2 + 2);
    assert_eq!(summary.gaps(), 0, "{:?}", summary.threads);
}

#[test]
fn gaps_are_counted_and_the_first_listed() {
    let code = [0x90, 0x0f, 0x05];
    let mut packets = Vec::new();
    for _ in 0..20 {
        // Nothing is mapped there.
        packets.extend([pge(0x9000), PGD, Packet::Psb, Packet::PsbEnd]);
    }
    packets.extend([
        pge(0x1000),
        Packet::Ovf,
        Packet::Fup { ip: ip(0x1001) },
        PGD,
    ]);
    let summary = summary(&code, &packets);
    let gaps = &summary.threads[0].gaps;
    assert_eq!((gaps.errors, gaps.overflows), (20, 1));
    assert_eq!(gaps.first.len(), crate::Gaps::LISTED);
    let gap = &gaps.first[0];
    assert_eq!(gap.ip.map(|ip| ip.0), Some(0x9000));
    assert!(gap.offset >= StreamOffset(16), "{gap:?}");
    assert_eq!(gap.cause.word(), "no-code");
    // Where it is known again: the next, which fails, too.
    assert_eq!(gap.resumed.and_then(|resumed| resumed.ip), None, "{gap:?}");
    assert_eq!(summary.gaps(), 21);
    assert_eq!(summary.total.system_calls, 1);
}

#[test]
fn a_stream_in_which_nothing_ran() {
    let bytes = encode(&[Packet::Psb, Packet::PsbEnd]);
    let session = Session::new(&bytes, &SessionOptions::default()).unwrap();
    let summary = Summary::of(&session);
    assert_eq!(summary.threads.len(), 1);
    assert_eq!(summary.threads[0].trace_bytes, bytes.len() as u64);
    assert_eq!(summary.bytes_per_1000(), None);
    assert!(summary.functions.is_empty() && summary.files.is_empty());
}

#[test]
fn address_spaces_are_told_by_cr3() {
    let pip = |cr3: u64| Packet::Pip {
        cr3: Cr3::truncate(cr3),
        nr: false,
    };
    let code = [0x90, 0x90, 0x90, 0x90, 0x0f, 0x05];
    let summary = summary(
        &code,
        &[
            pge(0x1000),
            PGD,
            pip(0x5000),
            pge(0x1001),
            PGD,
            pip(0x7020),
            pge(0x1003),
            PGD,
            // Another number of the same page tables in the processor's caches.
            pip(0x5040),
            pge(0x1002),
            PGD,
            pip(0x9000),
        ],
    );
    let spaces: Vec<_> = summary
        .spaces
        .iter()
        .map(|space| (space.cr3, space.instructions))
        .collect();
    assert_eq!(
        spaces,
        [(Some(0x5000), 4 + 3), (None, 5), (Some(0x7000), 2)]
    );
    assert_eq!(summary.total.instructions, 14);
}

/// The kernel's code is in files that have no symbols: its own list names it.
#[test]
fn kernel_functions_are_named_by_its_own_list() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memory.code");
    std::fs::write(&path, [0x90, 0x90, 0x90, 0x90, 0x0f, 0x05]).unwrap();
    let mut options = SessionOptions::default();
    for base in ["0x1000", "0xffffffff81000000"] {
        let spec = format!("{}:{base}", path.display());
        options.raw.push(spec.parse().unwrap());
    }
    let names =
        b"ffffffff81000001 T one\nffffffff81000003 t three\t[mod]\n0000000000001000 T low\n";
    let names = cofi_image::Kallsyms::parse(names).unwrap();
    options.kernel_names = Some(std::sync::Arc::new(names));
    let upper = 0xffff_ffff_8100_0000;
    let bytes = encode(&[
        Packet::Psb,
        Packet::PsbEnd,
        pge(upper),
        PGD,
        pge(upper + 1),
        PGD,
        pge(0x1000),
        PGD,
    ]);
    let session = Session::new(&bytes, &options).unwrap();
    let summary = Summary::of(&session);
    let rows: Vec<_> = summary
        .functions
        .iter()
        .map(|f| {
            let file = f.file.as_deref().and_then(|file| file.file_name()).unwrap();
            let file = file.to_str().unwrap();
            (f.name.as_str(), file, f.instructions, f.entries, f.address)
        })
        .collect();
    let file = path.display().to_string();
    assert_eq!(
        rows,
        [
            (file.as_str(), "memory.code", 1 + 5, 0, None),
            ("one", "[kernel]", 4, 2, Some(upper + 1)),
            ("three", "[mod]", 4, 2, Some(upper + 3)),
        ]
    );
    let files: Vec<_> = summary.files.iter().map(|f| f.instructions).collect();
    assert_eq!(files, [6, 4, 4]);
}

/// The test program itself is a program with symbols; its entry point is the same in every libc that calls it so.
#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn functions_are_named_by_symbols() {
    let program = std::env::current_exe().unwrap();
    let mut options = SessionOptions::default();
    let base = 0x50_0000_0000_u64;
    options
        .elf
        .push(format!("{}:{base:#x}", program.display()).parse().unwrap());
    let (mut space, mut store) = (
        cofi_image::AddressSpace::new(),
        cofi_image::FileStore::new(),
    );
    let version = cofi_image::Version(0);
    let loaded =
        cofi_image::load_elf(&mut space, &mut store, &program, Some(base), version).unwrap();
    let entry = loaded.entry;
    let bytes = encode(&[
        Packet::Psb,
        Packet::PsbEnd,
        pge(entry),
        PGD,
        pge(entry),
        PGD,
    ]);
    let session = Session::new(&bytes, &options).unwrap();
    let summary = Summary::of(&session);
    let [function] = summary.functions.as_slice() else {
        panic!("{:?}", summary.functions)
    };
    assert_eq!(function.name, "_start");
    assert_eq!(function.address, Some(entry - base));
    assert_eq!(function.entries, 2);
    assert_eq!(function.file.as_deref(), Some(program.as_path()));
    assert_eq!(function.instructions, summary.total.instructions);
    assert_eq!(summary.files[0].file, program);
}
