//! Linux with Intel PT: its perf records and decodes, and Cofi decodes what it recorded.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

use super::super::build::tool;
use super::super::machine::archive;
use super::{Exam, gdb};

/// A recording that is made in the guest.
struct Wanted {
    name: &'static str,
    /// What perf is given before `-o`.
    perf: &'static str,
    /// What the work is given.
    work: &'static str,
    /// What the kernel ran is in it.
    kernel: bool,
    /// It begins with what the buffer held: what ran before is not in it.
    is_end: bool,
    /// Its one stream is the program's first thread's, which runs on processor 0.
    by_thread: bool,
}

const RECORDINGS: &[Wanted] = &[
    wanted("user", "-e intel_pt//u", false, false),
    wanted("cyc", "-e intel_pt/cyc,noretcomp/u", false, false),
    wanted("notime", "-e intel_pt/mtc=0,tsc=0/u", false, false),
    wanted("nobranch", "-e intel_pt/branch=0/u", false, false),
    wanted("hardware", COFI, false, false),
    Wanted {
        work: "20 in two processes",
        ..wanted("hardware-cyc", "cofi --config cyc,noretcomp", false, false)
    },
    wanted("hardware-all", "cofi --privilege all", true, false),
    wanted("hardware-os", "cofi --privilege os", true, false),
    wanted("hardware-wide", "cofi -a --privilege all", true, false),
    wanted("hardware-snapshot", "cofi --snapshot 32K", false, true),
    // (Options of Cofi that follow a program: it runs already.)
    wanted("hardware-attached", "cofi --duration 0.1 -p", false, false),
    wanted("hardware-filter", "cofi --filter FILTER", false, false),
    of_thread("hardware-thread", "cofi --per-thread"),
    wanted("filter", "-e intel_pt//u --filter FILTER", false, false),
    wanted("snapshot", "-Se -m,8 -e intel_pt//u", false, true),
    wanted("kernel", "--kcore -e intel_pt//", true, false),
    wanted("all", "--kcore -a -e intel_pt//", true, false),
    wanted(
        "all-cyc",
        "--kcore -a -e intel_pt/cyc,noretcomp/",
        true,
        false,
    ),
    wanted("all-kernel", "--kcore -a -e intel_pt//k", true, false),
];

/// Recorded by Cofi itself, with what follows as options.
const COFI: &str = "cofi";

/// Those of processors that have more ([`MOST`]).
const OF_MORE: &[Wanted] = &[
    Wanted {
        work: "20 tell",
        ..wanted("ptw", "-e intel_pt/ptw,fup_on_ptw/u", false, false)
    },
    wanted("notnt", "-e intel_pt/notnt/u", false, false),
    wanted("events", "-a --kcore -e intel_pt/event/", true, false),
    wanted("power", "-a --kcore -e intel_pt/pwr_evt/", true, false),
];
/// What takes Linux 6.13: a trace that pauses at an instruction.
const OF_NEWER: &[Wanted] = &[
    wanted("user", "-e intel_pt//u", false, false),
    wanted("kernel", "--kcore -e intel_pt//", true, false),
    wanted("hardware-all", "cofi --privilege all", true, false),
    of_thread("hardware-thread", "cofi --per-thread"),
    of_thread(
        "hardware-start",
        "cofi --per-thread --start-at sym:fibonacci",
    ),
    of_thread(
        "hardware-window",
        "cofi --per-thread --start-at sym:fibonacci --stop-at sym:by_value",
    ),
    wanted(
        "hardware-wide-window",
        "cofi -a --privilege all --start-at sym:do_sys_openat2 --stop-at sym:do_exit",
        true,
        false,
    ),
];

/// A machine to be booted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Boot {
    /// What it is called, also in its kernel's command line: by that the script knows what to do.
    pub(super) name: &'static str,
    processors: u32,
    processor: &'static str,
    /// A kernel of 6.13 or later.
    pub(super) is_newer: bool,
}

pub(super) const BOOTS: &[Boot] = &[
    Boot {
        name: "linux1",
        processors: 1,
        processor: "skylake",
        is_newer: false,
    },
    Boot {
        name: "linux2",
        processors: 2,
        processor: MOST,
        is_newer: false,
    },
    Boot {
        name: "newer",
        processors: 2,
        processor: "skylake",
        is_newer: true,
    },
];

