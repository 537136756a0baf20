//! What the engine's tests share: programs compiled on the spot, and an observer that checks the flow as it comes.
#![allow(dead_code, unreachable_pub)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cofi_capture::ptrace::{self, Options, Outcome, Stops, Target};
use cofi_capture::qemu::{self, Qemu, QemuError, Unknown};
use cofi_capture::{Entry, Lane, Mapping, Observer, Pid, ProcessCause, Runs, SavedCode};
use cofi_insn::{Class, Insn};
use cofi_packet::{ExecMode, Ip};

/// Bare programs: nothing runs that their source does not say.
pub const BARE: &[&str] = &[
    "-nostdlib",
    "-static",
    "-Wl,--build-id=none",
    "-z",
    "noexecstack",
];

/// A program compiled from `tests/programs`.
pub struct Program {
    pub path: PathBuf,
    symbols: BTreeMap<String, u64>,
}

impl Program {
    /// Compiles `source` with extra arguments for the compiler. `name` tells builds of one source apart.
    pub fn build(name: &str, source: &str, flags: &[&str]) -> Self {
        let built = Self::try_build(name, source, flags);
        built.unwrap_or_else(|| panic!("cc does not take {flags:?}"))
    }

    /// The same with arguments that not every compiler takes: then the rest is skipped.
    #[track_caller]
    pub fn try_build(name: &str, source: &str, flags: &[&str]) -> Option<Self> {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/programs")
            .join(source);
        let flags = [&["-O1", "-g0", "-Wall"], flags].concat();
        if !cofi_test::compile(&source, &path, &flags) {
            return None;
        }
        let nm = Command::new("nm").arg(&path).output().expect("nm");
        let symbols = String::from_utf8_lossy(&nm.stdout)
            .lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let address = u64::from_str_radix(words.next()?, 16).ok()?;
                Some((words.nth(1)?.to_owned(), address))
            })
            .collect();
        Some(Self { path, symbols })
    }

    /// Compiles one of the exam's programs; `name` tells builds of one source apart.
    pub fn exam(name: &str, source: &str, flags: &[&str]) -> Self {
        Self::build(name, &exam_source(source), flags)
    }

    pub fn bare(source: &str) -> Self {
        Self::build(source.strip_suffix(".S").unwrap_or(source), source, BARE)
    }

    /// The address of a symbol of a program that is not relocated.
    pub fn symbol(&self, name: &str) -> u64 {
        *self
            .symbols
            .get(name)
            .unwrap_or_else(|| panic!("no symbol {name}"))
    }

    /// Exit status when it runs by itself: the truth about what the program does.
    pub fn native(&self, args: &[&str]) -> Option<i32> {
        Command::new(&self.path)
            .args(args)
            .stdin(Stdio::null())
            .status()
            .expect("the program starts")
            .code()
    }

    pub fn trace(&self, args: &[&str]) -> (Outcome, Flow) {
        trace(self.path.as_os_str().to_str().expect("UTF-8"), args)
    }

    /// Runs it natively and traced, and expects the same exit status and no breach of the flow.
    pub fn same(&self, args: &[&str]) -> Flow {
        let native = self.native(args).expect("exits by itself");
        let (outcome, flow) = self.trace(args);
        flow.check();
        assert_eq!(outcome, Outcome::Exited(native), "{args:?}");
        flow
    }
}

/// Where one of the exam's programs is, seen from `tests/programs`.
pub fn exam_source(source: &str) -> String {
    format!("../../../../exam/programs/{source}")
}

fn command(program: &str, args: &[&str]) -> ptrace::Command {
    ptrace::Command {
        program: program.into(),
        args: args.iter().map(Into::into).collect(),
    }
}

/// No test takes that long, even on a busy machine; one that hangs fails by its outcome.
pub const LIMIT: Duration = Duration::from_secs(600);

pub fn limited(stop: &AtomicBool) -> Options<'_> {
    let mut options = Options::new(stop);
    options.duration = Some(LIMIT);
    options
}

pub fn trace(program: &str, args: &[&str]) -> (Outcome, Flow) {
    trace_by(Stops::default(), program, args)
}

pub fn trace_by(stops: Stops, program: &str, args: &[&str]) -> (Outcome, Flow) {
    let mut flow = Flow::default();
    let stop = AtomicBool::new(false);
    let target = Target::Launch(command(program, args));
    let outcome = ptrace::run_by(stops, target, limited(&stop), &mut flow).expect("traceable");
    (outcome, flow)
}

