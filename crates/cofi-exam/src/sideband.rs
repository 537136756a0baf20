//! What stood where and when, for a decoder that must be told: read from perf's own listing of the records, so that
//! nothing of Cofi takes part.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// How perf's nanoseconds follow from the timestamp counter, and what the trace's clocks are related by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Clocks {
    shift: u32,
    mult: u64,
    zero: u64,
    /// Timestamp ticks per tick of the core crystal clock, as a fraction.
    ratio: (u64, u64),
    mtc_freq: u64,
}

/// One change of an address space.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Map {
        pid: u32,
        nanoseconds: u64,
        address: u64,
        len: u64,
        offset: u64,
        path: String,
    },
    Exec {
        pid: u32,
        nanoseconds: u64,
    },
}

/// The arguments for `ptinsn` after its stream, to decode thread `tid` of `recording`.
pub fn ptinsn_arguments(recording: &Path, tid: u32, vdso: &Path) -> Result<Vec<String>> {
    let clocks = clocks(recording)?;
    let output = Command::new("perf")
        .args([
            "script",
            "-f",
            "--no-itrace",
            "--ns",
            "--show-mmap-events",
            "--show-task-events",
            "-F",
            // perf refuses to print times that are not there.
            if clocks.is_some() {
                "comm,tid,time"
            } else {
                "comm,tid"
            },
        ])
        .arg("-i")
        .arg(recording)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .context("running perf script")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let changes: Vec<Change> = text.lines().filter_map(change).collect();
    let pid = text
        .lines()
        .find_map(|line| pid_of(line, tid))
        .with_context(|| format!("perf lists no mapping of thread {tid}"))?;
    arguments(&changes, pid, clocks, vdso)
}

fn arguments(
    changes: &[Change],
    pid: u32,
    clocks: Option<Clocks>,
    vdso: &Path,
) -> Result<Vec<String>> {
    let mut out = Vec::new();
    if let Some(clocks) = clocks {
        out.push("--cpuid-15".to_owned());
        out.push(format!("{},{}", clocks.ratio.1, clocks.ratio.0));
        out.push("--mtc-freq".to_owned());
        out.push(clocks.mtc_freq.to_string());
    }
    let ticks = |nanoseconds: u64| {
        clocks.map_or(0, |c| {
            let wide = u128::from(nanoseconds.wrapping_sub(c.zero)) << c.shift;
            (wide / u128::from(c.mult.max(1))) as u64
        })
    };
    let mut now = 0;
    let mut at = |out: &mut Vec<String>, nanoseconds: u64| {
        let time = ticks(nanoseconds);
        if time > now {
            now = time;
            out.push("--at".to_owned());
            out.push(time.to_string());
        }
    };
    for change in changes {
        match change {
            Change::Map {
                pid: whose,
                nanoseconds,
                address,
                len,
                offset,
                path,
            } if *whose == pid => {
                let path = if path == "[vdso]" {
                    vdso.display().to_string()
                } else {
                    path.clone()
                };
                let known = Path::new(&path).is_file();
                if path.starts_with('[') || path.starts_with("//") || !known {
                    continue;
                }
                at(&mut out, *nanoseconds);
                out.push(format!("{path}:{offset:#x}:{len:#x}:{address:#x}"));
            }
            Change::Exec {
                pid: whose,
                nanoseconds,
            } if *whose == pid && *nanoseconds > 0 => {
                at(&mut out, *nanoseconds);
                out.push("--clear".to_owned());
            }
            _ => {}
        }
    }
    Ok(out)
}

