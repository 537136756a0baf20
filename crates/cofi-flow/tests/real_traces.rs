//! Traces of real processors, each with the code that ran and what the reference decoder makes of it.
//!
//! They are not part of this repository. `COFI_TRACES` names their folder: one folder a trace, with a `case.json` that
//! names the trace, the code (`images`: raw bytes with addresses, or `elf`), the processor, the number of instructions,
//! and the SHA-256 of their addresses (16 lower-case hexadecimal digits each, joined by newlines).

use std::fs;
use std::path::{Path, PathBuf};

use cofi_flow::{Block, Cpu, Errata, Executed, FlowConfig, FlowDecoder, Item, Part, Visitor};
use cofi_insn::CodeSource;
use cofi_packet::intel::sync_forward;
use cofi_packet::{Ip, StreamOffset};
use serde_json::Value;
use sha2::{Digest, Sha256};

#[derive(Clone)]
struct Images(Vec<(u64, Vec<u8>)>);

impl CodeSource for Images {
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buf.len() {
            let at = ip.0.wrapping_add(done as u64);
            let Some(bytes) = self.0.iter().find_map(|(base, bytes)| {
                bytes
                    .get(usize::try_from(at.checked_sub(*base)?).ok()?..)
                    .filter(|rest| !rest.is_empty())
            }) else {
                break;
            };
            let len = bytes.len().min(buf.len() - done);
            buf[done..done + len].copy_from_slice(&bytes[..len]);
            done += len;
        }
        done
    }
}

/// The loadable segments of a 64-bit ELF file.
fn elf_segments(file: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let number = |at: usize, len: usize| {
        file[at..at + len]
            .iter()
            .rev()
            .fold(0_u64, |value, byte| value << 8 | u64::from(*byte))
    };
    assert!(file.starts_with(b"\x7fELF\x02"), "not a 64-bit ELF file");
    let (table, size, count) = (
        number(32, 8) as usize,
        number(54, 2) as usize,
        number(56, 2) as usize,
    );
    (0..count)
        .map(|index| table + index * size)
        .filter(|at| number(*at, 4) == 1)
        .map(|at| {
            let (offset, address, len) = (
                number(at + 8, 8) as usize,
                number(at + 16, 8),
                number(at + 32, 8) as usize,
            );
            (address, file[offset..offset + len].to_vec())
        })
        .collect()
}

fn images(case: &Path, json: &Value) -> Images {
    let file = |name: &str| {
        fs::read(case.join(name))
            .unwrap_or_else(|error| panic!("{}/{name}: {error}", case.display()))
    };
    if let Some(elf) = json["elf"].as_str() {
        return Images(elf_segments(&file(elf)));
    }
    let images = json["images"]
        .as_array()
        .expect("a case has images or an elf");
    Images(
        images
            .iter()
            .map(|image| {
                let base = image["base"]
                    .as_str()
                    .and_then(|base| base.strip_prefix("0x"))
                    .expect("base is 0x…");
                (
                    u64::from_str_radix(base, 16).unwrap(),
                    file(image["file"].as_str().expect("file is a name")),
                )
            })
            .collect(),
    )
}

/// "family 6 model 79 stepping 1 (…)"
fn cpu(text: &str) -> Cpu {
    let words: Vec<&str> = text.split_whitespace().collect();
    let after = |key| {
        words
            .iter()
            .position(|word| *word == key)
            .and_then(|at| words[at + 1].parse::<u16>().ok())
            .unwrap_or(0)
    };
    Cpu {
        family: after("family"),
        model: after("model") as u8,
        stepping: after("stepping") as u8,
    }
}

/// A case read from its folder.
struct Case {
    name: String,
    trace: Vec<u8>,
    images: Images,
    config: FlowConfig,
    json: Value,
}

