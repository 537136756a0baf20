//! One program in one configuration: recorded, decoded by everybody, compared.

use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::compare::{Verdict, compare};
use super::flows::{self, Flows};
use super::programs::{Config, Peer, Program};
use super::rtit;
use super::sideband;

/// Seconds after which a recording or a decoder is taken to hang.
const PATIENCE: &str = "240";

/// The decoders at hand.
pub(crate) struct Tools {
    /// The command under examination.
    pub(crate) cofi: PathBuf,
    /// Whether there is a perf, or why not.
    pub(crate) perf: Result<String, String>,
    /// The decoder on libipt, or why there is none.
    pub(crate) ptinsn: Result<PathBuf, String>,
    /// A file with the vDSO of this kernel.
    pub(crate) vdso: PathBuf,
}

/// What a program does without anybody watching.
#[derive(Debug)]
pub(crate) struct Native {
    status: i32,
    stdout: Vec<u8>,
}

/// The row of the table.
#[derive(Debug)]
pub(crate) struct Row {
    /// The program's name.
    pub(crate) program: &'static str,
    /// The configuration's name.
    pub(crate) config: &'static str,
    /// Whether the trace is RTIT's.
    pub(crate) is_rtit: bool,
    /// How many instructions ran, in all threads.
    pub(crate) instructions: usize,
    /// How many threads (processes included).
    pub(crate) threads: usize,
    /// The packet bytes of the first thread.
    pub(crate) bytes: u64,
    /// How long the recording took.
    pub(crate) seconds: f64,
    /// Recording, and the comparison `--verify` makes: empty when good.
    pub(crate) record: Verdict,
    /// Cofi's decoder.
    pub(crate) cofi: Verdict,
    /// perf's.
    pub(crate) perf: Verdict,
    /// libipt's.
    pub(crate) libipt: Verdict,
    /// Why a difference is not counted as a failure, and whose it is.
    pub(crate) excused: Vec<(Peer, &'static str)>,
}

impl Row {
    /// Whether every comparison that was made held, known quirks aside.
    pub(crate) fn good(&self) -> bool {
        let excused = |peer| self.excused.iter().any(|(p, _)| *p == peer);
        let held = |verdict: &Verdict| !matches!(verdict, Verdict::Differs(_));
        held(&self.record)
            && held(&self.cofi)
            && (held(&self.perf) || excused(Peer::Perf))
            && (held(&self.libipt) || excused(Peer::Libipt))
    }
}

/// The status a shell would give.
fn status_number(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// A command that ends in finite time.
pub(crate) fn patient(program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["-k", "5", PATIENCE])
        .arg(program)
        .stdin(Stdio::null())
        .env("LC_ALL", "C")
        .env("TZ", "UTC");
    command
}

/// Runs the program unobserved.
pub(crate) fn native(path: &Path, arguments: &[String]) -> Result<Native> {
    let output = patient(path)
        .args(arguments)
        .output()
        .with_context(|| format!("running {}", path.display()))?;
    Ok(Native {
        status: status_number(output.status),
        stdout: output.stdout,
    })
}

/// Records, decodes, compares.
pub(crate) fn examine(
    tools: &Tools,
    program: &Program,
    path: &Path,
    arguments: &[String],
    native: &Native,
    config: &Config,
    folder: &Path,
) -> Result<Row> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let (data, raw, truth_file) = (
        folder.join("exam.data"),
        folder.join("raw.pt"),
        folder.join("truth"),
    );
    let started = Instant::now();
    let mut command = patient(&tools.cofi);
    command.args(["record", "--engine", config.engine, "--verify"]);
    if let Some(value) = config.value {
        command.args(["--config", value]);
    }
    command
        .arg("-o")
        .arg(&data)
        .arg("--raw-output")
        .arg(&raw)
        .arg("--truth")
        .arg(&truth_file)
        .arg("--");
    let output = command
        .arg(path)
        .args(arguments)
        .output()
        .context("running cofi record")?;
    let seconds = started.elapsed().as_secs_f64();
    let record = judge_recording(
        native,
        status_number(output.status),
        &output.stdout,
        &output.stderr,
    );

    let mut row = Row {
        program: program.name,
        config: config.name,
        is_rtit: config.rtit.is_some(),
        instructions: 0,
        threads: 0,
        bytes: 0,
        seconds,
        record,
        cofi: Verdict::Skipped("there is no recording".to_owned()),
        perf: Verdict::Skipped("there is no recording".to_owned()),
        libipt: Verdict::Skipped("there is no recording".to_owned()),
        excused: Vec::new(),
    };
    let (truth, first) = match File::open(&truth_file).map(BufReader::new) {
        Ok(file) => flows::truth(file)?,
        Err(error) => {
            let words = String::from_utf8_lossy(&output.stderr);
            row.record = Verdict::Differs(format!(
                "cofi record left no truth ({error}): {}\n",
                words.trim()
            ));
            return Ok(row);
        }
    };
    row.instructions = truth.instructions();
    row.threads = truth.threads.len();
    row.bytes = fs::metadata(&raw).map_or(0, |m| m.len());

