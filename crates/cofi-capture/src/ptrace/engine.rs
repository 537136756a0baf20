//! The loop that steps every thread and makes sense of every stop.

use super::code::{Code, CodeSpace, Special};
use super::launch::{self, EngineError, Options, Outcome, Target};
use super::maps;
use super::sys::{self, Dispositions, EVENT_STOP, Regs, Resume, Status, TRAP_FLAG};
use super::thread::{
    At, FRAME_FLAGS, RT_SIGRETURN, Thread, changes_mappings, is_restart, mode, r11_shows_step,
    renames, sets_mask,
};
use crate::{Entry, Observer, Pid, ProcessCause};
use cofi_insn::Class;
use cofi_packet::Ip;
use libc::c_int;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const PTRACE_OPTIONS: c_int = libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT;

/// siginfo's code at the stop before a handler's first instruction: the kernel reports it by a plain notification.
const HANDLER_ENTRY: c_int = libc::SIGTRAP;
/// siginfo's code for INT3.
const SI_KERNEL: c_int = 0x80;

/// Runs or attaches to the target until its first process ends or the options say stop, and tells `observer` what
/// happens.
///
/// # Errors
/// When the program cannot be started or attached to, or the kernel refuses to trace.
pub fn run(
    target: Target,
    options: Options<'_>,
    observer: &mut dyn Observer,
) -> Result<Outcome, EngineError> {
    let mut dispositions = Dispositions::default();
    dispositions.interrupting(sys::wake_signal());
    let mut engine = Engine {
        observer,
        threads: BTreeMap::new(),
        spaces: BTreeMap::new(),
        expected: BTreeMap::new(),
        early: BTreeSet::new(),
        leader: 0,
        outcome: None,
        stopping: false,
        regs: sys::no_registers(),
    };
    match target {
        Target::Launch(command) => {
            // The terminal's signals are for the program; how it takes them decides.
            dispositions.ignore(libc::SIGINT);
            dispositions.ignore(libc::SIGQUIT);
            engine.launch(&command)?;
        }
        Target::Attach(pid) => engine.attach(pid)?,
    }
    let stop = AtomicBool::new(false);
    let tracer = sys::this_thread();
    std::thread::scope(|scope| {
        let (done, wait) = channel::<()>();
        let stop = &stop;
        scope.spawn(move || {
            let begin = Instant::now();
            loop {
                let tick = wait.recv_timeout(Duration::from_millis(20));
                if !matches!(tick, Err(RecvTimeoutError::Timeout)) {
                    return;
                }
                let late = options.duration.is_some_and(|d| begin.elapsed() >= d);
                if late || options.stop.load(Ordering::Relaxed) {
                    stop.store(true, Ordering::Relaxed);
                    sys::wake(tracer);
                }
            }
        });
        let result = engine.follow(stop);
        drop(done);
        result
    })
}

struct Engine<'o> {
    observer: &'o mut dyn Observer,
    threads: BTreeMap<Pid, Thread>,
    spaces: BTreeMap<Pid, CodeSpace>,
    /// New threads that have been announced by their creator and have not stopped yet: their creator.
    expected: BTreeMap<Pid, (Pid, c_int)>,
    /// New threads that have stopped before their creator announced them.
    early: BTreeSet<Pid>,
    /// The first process.
    leader: Pid,
    outcome: Option<Outcome>,
    stopping: bool,
    regs: Regs,
}

/// A thread that is gone is told by a status of its own; until then requests for it fail.
fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

