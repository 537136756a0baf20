//! Tables and disassembler side by side, for `cargo xtask exam insn` and `cargo xtask bench insn`.
//!
//! - `tables compare SEED RANDOM` compares them on every opcode, and on so many random byte strings;
//! - `tables code FILE…` compares them on the code of ELF files, from every byte on and in each mode, and tells of how many of the
//!   code's own instructions the tables are sure;
//! - `tables bench WHO PASSES FILE…` decodes that code so often, WHO being `tables` (with the disassembler behind them),
//!   `disassembler` or `none`, and tells the fastest pass's processor time.

use std::error::Error;
use std::hint::black_box;

use cofi_insn::{Insn, LinearDecoder, by_disassembler, by_tables};
use cofi_packet::{ExecMode, Ip};
use nix::time::{ClockId, clock_gettime};
use object::{Object, ObjectSection, SectionKind};

use encodings::{MODES, PREFIXES, Tally, every_opcode, every_vector, random};

#[path = "../tests/encodings/mod.rs"]
mod encodings;

/// Of which instructions the tables are less sure than this, there is too much left to the disassembler.
const SURE: f64 = 0.999;

/// The code of one file.
struct Code {
    name: String,
    mode: ExecMode,
    sections: Vec<(Ip, Vec<u8>)>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["compare", seed, count] => compare(seed.parse()?, count.parse()?),
        ["code", ref files @ ..] => code(files),
        ["bench", who, passes, ref files @ ..] => bench(who, passes.parse()?, files),
        _ => Err("tables compare SEED RANDOM | code FILE… | bench WHO PASSES FILE…".into()),
    }
}

/// The code of these files.
fn read(files: &[&str]) -> Result<Vec<Code>, Box<dyn Error>> {
    let mut codes = Vec::new();
    for &name in files {
        let bytes = std::fs::read(name).map_err(|error| format!("{name}: {error}"))?;
        let file = object::File::parse(&*bytes).map_err(|error| format!("{name}: {error}"))?;
        let mode = match file.architecture() {
            object::Architecture::X86_64 => ExecMode::Bits64,
            object::Architecture::I386 => ExecMode::Bits32,
            other => return Err(format!("{name}: code for {other:?}").into()),
        };
        let mut sections = Vec::new();
        for section in file.sections() {
            if section.kind() == SectionKind::Text {
                sections.push((Ip(section.address()), section.data()?.to_vec()));
            }
        }
        codes.push(Code {
            name: name.to_owned(),
            mode,
            sections,
        });
    }
    Ok(codes)
}

fn tell(what: &str, tally: &Tally) {
    let Tally {
        compared, valid, ..
    } = tally;
    let part = 100.0 * tally.part();
    println!(
        "{what}: {compared} compared, {valid} instructions, the tables are sure of {part:.3}%"
    );
}

fn compare(seed: u64, count: u64) -> Result<(), Box<dyn Error>> {
    // Two prefixes at most are enough for every state that a further one can find.
    let single = [
        0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67, 0xf0, 0xf2, 0xf3,
    ];
    let mut all: Vec<Vec<u8>> = PREFIXES.iter().map(|prefix| prefix.to_vec()).collect();
    for first in single.into_iter().chain(0x40..=0x4f) {
        all.push(vec![first]);
        all.extend([0x66, 0x67, 0xf2, 0xf3, 0x40, 0x48, 0x44].map(|second| vec![first, second]));
    }
    all.sort_unstable();
    all.dedup();
    let prefixes: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    let mut tally = Tally::default();
    every_opcode(&prefixes, &mut tally);
    tell("every opcode", &tally);

    let modrms: Vec<u8> = (0..=255).collect();
    let mut tally = Tally::default();
    every_vector(0..=31, &modrms, &mut tally);
    tell("every vector opcode", &tally);

    let mut tally = Tally::default();
    random(seed, count, &mut tally);
    tell("random bytes", &tally);
    Ok(())
}

