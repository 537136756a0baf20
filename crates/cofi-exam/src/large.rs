//! `cargo xtask exam large`: programs that people run, of ten to a hundred million instructions, through QEMU.
//!
//! The recorder compares its own list with the decoded flow (`--verify`); perf's samples of the same file, one every so many
//! instructions, must be the instructions that Cofi's list has in those places.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::Examined;

use super::build;

/// A sample is taken every so many instructions.
const PERIOD: usize = 10_000;

/// A program: what it needs, and its command line, for a shell in the exam's folder.
struct Program {
    name: &'static str,
    /// The programs that must be there.
    needs: &'static str,
    /// Run before, unrecorded.
    before: &'static str,
    line: &'static str,
    /// At least so many threads and processes.
    threads: usize,
}

const PROGRAMS: [Program; 6] = [
    Program {
        name: "gzip -9",
        needs: "/usr/bin/gzip",
        before: "",
        line: "/usr/bin/gzip -9 -c text",
        threads: 1,
    },
    Program {
        name: "gzip -d",
        needs: "/usr/bin/gzip",
        before: "gzip -kf text",
        line: "/usr/bin/gzip -dc text.gz",
        threads: 1,
    },
    Program {
        name: "perl",
        needs: "/usr/bin/perl",
        before: "",
        line: "/usr/bin/perl -e 'for (1..20000) { $h{$_ % 977} .= chr(65 + $_ % 26) } print length(join q(), sort values %h), qq(\\n)'",
        threads: 1,
    },
    Program {
        name: "python3",
        needs: "/usr/bin/python3",
        before: "",
        line: "/usr/bin/python3 -I -S -c 'print(sum(i * i % 7 for i in range(20000)))'",
        threads: 1,
    },
    Program {
        name: "sqlite3",
        needs: "/usr/bin/sqlite3",
        before: "",
        line: "/usr/bin/sqlite3 :memory: 'with recursive c(x) as (select 1 union all select x + 1 from c where x < 8000) select sum(x * x % 11) from c'",
        threads: 1,
    },
    Program {
        name: "gcc -c",
        needs: "/usr/bin/gcc",
        before: "",
        line: "/usr/bin/gcc -O1 -c program.c -o program.o",
        threads: 3,
    },
];

/// What `gcc` compiles.
const SOURCE: &str = "static int f(int n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\nint main(void) { return f(20) & 1; }\n";