impl Boot {
    /// In words.
    pub(super) fn title(&self) -> String {
        let newer = if self.is_newer { ", newer kernel" } else { "" };
        format!("{} processor(s){newer}", self.processors)
    }

    /// Whether gdb records there: it is one of those that its libipt knows.
    pub(super) fn has_gdb(&self) -> bool {
        self.processor != MOST
    }

    /// What is recorded there.
    fn wanted(&self) -> impl Iterator<Item = &'static Wanted> {
        let more = if self.processor == MOST { OF_MORE } else { &[] };
        let (usual, more) = match self.is_newer {
            true => (OF_NEWER, &[][..]),
            false => (RECORDINGS, more),
        };
        usual.iter().chain(more)
    }
}
/// A generation that has PTWRITE, power events, Event Trace and DisTNT.
const MOST: &str = "gracemont";

const fn wanted(name: &'static str, perf: &'static str, kernel: bool, is_end: bool) -> Wanted {
    Wanted {
        name,
        perf,
        work: "20",
        kernel,
        is_end,
        by_thread: false,
    }
}

const fn of_thread(name: &'static str, perf: &'static str) -> Wanted {
    Wanted {
        by_thread: true,
        ..wanted(name, perf, false, false)
    }
}

/// By so many instructions a recording is found in the list of what ran.
const HEAD: usize = 2000;

/// A machine that has run.
pub(super) struct Linux {
    boot: Boot,
    seconds: f64,
    /// A line of what the machine said at its end that is not as it should be.
    complaint: Option<String>,
    /// What it said on its console.
    said: String,
    /// Of each processor, what the machine says that it ran while it was traced.
    lists: Vec<Vec<u64>>,
    /// How much of each list has been found in recordings.
    found: Vec<usize>,
    /// The last recording is not as it should be: where the next begins is not known.
    is_lost: bool,
    folder: PathBuf,
}

impl Exam {
    /// Files for the guest that makes all recordings.
    pub(super) fn initrd(&self, busybox: &Path) -> Result<PathBuf> {
        self.initrd_that_runs(busybox, &self.script())
    }

    /// Files for a guest that runs a script: a shell, perf with its libraries, the work.
    pub(super) fn initrd_that_runs(&self, busybox: &Path, script: &str) -> Result<PathBuf> {
        let work = self.path("work");
        tool(
            Command::new("gcc")
                .args(["-O1", "-g", "-static", "-o"])
                .arg(&work)
                .arg(self.root.join("exam/guest/work.c")),
        )?;
        let perf = which("perf").context("there is no perf on PATH")?;
        let mut members: Vec<(String, PathBuf)> = vec![
            ("bin/busybox".into(), busybox.to_owned()),
            ("bin/work".into(), work),
            ("bin/perf".into(), perf.clone()),
        ];
        // The command records there, too; its debugging information stays here.
        let cofi = self.path("cofi");
        tool(Command::new("strip").arg("-o").arg(&cofi).arg(&self.cofi))?;
        let mut programs = vec![perf, cofi.clone()];
        if let Some(gdb) = which("gdb") {
            members.push(("bin/gdb".into(), gdb.clone()));
            members.extend(gdb::files()?);
            programs.push(gdb);
        }
        let needed = tool(Command::new("ldd").args(&programs))?;
        for line in String::from_utf8_lossy(&needed).lines() {
            // (A line that ends with a colon names the program.)
            let mut words = line.split_whitespace();
            if let Some(path) = words.find(|word| word.starts_with('/') && !word.ends_with(':')) {
                let member = (path.trim_start_matches('/').to_owned(), PathBuf::from(path));
                if !members.contains(&member) {
                    members.push(member);
                }
            }
        }
        members.push(("bin/cofi".into(), cofi));
        let folders: BTreeSet<String> = members
            .iter()
            .flat_map(|(name, _)| {
                Path::new(name)
                    .ancestors()
                    .skip(1)
                    .map(|folder| folder.to_string_lossy().into_owned())
            })
            .filter(|folder| !folder.is_empty())
            .chain(["proc", "dev", "sys", "tmp", "root"].map(String::from))
            .collect();
        let mut folders: Vec<&str> = folders.iter().map(String::as_str).collect();
        folders.sort_by_key(|folder| folder.len());
        let mut files = vec![("init", script.as_bytes().to_vec())];
        for (name, path) in &members {
            let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
            // For those who decode outside.
            let copy = self.path("root").join(name);
            fs::create_dir_all(copy.parent().context("no folder")?)?;
            fs::write(&copy, &bytes)?;
            files.push((name, bytes));
        }
        let path = self.path("initrd");
        fs::write(&path, archive(&folders, &files))?;
        Ok(path)
    }

