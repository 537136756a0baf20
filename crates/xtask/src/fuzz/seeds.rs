//! `cargo xtask fuzz seeds`: the inputs with which the fuzz targets begin, made by Cofi itself.
//!
//! A small program is recorded as Intel PT and as RTIT; the files, their bare packets, their listings, archives and a bundle of LLDB around the
//! packets are the seeds. Where a target takes its input apart by `arbitrary`, what comes before the bytes is put in front of them here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use cofi_exam::build::{cofi, tool};

/// No seed is longer, so that mutations hit something, and the repository stays small.
const LONGEST: usize = 64 << 10;
/// Packets that are read with code under them need not be as many.
const PACKETS: usize = 1500;

/// How the program is recorded: a name, and `--config`.
const CONFIGS: [(&str, &str); 3] = [
    ("plain", "tsc"),
    ("timed", "tsc,mtc,mtc_period=3,cyc,cyc_thresh=0,noretcomp"),
    ("rtit", "rtit"),
];

/// What stands before the packets for `Format` of the targets `insn` and `events`: not RTIT, no errata, mtc_freq 3, a ratio of the clocks,
/// a bus ratio.
const PT: [u8; 13] = [0, 0, 0, 3, 84, 0, 0, 0, 2, 0, 0, 0, 24];
/// RTIT with cycle counts unset and nothing else told.
const RTIT: [u8; 17] = [1, 0, 0, 0, 0, 0, 0, 3, 84, 0, 0, 0, 2, 0, 0, 0, 24];

/// Code for `insn_tables`: an instruction of each kind of encoding, some with an end in the next.
#[rustfmt::skip]
const CODE: [u8; 376] = [
    0x55, 0x48, 0x89, 0xe5, 0xf3, 0x0f, 0x1e, 0xfa, 0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x48, 0xb8, 0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, 0x64, 0x48, 0x8b, 0x04, 0x25,
    0x28, 0x00, 0x00, 0x00, 0xc5, 0xf8, 0x77, 0xc4, 0xe2, 0x7d, 0x78, 0xc0, 0xc4, 0xe3, 0xfd, 0x00,
    0xc1, 0x4e, 0x62, 0xf1, 0x7c, 0x48, 0x58, 0xc1, 0x62, 0xf3, 0xfd, 0x48, 0x03, 0xc1, 0x05, 0x62,
    0xe1, 0x7f, 0x28, 0x7f, 0x41, 0x20, 0x8f, 0xe8, 0x78, 0x85, 0xc0, 0x10, 0x8f, 0xe9, 0x78, 0x9b,
    0xc1, 0xf0, 0x0f, 0xb1, 0x17, 0xdb, 0x6c, 0x24, 0x10, 0xd9, 0xee, 0xdf, 0xe0, 0x74, 0x02, 0x0f,
    0x84, 0x00, 0x01, 0x00, 0x00, 0xe9, 0x00, 0x01, 0x00, 0x00, 0xe8, 0xfb, 0xff, 0xff, 0xff, 0xeb,
    0x02, 0xe3, 0xfe, 0x3e, 0xff, 0xe0, 0xff, 0x15, 0x00, 0x01, 0x00, 0x00, 0xff, 0x18, 0xff, 0x28,
    0xf3, 0xc3, 0xc2, 0x08, 0x00, 0xcb, 0xcf, 0xcc, 0xcd, 0x80, 0xf1, 0x0f, 0x05, 0x0f, 0x34, 0x0f,
    0x07, 0x0f, 0x35, 0x0f, 0x22, 0xd8, 0x0f, 0x20, 0xc0, 0x0f, 0x01, 0xc2, 0x0f, 0x01, 0xc1, 0x0f,
    0x01, 0xd5, 0x0f, 0x01, 0xf9, 0x0f, 0x00, 0xd8, 0xf4, 0xf3, 0xa4, 0xf2, 0xae, 0x66, 0xf3, 0xa5,
    0x66, 0xe9, 0x00, 0x00, 0x00, 0x00, 0x67, 0xe3, 0x10, 0xc8, 0x10, 0x00, 0x01, 0xf6, 0xc1, 0x01,
    0xf7, 0xc1, 0x01, 0x00, 0x00, 0x00, 0x66, 0xf7, 0xc1, 0x01, 0x00, 0xf7, 0xd8, 0x80, 0xc1, 0x01,
    0x81, 0xc1, 0x01, 0x00, 0x00, 0x00, 0x83, 0x02, 0x6b, 0x4c, 0x24, 0x08, 0x10, 0xa1, 0x08, 0x07,
    0x06, 0x05, 0x04, 0x03, 0x02, 0x01, 0x67, 0xa1, 0x04, 0x03, 0x02, 0x01, 0x66, 0xa1, 0x40, 0x30,
    0x8f, 0x00, 0xc6, 0x00, 0x01, 0xc7, 0x00, 0x01, 0x00, 0x00, 0x00, 0xc7, 0xf8, 0x10, 0x00, 0x00,
    0x00, 0xc6, 0xf8, 0xff, 0xfe, 0xc0, 0xff, 0xc0, 0x0f, 0xba, 0xe1, 0x03, 0x0f, 0xc7, 0x0f, 0x0f,
    0xc7, 0xf0, 0x0f, 0xae, 0x38, 0x0f, 0xae, 0xe8, 0x66, 0x0f, 0x78, 0xc0, 0x01, 0x02, 0xf2, 0x0f,
    0x78, 0xc1, 0x01, 0x02, 0x0f, 0x0f, 0xc1, 0xbf, 0x0f, 0x38, 0xf0, 0x0f, 0x38, 0x00, 0xc1, 0x66,
    0x0f, 0x3a, 0x0f, 0xc1, 0x08, 0xf2, 0x0f, 0x38, 0xf1, 0xc1, 0x0f, 0x71, 0xd0, 0x03, 0x66, 0x0f,
    0x73, 0xd9, 0x03, 0xc5, 0xe9, 0x72, 0xd2, 0x03, 0xc4, 0xe2, 0x78, 0xf3, 0xc9, 0xd5, 0x00, 0xa1,
    0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, 0x9a, 0x78, 0x56, 0x34, 0x12, 0x08, 0x00, 0xea,
    0x78, 0x56, 0x34, 0x12, 0x08, 0x00, 0xce, 0xd6, 0x06, 0x60, 0xc4, 0x08, 0xc5, 0x08, 0x62, 0x08,
    0x48, 0x66, 0x0f, 0x22, 0xd8, 0x40, 0x48, 0x90,
];

