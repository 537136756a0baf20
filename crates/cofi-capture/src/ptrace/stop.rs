//! What a stop of a thread means, and how the thread goes on.

use super::cursor::Stepped;
use super::engine::{Engine, unless_gone};
use super::maps::{self, Action};
use super::sigtrap;
use super::special::Special;
use super::sys::TRAP_FLAG;
use super::sys::{self, EVENT_STOP, RESUME_FLAG, Regs, Resume};
use super::syscall::{Effect, Table, effect, sharing, was_refused_to_trace};
use super::thread::{At, Thread, is_restart, r11_shows_step};
use crate::{Change, Notice, Pid, ProcessCause, Signal};
use cofi_packet::Ip;
use libc::c_int;
use std::io;

/// siginfo's code at the stop before a handler's first instruction: the kernel reports it by a plain notification.
const HANDLER_ENTRY: c_int = libc::SIGTRAP;
/// siginfo's code after a step that ended in a system call, and after INT1.
const TRAP_BRKPT: c_int = 1;
/// siginfo's code at a breakpoint of a debug register.
const TRAP_HWBKPT: c_int = 4;
/// siginfo's code after a step.
const TRAP_TRACE: c_int = 2;

impl Engine<'_> {
    pub(super) fn stopped(&mut self, tid: Pid, signal: c_int, event: c_int) -> io::Result<()> {
        let mut regs = sys::no_registers();
        sys::registers(tid as i32, &mut regs)?;
        match event {
            0 if signal == libc::SIGTRAP => self.trapped(tid, regs),
            0 if signal == sys::CALL_STOP => self.called(tid, regs),
            0 => {
                let fault = matches!(
                    signal,
                    libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE
                ) && sys::signal_info(tid as i32)?.code() > 0;
                self.catch_up(tid, &regs, false)?;
                self.signaled(tid, signal, fault, &regs)
            }
            libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
                self.in_system_call(tid, &regs)?;
                let child = sys::event_message(tid as i32)? as Pid;
                let table = match self.threads.get(&tid).map(|thread| thread.at) {
                    Some(At::Kernel(table)) => table,
                    _ => Table::Native,
                };
                self.born(child, tid, sharing(&regs, table, tid))?;
                self.go_on(tid, 0)
            }
            libc::PTRACE_EVENT_EXEC => self.executed(tid, &regs),
            libc::PTRACE_EVENT_EXIT => {
                self.in_system_call(tid, &regs)?;
                if let Some(process) = self.processes.get_mut(&tid) {
                    process.first_ended_at = Some(regs.rip);
                }
                if let Some(mut cursor) = self.cursor(tid) {
                    if let At::User(next) = cursor.thread.at {
                        cursor.interrupted_at(next.ip);
                    }
                    cursor.thread.at = At::Exiting;
                }
                // It does not come back to user space; its end is told by a status.
                sys::resume(tid as i32, Resume::Run, 0)
            }
            EVENT_STOP => self.interrupted(tid, signal, &regs),
            _ => self.go_on(tid, 0),
        }
    }

    /// Tells what a thread ran of its plan. Whether it had one.
    fn catch_up(&mut self, tid: Pid, regs: &Regs, hit: bool) -> io::Result<bool> {
        match self.cursor(tid) {
            Some(mut cursor) => cursor.catch_up(regs, hit),
            None => Ok(false),
        }
    }

    /// A system call has begun, or ended.
    fn called(&mut self, tid: Pid, regs: Regs) -> io::Result<()> {
        match self.threads.get(&tid).map(|thread| thread.at) {
            Some(At::User(_)) => {
                if let Some(mut cursor) = self.cursor(tid) {
                    if cursor.catch_up(&regs, false)? {
                        cursor.thread.at = At::Kernel(cursor.entered_by(regs.rip));
                        return self.go_on(tid, 0);
                    }
                    cursor.thread.at = match cursor.step(&regs, false)? {
                        Stepped::SystemCall(table) => At::Kernel(table),
                        _ => At::Kernel(Table::Compat),
                    };
                }
                self.go_on(tid, 0)
            }
            Some(At::Kernel(table)) => self.system_call_done(tid, table, regs),
            _ => {
                self.begin(tid, &regs)?;
                self.go_on(tid, 0)
            }
        }
    }

    /// The first stop of a thread, or of a new program.
    fn begin(&mut self, tid: Pid, regs: &Regs) -> io::Result<()> {
        if let Some(mut cursor) = self.cursor(tid) {
            sigtrap::take_over(tid, cursor.thread)?;
            hide_in_r11(tid, cursor.thread, Table::Native, regs)?;
            cursor.prepare(regs);
        }
        Ok(())
    }

    /// A stop that can only be within a system call, or before the next instruction.
    fn in_system_call(&mut self, tid: Pid, regs: &Regs) -> io::Result<()> {
        let Some(mut cursor) = self.cursor(tid) else {
            return Ok(());
        };
        cursor.catch_up(regs, false)?;
        if let At::User(next) = cursor.thread.at
            && regs.rip != next.ip
            && !(next.restarts && is_restart(regs))
        {
            let stepped = cursor.step(regs, false)?;
            cursor.interrupted_at(regs.rip);
            cursor.thread.at = match stepped {
                Stepped::SystemCall(table) => At::Kernel(table),
                _ => At::Kernel(Table::Compat),
            };
        }
        Ok(())
    }

    /// A stop that no instruction caused: a thread's first, job control, our own request.
    fn interrupted(&mut self, tid: Pid, signal: c_int, regs: &Regs) -> io::Result<()> {
        let Some(mut cursor) = self.cursor(tid) else {
            return Ok(());
        };
        match cursor.thread.at {
            At::New => self.begin(tid, regs)?,
            // A signal may have been delivered on the way.
            At::User(next)
                if std::mem::take(&mut cursor.thread.forgetting) && regs.rip != next.ip =>
            {
                cursor.interrupted_at(next.ip);
                cursor.prepare(regs);
                sigtrap::handler_entered(tid, cursor.thread, regs)?;
            }
            // It may stay here for long, or may have gone astray. If it was at a breakpoint, its trap comes next.
            At::User(_) if cursor.thread.runs && !sys::trap_is_pending(tid as i32)? => {
                cursor.catch_up(regs, false)?;
                cursor.prepare(regs);
            }
            _ => {}
        }
        if signal != libc::SIGTRAP && !self.stopping {
            // A group stop: SIGCONT ends it.
            return sys::listen(tid as i32);
        }
        self.go_on(tid, 0)
    }

    /// A SIGTRAP: a step is done, a signal handler is entered, or the program raised it.
    #[inline]
    fn trapped(&mut self, tid: Pid, regs: Regs) -> io::Result<()> {
        let info = sys::signal_info(tid as i32)?;
        if info.code() == TRAP_HWBKPT {
            return self.hit(tid, regs);
        }
        self.catch_up(tid, &regs, false)?;
        match info.code() {
            TRAP_TRACE | TRAP_BRKPT => self.stepped(tid, info.code(), regs),
            HANDLER_ENTRY => {
                if let Some(mut cursor) = self.cursor(tid) {
                    if let At::User(next) = cursor.thread.at {
                        cursor.interrupted_at(next.ip);
                    }
                    cursor.prepare(&regs);
                    sigtrap::handler_entered(tid, cursor.thread, &regs)?;
                }
                self.go_on(tid, 0)
            }
            code if code <= 0 => {
                let ignores = self.ignores_trap(tid);
                let goes = match self.threads.get_mut(&tid) {
                    Some(thread) => sigtrap::lets_through(thread, ignores, &info),
                    None => true,
                };
                let signal = if goes { libc::SIGTRAP } else { 0 };
                self.signaled(tid, signal, false, &regs)
            }
            _ => {
                let held = match self.threads.get_mut(&tid) {
                    Some(thread) if !thread.blocks_trap => thread.held_trap.take(),
                    _ => None,
                };
                if let Some(info) = &held {
                    sys::set_signal_info(tid as i32, info)?;
                }
                let ignored = held.is_some() && self.ignores_trap(tid);
                let signal = if ignored { 0 } else { libc::SIGTRAP };
                self.signaled(tid, signal, held.is_none(), &regs)
            }
        }
    }

    /// A thread stands before an instruction at which a breakpoint is.
    #[inline]
    fn hit(&mut self, tid: Pid, regs: Regs) -> io::Result<()> {
        let Some(mut cursor) = self.cursor(tid) else {
            return Ok(());
        };
        if cursor.catch_up(&regs, true)? {
            cursor.prepare(&regs);
            return self.go_on(tid, 0);
        }
        match cursor.thread.at {
            // It was stepped on to a breakpoint that an earlier plan has left. Or the resume flag did not let it pass: a
            // hypervisor that executes an instruction in place of the processor (those of UMIP) may stop at the breakpoint
            // whatever that flag is, again and again.
            At::User(next) if next.ip == regs.rip => {
                cursor.thread.breakpoints.clear(tid)?;
                self.go_on(tid, 0)
            }
            At::User(_) => self.stepped(tid, TRAP_TRACE, regs),
            _ => self.go_on(tid, 0),
        }
    }

    fn ignores_trap(&self, tid: Pid) -> bool {
        let thread = self.threads.get(&tid);
        let process = thread.and_then(|thread| self.processes.get(&thread.pid));
        process.is_some_and(|process| process.ignores_trap)
    }

    /// The processor or the kernel says that a step is done.
    #[inline]
    fn stepped(&mut self, tid: Pid, code: c_int, regs: Regs) -> io::Result<()> {
        let Some(mut cursor) = self.cursor(tid) else {
            return Ok(());
        };
        let next = match cursor.thread.at {
            At::User(next) => next,
            At::Kernel(table) => return self.system_call_done(tid, table, regs),
            At::New => {
                self.begin(tid, &regs)?;
                return self.go_on(tid, 0);
            }
            At::Exiting => return sys::resume(tid as i32, Resume::Run, 0),
        };
        if code == TRAP_BRKPT && regs.rip == next.ip {
            // A system call has been told already, by the signal that it raised.
            return self.go_on(tid, 0);
        }
        let own_trap = cursor.thread.own_trap;
        match cursor.step(&regs, code == TRAP_TRACE)? {
            Stepped::Iterated if !own_trap => self.go_on(tid, 0),
            Stepped::Iterated => self.signaled(tid, libc::SIGTRAP, false, &regs),
            Stepped::SystemCall(table) => self.system_call_done(tid, table, regs),
            Stepped::Interrupt => {
                // INT1; the others raise signals that do not look like a step.
                self.report_signal(tid, libc::SIGTRAP, &regs)?;
                if let Some(mut cursor) = self.cursor(tid) {
                    cursor.prepare(&regs);
                }
                self.go_on(tid, libc::SIGTRAP)
            }
            Stepped::Retired | Stepped::Lost => {
                cursor.prepare(&regs);
                if own_trap && code == TRAP_TRACE {
                    // What the program has asked for.
                    cursor.interrupted_at(regs.rip);
                    self.report_signal(tid, libc::SIGTRAP, &regs)?;
                    return self.go_on(tid, libc::SIGTRAP);
                }
                self.go_on(tid, 0)
            }
        }
    }

    /// A system call is done and the thread stands before its return to user space.
    fn system_call_done(&mut self, tid: Pid, table: Table, regs: Regs) -> io::Result<()> {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Ok(());
        };
        let pid = thread.pid;
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        hide_in_r11(tid, thread, table, &regs)?;
        if was_refused_to_trace(&regs, table) {
            let notice = Notice::of(pid, Change::TracerRefused);
            self.observer.notice(notice);
        }
        let mut changed = false;
        match effect(&regs, table, &process.space) {
            Effect::None => {}
            Effect::Mappings => {
                changed = process.space.refresh(pid, tid, self.observer);
            }
            Effect::Name => self.observer.comm(pid, tid, &maps::comm(tid)),
            Effect::Mask => sigtrap::mask_set(tid, thread, &regs, table)?,
            Effect::Action => sigtrap::action_set(tid, &mut process.ignores_trap, &regs, table)?,
            Effect::SignalReturn => sigtrap::handler_returned(tid, thread)?,
        }
        let held = thread.held_trap.is_some() && !thread.blocks_trap;
        if changed {
            self.plan_anew(pid)?;
        }
        if let Some(mut cursor) = self.cursor(tid) {
            cursor.prepare(&regs);
        }
        // It stops again for this signal.
        self.go_on(tid, if held { libc::SIGTRAP } else { 0 })
    }

    /// Interrupts the threads of a process that run by plans, because the code that was planned with has changed.
    fn plan_anew(&self, pid: Pid) -> io::Result<()> {
        for (tid, thread) in &self.threads {
            if thread.pid == pid && thread.runs {
                unless_gone(sys::interrupt(*tid as i32))?;
            }
        }
        Ok(())
    }

    /// A signal is about to be delivered to the program. `fault`: an instruction raised it.
    fn signaled(&mut self, tid: Pid, signal: c_int, fault: bool, regs: &Regs) -> io::Result<()> {
        let mut clean = *regs;
        let mut took_step_back = false;
        if let Some(mut cursor) = self.cursor(tid) {
            took_step_back = take_step_back(tid, cursor.thread, &mut clean)?;
            cursor.signaled(&clean, fault)?;
        }
        let regs = &clean;
        self.report_signal(tid, signal, regs)?;
        if let Some(mut cursor) = self.cursor(tid) {
            cursor.thread.forget_step |= took_step_back;
            if let At::Kernel(table) = cursor.thread.at {
                hide_in_r11(tid, cursor.thread, table, regs)?;
            }
            cursor.prepare(regs);
            if !fault {
                hide_resume_flag(tid, cursor.thread, regs)?;
            }
        }
        self.go_on(tid, signal)
    }

    /// Reports a signal at whose delivery a thread has stopped, unless it does nothing.
    fn report_signal(&mut self, tid: Pid, number: c_int, regs: &Regs) -> io::Result<()> {
        let action = match number {
            0 => Action::Nothing,
            _ => maps::action(tid, number),
        };
        if action == Action::Nothing {
            return Ok(());
        }
        let info = sys::signal_info(tid as i32)?;
        let is_fatal = action == Action::Ends;
        let process = self.threads.get(&tid).map(|thread| thread.pid);
        if let Some(process) = process.and_then(|pid| self.processes.get_mut(&pid)) {
            process.has_fatal_signal |= is_fatal;
        }
        let signal = Signal {
            number: number as u32,
            code: info.code(),
            ip: Some(Ip(regs.rip)),
            address: info.address(),
            is_fatal,
        };
        self.observer.signal(tid, signal);
        Ok(())
    }

    /// A signal has ended a thread; the first thread of a process is told of last. Of SIGKILL there is no stop before.
    pub(super) fn killed(&mut self, tid: Pid, number: c_int) {
        let Some(process) = self.processes.get_mut(&tid) else {
            return;
        };
        if std::mem::replace(&mut process.has_fatal_signal, true) {
            return;
        }
        let signal = Signal {
            number: number as u32,
            code: 0,
            ip: process.first_ended_at.map(Ip),
            address: None,
            is_fatal: true,
        };
        self.observer.signal(tid, signal);
    }

    /// `execve` has replaced the process; `tid` is its only thread now.
    fn executed(&mut self, tid: Pid, regs: &Regs) -> io::Result<()> {
        let former = sys::event_message(tid as i32)? as Pid;
        let caller = if self.threads.contains_key(&former) {
            former
        } else {
            tid
        };
        let Some(mut cursor) = self.cursor(caller) else {
            return Ok(());
        };
        if let At::User(next) = cursor.thread.at
            && next.code.is_some_and(|code| code.is_system_call())
        {
            cursor.step(regs, false)?;
        }
        cursor.thread.at = At::New;
        let pid = cursor.thread.pid;
        let others: Vec<Pid> = self
            .threads
            .iter()
            .filter(|(other, thread)| thread.pid == pid && **other != caller)
            .map(|(other, _)| *other)
            .collect();
        for other in others {
            self.end_thread(other);
        }
        // Who is not the first thread goes on under the number of the process.
        let renumbered = if caller == tid {
            None
        } else {
            self.threads.remove(&caller)
        };
        if renumbered.is_some() {
            self.observer.thread_exit(pid, caller);
        }
        self.begin_process(pid, None, ProcessCause::Exec);
        if let Some(thread) = renumbered {
            self.threads.insert(tid, thread);
            self.observer.thread_start(pid, tid, None);
        }
        if let Some(thread) = self.threads.get_mut(&tid) {
            let fresh = Thread::new(pid, Some(thread), self.breakpoints.clone());
            *thread = Thread {
                held_trap: thread.held_trap.take(),
                own_trap: false,
                ..fresh
            };
        }
        self.refresh(pid, tid);
        self.go_on(tid, 0)
    }

    /// The thread goes on and gets `signal` (0 for none): stepped, or let go if tracing is to stop.
    #[inline]
    pub(super) fn go_on(&mut self, tid: Pid, signal: c_int) -> io::Result<()> {
        if self.stopping {
            return self.release(tid, signal);
        }
        if let Some(thread) = self.threads.get_mut(&tid)
            && std::mem::take(&mut thread.forget_step)
        {
            // The kernel takes the trap flag of further steps for the program's own, until the thread is let run
            // freely. An interrupt that waits for it keeps it from running anything.
            thread.forgetting = true;
            sys::interrupt(tid as i32)?;
            return sys::resume(tid as i32, Resume::Run, signal);
        }
        if let Some(thread) = self.threads.get_mut(&tid) {
            if signal != 0 {
                // The signal's handler comes first.
                thread.plan.clear();
                thread.flags = None;
            } else if runs_by_plan(tid, thread)? {
                // No way through a plan leads into a system call. Should the thread go astray, it is found there at the latest.
                return sys::resume(tid as i32, Resume::Call, 0);
            }
        }
        // A system call is run rather than stepped over: no trap flag shows in R11, and no SIGTRAP is forced upon the
        // thread while it may block it. With a signal, the step is what stops at its handler.
        let in_call = signal == 0
            && self
                .threads
                .get(&tid)
                .is_some_and(|thread| match thread.at {
                    At::User(next) => next.code.is_some_and(|code| code.is_system_call()),
                    At::New | At::Kernel(_) | At::Exiting => true,
                });
        let how = if in_call { Resume::Call } else { Resume::Step };
        sys::resume(tid as i32, how, signal)
    }

    /// Lets a stopped thread go.
    fn release(&mut self, tid: Pid, signal: c_int) -> io::Result<()> {
        if sys::trap_is_pending(tid as i32)? {
            // The trap of a step, which would kill the program if it came when we are gone.
            return sys::resume(tid as i32, Resume::Run, signal);
        }
        let mut regs = sys::no_registers();
        sys::registers(tid as i32, &mut regs)?;
        self.in_system_call(tid, &regs)?;
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.breakpoints.clear(tid)?;
            take_step_back(tid, thread, &mut regs)?;
            if let At::Kernel(table) = thread.at {
                hide_in_r11(tid, thread, table, &regs)?;
            }
            sigtrap::give_back(tid, thread)?;
            if thread.held_trap.take().is_some() {
                sys::send(thread.pid as i32, tid as i32, libc::SIGTRAP);
            }
        }
        unless_gone(sys::detach(tid as i32, signal))?;
        if let Some(thread) = self.threads.get(&tid) {
            self.released.insert(thread.pid);
        }
        self.end_thread(tid);
        Ok(())
    }
}