    /// What the guest does: each recording, perf's count of errors in it, and everything to the disk.
    fn script(&self) -> String {
        let mut script = String::from(
            "#!/bin/busybox sh\n\
             /bin/busybox --install -s /bin\n\
             export PATH=/bin HOME=/root\n\
             mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp\n\
             echo 0 > /proc/sys/kernel/kptr_restrict; echo 0 > /proc/sys/kernel/nmi_watchdog; echo -1 > /proc/sys/kernel/perf_event_paranoid\n\
             cd /tmp\n",
        );
        script += "[ \"$part\" ] || part=usual\n";
        script += "case $(cat /sys/bus/event_source/devices/intel_pt/caps/event_trace) in 1) more=yes;; *) more=no;; esac\n";
        let parts = [
            ("[ $part != newer ]", RECORDINGS),
            ("[ $part$more = linux2yes ]", OF_MORE),
            ("[ $part = newer ]", OF_NEWER),
        ];
        let all = parts.into_iter();
        let all = all.flat_map(|(is_for, list)| list.iter().map(move |wanted| (is_for, wanted)));
        for (is_for, wanted) in all {
            let (name, perf, work) = (wanted.name, wanted.perf, wanted.work);
            // (Words of the filter that stand in quotes for the shell.)
            let perf = perf.replace("FILTER", "'filter fibonacci @ /bin/work'");
            let record = match perf.strip_prefix(COFI) {
                Some(options) => format!("cofi record --engine hardware {options}"),
                None => format!("perf record -q -B {perf}"),
            };
            let command = match record.strip_suffix(" -p") {
                // More work than there is time for.
                Some(record) => format!(
                    "taskset 1 /bin/work 200000 & {record} -p $! -o {name}.data 2>&1; kill $!; wait"
                ),
                None => format!("taskset 1 {record} -o {name}.data -- /bin/work {work} 2>&1"),
            };
            script += &format!(
                "if {is_for}; then echo \"BEGIN {name} $(cut -d' ' -f1 /proc/uptime)\"\n{command}; fi\n"
            );
        }
        let names: BTreeSet<&str> = parts
            .iter()
            .flat_map(|(_, list)| list.iter().map(|wanted| wanted.name))
            .collect();
        for name in names {
            // The kernel's code that Cofi saved is found by perf where it is told of the list of symbols beside it.
            script += &format!(
                "list={name}.data.code/kcore_dir/kallsyms; [ ! -e $list ] && list= || list=\"--kallsyms $list\"\n\
                 [ ! -e {name}.data ] || echo \"ERRORS {name} $(perf script -i {name}.data $list --itrace=e 2>/dev/null | grep -c 'instruction trace error')\"\n"
            );
        }
        script += gdb::SCRIPT;
        script += "echo \"DONE $(cut -d' ' -f1 /proc/uptime)\"\ntar -c *.data *.data.code > /dev/nvme0n1; sync\npoweroff -f\n";
        script
    }