impl Engine<'_> {
    fn launch(&mut self, command: &launch::Command) -> Result<(), EngineError> {
        let gate = launch::fork(command)?;
        let pid = gate.pid();
        let fail = |source| EngineError::Launch {
            program: command.program.clone(),
            source,
        };
        sys::seize(pid, PTRACE_OPTIONS | libc::PTRACE_O_EXITKILL).map_err(fail)?;
        gate.open().map_err(fail)?;
        // The child runs freely up to the program's first instruction.
        loop {
            match sys::wait_for(pid).map_err(fail)? {
                Status::Exited(_) | Status::Signaled(_) => return Err(fail(gate.failure())),
                Status::Stopped {
                    event: libc::PTRACE_EVENT_EXEC,
                    ..
                } => break,
                Status::Stopped {
                    event: libc::PTRACE_EVENT_EXIT | EVENT_STOP,
                    ..
                } => {
                    unless_gone(sys::resume(pid, Resume::Run, 0)).map_err(fail)?;
                }
                Status::Stopped { signal, .. } => {
                    unless_gone(sys::resume(pid, Resume::Run, signal)).map_err(fail)?;
                }
            }
        }
        let pid = pid as Pid;
        self.leader = pid;
        self.begin_process(pid, None, ProcessCause::Launch);
        self.begin_thread(pid, pid, None);
        self.refresh(pid, pid);
        self.step(pid, 0)?;
        Ok(())
    }

    fn attach(&mut self, pid: Pid) -> Result<(), EngineError> {
        let fail = |source| EngineError::Attach { pid, source };
        self.leader = pid;
        let mut known = BTreeSet::new();
        // Threads may be born while the first ones are seized; those inherit the tracer.
        loop {
            let fresh: Vec<Pid> = maps::threads(pid)
                .map_err(fail)?
                .into_iter()
                .filter(|tid| known.insert(*tid))
                .collect();
            if fresh.is_empty() {
                break;
            }
            for tid in fresh {
                match sys::seize(tid as i32, PTRACE_OPTIONS) {
                    Ok(()) => unless_gone(sys::interrupt(tid as i32)).map_err(fail)?,
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) && tid != pid => {}
                    // Seized already, as the child of a seized thread.
                    Err(error)
                        if error.raw_os_error() == Some(libc::EPERM) && self.expects_child(tid) => {
                    }
                    Err(error) => return Err(fail(error)),
                }
                self.expected.insert(tid, (pid, EVENT_STOP));
            }
        }
        self.begin_process(pid, None, ProcessCause::Attach);
        self.refresh(pid, pid);
        Ok(())
    }

    fn expects_child(&self, tid: Pid) -> bool {
        !self.expected.is_empty() && !self.expected.contains_key(&tid)
    }

    fn begin_process(&mut self, pid: Pid, parent: Option<Pid>, cause: ProcessCause) {
        let space = match (parent, cause) {
            (Some(parent), ProcessCause::Fork) => {
                self.spaces.get(&parent).cloned().unwrap_or_default()
            }
            _ => CodeSpace::default(),
        };
        self.spaces.insert(pid, space);
        self.observer.process(pid, parent, cause, &maps::comm(pid));
    }

    fn begin_thread(&mut self, pid: Pid, tid: Pid, parent: Option<Pid>) {
        let thread = Thread {
            pid,
            at: At::Kernel(None),
            mode: cofi_packet::ExecMode::Bits64,
            signaled: false,
            trap: false,
            returning_trap: false,
            in_group_stop: false,
        };
        self.threads.insert(tid, thread);
        self.observer.thread_start(pid, tid, parent);
    }

    fn refresh(&mut self, pid: Pid, tid: Pid) {
        if let Some(space) = self.spaces.get_mut(&pid) {
            space.refresh(pid, tid, self.observer);
        }
    }

    fn follow(mut self, stop: &AtomicBool) -> Result<Outcome, EngineError> {
        while !self.threads.is_empty() || !self.expected.is_empty() {
            if (stop.load(Ordering::Relaxed) || self.observer.has_failed()) && !self.stopping {
                self.stopping = true;
                for tid in self.threads.keys().chain(self.expected.keys()) {
                    unless_gone(sys::interrupt(*tid as i32))?;
                }
            }
            match sys::wait_any() {
                Ok((tid, status)) => self.handle(tid as Pid, status)?,
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => break,
                Err(error) => return Err(error.into()),
            }
        }
        for (tid, thread) in std::mem::take(&mut self.threads) {
            self.observer.thread_exit(thread.pid, tid);
        }
        Ok(self.outcome.unwrap_or(Outcome::Detached))
    }

    fn handle(&mut self, tid: Pid, status: Status) -> io::Result<()> {
        match status {
            Status::Exited(code) => {
                self.gone(tid, Outcome::Exited(code));
                Ok(())
            }
            Status::Signaled(signal) => {
                self.gone(tid, Outcome::Signaled(signal));
                Ok(())
            }
            Status::Stopped { signal, event } => {
                if !self.threads.contains_key(&tid) && !self.first_stop(tid)? {
                    return Ok(());
                }
                unless_gone(self.stopped(tid, signal, event))
            }
        }
    }

    /// The first stop of a thread that we know nothing of; whether it is known now.
    fn first_stop(&mut self, tid: Pid) -> io::Result<bool> {
        let Some((creator, how)) = self.expected.remove(&tid) else {
            self.early.insert(tid);
            return Ok(false);
        };
        self.adopt(tid, creator, how);
        Ok(true)
    }

    /// A new thread belongs to the process of its creator, or is the first of a new one.
    fn adopt(&mut self, tid: Pid, creator: Pid, how: c_int) {
        let parent = self
            .threads
            .get(&creator)
            .map_or(creator, |thread| thread.pid);
        // A clone may be a process too: then it has a thread group of its own.
        let is_thread =
            how == EVENT_STOP || maps::threads(parent).is_ok_and(|all| all.contains(&tid));
        let creator = (how != EVENT_STOP).then_some(creator);
        if is_thread {
            self.begin_thread(parent, tid, creator);
        } else {
            self.begin_process(tid, Some(parent), ProcessCause::Fork);
            self.begin_thread(tid, tid, creator);
        }
    }

    fn gone(&mut self, tid: Pid, how: Outcome) {
        self.expected.remove(&tid);
        self.early.remove(&tid);
        if let Some(thread) = self.threads.remove(&tid) {
            self.observer.thread_exit(thread.pid, tid);
            if !self.threads.values().any(|other| other.pid == thread.pid) {
                self.spaces.remove(&thread.pid);
            }
        }
        if tid == self.leader {
            self.outcome = Some(how);
        }
    }

    fn stopped(&mut self, tid: Pid, signal: c_int, event: c_int) -> io::Result<()> {
        match event {
            0 if signal == libc::SIGTRAP => self.trapped(tid),
            0 => self.signaled(tid, signal),
            libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
                let child = sys::event_message(tid as i32)? as Pid;
                if self.early.remove(&child) {
                    self.adopt(child, tid, event);
                    self.stopped(child, libc::SIGTRAP, EVENT_STOP)
                        .or_else(|e| unless_gone(Err(e)))?;
                } else if !self.threads.contains_key(&child) {
                    self.expected.insert(child, (tid, event));
                }
                self.go_on(tid, 0)
            }
            libc::PTRACE_EVENT_EXEC => self.executed(tid),
            libc::PTRACE_EVENT_EXIT => {
                self.leaving(tid)?;
                // It does not come back to user space; its end is told by a status.
                sys::resume(tid as i32, Resume::Run, 0)
            }
            EVENT_STOP => {
                sys::registers(tid as i32, &mut self.regs)?;
                self.interrupted(tid, signal)
            }
            _ => self.go_on(tid, 0),
        }
    }

    /// A stop that no instruction caused: a new thread's first, an attached one's first, job control, our own request.
    fn interrupted(&mut self, tid: Pid, signal: c_int) -> io::Result<()> {
        let regs = self.regs;
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Ok(());
        };
        if let (At::Kernel(None), false) = (thread.at, thread.signaled) {
            thread.mode = mode(&regs);
            if is_restart(&regs) {
                thread.at = At::Restart(regs.rip.wrapping_sub(2), regs.rip);
            } else if !thread.in_group_stop {
                thread.at = At::Kernel(Some(regs.rip));
                // Whatever comes next (an instruction, a signal) comes at this address.
                self.resume_user(tid, regs.rip);
            }
        }
        if self.stopping && maps::trap_is_pending(tid) {
            // A step was done before our request came; its own stop is told next, and there the thread is let go.
            return sys::resume(tid as i32, Resume::Step, 0);
        }
        if self.stopping
            && let Some(Thread {
                at: At::User(ip), ..
            }) = self.threads.get(&tid)
            && *ip != regs.rip
        {
            // We leave it in the middle of a system call.
            let ip = *ip;
            self.enter_by(tid, ip);
        }
        if signal != libc::SIGTRAP && !self.stopping {
            if let Some(thread) = self.threads.get_mut(&tid) {
                thread.in_group_stop = true;
            }
            return sys::listen(tid as i32);
        }
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.in_group_stop = false;
        }
        self.go_on(tid, 0)
    }

    /// The thread is about to run the instruction at `ip` in user space.
    fn resume_user(&mut self, tid: Pid, ip: u64) {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        thread.at = At::User(ip);
        let mode = thread.mode;
        // Its code is told before it is said to run.
        let _ = self.fetch(tid, ip);
        self.observer.resume_user(tid, Ip(ip), mode);
    }

    fn fetch(&mut self, tid: Pid, ip: u64) -> Option<Code> {
        let thread = self.threads.get(&tid)?;
        let space = self.spaces.get_mut(&thread.pid)?;
        space.fetch((thread.pid, tid), ip, thread.mode, self.observer)
    }

    /// A SIGTRAP: a step is done, or the program raised it.
    fn trapped(&mut self, tid: Pid) -> io::Result<()> {
        sys::registers(tid as i32, &mut self.regs)?;
        let rip = self.regs.rip;
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Ok(());
        };
        let at = thread.at;
        if std::mem::take(&mut thread.signaled) {
            let code = sys::signal_info(tid as i32)?.code;
            if code == HANDLER_ENTRY {
                return self.handler_entry(tid);
            }
            // No handler: the signal passed, and the instruction (if any) ran.
        }
        match at {
            At::User(ip) => self.stepped(tid, ip),
            At::Kernel(None) => {
                self.after_system_call(tid);
                self.go_on(tid, 0)
            }
            At::Kernel(Some(ip)) => {
                self.resume_user(tid, ip);
                self.stepped(tid, ip)
            }
            At::Restart(ip, after) if rip == after || rip == ip => {
                self.resume_user(tid, ip);
                self.stepped(tid, ip)
            }
            At::Restart(..) => {
                self.set_mode(tid);
                self.resume_user(tid, rip);
                self.go_on(tid, 0)
            }
        }
    }

    fn set_mode(&mut self, tid: Pid) {
        let mode = mode(&self.regs);
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.mode = mode;
        }
    }

    /// The first instruction of a signal handler is next.
    fn handler_entry(&mut self, tid: Pid) -> io::Result<()> {
        if let Some(Thread {
            at: At::User(ip), ..
        }) = self.threads.get(&tid)
        {
            let from = Ip(*ip);
            self.observer.enter_kernel(tid, Entry::Event { from });
        }
        self.unblock_sigtrap(tid)?;
        self.set_mode(tid);
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.trap = false;
        }
        self.resume_user(tid, self.regs.rip);
        self.go_on(tid, 0)
    }

    /// A blocked SIGTRAP would make the kernel reset the program's handler at the next step.
    fn unblock_sigtrap(&mut self, tid: Pid) -> io::Result<()> {
        const SIGTRAP_BIT: u64 = 1 << (libc::SIGTRAP - 1);
        let mask = sys::signal_mask(tid as i32)?;
        if mask & SIGTRAP_BIT != 0 {
            sys::set_signal_mask(tid as i32, mask & !SIGTRAP_BIT)?;
        }
        Ok(())
    }

    /// A step from user space is done: what became of the instruction at `ip`?
    fn stepped(&mut self, tid: Pid, ip: u64) -> io::Result<()> {
        let rip = self.regs.rip;
        let Some(code) = self.fetch(tid, ip) else {
            // No code that we could read (the vsyscall page): the kernel did something in its place.
            self.observer
                .enter_kernel(tid, Entry::Event { from: Ip(ip) });
            self.set_mode(tid);
            self.resume_user(tid, rip);
            return self.go_on(tid, 0);
        };
        let Some(thread) = self.threads.get(&tid) else {
            return Ok(());
        };
        let next = code.insn.next_ip(Ip(ip), thread.mode).0;
        match code.insn.class {
            Class::Syscall => {
                self.observer.enter_kernel(
                    tid,
                    Entry::Instruction {
                        ip: Ip(ip),
                        insn: code.insn,
                    },
                );
                self.system_call_done(tid, ip)
            }
            Class::SoftwareInterrupt => self.software_interrupt(tid, ip),
            _ if rip == ip && code.insn.repeats => {
                // One iteration of several, unless another signal arrived that looks like a step.
                let info = sys::signal_info(tid as i32)?;
                if info.code <= 0 {
                    return self.signaled(tid, libc::SIGTRAP);
                }
                self.go_on(tid, 0)
            }
            _ => {
                if rip == ip && code.insn.target != Some(Ip(ip)) {
                    // Nothing ran: somebody sent a SIGTRAP.
                    let info = sys::signal_info(tid as i32)?;
                    if info.code <= 0 || info.code == SI_KERNEL {
                        return self.signaled(tid, libc::SIGTRAP);
                    }
                }
                self.patch(tid, code.special)?;
                let target = if code.special == Special::LoadsStackSegment && rip != next {
                    // The instruction after it ran without a stop.
                    self.observer.retired(tid, Ip(ip), &code.insn, Ip(next));
                    self.set_at(tid, next);
                    match self.fetch(tid, next) {
                        Some(second) if second.insn.class != Class::Syscall => {
                            self.observer.retired(tid, Ip(next), &second.insn, Ip(rip));
                            rip
                        }
                        _ => return self.stepped(tid, next),
                    }
                } else {
                    self.far_or_near(tid, ip, &code);
                    rip
                };
                self.set_at(tid, target);
                let _ = self.fetch(tid, target);
                self.after_instruction(tid, code.special)
            }
        }
    }

    fn far_or_near(&mut self, tid: Pid, ip: u64, code: &Code) {
        let rip = Ip(self.regs.rip);
        if code.insn.class.is_far() {
            // It may lead from 32- to 64-bit code or back.
            self.set_mode(tid);
            self.observer
                .far_branch(tid, Ip(ip), &code.insn, rip, mode(&self.regs));
        } else {
            self.observer.retired(tid, Ip(ip), &code.insn, rip);
        }
    }

    fn set_at(&mut self, tid: Pid, ip: u64) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.at = At::User(ip);
        }
    }

    /// Hides the step's trap flag from what the program stored.
    fn patch(&mut self, tid: Pid, special: Special) -> io::Result<()> {
        if let Special::PushFlags(size) = special
            && self.regs.eflags & TRAP_FLAG == 0
        {
            let mut flags = [0; 8];
            let flags = &mut flags[..usize::from(size)];
            if sys::read_memory(tid as i32, self.regs.rsp, flags) == flags.len()
                && flags[1] & 1 != 0
            {
                flags[1] &= !1;
                sys::write_memory(tid as i32, self.regs.rsp, flags)?;
            }
        }
        Ok(())
    }

    /// An instruction retired: the program's own trap flag, if it has set it, has its effect.
    fn after_instruction(&mut self, tid: Pid, special: Special) -> io::Result<()> {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Ok(());
        };
        let trapped = thread.trap;
        if let Special::PopFlags(size) = special {
            let mut flags = [0; 8];
            let flags = &mut flags[..usize::from(size)];
            // What was popped still stands below the stack.
            let at = self.regs.rsp.wrapping_sub(u64::from(size));
            thread.trap =
                sys::read_memory(tid as i32, at, flags) == flags.len() && flags[1] & 1 != 0;
            if !thread.trap {
                return self.forget_step(tid, if trapped { libc::SIGTRAP } else { 0 });
            }
            sys::set_flags(tid as i32, self.regs.eflags | TRAP_FLAG)?;
        }
        if trapped {
            self.signaled(tid, libc::SIGTRAP)
        } else {
            self.go_on(tid, 0)
        }
    }

    /// Delivers `signal` (or none) after a step over POPF, from which on the kernel takes the trap flag of our steps for
    /// the program's own. It stops doing so when the thread is let run freely; an interrupt that waits for it keeps it
    /// from running anything.
    fn forget_step(&mut self, tid: Pid, signal: c_int) -> io::Result<()> {
        sys::interrupt(tid as i32)?;
        sys::resume(tid as i32, Resume::Run, signal)?;
        match sys::wait_for(tid as i32)? {
            Status::Stopped {
                event: EVENT_STOP, ..
            } => {
                let before = self.regs.rip;
                sys::registers(tid as i32, &mut self.regs)?;
                if self.regs.rip == before {
                    self.go_on(tid, 0)
                } else {
                    self.handler_entry(tid)
                }
            }
            other => self.handle(tid, other),
        }
    }

    /// INT n or INT3 ran: a system call of 32-bit programs, or a signal that is delivered next.
    fn software_interrupt(&mut self, tid: Pid, ip: u64) -> io::Result<()> {
        self.observer
            .enter_kernel(tid, Entry::Event { from: Ip(ip) });
        let info = sys::signal_info(tid as i32)?;
        if info.code == SI_KERNEL {
            // INT3: this stop is its SIGTRAP.
            if let Some(thread) = self.threads.get_mut(&tid) {
                thread.at = At::Kernel(Some(self.regs.rip));
            }
            return self.signaled(tid, libc::SIGTRAP);
        }
        self.system_call_done(tid, ip)
    }

    /// A system call is done and the thread stands before its return to user space.
    fn system_call_done(&mut self, tid: Pid, ip: u64) -> io::Result<()> {
        let regs = self.regs;
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Ok(());
        };
        thread.at = At::Kernel(None);
        if is_restart(&regs) {
            thread.at = At::Restart(ip, regs.rip);
            return self.go_on(tid, 0);
        }
        if thread.mode == cofi_packet::ExecMode::Bits64 && r11_shows_step(&regs) {
            sys::set_r11(tid as i32, regs.r11 & !TRAP_FLAG)?;
        }
        let (pid, mode) = (thread.pid, thread.mode);
        if changes_mappings(regs.orig_rax, mode) {
            self.refresh(pid, tid);
        }
        if renames(regs.orig_rax, mode) {
            self.observer.comm(pid, tid, &maps::comm(tid));
        }
        if let Some(thread) = self.threads.get_mut(&tid)
            && std::mem::take(&mut thread.returning_trap)
        {
            thread.trap = true;
            sys::set_flags(tid as i32, regs.eflags | TRAP_FLAG)?;
        }
        // rt_sigreturn leaves no number behind.
        if sets_mask(regs.orig_rax, mode) || (regs.orig_rax as i64) < 0 {
            self.unblock_sigtrap(tid)?;
        }
        self.after_system_call(tid);
        self.go_on(tid, 0)
    }

    fn after_system_call(&mut self, tid: Pid) {
        self.set_mode(tid);
        self.resume_user(tid, self.regs.rip);
    }

    /// A signal is about to be delivered to the program.
    fn signaled(&mut self, tid: Pid, signal: c_int) -> io::Result<()> {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.signaled = true;
            if let At::Kernel(None) = thread.at {
                sys::registers(tid as i32, &mut self.regs)?;
                thread.mode = mode(&self.regs);
                thread.at = if is_restart(&self.regs) {
                    At::Restart(self.regs.rip.wrapping_sub(2), self.regs.rip)
                } else {
                    At::Kernel(Some(self.regs.rip))
                };
            }
        }
        self.go_on(tid, signal)
    }

    /// `execve` has replaced the process; `tid` is its only thread now.
    fn executed(&mut self, tid: Pid) -> io::Result<()> {
        let former = sys::event_message(tid as i32)? as Pid;
        let caller = if self.threads.contains_key(&former) {
            former
        } else {
            tid
        };
        if let Some(Thread {
            at: At::User(ip), ..
        }) = self.threads.get(&caller)
        {
            let ip = *ip;
            self.enter_by(caller, ip);
        }
        let pid = self.threads.get(&caller).map_or(tid, |thread| thread.pid);
        let others: Vec<Pid> = self
            .threads
            .iter()
            .filter(|(_, t)| t.pid == pid)
            .map(|(other, _)| *other)
            .collect();
        let same_thread = caller == tid;
        for other in others
            .into_iter()
            .filter(|other| !(same_thread && *other == tid))
        {
            self.threads.remove(&other);
            self.observer.thread_exit(pid, other);
        }
        self.begin_process(pid, None, ProcessCause::Exec);
        if same_thread && self.threads.contains_key(&tid) {
            if let Some(thread) = self.threads.get_mut(&tid) {
                thread.at = At::Kernel(None);
                thread.signaled = false;
            }
        } else {
            self.begin_thread(pid, tid, None);
        }
        self.refresh(pid, tid);
        self.go_on(tid, 0)
    }

    /// The instruction at `ip` has led into the kernel for good.
    fn enter_by(&mut self, tid: Pid, ip: u64) {
        let entry = match self.fetch(tid, ip) {
            Some(code) if code.insn.class == Class::Syscall => Entry::Instruction {
                ip: Ip(ip),
                insn: code.insn,
            },
            _ => Entry::Event { from: Ip(ip) },
        };
        self.observer.enter_kernel(tid, entry);
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.at = At::Kernel(None);
        }
    }

    /// The thread is on its way out: by a system call that does not return, or killed.
    fn leaving(&mut self, tid: Pid) -> io::Result<()> {
        sys::registers(tid as i32, &mut self.regs)?;
        let Some(thread) = self.threads.get(&tid) else {
            return Ok(());
        };
        if let At::User(ip) = thread.at {
            if self.regs.rip != ip {
                self.enter_by(tid, ip);
            } else {
                // Killed before the instruction ran.
                self.observer
                    .enter_kernel(tid, Entry::Event { from: Ip(ip) });
                if let Some(thread) = self.threads.get_mut(&tid) {
                    thread.at = At::Kernel(None);
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, tid: Pid, signal: c_int) -> io::Result<()> {
        if let Some(Thread {
            at: At::User(ip), ..
        }) = self.threads.get(&tid)
            && let Some(code) = self.fetch(tid, *ip)
            && code.insn.class == Class::Syscall
            && self.regs.rax == RT_SIGRETURN
        {
            let mut flags = [0; 8];
            sys::read_memory(
                tid as i32,
                self.regs.rsp.wrapping_add(FRAME_FLAGS),
                &mut flags,
            );
            if let Some(thread) = self.threads.get_mut(&tid) {
                thread.returning_trap = flags[1] & 1 != 0;
            }
        }
        unless_gone(sys::resume(tid as i32, Resume::Step, signal))
    }

    /// The thread goes on: stepped, or let go if tracing is to stop.
    fn go_on(&mut self, tid: Pid, signal: c_int) -> io::Result<()> {
        if !self.stopping {
            return self.step(tid, signal);
        }
        unless_gone(sys::detach(tid as i32, signal))?;
        if let Some(thread) = self.threads.remove(&tid) {
            self.observer.thread_exit(thread.pid, tid);
        }
        Ok(())
    }
}
