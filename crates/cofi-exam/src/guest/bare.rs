//! Programs on bare metal that trace themselves: what Cofi decodes of the packets that they send is what the machine says that it ran.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::super::build::tool;
use super::super::machine::address;
use super::Exam;

/// Where the loader puts a program.
const PROGRAM: &str = "0x8000";

/// A program that has been built: its code, and the kernel that loads it.
pub(super) struct Program {
    code: PathBuf,
    kernel: PathBuf,
    name: String,
}

/// What came of a run.
pub(super) struct Run {
    /// Files with the packets that were sent, in their order.
    pub(super) traces: Vec<PathBuf>,
    /// The instructions that ran while PacketEn was 1.
    pub(super) ran: Vec<u64>,
}

/// The traces of `rtit.S` in their order: how each was configured, as far as no packet says so.
const OF_RTIT: [(&str, &[&str]); 3] = [
    ("all", &[]),
    (
        "an application",
        &["--cr3-filter", "--ip-filter", "0x9200-0x92ff"],
    ),
    (
        "a driver",
        &[
            "--cycle-accurate",
            "--ip-filter",
            "0x9000-0x90ff",
            "--trace-stop",
            "0x9100-0x91ff",
        ],
    ),
];

impl Exam {
    /// Builds `exam/guest/NAME.S`, with these definitions.
    pub(super) fn program(&self, name: &str, definitions: &[&str]) -> Result<Program> {
        let sources = self.root.join("exam/guest");
        let folder = self.path(name);
        fs::create_dir_all(&folder)?;
        let assemble = |source: &str, format: &str, object: &str| {
            tool(
                Command::new("gcc")
                    .args([format, "-c", "-I"])
                    .arg(&sources)
                    .args(definitions)
                    .arg(sources.join(source))
                    .args(["-o", object])
                    .current_dir(&folder),
            )
        };
        let link = |object: &str, format: &str, at: &str, program: &str| {
            tool(
                Command::new("ld")
                    .args(["-m", format, "-N", "--no-warn-rwx-segments", "-e", at])
                    .args(["-Ttext", at, "-o", program, object])
                    .current_dir(&folder),
            )
        };
        assemble(&format!("{name}.S"), "-m64", "program.o")?;
        link("program.o", "elf_x86_64", PROGRAM, "program.elf")?;
        tool(
            Command::new("objcopy")
                .args(["-O", "binary", "program.elf", "program.bin"])
                .current_dir(&folder),
        )?;
        assemble("loader.S", "-m32", "loader.o")?;
        link("loader.o", "elf_i386", "0x100000", "kernel.elf")?;
        Ok(Program {
            code: folder.join("program.bin"),
            kernel: folder.join("kernel.elf"),
            name: name.to_owned(),
        })
    }

    /// Runs a program on a machine with these options, and QEMU's.
    pub(super) fn run_bare(
        &self,
        program: &Program,
        options: &[&str],
        qemu: &[&str],
    ) -> Result<Run> {
        let list = format!("{}.list", program.name);
        let sent = self.path(&format!("{}.out", program.name));
        let output = self
            .machine(&[&["--verbose", "--list", &list], options].concat())
            .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"])
            .args(qemu)
            .arg("-debugcon")
            .arg(format!("file:{}", sent.display()))
            .arg("-kernel")
            .arg(&program.kernel)
            .output()
            .context("running cofi machine")?;
        let words = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(1)
                && words.contains(" 0 lost,")
                && words.trim_end().ends_with(" 0 unexplained"),
            "the machine ended with {}: {words}",
            output.status
        );
        let bytes = fs::read(&sent).context("reading what it sent")?;
        let mut traces = Vec::new();
        for (number, packets) in parts(&bytes)?.into_iter().enumerate() {
            let path = self.path(&format!("{}.{number}", program.name));
            fs::write(&path, packets)?;
            traces.push(path);
        }
        let list = fs::read(self.path(&list).join("cpu0.ips"))?;
        let ran = list.chunks_exact(8);
        let ran = ran.map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        Ok(Run {
            traces,
            ran: ran.collect(),
        })
    }

    /// The instructions that Cofi decodes of a program's trace.
    pub(super) fn decoded_bare(
        &self,
        program: &Program,
        trace: &PathBuf,
        options: &[&str],
    ) -> Result<Vec<u64>> {
        let text = tool(
            Command::new(&self.cofi)
                .args(["insn", "--json"])
                .args(options)
                .arg("--raw")
                .arg(format!("{}:{PROGRAM}", program.code.display()))
                .arg(trace),
        )?;
        let mut insns = Vec::new();
        for line in String::from_utf8_lossy(&text).lines() {
            insns.extend(address(line)?);
        }
        Ok(insns)
    }

    /// RTIT, programmed as its reference's examples have it.
    pub(super) fn rtit(&self) -> Result<String> {
        let program = self.program("rtit", &[])?;
        let mut counts = Vec::new();
        for choices in [
            "pgd_on_disable=0",
            "lines=reordered,seed=3,psb_effect_delay=4",
        ] {
            let options = ["--processor", "silvermont", "--unit-option", choices];
            let run = self.run_bare(&program, &options, &[])?;
            ensure!(
                run.traces.len() == OF_RTIT.len(),
                "{} traces",
                run.traces.len()
            );
            let mut rest = &run.ran[..];
            counts.clear();
            for (trace, (name, options)) in run.traces.iter().zip(OF_RTIT) {
                let options = [&["--format", "rtit", "--mode", "32"], options].concat();
                let insns = self
                    .decoded_bare(&program, trace, &options)
                    .with_context(|| name.to_owned())?;
                ensure!(!insns.is_empty(), "{name}: nothing was traced");
                rest = same_begin(&insns, rest).with_context(|| name.to_owned())?;
                counts.push(insns.len());
            }
            ensure!(
                rest.is_empty(),
                "{} instructions more ran than are in the traces",
                rest.len()
            );
        }
        Ok(format!("{counts:?} instructions as the machine ran them"))
    }
}