    /// Boots it, and waits for its end.
    pub(super) fn boot(&self, boot: &Boot, kernel: &Path, initrd: &Path) -> Result<Linux> {
        let Boot {
            name,
            processors,
            processor,
            ..
        } = *boot;
        let folder = self.path(name);
        fs::create_dir_all(&folder)?;
        let disk = folder.join("disk.img");
        fs::File::create(&disk)?.set_len(512 << 20)?;
        let console = folder.join("console");
        let begun = Instant::now();
        let output = self
            .machine(&["--verbose", "--list", name, "--processor", processor])
            .args(["-m", "1G", "-smp", &processors.to_string(), "-serial"])
            .arg(format!("file:{}", console.display()))
            .arg("-drive")
            .arg(format!(
                "file={},if=none,id=disk,format=raw",
                disk.display()
            ))
            .args(["-device", "nvme,drive=disk,serial=1", "-initrd"])
            .arg(initrd)
            .arg("-kernel")
            .arg(kernel.canonicalize()?)
            // (Where the host has much to do, Linux would distrust the clock, and nothing would have a time.)
            .arg("-append")
            .arg(format!("console=ttyS0 quiet tsc=reliable part={name}"))
            .output()
            .context("running cofi machine")?;
        let seconds = begun.elapsed().as_secs_f64();
        let said = fs::read_to_string(&console).context("reading what the guest said")?;
        let words = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success() && said.contains("DONE"),
            "the machine ended with {}: {words}\n{said}",
            output.status
        );
        let is_good = |line: &str| line.contains(" 0 lost,") && line.ends_with(" 0 unexplained");
        let complaint = words.lines().find(|line| !is_good(line)).map(str::to_owned);
        tool(
            Command::new("tar")
                .arg("-xf")
                .arg(&disk)
                .current_dir(&folder),
        )?;
        let lists: Vec<Vec<u64>> = (0..processors)
            .map(|number| {
                let bytes = fs::read(folder.join(format!("cpu{number}.ips")))?;
                let words = bytes.chunks_exact(8);
                Ok(words
                    .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
                    .collect())
            })
            .collect::<Result<_>>()?;
        Ok(Linux {
            boot: *boot,
            seconds,
            said,
            complaint,
            found: vec![0; lists.len()],
            is_lost: false,
            lists,
            folder,
        })
    }
}

impl Linux {
    /// What there is to say of each recording, in their order.
    pub(super) fn recordings(mut self, exam: &Exam) -> Vec<(String, Result<String>)> {
        let whole = match self.complaint.take() {
            Some(line) => Err(anyhow!("it says: {line}")),
            None => Ok(format!(
                "{}, all recordings in {:.0} s; instructions traced: {:?}",
                self.boot.processor,
                self.seconds,
                self.lists.iter().map(Vec::len).collect::<Vec<_>>()
            )),
        };
        let mut all = vec![("Linux".to_owned(), whole)];
        let boot = self.boot;
        for wanted in boot.wanted() {
            let result = self.recording(exam, wanted);
            // (What ran without TNTs is in the list, and not in the recording.)
            self.is_lost = result.is_err() || wanted.name == "notnt";
            all.push((wanted.name.to_owned(), result));
        }
        if self.boot.has_gdb() {
            all.push(("gdb".to_owned(), gdb::judge(&self.said)));
        }
        all
    }

    fn recording(&mut self, exam: &Exam, wanted: &Wanted) -> Result<String> {
        let errors = self
            .said
            .lines()
            .find_map(|line| {
                line.trim()
                    .strip_prefix(&format!("ERRORS {} ", wanted.name))
            })
            .context("perf told of no errors, and of none that there were none")?;
        ensure!(errors == "0", "perf finds {errors} errors");
        if ["nobranch", "notnt"].contains(&wanted.name) {
            // Not all branches are in it, so nobody can follow the code: perf's word it is.
            return Ok("perf: 0 errors".into());
        }
        let mut counts = Vec::new();
        for number in 0..self.boot.processors {
            let insns = self.decoded(exam, wanted, number)?;
            let (list, found) = (
                &self.lists[number as usize],
                &mut self.found[number as usize],
            );
            let rest = &list[*found..];
            // What came before has been overwritten, or belongs to a recording that is not as it should be.
            let head = match wanted.is_end {
                true => &insns[..],
                false => &insns[..insns.len().min(HEAD)],
            };
            let at = match wanted.is_end || self.is_lost {
                true => rest
                    .windows(head.len().max(1))
                    .position(|window| window == head || head.is_empty())
                    .with_context(|| {
                        format!("processor {number} ran no such instructions: {head:x?}")
                    })?,
                false => 0,
            };
            let begin = *found + at;
            let same = insns
                .iter()
                .zip(&list[begin..])
                .take_while(|(decoded, ran)| decoded == ran)
                .count();
            ensure!(
                same == insns.len(),
                "processor {number}: instruction {same} of {} is {:x?} and was {:x?}, after {:x?}",
                insns.len(),
                insns.get(same),
                list.get(begin + same),
                &insns[same.saturating_sub(3)..same]
            );
            *found = begin + same;
            counts.push(insns.len());
        }
        ensure!(
            counts.iter().any(|count| *count > 1000),
            "of so few instructions: {counts:?}"
        );
        let told = self.told(exam, wanted)?;
        Ok(format!(
            "perf: 0 errors; {counts:?} instructions as the machine ran them{told}"
        ))
    }