    row.cofi = compare(&truth, &by_cofi(&tools.cofi, &data)?);
    let alone = || {
        let mut alone = Flows::default();
        alone.threads.insert(first, truth.threads[&first].clone());
        alone
    };
    if let Some(cycles) = config.rtit {
        row.perf = Verdict::Skipped("perf cannot read RTIT".to_owned());
        let why = "the plain reader has the code of one file only";
        let why = program
            .not_for_plain
            .or((!program.has_all_code()).then_some(why));
        row.libipt = match why {
            Some(why) => Verdict::Skipped(why.to_owned()),
            None => compare(&alone(), &rtit::read(path, &raw, cycles)?),
        };
        return Ok(row);
    }
    row.perf = match &tools.perf {
        Ok(_) => compare(&truth, &by_perf(&data)?),
        Err(reason) => Verdict::Skipped(reason.clone()),
    };
    row.libipt = match &tools.ptinsn {
        Ok(ptinsn) => compare(
            &alone(),
            &by_libipt(ptinsn, &raw, &data, first, &tools.vdso)?,
        ),
        Err(reason) => Verdict::Skipped(reason.clone()),
    };
    row.excused = program
        .quirks
        .iter()
        .filter(|quirk| quirk.configs.is_empty() || quirk.configs.contains(&config.name))
        .map(|quirk| (quirk.peer, quirk.why))
        .collect();
    Ok(row)
}

/// Whether the program behaved under observation as it does without, and the recorder was content.
fn judge_recording(native: &Native, status: i32, stdout: &[u8], stderr: &[u8]) -> Verdict {
    if status == native.status && stdout == native.stdout {
        return Verdict::Exact(0);
    }
    let words = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.chars().take(1500).collect::<String>()
    };
    Verdict::Differs(format!(
        "status {status}, alone {}; standard output {}\nstandard error: {}\n",
        native.status,
        if stdout == native.stdout {
            "the same".to_owned()
        } else {
            format!("{:?}, alone {:?}", words(stdout), words(&native.stdout))
        },
        words(stderr).trim()
    ))
}

/// Runs a decoder and reads its output as it comes; its standard error goes into the file named.
pub(crate) fn listen<T>(
    mut command: Command,
    errors: &Path,
    read: impl FnOnce(BufReader<std::process::ChildStdout>) -> Result<T>,
) -> Result<(T, ExitStatus, String)> {
    let name = command
        .get_args()
        .nth(3)
        .map_or_else(String::new, |a| a.to_string_lossy().into_owned());
    let file = File::create(errors).with_context(|| format!("making {}", errors.display()))?;
    let mut child: Child = command
        .stdout(Stdio::piped())
        .stderr(file)
        .spawn()
        .with_context(|| format!("running {name}"))?;
    let Some(stdout) = child.stdout.take() else {
        bail!("{name} has no output")
    };
    let said = read(BufReader::with_capacity(1 << 20, stdout));
    let status = child
        .wait()
        .with_context(|| format!("waiting for {name}"))?;
    let mut words = String::new();
    // A message that is not UTF-8 is no message of ours.
    let _ = File::open(errors).and_then(|mut f| f.read_to_string(&mut words));
    Ok((said?, status, words))
}

/// Turns a bad exit status into an error of the list, if the list does not hold one already.
fn with_status(mut flows: Flows, status: ExitStatus, words: &str) -> Flows {
    if !status.success() && flows.errors == 0 {
        let line = words
            .lines()
            .find(|l| !l.trim().is_empty())
            .unwrap_or_default();
        flows.complain(&format!("exit status {}: {line}", status_number(status)));
    }
    flows
}

fn by_cofi(cofi: &Path, data: &Path) -> Result<Flows> {
    let mut command = patient(cofi);
    command.args(["insn", "--json"]).arg(data);
    let (flows, status, words) = listen(command, &data.with_extension("cofi.err"), flows::cofi)?;
    Ok(with_status(flows, status, &words))
}

fn by_perf(data: &Path) -> Result<Flows> {
    let mut command = patient(Path::new("perf"));
    command
        .args(["script", "-f", "--itrace=i1i", "-F", "tid,ip", "-i"])
        .arg(data);
    let (flows, status, words) = listen(command, &data.with_extension("perf.err"), flows::perf)?;
    Ok(with_status(flows, status, &words))
}

fn by_libipt(ptinsn: &Path, raw: &Path, data: &Path, tid: u32, vdso: &Path) -> Result<Flows> {
    let arguments = sideband::ptinsn_arguments(data, tid, vdso)?;
    let (options, sections) =
        arguments.split_at(if arguments.first().is_some_and(|a| a == "--cpuid-15") {
            4
        } else {
            0
        });
    let mut command = patient(ptinsn);
    command.args(options).arg(raw).args(sections);
    let (flows, status, words) =
        listen(command, &data.with_extension("libipt.err"), flows::ptinsn)?;
    Ok(with_status(flows, status, &words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_must_behave_as_alone() {
        let native = Native {
            status: 7,
            stdout: b"out".to_vec(),
        };
        assert_eq!(
            judge_recording(&native, 7, b"out", b"progress"),
            Verdict::Exact(0)
        );
        assert!(
            matches!(judge_recording(&native, 1, b"out", b"verify: ..."), Verdict::Differs(why) if why.starts_with("status 1, alone 7"))
        );
        assert!(matches!(
            judge_recording(&native, 7, b"ouch", b""),
            Verdict::Differs(_)
        ));
    }

    #[test]
    fn a_bad_status_is_an_error_even_with_a_right_list() {
        let status = ExitStatus::from_raw(1 << 8);
        let flows = with_status(Flows::default(), status, "\nptinsn: lost\n");
        assert_eq!(
            flows.first_error.as_deref(),
            Some("exit status 1: ptinsn: lost")
        );
    }
}