/// The cases; none, and the test is skipped, where there are no traces.
#[track_caller]
fn cases() -> Vec<Case> {
    let Some(folder) = cofi_test::traces() else {
        return Vec::new();
    };
    let entries = fs::read_dir(&folder).unwrap();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let cases: Vec<Case> = folders
        .into_iter()
        .filter_map(|case| {
            let json: Value =
                serde_json::from_str(&fs::read_to_string(case.join("case.json")).ok()?).unwrap();
            let trace = fs::read(case.join(json["trace"].as_str()?)).unwrap();
            let errata = Errata::for_cpu(cpu(json["cpu"].as_str().unwrap_or("")));
            Some(Case {
                name: case.file_name().unwrap().to_string_lossy().into_owned(),
                trace,
                images: images(&case, &json),
                config: {
                    let mut config = FlowConfig::default();
                    config.errata = errata;
                    config
                },
                json,
            })
        })
        .collect();
    assert!(!cases.is_empty(), "no case in {}", folder.display());
    cases
}

#[test]
fn every_trace_is_decoded_exactly() {
    let mut wrong = Vec::new();
    for Case {
        name,
        trace,
        images,
        config,
        json,
    } in cases()
    {
        let mut hash = Sha256::new();
        let (mut insns, mut errors) = (0_u64, 0_u64);
        let decoder = FlowDecoder::new(&trace, images, config);
        for item in decoder {
            match item {
                Item::Insn(insn) => {
                    let separator = if insns == 0 { "" } else { "\n" };
                    hash.update(format!("{separator}{:016x}", insn.ip));
                    insns += 1;
                }
                Item::Error(error) => {
                    errors += 1;
                    eprintln!("{name}: {error}");
                }
                Item::Event(_) => {}
            }
        }
        let hash: String = hash
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let (want_insns, want_hash) = (
            json["instructions"].as_u64().unwrap(),
            json["ips_sha256"].as_str().unwrap(),
        );
        let exact = insns == want_insns
            && hash == want_hash
            && errors == json["errors"].as_u64().unwrap_or(0);
        eprintln!(
            "{name}: {insns} of {want_insns} instructions, {errors} errors: {}",
            if exact { "exact" } else { "WRONG" }
        );
        if !exact {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "not decoded exactly: {wrong:?}");
}

/// Cut at its PSBs and decoded piece by piece, a trace gives the same instructions; and so it does in runs.
#[test]
fn every_trace_can_be_decoded_in_pieces() {
    for Case {
        name,
        trace,
        images,
        config,
        ..
    } in cases()
    {
        let whole: Vec<_> = instructions(FlowDecoder::new(&trace, images.clone(), config));
        let mut runs = Vec::new();
        let mut decoder = FlowDecoder::new(&trace, images.clone(), config);
        while let Some(part) = decoder.next_part() {
            if let Part::Run(run) = part {
                assert_eq!(run.iter().count(), run.len());
                runs.extend(run.iter());
            }
        }
        assert!(
            whole == runs,
            "{name}: runs differ from single instructions"
        );
        let mut blocks = Vec::new();
        FlowDecoder::new(&trace, images.clone(), config).visit(&mut Blocks(&mut blocks));
        assert!(
            whole == blocks,
            "{name}: blocks differ from single instructions"
        );

        let (mut cuts, mut at) = (vec![0], 0);
        while let Some(psb) = sync_forward(&trace, at) {
            cuts.push(psb);
            at = psb + 1;
        }
        for step in [1, 3] {
            let ends: Vec<usize> = cuts
                .iter()
                .copied()
                .step_by(step)
                .chain([usize::MAX])
                .collect();
            let mut pieces = Vec::new();
            for ends in ends.windows(2) {
                let range = StreamOffset(ends[0] as u64)..StreamOffset(ends[1] as u64);
                pieces.extend(instructions(
                    FlowDecoder::new(&trace, images.clone(), config).within(range),
                ));
            }
            assert!(
                whole == pieces,
                "{name}: {} pieces differ from the whole",
                ends.len() - 1
            );
            eprintln!("{name}: the same in {} pieces", ends.len() - 1);
        }
    }
}

fn instructions(decoder: FlowDecoder<'_, Images>) -> Vec<Executed> {
    decoder
        .filter_map(|item| match item {
            Item::Insn(insn) => Some(insn),
            _ => None,
        })
        .collect()
}

struct Blocks<'v>(&'v mut Vec<Executed>);

impl Visitor for Blocks<'_> {
    fn block(&mut self, block: &Block<'_>) {
        block.for_each(|insn| self.0.push(insn));
    }
}