    /// What the recordings of [`OF_MORE`] tell besides, in words.
    fn told(&self, exam: &Exam, wanted: &Wanted) -> Result<String> {
        if wanted.name == "user" {
            return self.ratios(exam, wanted);
        }
        if !["ptw", "events", "power"].contains(&wanted.name) {
            return Ok(String::new());
        }
        let text = tool(
            Command::new(&exam.cofi)
                .args(["events", "--json", "--symfs"])
                .arg(exam.path("root"))
                .arg(format!("{}.data", wanted.name))
                .current_dir(&self.folder),
        )?;
        let events: Vec<Value> = String::from_utf8_lossy(&text)
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()
            .context("cofi events prints no JSON")?;
        let of = |kind: &'static str| events.iter().filter(move |event| event["event"] == kind);
        match wanted.name {
            "ptw" => {
                // What exam/guest/work.c writes.
                let written = (0..20).flat_map(|round: u64| {
                    let wide = 0x1122_3344_5566_0000 + round;
                    [round, wide, wide, 0x7788].map(|value| format!("{value:#x}"))
                });
                let read = of("ptwrite").map(|event| event["payload"].as_str().unwrap_or_default());
                ensure!(
                    read.eq(written),
                    "the values of PTWRITE are not those that were written"
                );
                Ok("; each value of PTWRITE".into())
            }
            "events" => {
                let faults = of("interrupt")
                    .filter(|event| event["vector"] == 14)
                    .count();
                let (all, returns) = (of("interrupt").count(), of("iret").count());
                ensure!(
                    faults > 0 && all > faults && returns > 0,
                    "{faults} page faults of {all} interrupts, {returns} IRETs"
                );
                Ok(format!("; {all} interrupts, {faults} of them page faults"))
            }
            _ => {
                let (entries, exits) = (of("pwre").count(), of("pwrx").count());
                // A processor may sleep when the recording begins or ends.
                ensure!(
                    entries > 0 && entries.abs_diff(exits) <= 2,
                    "it went to sleep {entries} times, and woke {exits} times"
                );
                Ok(format!("; {entries} times asleep"))
            }
        }
    }

    /// That each CBR names a ratio: libipt, by which gdb decodes, takes one of 0 for no packet.
    fn ratios(&self, exam: &Exam, wanted: &Wanted) -> Result<String> {
        let text = tool(
            Command::new(&exam.cofi)
                .args(["dump", "--filter", "cbr"])
                .arg(format!("{}.data", wanted.name))
                .current_dir(&self.folder),
        )?;
        let text = String::from_utf8_lossy(&text);
        let ratios: BTreeSet<&str> = text
            .lines()
            .filter_map(|line| line.split_once("cbr ").map(|(_, ratio)| ratio.trim()))
            .collect();
        ensure!(
            !ratios.is_empty() && !ratios.contains("0"),
            "core:bus ratios: {ratios:?}"
        );
        Ok(format!("; core:bus ratio {ratios:?}"))
    }

    /// The addresses that Cofi decodes of a processor's stream.
    fn decoded(&self, exam: &Exam, wanted: &Wanted, number: u32) -> Result<Vec<u64>> {
        let mut command = Command::new(&exam.cofi);
        command
            .args(["insn", "--json", "--symfs"])
            .arg(exam.path("root"));
        match (wanted.by_thread, number) {
            (true, 0) => {}
            (true, _) => return Ok(Vec::new()),
            (false, _) => {
                command.args(["--cpu-stream", &number.to_string()]);
            }
        }
        let mut child = command
            .arg(format!("{}.data", wanted.name))
            .current_dir(&self.folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("running cofi insn")?;
        let out = child.stdout.take().context("no output of cofi insn")?;
        let mut insns = Vec::new();
        for line in BufReader::new(out).lines() {
            if let Some(ip) = super::super::machine::address(&line?)? {
                insns.push(ip);
            }
        }
        let output = child.wait_with_output()?;
        let words = String::from_utf8_lossy(&output.stderr);
        // Nothing ran there.
        if words.contains("no such stream") {
            return Ok(Vec::new());
        }
        ensure!(
            output.status.success(),
            "cofi insn ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        ensure!(
            wanted.kernel || insns.iter().all(|ip| ip >> 63 == 0),
            "there is code of the kernel in it"
        );
        Ok(insns)
    }
}

pub(super) fn which(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}
