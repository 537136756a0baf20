//! Large recordings for the races, made on the spot: an interpreter, a compressor and a program of many threads, through QEMU.
//!
//! Each is kept in a folder of its own below `target/bench`, named for its size: `bench.data` as `cofi record` wrote it, `stream.pt`,
//! the packets of all its threads one after the other, and `trace.json`, where the code was. It is made again when that last file
//! is not there.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cofi_perf::{Body, File};
use serde_json::{Value, json};

use super::libipt::{Trace, timeless};
use cofi_exam::{build, sideband};

/// What runs; its length is a number.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// `bench/programs/work.awk`: rounds.
    Awk,
    /// `gzip -9`: bytes.
    Gzip,
    /// `bench/programs/threads.c`: rounds.
    Threads,
}

/// A recording.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) name: &'static str,
    work: Work,
    config: Option<&'static str>,
}

/// What is recorded.
pub(super) const RECORDINGS: [Recording; 5] = [
    Recording {
        name: "awk",
        work: Work::Awk,
        config: None,
    },
    Recording {
        name: "awk noretcomp",
        work: Work::Awk,
        config: Some("noretcomp"),
    },
    Recording {
        name: "awk tsc,mtc,cyc",
        work: Work::Awk,
        config: Some("tsc,mtc,cyc"),
    },
    Recording {
        name: "gzip -9",
        work: Work::Gzip,
        config: None,
    },
    Recording {
        name: "8 threads",
        work: Work::Threads,
        config: None,
    },
];

/// So many runs must do to find out how long a program has to be.
const RUNS: usize = 8;

/// Whether a recording is as large as it should be, nearly.
fn is_about(bytes: u64, wanted: u64) -> bool {
    (wanted / 10 * 8..=wanted / 10 * 13).contains(&bytes)
}

/// A length at which there is `wanted` where there was `bytes`, if the one grows with the other.
fn scaled(length: u64, wanted: u64, bytes: u64) -> Result<u64> {
    let scaled = u128::from(length) * u128::from(wanted);
    let length = scaled.div_ceil(bytes.max(1).into());
    Ok(u64::try_from(length.max(1))?)
}

/// Makes recordings.
#[derive(Debug)]
pub(super) struct Recorder<'r> {
    pub(super) root: &'r Path,
    pub(super) cofi: &'r Path,
}

impl Recorder<'_> {
    /// The recording of about so many megabytes of packets, made now if it is not there.
    pub(super) fn recording(&self, recording: &Recording, megabytes: u64) -> Result<Trace> {
        let folder = format!("{}-{megabytes}", recording.name.replace([' ', ','], "-"));
        let folder = self.root.join("target/bench").join(folder);
        if !folder.join("trace.json").is_file() {
            self.make(recording, megabytes, &folder)
                .with_context(|| format!("recording {}", recording.name))?;
        }
        kept(recording.name, &folder)
    }

    fn make(&self, recording: &Recording, megabytes: u64, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let wanted = megabytes * 1_000_000;
        let mut length = match recording.work {
            Work::Awk => 2000,
            Work::Gzip => 20_000,
            Work::Threads => 4,
        };
        // How long the program must be for so many packets, shorter runs tell: not all of it grows with the length.
        let mut bytes = self.record(recording, length, folder)?;
        for _ in 0..RUNS {
            if is_about(bytes, wanted) {
                break;
            }
            // Not too long a step at a time, as some takes more than in proportion.
            length = scaled(length, wanted.min(bytes * 16), bytes)?;
            bytes = self.record(recording, length, folder)?;
        }
        ensure!(
            is_about(bytes, wanted),
            "it has {bytes} bytes of packets after {RUNS} runs, not about {wanted}"
        );
        println!(
            "bench: recorded {}: {:.1} MB",
            recording.name,
            bytes as f64 / 1e6
        );
        self.finish(folder)
    }

    /// Runs the recorder once; how many bytes of packets there are.
    fn record(&self, recording: &Recording, length: u64, folder: &Path) -> Result<u64> {
        let programs = self.root.join("bench/programs");
        let length_word = length.to_string();
        let mut command = Command::new(self.cofi);
        command
            .args(["record", "--engine", "qemu", "-o", "bench.data"])
            .current_dir(folder);
        if let Some(config) = recording.config {
            command.args(["--config", config]);
        }
        command.arg("--");
        match recording.work {
            Work::Awk => {
                command.args(["/usr/bin/awk", "-v", &format!("n={length}"), "-f"]);
                command.arg(programs.join("work.awk"));
            }
            Work::Gzip => {
                fs::write(folder.join("text"), build::text(usize::try_from(length)?))?;
                command.args(["/usr/bin/gzip", "-9", "-c", "text"]);
            }
            Work::Threads => {
                let program = folder.join("threads");
                build::tool(
                    Command::new("gcc")
                        .args(["-O2", "-Wall", "-pthread", "-o"])
                        .arg(&program)
                        .arg(programs.join("threads.c")),
                )?;
                command.arg(program).arg(length_word);
            }
        }
        let output = command
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .output()
            .context("running cofi record")?;
        ensure!(
            output.status.success(),
            "cofi record ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let data = fs::read(folder.join("bench.data"))?;
        let (streams, _) = streams(&data)?;
        Ok(streams.iter().map(|stream| stream.len() as u64).sum())
    }

    /// Takes the packets out of the recording, and notes where the code was.
    fn finish(&self, folder: &Path) -> Result<()> {
        let data = fs::read(folder.join("bench.data"))?;
        let (streams, process) = streams(&data)?;
        fs::write(folder.join("stream.pt"), streams.concat())?;
        let vdso = sideband::dump_vdso(&folder.join("vdso"))?;
        let arguments = sideband::ptinsn_arguments(&folder.join("bench.data"), process, &vdso)?;
        let (options, sections) = timeless(arguments)?;
        // The shorter recording that came before, if it is still there.
        let _ = fs::remove_file(folder.join("bench.data.old"));
        let note = json!({"options": options, "sections": sections});
        // Written last: where it is, all of it is.
        fs::write(folder.join("trace.json"), note.to_string())?;
        Ok(())
    }
}

