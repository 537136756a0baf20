//! `cargo xtask exam guest --load SECONDS`: a machine with Intel PT that has much to do for so long.
//!
//! Linux with two processors runs programs, compressors, a shell that forks and a reader of a disk, while the trace of all processors, of one program
//! or of nobody is on. Each recording is then decoded here by Cofi and by perf: an error is permitted only where an OVF or the guest's own
//! record of lost data says so. (Where the kernel had to stop, perf decodes on in the middle of a packet, so of what is behind on that processor nothing is asked of
//! perf. Recordings in which Linux' driver ran over unread bytes count for nothing: `ring.rs`.)

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

use super::super::build::tool;
use super::Exam;
use super::ring::Rings;

/// The turn with a buffer that is too small, and the bytes of that for each processor.
const SMALL: &str = "small";
const SMALL_RING: usize = 4 << 12;

/// What is recorded, in turns. (`perf` and `cofi`: what they are given before `-o`, and what follows it.)
const TURNS: [(&str, &str, &str); 9] = [
    (
        "wide",
        "perf record -q -B --kcore -a -e intel_pt//",
        "-- sleep 0.2",
    ),
    (
        "cofi-wide",
        "cofi record --engine hardware -a --privilege all --duration 0.2",
        "",
    ),
    (
        "cyc",
        "perf record -q -B --kcore -a -e intel_pt/cyc,noretcomp/",
        "-- sleep 0.2",
    ),
    (
        "user",
        "perf record -q -B -e intel_pt//u",
        "-- /bin/work 40",
    ),
    (
        "cofi-snapshot",
        "cofi record --engine hardware -a --privilege all --snapshot 256K --duration 1",
        "",
    ),
    (
        "kernel",
        "perf record -q -B --kcore -a -e intel_pt//k",
        "-- sleep 0.2",
    ),
    (
        "cofi-program",
        "cofi record --engine hardware --privilege all --config cyc",
        "-- /bin/work 40 in two processes",
    ),
    // Buffers that are too small: what is lost must be said; of perf's, as far as Linux knows it (`ring.rs`).
    (
        "cofi-small",
        "cofi record --engine hardware -a --privilege all --buffer 16K --duration 0.2",
        "",
    ),
    (
        SMALL,
        "perf record -q -B --kcore -a -m,4 -e intel_pt//",
        "-- sleep 0.2",
    ),
];

/// Mebibytes of the disk for the recordings.
const DISK: u64 = 24 << 10;
/// Gaps that the trace itself tells of: an OVF, and the kernel's record of what it had to drop (the flag TRUNCATED of an AUX record). What is dropped may
/// begin inside a packet.
const TOLD: [&str; 2] = ["overflow", "missing"];
/// Gaps that are permitted right before that, and where a stream ends with such a record.
const CUT: [&str; 2] = ["packet", "unknown-end"];

/// perf tells of one instruction in so many, of each thread; so of a recording with less than a few times as many it may tell of none.
const PERIOD: u64 = 10_000;
const FEW: u64 = 20;

/// The same, in perf's words.
const PERF_TOLD: [&str; 2] = ["Overflow packet", "Lost trace data"];

/// A recording on the disk.
#[derive(Debug)]
struct Recorded {
    number: u64,
    name: String,
    /// Where it lies on the disk, in mebibytes.
    at: u64,
}

/// What came of it.
#[derive(Debug, Default)]
struct Sum {
    recordings: u64,
    instructions: u64,
    told: BTreeMap<String, u64>,
    perf_told: BTreeMap<String, u64>,
    /// Recordings with a buffer that is too small, and those of them in which the trace ran over what nobody had read: these count for nothing else.
    small: u64,
    overrun: u64,
    /// Recordings in which the kernel had to stop.
    stopped: u64,
}