/// Clears the trap flag of a step that has not been done. Whether it was still there.
///
/// Before POPF and IRET the kernel takes the flag of our step for the program's own, and leaves it set if a signal comes first. Behind the handler
/// the program would get a SIGTRAP.
fn take_step_back(tid: Pid, thread: &Thread, regs: &mut Regs) -> io::Result<bool> {
    let At::User(next) = thread.at else {
        return Ok(false);
    };
    let loads_flags = || {
        next.code
            .is_some_and(|code| code.special == Special::LoadsFlags)
    };
    let shows = regs.eflags & TRAP_FLAG != 0 && !thread.own_trap;
    if !shows || next.ip != regs.rip || !loads_flags() {
        return Ok(false);
    }
    regs.eflags &= !TRAP_FLAG;
    sys::set_flags(tid as i32, regs.eflags)?;
    Ok(true)
}

/// SYSCALL leaves the flags in R11, and so the trap flag of our step.
fn hide_in_r11(tid: Pid, thread: &Thread, table: Table, regs: &Regs) -> io::Result<()> {
    if table == Table::Native && !thread.own_trap && r11_shows_step(regs) {
        sys::set_r11(tid as i32, regs.r11 & !TRAP_FLAG)?;
    }
    Ok(())
}

/// The flags of a thread that was stopped at a breakpoint would show in the frame of a signal's handler.
fn hide_resume_flag(tid: Pid, thread: &Thread, regs: &Regs) -> io::Result<()> {
    let At::User(next) = thread.at else {
        return Ok(());
    };
    // Between two rounds of a string instruction the processor itself sets it.
    let repeats = next.code.is_some_and(|code| code.insn.repeats);
    if thread.breakpoints.count() > 0 && !repeats && regs.eflags & RESUME_FLAG != 0 {
        sys::set_flags(tid as i32, regs.eflags & !RESUME_FLAG)?;
    }
    Ok(())
}

/// Whether a thread can be let run, with the breakpoints of its plan. It is to be stepped otherwise.
#[inline]
fn runs_by_plan(tid: Pid, thread: &mut Thread) -> io::Result<bool> {
    if thread.runs {
        // It has been interrupted, wherever it is in its plan.
        return Ok(true);
    }
    let Thread {
        plan,
        breakpoints,
        flags,
        at,
        ..
    } = thread;
    let planned = plan.is_made() && breakpoints.set(tid, plan.stops(), |ip| plan.passes(ip));
    if !planned {
        plan.clear();
    }
    // The instruction at which it stands is to run, whatever breakpoint is there.
    if let (Some(flags), At::User(next)) = (flags.take(), at)
        && breakpoints.holds(next.ip)
        && flags & RESUME_FLAG == 0
    {
        sys::set_flags(tid as i32, flags | RESUME_FLAG)?;
    }
    thread.runs = planned;
    Ok(planned)
}