/// Writes seeds of one target.
struct Seeds<'f> {
    folder: &'f Path,
    total: usize,
}

impl Seeds<'_> {
    fn write(&mut self, target: &str, name: &str, parts: &[&[u8]]) -> Result<()> {
        let folder = self.folder.join(target);
        fs::create_dir_all(&folder)?;
        let bytes = parts.concat();
        if bytes.len() > LONGEST {
            bail!("the seed {target}/{name} has {} bytes", bytes.len());
        }
        self.total += bytes.len();
        fs::write(folder.join(name), bytes)?;
        Ok(())
    }
}

/// The bytes of a C source's executable.
fn compile(root: &Path, folder: &Path) -> Result<PathBuf> {
    let out = folder.join("program");
    let mut gcc = Command::new("gcc");
    gcc.args([
        "-O1",
        "-g",
        "-nostdlib",
        "-static",
        "-fcf-protection=none",
        "-Wl,--build-id",
    ])
    .args(["-fno-stack-protector", "-fno-asynchronous-unwind-tables"])
    // No path of this machine is to be in a seed.
    .arg(format!(
        "-ffile-prefix-map={}=/fuzz",
        root.join("fuzz").display()
    ))
    .arg(format!("-ffile-prefix-map={}=/fuzz", folder.display()))
    .current_dir(folder)
    .arg("-o")
    .arg(&out)
    .arg(root.join("fuzz/program.c"));
    tool(&mut gcc)?;
    Ok(out)
}