impl Exam {
    /// Boots the machine, and judges each of its recordings.
    pub(super) fn load(&self, seconds: u64, kernel: &Path, busybox: &Path) -> Result<String> {
        let initrd = self.initrd_that_runs(busybox, &script(seconds))?;
        let [folder, console, disk] = self.of_load();
        fs::create_dir_all(&folder)?;
        File::create(&disk)?.set_len(DISK << 20)?;
        // The end takes its time, too: a machine that has much to do.
        let output = self
            .machine_within(seconds + 900, &["--verbose", "--processor", "gracemont"])
            .args(["-m", "2G", "-smp", "2", "-serial"])
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
            // (perf takes the vDSO of the machine where it decodes for that of the guest: there is none.)
            .args(["-append", "console=ttyS0 quiet tsc=reliable vdso=0"])
            .output()
            .context("running cofi machine")?;
        let said = fs::read_to_string(&console).context("reading what the guest said")?;
        let words = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "the machine ended with {}: {words}\n{said}",
            output.status
        );
        ensure!(words.lines().count() == 2, "it says: {words}");
        let is_good = |line: &str| line.contains(" 0 lost,") && line.ends_with(" 0 unexplained");
        if let Some(line) = words.lines().find(|line| !is_good(line)) {
            return Err(anyhow!("it says: {line}"));
        }
        Ok(format!(
            "{seconds} s, {}\n{}",
            self.judge_all()?,
            words.trim_end()
        ))
    }

    /// The folder of such a machine, and in it what the guest says, and the disk with its recordings.
    fn of_load(&self) -> [PathBuf; 3] {
        let folder = self.path("load");
        let [console, disk] = ["console", "disk.img"].map(|name| folder.join(name));
        [folder, console, disk]
    }

    /// Judges the recordings of a machine that has ended.
    pub(super) fn judge_all(&self) -> Result<String> {
        let [folder, console, disk] = self.of_load();
        let said = fs::read_to_string(&console).context("reading what the guest said")?;
        ensure!(said.contains("DONE"), "the machine did not end: {said}");
        let all: Vec<Recorded> = said.lines().filter_map(recorded).collect();
        for (name, ..) in TURNS {
            let is_there = all.iter().any(|recorded| recorded.name == name);
            ensure!(is_there, "there is no recording {name}");
        }
        let mut sum = Sum::default();
        let mut bad = Vec::new();
        for recorded in &all {
            if let Err(error) = self.judge(recorded, &disk, &folder, &mut sum) {
                bad.push(format!(
                    "recording {}, {}: {error:#}",
                    recorded.number, recorded.name
                ));
            }
        }
        ensure!(
            bad.is_empty(),
            "{} of {}:\n{}",
            bad.len(),
            all.len(),
            bad.join("\n")
        );
        ensure!(
            sum.overrun < sum.small && sum.stopped > 0,
            "of so few recordings: {sum:?}"
        );
        Ok(format!(
            "{} recordings, {} instructions; gaps that the trace tells of: {:?} (perf: {:?}); no other; the kernel had to stop in {}; of {} by perf \
             with a buffer that is too small Linux ran over unread bytes in {}, which count for nothing",
            sum.recordings,
            sum.instructions,
            sum.told,
            sum.perf_told,
            sum.stopped,
            sum.small,
            sum.overrun
        ))
    }

    fn judge(&self, recorded: &Recorded, disk: &Path, folder: &Path, sum: &mut Sum) -> Result<()> {
        let place = folder.join(format!("{}-{}", recorded.number, recorded.name));
        fs::create_dir_all(&place)?;
        let mut image = File::open(disk)?;
        image.seek(SeekFrom::Start(recorded.at << 20))?;
        let mut tar = Command::new("tar");
        tar.arg("-xf").arg("-").stdin(image).current_dir(&place);
        tool(&mut tar)?;
        let data = place.join("x.data");
        let rings = Rings::read(&data)?;
        sum.recordings += 1;
        let is_small = recorded.name == SMALL;
        sum.small += u64::from(is_small);
        if is_small && rings.are_overrun(SMALL_RING) {
            sum.overrun += 1;
        } else {
            ensure!(!rings.have_holes(), "not all was copied");
            // (Snapshots do not join.)
            let is_snapshot = recorded.name.contains("snapshot");
            let insns = self.by_cofi(&data, &rings, is_snapshot, sum)?;
            let samples = by_perf(&self.path("root"), &data, &rings, sum)?;
            ensure!(
                samples > 0 || insns < FEW * PERIOD,
                "perf decoded nothing where cofi found {insns} instructions"
            );
            sum.stopped += u64::from(rings.stop());
        }
        // Hundreds of them would fill the disk; one that fails stays.
        Ok(fs::remove_dir_all(&place)?)
    }

    fn by_cofi(&self, data: &Path, rings: &Rings, is_snapshot: bool, sum: &mut Sum) -> Result<u64> {
        let output = Command::new(&self.cofi)
            .args(["check", "--json", "--symfs"])
            .arg(self.path("root"))
            .arg(data)
            .output()
            .context("running cofi check")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.lines().last().unwrap_or_default();
        let summary: Value = serde_json::from_str(last)
            .with_context(|| format!("cofi check: {}", String::from_utf8_lossy(&output.stderr)))?;
        let summary = &summary["summary"];
        let insns = summary["instructions"].as_u64().unwrap_or_default();
        ensure!(insns > 1000, "of so few instructions: {summary}");
        let gaps: Vec<Value> = text
            .lines()
            .filter(|line| line.starts_with("{\"gap\""))
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()?;
        for (gap, next) in gaps.iter().zip(gaps.iter().skip(1).chain([&Value::Null])) {
            let end = gap["offset"].as_u64().zip(gap["lost_bytes"].as_u64());
            let end = end.map(|(offset, len)| offset + len);
            let is_missing_behind = next["gap"] == "missing"
                && next["cpu"] == gap["cpu"]
                && next["offset"].as_u64() == end;
            // At the end of a stream nothing is behind.
            let stops = || {
                let place = gap["cpu"].as_u64().zip(end);
                place.is_some_and(|(cpu, end)| rings.stops_at(cpu, end))
            };
            let is_cut =
                CUT.iter().any(|kind| gap["gap"] == *kind) && (is_missing_behind || stops());
            let begin = gap["cpu"].as_u64().zip(gap["offset"].as_u64());
            ensure!(
                gap["gap"] != "missing"
                    || is_snapshot
                    || begin.is_some_and(|(cpu, at)| rings.stops_at(cpu, at)),
                "cofi: the kernel says nothing of {gap}"
            );
            ensure!(
                is_cut || TOLD.iter().any(|kind| gap["gap"] == *kind),
                "cofi: {gap}, and then {next}"
            );
        }
        let kinds = summary["gaps_by_kind"].as_object();
        for (kind, count) in kinds.context("no gaps_by_kind")? {
            let count = count.as_u64().unwrap_or_default();
            *sum.told.entry(kind.clone()).or_default() += count;
        }
        // Of a recording with very many, only the first are listed one by one.
        let is_known = |kind: &String| [TOLD, CUT].concat().contains(&kind.as_str());
        ensure!(sum.told.keys().all(is_known), "cofi: {summary}");
        sum.instructions += insns;
        Ok(insns)
    }
}