/// A machine whose time is that of instructions: QEMU's arguments.
const OF_INSTRUCTIONS: [&str; 4] = ["-icount", "shift=0,sleep=off", "-rtc", "clock=vm"];

/// How many SMIs there are in `modes.S`, and what its first HLT and its two MWAITs make of Power Event Trace. What follows are HLTs.
const SMIS: usize = 3;
const WAITS: [&str; 8] = [
    "pwre hw=0 state=C1 sub_state=0",
    "pwrx last=C1",
    "mwait hints=0 ",
    "pwre hw=0 state=C1 sub_state=0",
    "pwrx last=C1",
    "mwait hints=17 ",
    "pwre hw=0 state=C2 sub_state=1",
    "pwrx last=C2",
];

/// Machines on which `modes.S` runs: options of `cofi machine`, and definitions. (Where payloads leave out the base of CS, nobody knows it: there
/// segments begin at 0.)
const OF_MODES: [(&[&str], [&str; 2]); 3] = [
    (
        &["--processor", "skylake"],
        ["-DBASE=0", "-DCONFIGURATION=TSC_EN"],
    ),
    (
        &["--processor", "gracemont"],
        [
            "-DBASE=0x8000",
            "-DCONFIGURATION=(TSC_EN|CYC_EN|MTC_EN|EVENT_EN|PWR_EVT_EN)",
        ],
    ),
    (
        &[
            "--processor",
            "alder-lake",
            "--caps",
            "lip=1",
            "--unit-option",
            "tnt=both,deferred_tips=1,ip_compression=against-zero",
        ],
        ["-DBASE=0x8000", "-DCONFIGURATION=DIS_RETC"],
    ),
];

impl Exam {
    /// Through all modes, with SMIs and sleep.
    pub(super) fn modes(&self) -> Result<String> {
        let mut counts = Vec::new();
        for (options, definitions) in OF_MODES {
            let program = self.program("modes", &definitions)?;
            let run = self.run_bare(&program, options, &[])?;
            let [trace] = &run.traces[..] else {
                bail!("{} traces", run.traces.len());
            };
            let insns = self.decoded_bare(&program, trace, &["--format", "pt"])?;
            let rest = same_begin(&insns, &run.ran).with_context(|| options.join(" "))?;
            ensure!(
                rest.is_empty(),
                "{} instructions more ran than are in the trace",
                rest.len()
            );
            let packets = Command::new(&self.cofi)
                .args(["dump", "--format", "pt"])
                .arg(trace)
                .output()?;
            let packets = String::from_utf8_lossy(&packets.stdout);
            for mode in ["mode.exec 16", "mode.exec 32", "mode.exec 64"] {
                ensure!(packets.contains(mode), "no packet tells {mode}");
            }
            let ends = packets.matches("tip.pgd").count();
            ensure!(ends == SMIS + 1, "tracing ended {ends} times");
            if definitions.iter().any(|word| word.contains("PWR_EVT_EN")) {
                let waits: Vec<&str> = packets
                    .lines()
                    .filter_map(|line| WAITS.into_iter().find(|word| line.contains(word)))
                    .collect();
                let rest = waits.strip_prefix(&WAITS);
                ensure!(
                    rest.is_some_and(
                        |rest| !rest.is_empty() && rest.chunks(2).all(|pair| *pair == WAITS[..2])
                    ),
                    "the packets of waiting are {waits:?}"
                );
            }
            counts.push(insns.len());
        }
        Ok(format!("{counts:?} instructions as the machine ran them"))
    }

