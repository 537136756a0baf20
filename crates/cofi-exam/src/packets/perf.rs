//! perf as a reader of packets: a perf.data file around a stream, and what `perf script -D` prints of it.
//!
//! Three things of perf's list are undone here, each only by what perf itself prints:
//!
//! - up to eight bytes of PADs stand on the line of the packet before them, so its size is that which its own bytes
//!   announce, and the rest of the line must be zeros: they become PADs;
//! - IP packets come with their payload: Table 33-18 is applied to it here;
//! - PIP, VMCS and CBR come unshifted or with reserved bits: see `fields`.

use std::io::Cursor;

use anyhow::{Context, Result, bail, ensure};
use cofi_perf::{PtConfig, TimeConv, Writer, WriterOptions};
use serde_json::Value;

use super::listing::{Entry, hex};

/// A file with one stream and nothing else.
pub(super) fn file(stream: &[u8]) -> Result<Vec<u8>> {
    let mut options = WriterOptions::new(
        PtConfig::NONE.into(),
        TimeConv {
            shift: 0,
            mult: 1,
            zero: 0,
        },
    );
    options.tsc_ctc_ratio = (1, 1);
    options.max_nonturbo_ratio = 1;
    let mut writer = Writer::new(Cursor::new(Vec::new()), options)?;
    writer.auxtrace(0, 1, Default::default(), 1, stream)?;
    writer.finished_round()?;
    Ok(writer.finish()?.into_inner())
}

/// Reads the lines that follow "Intel Processor Trace data".
pub(super) fn parse(text: &str) -> Result<Vec<Entry>> {
    let mut last_ip = 0;
    let mut entries = Vec::new();
    let lines = text
        .lines()
        .skip_while(|line| !line.contains("Intel Processor Trace data"))
        .skip(1);
    for line in lines {
        // ".  00000010:  02 23                                           PSBEND"
        let Some((offset, rest)) = line.strip_prefix(".  ").and_then(|l| l.split_once(": ")) else {
            break;
        };
        let Ok(offset) = u64::from_str_radix(offset, 16) else {
            break;
        };
        one(offset, rest, &mut last_ip, &mut entries)
            .with_context(|| format!("in perf's line {line}"))?;
    }
    Ok(entries)
}

fn one(offset: u64, rest: &str, last_ip: &mut u64, entries: &mut Vec<Entry>) -> Result<()> {
    // Sixteen columns of three characters, whatever they hold.
    let (columns, words) = rest.split_at_checked(48).context("too short")?;
    let bytes: Vec<u8> = columns
        .split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16))
        .collect::<Result<_, _>>()?;
    let words = words.trim();
    if words == "Bad packet!" {
        entries.push(Entry::error(offset, bytes.len() as u64, words));
        return Ok(());
    }
    let (entry, size) = packet(offset, &bytes, words, last_ip)?;
    entries.push(entry);
    let pads = bytes.get(size..).context("the packet ends too soon")?;
    for (at, byte) in pads.iter().enumerate() {
        ensure!(*byte == 0, "something other than PADs behind the packet");
        let at = offset + (size + at) as u64;
        entries.push(Entry::packet(at, 1, "pad", &[]));
    }
    Ok(())
}

/// A value in perf's words: `0x…` or decimal, perhaps behind a colon.
fn number(word: Option<&str>) -> Result<u64> {
    let word = word.context("a value is missing")?;
    let word = word.rsplit(':').next().unwrap_or(word);
    Ok(match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16)?,
        None => word.parse()?,
    })
}