fn code(files: &[&str]) -> Result<(), Box<dyn Error>> {
    let (mut every, mut own) = (Tally::default(), Tally::default());
    for code in read(files)? {
        for (ip, bytes) in &code.sections {
            for start in 0..bytes.len() {
                let ip = Ip(ip.0 + start as u64);
                let end = bytes.len().min(start + 16);
                for mode in MODES {
                    every.compare(&bytes[start..end], ip, mode);
                }
            }
            for (at, insn) in linear(*ip, bytes, code.mode) {
                own.compared += 1;
                own.valid += 1;
                let start = (at.0 - ip.0) as usize;
                let sure = by_tables(&bytes[start..], at, code.mode);
                own.sure += u64::from(sure == Some(insn));
            }
        }
    }
    tell("code from every byte on", &every);
    tell("the code's own instructions", &own);
    if own.part() < SURE {
        return Err(format!("they are to be sure of {}%", 100.0 * SURE).into());
    }
    Ok(())
}

/// The instructions that stand one behind the other; bytes that are none are skipped one by one.
fn linear(ip: Ip, bytes: &[u8], mode: ExecMode) -> Vec<(Ip, Insn)> {
    let mut insns = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        let at = Ip(ip.0 + start as u64);
        start += match by_disassembler(&bytes[start..], at, mode) {
            Ok(insn) => {
                insns.push((at, insn));
                usize::from(insn.len)
            }
            Err(_) => 1,
        };
    }
    insns
}

fn bench(who: &str, passes: usize, files: &[&str]) -> Result<(), Box<dyn Error>> {
    let pass: fn(Ip, &[u8], ExecMode) -> (u64, u64) = match who {
        "tables" => by_linear_decoder,
        "disassembler" => by_linear_disassembler,
        "none" => |_, bytes, _| (bytes.len() as u64, 0),
        _ => return Err(format!("{who}: there is no such way to decode").into()),
    };
    for code in read(files)? {
        let mut fastest = f64::INFINITY;
        let (mut insns, mut sum) = (0, 0);
        for _ in 0..passes {
            (insns, sum) = (0, 0);
            let before = processor_time()?;
            for (ip, bytes) in &code.sections {
                let (more, digests) = pass(*ip, black_box(bytes), code.mode);
                insns += more;
                sum += digests;
            }
            fastest = fastest.min(processor_time()? - before);
        }
        println!("{} {insns} {sum} {fastest:.9}", code.name);
    }
    Ok(())
}

/// How many instructions there are, and a sum of what is known of them.
fn by_linear_decoder(mut ip: Ip, mut bytes: &[u8], mode: ExecMode) -> (u64, u64) {
    let (mut insns, mut sum) = (0, 0);
    while !bytes.is_empty() {
        let mut decoder = LinearDecoder::new(bytes, ip, mode);
        while let Ok(insn) = decoder.decode_next() {
            insns += 1;
            sum += known(&insn);
        }
        let rest = decoder.rest();
        ip = Ip(decoder.ip().0 + 1);
        bytes = rest.get(1..).unwrap_or_default();
    }
    (insns, sum)
}

fn by_linear_disassembler(ip: Ip, bytes: &[u8], mode: ExecMode) -> (u64, u64) {
    let (mut insns, mut sum) = (0, 0);
    let mut start = 0;
    while start < bytes.len() {
        start += match by_disassembler(&bytes[start..], Ip(ip.0 + start as u64), mode) {
            Ok(insn) => {
                insns += 1;
                sum += known(&insn);
                usize::from(insn.len)
            }
            Err(_) => 1,
        };
    }
    (insns, sum)
}

fn known(insn: &Insn) -> u64 {
    let target = insn.target.unwrap_or(Ip(0)).0 as u32;
    u64::from(insn.digest) + u64::from(insn.len) + u64::from(target) + insn.class as u64
}

fn processor_time() -> Result<f64, nix::Error> {
    let now = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
    Ok(now.tv_sec() as f64 + now.tv_nsec() as f64 / 1e9)
}