    /// A PSB+ was due at an instruction that waits: it comes when the processor wakes, before anything else.
    fn has_psb_behind_a_wait(&self, trace: &PathBuf) -> Result<()> {
        let packets = tool(
            Command::new(&self.cofi)
                .args(["dump", "--format", "pt", "--filter", "pwrx,psb,fup,tip*"])
                .arg(trace),
        )?;
        let packets = String::from_utf8_lossy(&packets);
        let kinds = packets
            .lines()
            .filter_map(|line| line.split_whitespace().nth(1));
        let kinds: Vec<&str> = kinds.collect();
        let is_there = kinds.windows(2).any(|pair| pair == ["pwrx", "psb"]);
        ensure!(is_there, "no PSB+ was due at any of the waits");
        Ok(())
    }

    /// With a clock of instructions, two runs send the same packets.
    pub(super) fn clock(&self) -> Result<String> {
        let mut count = 0;
        let [_, (_, of_modes), _] = OF_MODES;
        let programs: [(_, _, &[&str]); 2] =
            [("rtit", "airmont", &[]), ("modes", "gracemont", &of_modes)];
        for (name, processor, definitions) in programs {
            let program = self.program(name, definitions)?;
            let options = ["--processor", processor, "--clock", "virtual"];
            let run = || -> Result<Vec<Vec<u8>>> {
                let run = self.run_bare(&program, &options, &OF_INSTRUCTIONS)?;
                if let (false, [trace]) = (definitions.is_empty(), &run.traces[..]) {
                    let insns = self.decoded_bare(&program, trace, &["--format", "pt"])?;
                    let rest = same_begin(&insns, &run.ran).context(name)?;
                    ensure!(
                        rest.is_empty(),
                        "{name}: {} instructions more ran",
                        rest.len()
                    );
                    self.has_psb_behind_a_wait(trace)?;
                }
                let traces = run.traces.iter().map(fs::read);
                Ok(traces.collect::<Result<_, _>>()?)
            };
            let (first, second) = (run()?, run()?);
            ensure!(
                first == second && !first.is_empty(),
                "{name}: the packets of two runs differ"
            );
            count += first.iter().map(Vec::len).sum::<usize>();
        }
        Ok(format!("{count} bytes of packets, the same in two runs"))
    }
}

/// Blocks of bytes, each behind its length in four bytes.
fn parts(mut bytes: &[u8]) -> Result<Vec<&[u8]>> {
    let mut parts = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let len = u32::from_le_bytes(*len) as usize;
        let (part, rest) = rest.split_at_checked(len).context("it was cut off")?;
        parts.push(part);
        bytes = rest;
    }
    ensure!(bytes.is_empty(), "it ends within a length");
    Ok(parts)
}

/// What is behind these instructions in a list that begins with them.
pub(super) fn same_begin<'l>(insns: &[u64], list: &'l [u64]) -> Result<&'l [u64]> {
    let pairs = insns.iter().zip(list);
    let same = pairs.take_while(|(decoded, ran)| decoded == ran).count();
    ensure!(
        same == insns.len(),
        "instruction {same} of {} is {:x?} and was {:x?}, after {:x?}",
        insns.len(),
        insns.get(same),
        list.get(same),
        &insns[same.saturating_sub(3)..same]
    );
    Ok(&list[same..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_their_lengths_before_them() {
        let sent = [2, 0, 0, 0, 7, 8, 0, 0, 0, 0];
        assert_eq!(parts(&sent).expect("two"), [&[7, 8][..], &[]]);
        assert!(parts(&sent[..5]).is_err() && parts(&sent[..8]).is_err());
    }

    #[test]
    fn a_list_goes_on_behind_what_was_decoded() {
        assert_eq!(same_begin(&[1, 2], &[1, 2, 3]).expect("the same"), [3]);
        assert!(same_begin(&[1, 4], &[1, 2, 3]).is_err());
        assert!(same_begin(&[1, 2, 3], &[1, 2]).is_err());
    }
}