/// The process that the record in this line of perf's makes thread `tid` belong to.
fn pid_of(line: &str, tid: u32) -> Option<u32> {
    let (_, rest) = line.split_once("PERF_RECORD_MMAP2 ")?;
    let (pid, rest) = rest.split_once('/')?;
    let (whose, _) = rest.split_once(':')?;
    (whose.trim().parse() == Ok(tid))
        .then(|| pid.trim().parse().ok())
        .flatten()
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Reads one line of `perf script --show-mmap-events --show-task-events`.
fn change(line: &str) -> Option<Change> {
    let (head, record) = line.split_once("PERF_RECORD_")?;
    let nanoseconds = head
        .split_whitespace()
        .rev()
        .find_map(|word| {
            let (seconds, fraction) = word.strip_suffix(':')?.split_once('.')?;
            Some(seconds.parse::<u64>().ok()? * 1_000_000_000 + fraction.parse::<u64>().ok()?)
        })
        .unwrap_or(0);
    if let Some(rest) = record.strip_prefix("MMAP2 ") {
        let (pid, rest) = rest.split_once('/')?;
        let (_, rest) = rest.split_once('[')?;
        let (address, rest) = rest.split_once('(')?;
        let (len, rest) = rest.split_once(") @ ")?;
        let (offset, rest) = rest.split_once(' ')?;
        let (_, rest) = rest.split_once("]: ")?;
        let (protection, path) = rest.split_once(' ')?;
        if !protection.contains('x') {
            return None;
        }
        return Some(Change::Map {
            pid: pid.trim().parse().ok()?,
            nanoseconds,
            address: number(address)?,
            len: number(len)?,
            offset: number(offset)?,
            path: path.to_owned(),
        });
    }
    if let Some(rest) = record.strip_prefix("COMM exec: ") {
        let (_, ids) = rest.rsplit_once(':')?;
        let (pid, _) = ids.split_once('/')?;
        return Some(Change::Exec {
            pid: pid.trim().parse().ok()?,
            nanoseconds,
        });
    }
    None
}

/// The clocks as the head of perf's raw dump tells them; none in a trace without time.
fn clocks(recording: &Path) -> Result<Option<Clocks>> {
    let mut perf = Command::new("perf")
        .args(["script", "-f", "-D", "-i"])
        .arg(recording)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("running perf script -D")?;
    let stdout = perf.stdout.take().context("perf's output")?;
    let mut block = Vec::new();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        if line.contains("PERF_RECORD_AUXTRACE_INFO") || !block.is_empty() {
            if !block.is_empty() && line.contains("PERF_RECORD_") {
                break;
            }
            block.push(line);
        }
    }
    // Whether perf saw the closed pipe is of no interest.
    let _ = perf.kill();
    let _ = perf.wait();
    if block.is_empty() {
        bail!("perf finds no AUXTRACE_INFO in {}", recording.display());
    }
    let evlist = Command::new("perf")
        .args(["evlist", "-v", "-f", "-i"])
        .arg(recording)
        .output()
        .context("running perf evlist")?;
    Ok(read_clocks(
        &block,
        &String::from_utf8_lossy(&evlist.stdout),
    ))
}

fn read_clocks(block: &[String], evlist: &str) -> Option<Clocks> {
    let field = |name: &str| {
        block.iter().find_map(|line| {
            let rest = line.trim().strip_prefix(name)?;
            number(rest.trim())
        })
    };
    let config = evlist
        .lines()
        .find(|line| line.contains("intel_pt"))
        .and_then(|line| line.split_once("config: "))
        .and_then(|(_, rest)| number(rest.split(',').next()?.trim()))
        .unwrap_or(0);
    let tsc_bit = field("TSC bit")?;
    if config & tsc_bit == 0 {
        return None;
    }
    Some(Clocks {
        shift: u32::try_from(field("Time Shift")?)
            .ok()
            .filter(|s| *s < 64)?,
        // Spelt by perf like this.
        mult: field("Time Muliplier").or_else(|| field("Time Multiplier"))?,
        zero: field("Time Zero").unwrap_or(0),
        ratio: (
            field("TSC:CTC numerator").unwrap_or(0),
            field("TSC:CTC denominator").unwrap_or(0),
        ),
        mtc_freq: config >> 14 & 0xf,
    })
}