/// QEMU if it is installed; the test is skipped if not.
#[track_caller]
pub fn qemu() -> Option<Qemu> {
    match Qemu::find() {
        Ok(qemu) => Some(qemu),
        Err(error @ (QemuError::Missing | QemuError::NoPlugins { .. })) => {
            cofi_test::skip(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub fn trace_under_qemu(qemu: &Qemu, program: &str, args: &[&str]) -> (Outcome, Unknown, Flow) {
    let mut flow = Flow::default();
    let stop = AtomicBool::new(false);
    let (outcome, unknown) = qemu::run(qemu, &command(program, args), limited(&stop), &mut flow)
        .expect("runs under QEMU");
    (outcome, unknown, flow)
}

/// One thing that a thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Resume(u64, ExecMode),
    Insn(u64, Class),
    /// SYSCALL or SYSENTER.
    Sync(u64),
    Async(u64),
}

/// Where the next thing must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum At {
    #[default]
    Kernel,
    User(u64),
}

#[derive(Debug, Default)]
pub struct Thread {
    pub pid: Pid,
    pub events: Vec<Event>,
    pub ended: bool,
    at: At,
}

impl Thread {
    /// The addresses of all instructions that retired, system calls included.
    pub fn instructions(&self) -> impl Iterator<Item = u64> + '_ {
        self.events.iter().filter_map(|event| match *event {
            Event::Insn(ip, _) | Event::Sync(ip) => Some(ip),
            _ => None,
        })
    }

    pub fn count(&self, ip: u64) -> usize {
        self.instructions().filter(|at| *at == ip).count()
    }

    /// The asynchronous entries to the kernel.
    pub fn interruptions(&self) -> Vec<u64> {
        self.events
            .iter()
            .filter_map(|event| match *event {
                Event::Async(from) => Some(from),
                _ => None,
            })
            .collect()
    }
}

/// Called with each event as it comes, so that a test can act when something has happened.
#[derive(Default)]
pub struct Watch(Option<Box<dyn FnMut(Pid, Event) + Send>>);

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() {
            "Watch"
        } else {
            "no Watch"
        })
    }
}

/// Records what happens, and every breach of the law that the flow is continuous.
#[derive(Debug, Default)]
pub struct Flow {
    pub threads: BTreeMap<Pid, Thread>,
    /// In the order in which they began.
    pub order: Vec<Pid>,
    pub processes: Vec<(Pid, Option<Pid>, ProcessCause, String)>,
    pub names: Vec<String>,
    pub mappings: Vec<(Pid, Mapping)>,
    pub saved: Vec<(Pid, u64, Vec<u8>)>,
    pub breaches: Vec<String>,
    /// How often several threads were told of at the same time.
    pub apart: usize,
    pub watch: Watch,
}

impl Flow {
    /// Fails if the flow was not continuous or a thread was not ended.
    pub fn check(&self) {
        assert!(
            self.breaches.is_empty(),
            "{:#x?}",
            &self.breaches[..self.breaches.len().min(10)]
        );
        for (tid, thread) in &self.threads {
            assert!(thread.ended, "thread {tid} is not told to have ended");
            assert_eq!(thread.at, At::Kernel, "thread {tid} is left in user space");
        }
    }

    /// The first thread.
    pub fn main(&self) -> &Thread {
        &self.threads[&self.order[0]]
    }

    pub fn all(&self) -> impl Iterator<Item = &Thread> {
        self.threads.values()
    }

    pub fn total(&self) -> usize {
        self.all().map(|thread| thread.instructions().count()).sum()
    }

    /// A flow that tells each event to `watch`.
    pub fn watched(watch: impl FnMut(Pid, Event) + Send + 'static) -> Self {
        Self {
            watch: Watch(Some(Box::new(watch))),
            ..Self::default()
        }
    }

    fn thread(&mut self, tid: Pid) -> &mut Thread {
        if !self.threads.contains_key(&tid) {
            self.breaches
                .push(format!("thread {tid} was not announced"));
        }
        self.threads.entry(tid).or_default()
    }

    fn leaves(&mut self, tid: Pid, ip: u64, to: At, event: Event) {
        let thread = self.thread(tid);
        let at = std::mem::replace(&mut thread.at, to);
        thread.events.push(event);
        if let Some(watch) = &mut self.watch.0 {
            watch(tid, event);
        }
        if at != At::User(ip) {
            self.breaches
                .push(format!("thread {tid}: {event:x?} while {at:x?}"));
        }
    }
}

/// The flow of one thread, told of by itself.
struct FlowLane(Flow);

impl Lane for FlowLane {
    fn resume_user(&mut self, tid: Pid, ip: Ip) {
        self.0.resume_user(tid, ip, ExecMode::Bits64);
    }

    fn retired(&mut self, tid: Pid, ip: Ip, insn: &Insn, next: Ip) {
        self.0.retired(tid, ip, insn, next);
    }

    fn ran(&mut self, tid: Pid, runs: &mut Runs<'_>) {
        self.0.ran(tid, runs);
    }