fn packet(offset: u64, bytes: &[u8], words: &str, last_ip: &mut u64) -> Result<(Entry, usize)> {
    let mut list = words.split_whitespace();
    let name = list.next().context("a packet without a name")?;
    let words: Vec<&str> = list.collect();
    let first = *bytes.first().context("a packet without bytes")?;
    // Beginning with the position after the name.
    let word = |at: usize| number(words.get(at).copied());
    let flag = |at: usize| word(at).map(|n| Value::from(n != 0));
    let (name, size, fields): (_, usize, Vec<(&str, Value)>) = match name {
        "PAD" => ("pad", 1, vec![]),
        "PSB" => {
            *last_ip = 0;
            ("psb", 16, vec![])
        }
        "PSBEND" => ("psbend", 2, vec![]),
        "OVF" => ("ovf", 2, vec![]),
        "TraceSTOP" => ("tracestop", 2, vec![]),
        "TNT" => {
            let (bits, count) = match words.as_slice() {
                [count] => ("", *count),
                [bits, count] => (*bits, *count),
                _ => bail!("a strange TNT"),
            };
            ensure!(count == format!("({})", bits.len()), "a wrong count");
            let (name, size) = if first == 0x02 {
                ("tnt.64", 8)
            } else {
                ("tnt.8", 1)
            };
            (name, size, vec![("bits", bits.into())])
        }
        "TIP" | "TIP.PGE" | "TIP.PGD" | "FUP" => {
            let ip_bytes = first >> 5;
            let size = [0, 2, 4, 6, 6, 0, 8, 0][usize::from(ip_bytes)];
            let ip = match words.as_slice() {
                ["no", "ip"] => Value::Null,
                _ => hex(rebuild(last_ip, ip_bytes, word(0)?)),
            };
            let fields = vec![("ipc", ip_bytes.into()), ("ip", ip)];
            let name = match name {
                "TIP" => "tip",
                "TIP.PGE" => "tip.pge",
                "TIP.PGD" => "tip.pgd",
                _ => "fup",
            };
            (name, 1 + size, fields)
        }
        "CYC" => {
            // As long as the Exp bits go on.
            let more =
                |(at, byte): &(usize, &u8)| **byte >> (if *at == 0 { 2 } else { 0 }) & 1 == 1;
            let size = 1 + bytes.iter().enumerate().take_while(more).count();
            ("cyc", size, vec![("cycles", word(0)?.into())])
        }
        // The payload without its lowest bit, NR; "(NR=1)".
        "PIP" => {
            let nr = words.get(1).is_some_and(|w| *w == "(NR=1)");
            let cr3 = hex(word(0)? << 5);
            ("pip", 8, vec![("cr3", cr3), ("nr", nr.into())])
        }
        "MODE.Exec" => (
            "mode.exec",
            2,
            vec![("if", flag(0)?), ("mode", word(1)?.into())],
        ),
        "MODE.TSX" => ("mode.tsx", 2, vec![("abort", flag(0)?), ("intx", flag(1)?)]),
        // With the reserved byte above it.
        "CBR" => ("cbr", 4, vec![("ratio", (word(0)? & 0xff).into())]),
        "TSC" => ("tsc", 8, vec![("tsc", word(0)?.into())]),
        "MTC" => ("mtc", 2, vec![("ctc", word(0)?.into())]),
        "TMA" => (
            "tma",
            7,
            vec![("ctc", word(1)?.into()), ("fc", word(3)?.into())],
        ),
        // The pointer's bits 51:12.
        "VMCS" => ("vmcs", 7, vec![("base", hex(word(0)? << 12))]),
        "MNT" => ("mnt", 11, vec![("payload", hex(word(0)?))]),
        "PTWRITE" => {
            // perf does not print which form it is; its line is as long as the form.
            let size: usize = if bytes.len() >= 10 { 8 } else { 4 };
            let fields = vec![
                ("size", size.into()),
                ("payload", hex(word(0)?)),
                ("ip", flag(1)?),
            ];
            ("ptw", 2 + size, fields)
        }
        "EXSTOP" => ("exstop", 2, vec![("ip", flag(0)?)]),
        "MWAIT" => (
            "mwait",
            10,
            vec![("hints", word(2)?.into()), ("ext", word(4)?.into())],
        ),
        "PWRE" => {
            let fields = vec![
                ("hw", flag(1)?),
                ("state", word(2)?.into()),
                ("sub_state", word(3)?.into()),
            ];
            ("pwre", 4, fields)
        }
        // "0x… Last CState:1 Deepest CState:2 Wake Reason 0x4"
        "PWRX" => {
            let fields = vec![
                ("last", word(2)?.into()),
                ("deepest", word(4)?.into()),
                ("wake", word(7)?.into()),
            ];
            ("pwrx", 7, fields)
        }
        // "SZ 4-byte Type 0x1"
        "BBP" => {
            let size = match words.get(1) {
                Some(&"4-byte") => 4,
                Some(&"8-byte") => 8,
                _ => bail!("a strange size"),
            };
            (
                "bbp",
                3,
                vec![("size", size.into()), ("type", word(3)?.into())],
            )
        }
        "BIP" => {
            let size = if bytes.len() >= 9 { 9 } else { 5 };
            let fields = vec![("id", word(1)?.into()), ("payload", hex(word(3)?))];
            ("bip", size, fields)
        }
        "BEP" => ("bep", 2, vec![("ip", flag(0)?)]),
        // "IP:1 Type 0x1 Vector 0x2"
        "CFE" => {
            let fields = vec![
                ("ip", flag(0)?),
                ("type", word(2)?.into()),
                ("vector", word(4)?.into()),
            ];
            ("cfe", 4, fields)
        }
        "EVD" => (
            "evd",
            11,
            vec![("type", word(1)?.into()), ("payload", hex(word(3)?))],
        ),
        _ => bail!("an unknown packet"),
    };
    let entry = Entry::packet(offset, size as u64, name, &fields);
    Ok((entry, size))
}