/// Writes `fuzz/seeds` anew; `true` in the end.
pub(super) fn write(root: &Path, arguments: &[String]) -> Result<bool> {
    let cofi = match arguments {
        [] => cofi(root)?,
        [option, path] if option == "--cofi" => root.join(path),
        _ => bail!("usage: cargo xtask fuzz seeds [--cofi PATH]"),
    };
    // The path is in the recordings, so it should be short and the same everywhere.
    let work = Path::new("/tmp/cofi-fuzz-seeds");
    if work.exists() {
        bail!(
            "{} is there: somebody else makes seeds, or did not end",
            work.display()
        );
    }
    fs::create_dir(work)?;
    let outcome = write_in(root, &cofi, work);
    fs::remove_dir_all(work)?;
    outcome
}

fn write_in(root: &Path, cofi: &Path, work: &Path) -> Result<bool> {
    let folder = root.join("fuzz/seeds");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let mut seeds = Seeds {
        folder: &folder,
        total: 0,
    };
    let program = compile(root, work)?;
    let elf = fs::read(&program)?;
    seeds.write("code", "elf", &[&elf])?;
    seeds.write("dwarf", "elf", &[&elf])?;
    let kallsyms =
        b"ffffffff81000000 T _text\nffffffff81000040 t do_one\t[mod]\nffffffff81000100 T _etext\n";
    seeds.write("code", "kallsyms", &[kallsyms])?;
    for (name, config) in CONFIGS {
        let (data, raw, archive) = (work.join("data"), work.join("raw"), work.join("archive"));
        let run = |words: &[&str], files: &[&Path]| {
            let mut command = Command::new(cofi);
            tool(command.args(words).args(files).current_dir(work))
        };
        let mut record = Command::new(cofi);
        record.args(["record", "--engine", "ptrace", "--config", config, "-o"]);
        record
            .arg(&data)
            .arg("--raw-output")
            .arg(&raw)
            .arg("--")
            .arg(&program);
        tool(record.current_dir(work)).with_context(|| format!("recording as {name}"))?;
        run(&["archive", "-o"], &[&archive, &data])?;
        let (data, packets) = (fs::read(&data)?, fs::read(&raw)?);
        seeds.write("session", name, &[&data])?;
        seeds.write("archive", name, &[&fs::read(&archive)?])?;
        let is_rtit = name == "rtit";
        let format = if is_rtit { "rtit" } else { "pt" };
        let listing = run(&["dump", "--format", format, "--color", "never"], &[&raw])?;
        let listing = &listing[..listing.len().min(8 << 10)];
        seeds.write("text", name, &[&[u8::from(is_rtit)], listing])?;
        let packets = &packets[..packets.len().min(PACKETS)];
        // The context is one of five; then how the stream is cut.
        let context: u32 = if is_rtit { 3 } else { 0 };
        let context = (context * (u32::MAX / 5) + u32::from(is_rtit) * 5).to_le_bytes();
        seeds.write("packets", name, &[&context, &[7], packets])?;
        let format: &[u8] = if is_rtit { &RTIT } else { &PT };
        seeds.write("events", name, &[format, &[1], packets])?;
        seeds.write("insn", name, &[&insn(format, packets)])?;
        if !is_rtit {
            seeds.write("bundle", name, &[&bundle(packets)])?;
            seeds.write("libipt", name, &[&libipt(packets)])?;
        }
    }
    // Writes: a whole line each, a part of one, and a restart between.
    let mut lines = vec![0, 0, 0, 0x10, 0, 0, 0, 0, 0xff, 0, 0, 0, 0];
    for number in 0..60_u8 {
        lines.extend([
            1,
            0,
            0,
            0,
            0x60,
            number % 3,
            1,
            0,
            0,
            0,
            0x10,
            number,
            0,
            64,
        ]);
    }
    seeds.write("lines", "ordered", &[&lines])?;
    for (mode, name) in ["bits64", "bits32", "bits16"].into_iter().enumerate() {
        let ip = 0x40_1000_u64.to_le_bytes();
        seeds.write("insn_tables", name, &[&[mode as u8], &ip, &CODE])?;
    }
    // Words of a linear congruence: the processor, its world, and then one operation after the other.
    for number in 0..3_u64 {
        let mut state = number;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .take(2000)
        .collect();
        seeds.write("unit", &number.to_string(), &[&bytes])?;
    }
    println!(
        "fuzz: {} bytes of seeds in {}",
        seeds.total,
        folder.display()
    );
    Ok(true)
}