/// Writes this process's vDSO into a file: every 64-bit process of a running kernel has the same one.
pub fn dump_vdso(to: &Path) -> Result<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").context("reading /proc/self/maps")?;
    let line = maps
        .lines()
        .find(|line| line.ends_with("[vdso]"))
        .context("this process has no vDSO")?;
    let (start, rest) = line.split_once('-').context("a mapping without a range")?;
    let (end, _) = rest.split_once(' ').context("a mapping without an end")?;
    let (start, end) = (
        u64::from_str_radix(start, 16)?,
        u64::from_str_radix(end, 16)?,
    );
    let mut memory = File::open("/proc/self/mem").context("opening /proc/self/mem")?;
    memory.seek(SeekFrom::Start(start))?;
    let mut bytes = vec![0; usize::try_from(end - start)?];
    memory.read_exact(&mut bytes).context("reading the vDSO")?;
    fs::write(to, bytes).with_context(|| format!("writing {}", to.display()))?;
    Ok(to.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MMAP: &str = "static  4242 [000]     1.000000500: PERF_RECORD_MMAP2 4242/4242: [0x401000(0x95000) @ 0x1000 08:01 77 0]: r-xp /tmp/a b/static";

    #[test]
    fn a_mapping_is_read_with_its_time() {
        let expected = Change::Map {
            pid: 4242,
            nanoseconds: 1_000_000_500,
            address: 0x40_1000,
            len: 0x9_5000,
            offset: 0x1000,
            path: "/tmp/a b/static".to_owned(),
        };
        assert_eq!(change(MMAP), Some(expected));
        assert_eq!(pid_of(MMAP, 4242), Some(4242));
        assert_eq!(pid_of(MMAP, 1), None);
    }

    #[test]
    fn an_exec_is_told_from_a_mere_new_name() {
        let exec = "x 7 [000] 0.000000009: PERF_RECORD_COMM exec: ls:7/7";
        assert_eq!(
            change(exec),
            Some(Change::Exec {
                pid: 7,
                nanoseconds: 9
            })
        );
        assert_eq!(
            change("x 7 [000] 0.000000009: PERF_RECORD_COMM: ls:7/7"),
            None
        );
    }

    #[test]
    fn clocks_come_from_perf_s_words() {
        let block: Vec<String> = [
            "  TSC bit              0x400",
            "  Time Shift           31",
            "  Time Muliplier       1073741824",
            "  Time Zero            0",
            "  TSC:CTC numerator    80",
            "  TSC:CTC denominator  1",
        ]
        .map(str::to_owned)
        .to_vec();
        let evlist = "intel_pt//u: type: 8, size: 128, config: 0xe601, { sample_period }: 1\ndummy:u: config: 0x9";
        let clocks = read_clocks(&block, evlist).expect("a timed trace");
        assert_eq!(
            clocks,
            Clocks {
                shift: 31,
                mult: 1 << 30,
                zero: 0,
                ratio: (80, 1),
                mtc_freq: 3
            }
        );
        assert_eq!(read_clocks(&block, "intel_pt//u: config: 0x2001, {"), None);
    }

    #[test]
    fn changes_of_others_do_not_count_and_times_turn_into_ticks() {
        let map = |pid, nanoseconds| Change::Map {
            pid,
            nanoseconds,
            address: 0x1000,
            len: 0x1000,
            offset: 0,
            path: "/proc/self/exe".to_owned(),
        };
        let changes = [
            map(1, 0),
            map(2, 5),
            Change::Exec {
                pid: 1,
                nanoseconds: 10,
            },
            map(1, 10),
        ];
        let clocks = Clocks {
            shift: 31,
            mult: 1 << 30,
            zero: 0,
            ratio: (80, 1),
            mtc_freq: 3,
        };
        let arguments =
            arguments(&changes, 1, Some(clocks), Path::new("/none")).expect("known files");
        let section = "/proc/self/exe:0x0:0x1000:0x1000";
        assert_eq!(
            arguments,
            [
                "--cpuid-15",
                "1,80",
                "--mtc-freq",
                "3",
                section,
                "--at",
                "20",
                "--clear",
                section
            ]
        );
    }
}