/// Table 33-18.
fn rebuild(last_ip: &mut u64, ip_bytes: u8, payload: u64) -> u64 {
    let kept = match ip_bytes {
        1 => !0 << 16,
        2 => !0 << 32,
        4 => !0 << 48,
        _ => 0,
    };
    *last_ip = *last_ip & kept | payload & !kept;
    if ip_bytes == 3 {
        *last_ip = ((*last_ip << 16) as i64 >> 16) as u64;
    }
    *last_ip
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
. ... Intel Processor Trace data: size 80 bytes
.  00000000:  02 82 02 82 02 82 02 82 02 82 02 82 02 82 02 82 PSB
.  00000010:  03                                              CYC 0x0
.  00000011:  99 01 00 00                                     MODE.Exec IF:0 64
.  00000015:  71 70 3b bd 15 f0 ff                            TIP.PGE 0xfff015bd3b70
.  0000001c:  aa                                              TNT NTNTNT (6)
.  0000001d:  d9                                              Bad packet!

0 0 0x50 [0x8]: PERF_RECORD_FINISHED_ROUND
";

    #[test]
    fn the_pads_of_a_line_are_packets() {
        let entries = parse(TEXT).expect("perf's own words");
        let names: Vec<&str> = entries.iter().map(Entry::name).collect();
        assert_eq!(
            names,
            [
                "psb",
                "cyc",
                "mode.exec",
                "pad",
                "pad",
                "tip.pge",
                "tnt.8",
                "error"
            ]
        );
        assert_eq!(entries[4].offset, 0x14);
        assert_eq!(entries[5].field("ip"), Some(&hex(0xffff_fff0_15bd_3b70)));
        assert_eq!(entries[2].field("mode"), Some(&64.into()));
    }

    #[test]
    fn words_that_are_not_perfs_are_refused() {
        for (from, to) in [("(6)", "(5)"), ("TNT", "TNP"), ("00 00", "00 01")] {
            assert!(parse(&TEXT.replace(from, to)).is_err(), "{to}");
        }
    }

    #[test]
    fn a_file_holds_the_stream() {
        let stream = [0x02, 0x82].repeat(8);
        let bytes = file(&stream).expect("a file");
        assert!(bytes.windows(16).any(|window| window == stream));
    }
}