/// The input of `insn`: where the code stands, the format, the code, the packets.
fn insn(format: &[u8], packets: &[u8]) -> Vec<u8> {
    let mut before = vec![0, 0x00, 0x10];
    before.extend(format);
    with_code(&before, packets)
}

/// The input of `libipt`: settings, twelve calls, the code, the packets.
fn libipt(packets: &[u8]) -> Vec<u8> {
    // No errata, a ratio of the clocks, mtc_freq, nom_freq, no flags, no range.
    let mut before = vec![0, 0, 2, 0, 84, 0, 3, 24, 0, 0, 0, 0, 0, 0, 0];
    for _ in 0..6 {
        // Forward, and the next 200: the first and the fourth of six calls.
        before.extend(0_u32.to_le_bytes());
        before.extend((u32::MAX / 6 * 3 + 6).to_le_bytes());
        before.push(200);
    }
    with_code(&before, packets)
}

/// Code and packets behind what stands before them; how long the code is, the last two bytes say.
fn with_code(before: &[u8], packets: &[u8]) -> Vec<u8> {
    // At 0x1000: nop; jne to itself; call and ret; jmp back.
    let code = [0x90, 0x75, 0xfd, 0xe8, 0x02, 0, 0, 0, 0xeb, 0xf6, 0xc3];
    let mut bytes = before.to_vec();
    bytes.extend(code);
    // Tracing goes on at the code, takes the loop a while, and what was recorded follows.
    let own = [
        0x02, 0x23, 0x71, 0x00, 0x10, 0, 0, 0, 0, 0xfe, 0xfe, 0x06, 0x71, 0x00, 0x10, 0, 0, 0, 0,
    ];
    bytes.extend(own);
    bytes.extend(packets);
    // Most significant byte first, as `arbitrary` reads lengths, which are taken modulo what is left and one.
    bytes.extend((code.len() as u16).to_be_bytes());
    bytes
}

/// The input of `bundle`: two lengths, the description, packets, context switches.
fn bundle(packets: &[u8]) -> Vec<u8> {
    let json = r#"{"type": "intel-pt", "cpuInfo": {"vendor": "GenuineIntel", "family": 6, "model": 79, "stepping": 1},
"tscPerfZeroConversion": {"timeMult": 1073741824, "timeShift": 31, "timeZero": "0x0"},
"processes": [{"pid": 5, "triple": "x86_64-*-linux", "threads": [{"tid": 5, "iptTrace": "trace"}, {"tid": 6}],
"modules": [{"systemPath": "/bin/one", "file": "one", "loadAddress": 4096, "uuid": "6AA9A4E2-6F28-2F33-377D-59FECE874C71-5B41261A"}]}],
"cpus": [{"id": 0, "iptTrace": "trace", "contextSwitchTrace": "switches"}],
"kernel": {"file": "vmlinux", "loadAddress": "0xffffffff81000000"}}"#;
    let lens = [json.len() as u16, packets.len() as u16];
    let mut bytes: Vec<u8> = lens.iter().flat_map(|len| len.to_le_bytes()).collect();
    bytes.extend(json.as_bytes());
    bytes.extend(packets);
    // Two records SWITCH_CPU_WIDE (15): out, with MISC_SWITCH_OUT, and in; TID and TIME behind the other thread.
    for (misc, other, task, at) in [(0x2000_u16, 6_u32, 5_u32, 2000_u64), (0, 5, 6, 2010)] {
        bytes.extend(15_u32.to_le_bytes());
        bytes.extend(misc.to_le_bytes());
        bytes.extend(32_u16.to_le_bytes());
        for word in [other, other, task, task] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(at.to_le_bytes());
    }
    bytes
}