/// The packets of each thread, in the order of their numbers, and the process that was recorded first.
///
/// A stream ends with tracing off and begins with a PSB, so that one behind the other they are a stream too.
fn streams(data: &[u8]) -> Result<(Vec<Vec<u8>>, u32)> {
    let file = File::parse(data)?;
    let mut streams = BTreeMap::<u32, Vec<u8>>::new();
    let mut process = None;
    for record in file.records() {
        match record?.body {
            Body::Auxtrace {
                tid,
                offset,
                payload,
                ..
            } => {
                append(streams.entry(tid).or_default(), offset, payload)
                    .with_context(|| format!("thread {tid}"))?;
            }
            Body::Mmap { pid, .. } => drop(process.get_or_insert(pid)),
            _ => {}
        }
    }
    let process = process.context("nothing was mapped")?;
    Ok((streams.into_values().collect(), process))
}

/// Puts a piece behind those before it. perf pads pieces to eight bytes, which the next overwrites.
fn append(stream: &mut Vec<u8>, offset: u64, payload: &[u8]) -> Result<()> {
    let offset = usize::try_from(offset)?;
    ensure!(
        offset <= stream.len() && stream.len() < offset + 8,
        "{} bytes of packets, and then a piece at {offset}",
        stream.len()
    );
    stream.truncate(offset);
    stream.extend(payload);
    Ok(())
}

/// What was recorded earlier.
fn kept(name: &str, folder: &Path) -> Result<Trace> {
    let note = folder.join("trace.json");
    let text = fs::read_to_string(&note).with_context(|| format!("reading {}", note.display()))?;
    let json: Value = serde_json::from_str(&text)?;
    let words = |key: &str| -> Result<Vec<String>> {
        let list = json[key].as_array().with_context(|| format!("no {key}"))?;
        Ok(list
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect())
    };
    let stream: PathBuf = folder.join("stream.pt");
    Ok(Trace {
        name: name.to_owned(),
        stream,
        options: words("options")?,
        sections: words("sections")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_put_together_without_padding_and_without_gaps() {
        let mut stream = Vec::new();
        append(&mut stream, 0, &[1, 2, 3, 0, 0]).expect("the first piece");
        append(&mut stream, 3, &[4]).expect("over the padding");
        assert_eq!(stream, [1, 2, 3, 4]);
        assert!(append(&mut stream, 5, &[6]).is_err());
        append(&mut stream, 4, &[0; 9]).expect("the next piece");
        // More than padding is repeated.
        assert!(append(&mut stream, 4, &[5]).is_err());
    }

    #[test]
    fn a_recording_that_is_too_short_is_not_taken() {
        assert!(is_about(24_000_000, 24_000_000));
        assert!(!is_about(12_900_000, 24_000_000));
        assert!(!is_about(40_000_000, 24_000_000));
        assert_eq!(scaled(100, 50, 10).expect("small numbers"), 500);
    }
}