/// Runs the part and returns whether everything held.
pub(super) fn run(root: &Path, cofi: &Examined) -> Result<bool> {
    let cofi = cofi.path(root)?;
    let started = Instant::now();
    let folder = std::env::temp_dir().join(format!("cofi-large-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let exam = Exam {
        cofi,
        folder: folder.canonicalize()?,
    };
    fs::write(exam.folder.join("text"), build::text(40_000))?;
    fs::write(exam.folder.join("program.c"), SOURCE)?;
    let (mut bad, mut sat) = (0, 0);
    for program in &PROGRAMS {
        if !Path::new(program.needs).exists() {
            println!(
                "{:<10} not examined: there is no {}",
                program.name, program.needs
            );
            continue;
        }
        sat += 1;
        match exam.sit(program) {
            Ok(words) => println!("{:<10} {words}", program.name),
            Err(error) => {
                bad += 1;
                println!("{:<10} FAILED: {error:#}", program.name);
            }
        }
    }
    // What cannot be removed lies in the folder for temporary files anyway.
    let _ = fs::remove_dir_all(&folder);
    println!(
        "exam of large programs: {sat} recorded, {bad} failed, {:.0} s",
        started.elapsed().as_secs_f64()
    );
    ensure!(sat > 0, "none of the programs is there");
    Ok(bad == 0)
}

/// Samples by thread.
type Samples = BTreeMap<u32, Vec<u64>>;

struct Exam {
    cofi: PathBuf,
    folder: PathBuf,
}

impl Exam {
    /// A command in the exam's folder that is ended if it hangs.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", "300"])
            .arg(program)
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        command
    }

    fn sit(&self, program: &Program) -> Result<String> {
        if !program.before.is_empty() {
            let status = self
                .command(Path::new("sh"))
                .args(["-c", program.before])
                .status()?;
            ensure!(status.success(), "{} ended with {status}", program.before);
        }
        let alone = self
            .command(Path::new("sh"))
            .args(["-c", program.line])
            .output()?;
        ensure!(
            alone.status.success(),
            "{} ended with {}",
            program.line,
            alone.status
        );
        // The shell executes the program in its own place.
        let line = format!("exec {}", program.line);
        let recorded = self
            .command(&self.cofi)
            .args([
                "record",
                "--engine",
                "qemu",
                "--verify",
                "-o",
                "large.data",
                "--",
            ])
            .args(["sh", "-c", &line])
            .output()?;
        let words = String::from_utf8_lossy(&recorded.stderr);
        ensure!(
            recorded.status.success(),
            "cofi record ended with {}: {words}",
            recorded.status
        );
        ensure!(
            recorded.stdout == alone.stdout,
            "it prints something else than alone"
        );
        let verified = words
            .lines()
            .find_map(|line| line.strip_prefix("cofi: verified: "))
            .with_context(|| format!("nothing was verified: {words}"))?
            .to_owned();
        let (mine, instructions) = self.by_cofi()?;
        let perfs = self.by_perf()?;
        let threads = instructions.len();
        ensure!(
            threads >= program.threads,
            "{threads} threads only: {verified}"
        );
        let mut compared = 0;
        for (tid, mine) in &mine {
            let perfs = perfs.get(tid).map_or(&[][..], Vec::as_slice);
            if let Some(place) =
                (0..mine.len().max(perfs.len())).find(|&i| mine.get(i) != perfs.get(i))
            {
                bail!(
                    "thread {tid}, instruction {}: Cofi has {:x?}, perf {:x?}",
                    (place + 1) * PERIOD,
                    mine.get(place),
                    perfs.get(place)
                );
            }
            compared += mine.len();
        }
        let strange = perfs.keys().find(|tid| !mine.contains_key(tid));
        ensure!(strange.is_none(), "perf has a thread {strange:?}");
        ensure!(compared > 50, "{compared} samples only");
        Ok(format!(
            "verified: {verified}; {compared} of perf's samples agree"
        ))
    }

    /// Every so manieth instruction of each thread, and how many each has.
    fn by_cofi(&self) -> Result<(Samples, BTreeMap<u32, usize>)> {
        let mut child = self
            .command(&self.cofi)
            .args(["insn", "--json", "large.data"])
            .stdout(Stdio::piped())
            .spawn()
            .context("running cofi insn")?;
        let mut reader =
            BufReader::with_capacity(1 << 16, child.stdout.take().context("no output")?);
        let (mut samples, mut counts) = (Samples::new(), BTreeMap::<u32, usize>::new());
        let mut line = String::new();
        while reader.read_line(&mut line)? > 0 {
            if line.contains("\"error\":") {
                bail!("cofi insn tells of an error: {line}");
            }
            if let Some((address, rest)) = line
                .strip_prefix("{\"insn\":\"0x")
                .and_then(|rest| rest.split_once('"'))
            {
                let tid = rest
                    .trim_matches(|c: char| !c.is_ascii_digit())
                    .parse()
                    .unwrap_or(0);
                let count = counts.entry(tid).or_default();
                *count += 1;
                if count.is_multiple_of(PERIOD) {
                    let address = u64::from_str_radix(address, 16)?;
                    samples.entry(tid).or_default().push(address);
                }
            }
            line.clear();
        }
        let status = child.wait()?;
        ensure!(status.success(), "cofi insn ended with {status}");
        Ok((samples, counts))
    }

    fn by_perf(&self) -> Result<Samples> {
        let output = self
            .command(Path::new("perf"))
            .args(["script", "-i", "large.data", "-F", "tid,ip"])
            .arg(format!("--itrace=i{PERIOD}ie"))
            .output()
            .context("running perf script")?;
        ensure!(
            output.status.success(),
            "perf script ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        let mut samples = Samples::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let mut words = line.split_whitespace();
            match (words.next(), words.next(), words.next()) {
                (None, ..) => {}
                (Some(tid), Some(ip), None) => samples
                    .entry(tid.parse().with_context(|| format!("no thread: {line}"))?)
                    .or_default()
                    .push(
                        u64::from_str_radix(ip, 16)
                            .with_context(|| format!("no address: {line}"))?,
                    ),
                _ => bail!("perf says: {line}"),
            }
        }
        Ok(samples)
    }
}