    fn far_branch(&mut self, tid: Pid, ip: Ip, insn: &Insn, next: Ip) {
        self.0.far_branch(tid, ip, insn, next, ExecMode::Bits64);
    }

    fn enter_kernel(&mut self, tid: Pid, entry: Entry) {
        self.0.enter_kernel(tid, entry);
    }
}

impl Observer for Flow {
    fn apart(&mut self, tids: &[Pid], tell: &mut dyn FnMut(&mut [&mut (dyn Lane + Send)])) -> bool {
        // Who watches sees all in one order.
        if self.watch.0.is_some() {
            return false;
        }
        let lane = |tid: &Pid| {
            let mut flow = Self::default();
            flow.threads.extend(self.threads.remove_entry(tid));
            FlowLane(flow)
        };
        let mut lanes: Vec<FlowLane> = tids.iter().map(lane).collect();
        let mut all: Vec<&mut (dyn Lane + Send)> = Vec::new();
        for lane in &mut lanes {
            all.push(lane);
        }
        tell(&mut all);
        for FlowLane(flow) in lanes {
            self.threads.extend(flow.threads);
            self.breaches.extend(flow.breaches);
        }
        self.apart += 1;
        true
    }

    fn process(&mut self, pid: Pid, parent: Option<Pid>, cause: ProcessCause, comm: &str) {
        self.processes.push((pid, parent, cause, comm.to_owned()));
    }

    fn thread_start(&mut self, pid: Pid, tid: Pid, _parent: Option<Pid>) {
        self.order.push(tid);
        let thread = self.threads.entry(tid).or_default();
        thread.pid = pid;
        thread.ended = false;
    }

    fn thread_exit(&mut self, _pid: Pid, tid: Pid) {
        let thread = self.thread(tid);
        let again = std::mem::replace(&mut thread.ended, true);
        if again {
            self.breaches.push(format!("thread {tid} ended twice"));
        }
    }

    fn comm(&mut self, _pid: Pid, _tid: Pid, comm: &str) {
        self.names.push(comm.to_owned());
    }

    fn mapped(&mut self, pid: Pid, _tid: Pid, mappings: &[Mapping]) {
        self.mappings
            .extend(mappings.iter().map(|mapping| (pid, mapping.clone())));
    }

    fn code(&mut self, pid: Pid, _tid: Pid, code: SavedCode<'_>) {
        self.saved.push((pid, code.start, code.bytes.to_vec()));
    }

    fn resume_user(&mut self, tid: Pid, ip: Ip, mode: ExecMode) {
        let thread = self.thread(tid);
        let at = std::mem::replace(&mut thread.at, At::User(ip.0));
        thread.events.push(Event::Resume(ip.0, mode));
        if at != At::Kernel {
            self.breaches
                .push(format!("thread {tid} resumes at {ip} while {at:x?}"));
        }
    }

    fn retired(&mut self, tid: Pid, ip: Ip, insn: &Insn, next: Ip) {
        self.leaves(tid, ip.0, At::User(next.0), Event::Insn(ip.0, insn.class));
        // What the instruction is limits where it can lead.
        let after = ip.0.wrapping_add(u64::from(insn.len));
        let fits = match insn.class {
            Class::Conditional => next.0 == after || Some(next) == insn.target,
            Class::DirectJump | Class::DirectCall => Some(next) == insn.target,
            Class::IndirectJump | Class::IndirectCall | Class::Return => true,
            class if class.is_far() => false,
            _ => next.0 == after,
        };
        if !fits {
            self.breaches
                .push(format!("thread {tid}: {insn:?} at {ip} leads to {next}"));
        }
    }

    fn far_branch(&mut self, tid: Pid, ip: Ip, insn: &Insn, next: Ip, _mode: ExecMode) {
        self.leaves(tid, ip.0, At::User(next.0), Event::Insn(ip.0, insn.class));
        if !matches!(
            insn.class,
            Class::FarCall | Class::FarJump | Class::FarReturn
        ) {
            self.breaches
                .push(format!("thread {tid}: {insn:?} at {ip} is no far branch"));
        }
    }

    fn enter_kernel(&mut self, tid: Pid, entry: Entry) {
        match entry {
            Entry::Instruction { ip, insn } => {
                self.leaves(tid, ip.0, At::Kernel, Event::Sync(ip.0));
                if insn.class != Class::Syscall {
                    self.breaches
                        .push(format!("thread {tid}: {insn:?} at {ip} is no system call"));
                }
            }
            Entry::SoftwareInterrupt { ip: from, .. } | Entry::Event { from } => {
                self.leaves(tid, from.0, At::Kernel, Event::Async(from.0));
            }
        }
    }
}