/// What perf finds: of each error it prints the kind. Returns how often it came by so many instructions ([`PERIOD`]).
fn by_perf(root: &Path, data: &Path, rings: &Rings, sum: &mut Sum) -> Result<usize> {
    let mut command = Command::new("perf");
    command
        .args(["script", &format!("--itrace=ei{PERIOD}i"), "--symfs"])
        .arg(root)
        .arg("-i")
        .arg(data);
    // The kernel's code that Cofi saved is found by perf where it is told of the list of symbols beside it.
    let list = PathBuf::from(format!("{}.code/kcore_dir/kallsyms", data.display()));
    if list.exists() {
        command.arg("--kallsyms").arg(list);
    }
    let output = command
        .stdin(Stdio::null())
        .output()
        .context("running perf script")?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "perf script: {words}");
    let text = String::from_utf8_lossy(&output.stdout);
    let (errors, samples): (Vec<_>, Vec<_>) = text
        .lines()
        .partition(|line| line.contains("instruction trace error"));
    for line in errors {
        let kind = PERF_TOLD.into_iter().find(|kind| line.ends_with(kind));
        let kind = match kind {
            Some(kind) => kind,
            // Where the kernel had to stop, perf takes what is behind for the rest of the packet that was cut off, and more is wrong from there on.
            None if place(line).is_some_and(|(cpu, time)| rings.stops_before(cpu, time)) => {
                "behind a cut"
            }
            None => return Err(anyhow!("perf: {line}")),
        };
        *sum.perf_told.entry(kind.to_owned()).or_default() += 1;
    }
    let samples = samples
        .iter()
        .filter(|line| line.contains(" instructions:"));
    Ok(samples.count())
}

/// The processor and the time of ` instruction trace error type 1 time 3334.335557663 cpu 0 pid …`
fn place(line: &str) -> Option<(u64, f64)> {
    let behind = |word| line.split_once(word)?.1.split_whitespace().next();
    Some((
        behind(" cpu ")?.parse().ok()?,
        behind(" time ")?.parse().ok()?,
    ))
}

/// `REC 12 wide at 340 …`
fn recorded(line: &str) -> Option<Recorded> {
    let mut words = line.trim().strip_prefix("REC ")?.split_whitespace();
    let number = words.next()?.parse().ok()?;
    let name = words.next()?.to_owned();
    let at = words.nth(1)?.parse().ok()?;
    Some(Recorded { number, name, at })
}

/// What the guest does.
fn script(seconds: u64) -> String {
    let mut turns = String::new();
    for (number, (name, record, rest)) in TURNS.iter().enumerate() {
        turns += &format!("{number}) name={name}; {record} -o x.data {rest};;\n");
    }
    format!(
        "#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs -o size=1400m tmp /tmp
echo 0 > /proc/sys/kernel/kptr_restrict; echo -1 > /proc/sys/kernel/perf_event_paranoid
cd /tmp; mkdir x
# Calls and page faults; long loops; programs that come and go; interrupts of a disk.
while :; do /bin/work 300 > /dev/null; done &
while :; do gzip -c /bin/perf | gunzip -c > /dev/null; done &
while :; do find /bin /lib -type f | head -n 30 | xargs -n 1 md5sum > /dev/null; sleep 0.05; done &
while :; do dd if=/dev/nvme0n1 of=/dev/null bs=64k count=64 skip=$((RANDOM % 1000)) 2> /dev/null; sleep 0.02; done &
number=0; at=0
until [ $(cut -d. -f1 /proc/uptime) -ge {seconds} ]; do
cd /tmp/x; rm -rf *
case $((number % {count})) in
{turns}esac > ../said 2>&1
tar -c * > ../x.tar; size=$(( ($(stat -c %s ../x.tar) >> 20) + 1 ))
if [ $((at + size)) -lt {DISK} ]; then
dd if=../x.tar of=/dev/nvme0n1 bs=1M seek=$at 2> /dev/null; echo REC $number $name at $at up $(cut -d' ' -f1 /proc/uptime); at=$((at + size))
fi
rm ../x.tar; number=$((number + 1))
# Nobody traces for as long as it took.
sleep 3
done
sync; echo DONE; poweroff -f
",
        count = TURNS.len()
    )
}
