//! Traces of real processors, each with the code that ran and what the reference decoder makes of it.
//!
//! They are not part of this repository. `COFI_TRACES` names their folder: one folder a trace, with a `case.json` that
//! names the trace, the code (`images`: raw bytes with addresses, or `elf`), the processor, the number of instructions,
//! and the SHA-256 of their addresses (16 lower-case hexadecimal digits each, joined by newlines).

use std::fs;
use std::path::{Path, PathBuf};

use cofi_flow::{Cpu, Errata, FlowConfig, FlowDecoder, Item};
use cofi_insn::CodeSource;
use cofi_packet::Ip;
use serde_json::Value;
use sha2::{Digest, Sha256};

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

fn folder() -> PathBuf {
    std::env::var_os("COFI_TRACES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces"),
        PathBuf::from,
    )
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

#[test]
fn every_trace_is_decoded_exactly() {
    let folder = folder();
    let Ok(entries) = fs::read_dir(&folder) else {
        eprintln!(
            "NOT RUN: no traces in {} (set COFI_TRACES)",
            folder.display()
        );
        return;
    };
    let mut cases: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    let (mut run, mut wrong) = (0, Vec::new());
    for case in cases {
        let Ok(json) = fs::read_to_string(case.join("case.json")) else {
            continue;
        };
        let json: Value = serde_json::from_str(&json).unwrap();
        let Some(trace) = json["trace"].as_str() else {
            continue;
        };
        run += 1;
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let trace = fs::read(case.join(trace)).unwrap();
        let errata = Errata::for_cpu(cpu(json["cpu"].as_str().unwrap_or("")));
        let config = FlowConfig {
            errata,
            ..FlowConfig::default()
        };
        let mut hash = Sha256::new();
        let (mut insns, mut errors) = (0_u64, 0_u64);
        let decoder = FlowDecoder::new(&trace, images(&case, &json), config);
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
    assert!(run > 0, "no case in {}", folder.display());
    assert!(wrong.is_empty(), "not decoded exactly: {wrong:?}");
}
