//! One thread's place in its flow: tells the observer, stop by stop, how it got there.

use super::branch_target;
use super::code::{Code, CodeSpace, Steady};
use super::plan::{Found, Source};
use super::special::Special;
use super::sys::{self, RESUME_FLAG, Regs, TRAP_FLAG};
use super::syscall::Table;
use super::thread::{At, Next, Thread, VSYSCALL, is_restart, mode};
use crate::{Entry, Missing, Observer, Pid};
use cofi_insn::Class;
use cofi_packet::{ExecMode, Ip};
use std::io;

/// What a thread did between two stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stepped {
    /// It ran at least one instruction and stays in user space.
    Retired,
    /// It did an iteration of an instruction that repeats, and has not finished it.
    Iterated,
    /// It made a system call.
    SystemCall(Table),
    /// It executed another software interrupt than that of system calls.
    Interrupt,
    /// What its instruction was does not explain where it is. The observer has been told of an interruption.
    Lost,
}

/// A thread with all that is needed to tell of it.
pub(super) struct Cursor<'a> {
    pub(super) tid: Pid,
    pub(super) thread: &'a mut Thread,
    pub(super) space: &'a mut CodeSpace,
    /// No other thread can write the process's memory.
    pub(super) alone: bool,
    pub(super) observer: &'a mut dyn Observer,
}

impl Cursor<'_> {
    fn fetch(&mut self, ip: u64) -> Option<Code> {
        let who = (self.thread.pid, self.tid);
        self.space
            .fetch(who, ip, self.thread.mode, &mut *self.observer)
    }

    /// What was known to stand at `ip` before the thread ran it, as it was when it did.
    #[inline]
    fn as_it_ran(&mut self, ip: u64, known: Code, rip: u64) -> Code {
        if known.stable || self.alone {
            return known;
        }
        let mode = self.thread.mode;
        let explains = |code: &Code| {
            let after = code.insn.next_ip(Ip(ip), mode).0;
            code.insn.repeats && rip == ip || leads_to(code, after, rip)
        };
        let who = (self.thread.pid, self.tid);
        self.space
            .as_it_ran(who, (ip, mode), known, explains, &mut *self.observer)
    }

    /// Tells that the thread is in user space at `ip`, unless that is known.
    fn in_user(&mut self, ip: u64) {
        if !self.thread.in_user {
            self.thread.in_user = true;
            self.observer
                .resume_user(self.tid, Ip(ip), self.thread.mode);
        }
    }

    fn enter_kernel(&mut self, entry: Entry) {
        self.thread.in_user = false;
        self.observer.enter_kernel(self.tid, entry);
    }

    /// Tells that something took the thread out of user space before the instruction at `ip`, if it was there.
    pub(super) fn interrupted_at(&mut self, ip: u64) {
        if self.thread.in_user {
            self.enter_kernel(Entry::Event { from: Ip(ip) });
        }
    }

    /// The thread is going to run the instruction at which its registers stand.
    #[inline]
    pub(super) fn prepare(&mut self, regs: &Regs) {
        self.thread.mode = mode(regs);
        self.thread.own_trap = regs.eflags & TRAP_FLAG != 0;
        let restarts = is_restart(regs);
        let ip = if restarts {
            // SYSCALL and INT 0x80 are two bytes long; the vDSO has one in front of where its SYSENTER returns.
            regs.rip.wrapping_sub(2)
        } else {
            regs.rip
        };
        let next = if VSYSCALL.contains(&ip) {
            self.on_vsyscall_page(ip, regs)
        } else {
            Next {
                ip,
                code: self.fetch(ip),
                restarts,
                returns_to: None,
            }
        };
        self.thread.at = At::User(next);
        self.thread.flags = Some(regs.eflags);
        self.plan(next, regs);
    }

    /// Plans what the thread may run before it stops next; nothing if it must be stepped.
    #[inline]
    fn plan(&mut self, next: Next, regs: &Regs) {
        let Thread {
            pid,
            plan,
            breakpoints,
            runs,
            mode,
            own_trap,
            ..
        } = &mut *self.thread;
        plan.clear();
        *runs = false;
        let places = breakpoints.count();
        let special = *own_trap || next.restarts || next.returns_to.is_some();
        if places == 0 || special || !branch_target::is_flat(regs) {
            return;
        }
        let (tid, alone) = (self.tid, self.alone);
        let mut source = Steady {
            space: &mut *self.space,
            who: (*pid, tid),
            mode: *mode,
            alone,
            observer: &mut *self.observer,
        };
        let Some(code) = source.code(next.ip) else {
            return;
        };
        let after = code.insn.next_ip(Ip(next.ip), *mode).0;
        // What stands in memory that others may write need not stand there when it is read.
        let read = |at, size: usize| {
            let mut bytes = [0; 8];
            let own = alone && !source.space.shares_in(at, size as u64);
            let whole = own && sys::read_memory(tid as i32, at, &mut bytes[..size]) == size;
            whole.then(|| u64::from_le_bytes(bytes))
        };
        if let Some(to) = branch_target::leads_to(code.branch, &code.insn, after, regs, read) {
            plan.make(next.ip, &code, to, *mode, places, &mut source);
        }
    }

    /// Tells what the thread ran of its plan, and leaves it standing where its registers are, without a plan. `hit`: it stopped
    /// at a breakpoint. Whether there was a plan.
    pub(super) fn catch_up(&mut self, regs: &Regs, hit: bool) -> io::Result<bool> {
        if !std::mem::take(&mut self.thread.runs) {
            return Ok(false);
        }
        let At::User(next) = self.thread.at else {
            return Ok(false);
        };
        let rip = regs.rip;
        // The processor clears the resume flag when an instruction has run; the kernel sets it at a breakpoint.
        let back = rip == next.ip
            && self.thread.plan.comes_back()
            && (hit || regs.eflags & RESUME_FLAG == 0 || sys::trap_is_pending(self.tid as i32)?);
        match self.thread.plan.find(rip, back) {
            Found::Unmoved => {}
            Found::Behind(node) => self.tell_path(node, rip),
            Found::Astray => {
                self.in_user(next.ip);
                self.interrupted_at(next.ip);
            }
        }
        self.thread.plan.clear();
        self.thread.flags = None;
        self.thread.at = At::User(Next {
            ip: rip,
            code: None,
            restarts: false,
            returns_to: None,
        });
        Ok(true)
    }

    /// The table of the system call whose instruction ends at `rip`, for a thread that came there unseen.
    pub(super) fn entered_by(&self, rip: u64) -> Table {
        const SYSCALL: [u8; 2] = [0x0f, 0x05];
        let mut bytes = [0; 2];
        let at = rip.wrapping_sub(SYSCALL.len() as u64);
        sys::read_memory(self.tid as i32, at, &mut bytes);
        if self.thread.mode == ExecMode::Bits64 && bytes == SYSCALL {
            Table::Native
        } else {
            Table::Compat
        }
    }

    /// Tells that the thread ran its plan up to a node, and went to `to`.
    fn tell_path(&mut self, node: usize, to: u64) {
        let mut path = std::mem::take(&mut self.thread.path);
        self.thread.plan.path(node, &mut path);
        if let Some(first) = path.first() {
            self.in_user(first.ip.0);
        }
        for (i, step) in path.iter().enumerate() {
            let next = path.get(i + 1).map_or(Ip(to), |step| step.ip);
            if step.insn.class == Class::Conditional {
                let after = step.insn.next_ip(step.ip, self.thread.mode);
                self.space.learn(step.ip.0, next != after);
            }
            self.observer.retired(self.tid, step.ip, &step.insn, next);
        }
        self.thread.path = path;
    }

    /// On the vsyscall page the kernel does what was asked for and goes on at the return address, whose instruction runs
    /// without a stop.
    fn on_vsyscall_page(&mut self, ip: u64, regs: &Regs) -> Next {
        let mut address = [0; 8];
        let read = sys::read_memory(self.tid as i32, regs.rsp, &mut address);
        let returns_to = (read == address.len()).then(|| u64::from_le_bytes(address));
        Next {
            ip,
            code: returns_to.and_then(|ip| self.fetch(ip)),
            restarts: false,
            returns_to,
        }
    }

    /// Tells of an instruction that retired and leads to `to`.
    #[inline]
    fn retire(&mut self, ip: u64, code: &Code, to: u64, regs: &Regs) {
        self.in_user(ip);
        if code.insn.class.is_far() {
            self.observer
                .far_branch(self.tid, Ip(ip), &code.insn, Ip(to), mode(regs));
        } else {
            self.observer.retired(self.tid, Ip(ip), &code.insn, Ip(to));
        }
    }

    /// Tells how the thread got from where it was to where its registers are, having run something. `traced`: the
    /// processor stopped it because it had run an instruction.
    pub(super) fn step(&mut self, regs: &Regs, traced: bool) -> io::Result<Stepped> {
        let At::User(next) = self.thread.at else {
            return Ok(Stepped::Lost);
        };
        let rip = regs.rip;
        let mut ip = next.ip;
        let mut code = next.code;
        if let Some(returns_to) = next.returns_to {
            self.in_user(ip);
            self.enter_kernel(Entry::Event { from: Ip(ip) });
            if rip == returns_to {
                return Ok(Stepped::Lost);
            }
            ip = returns_to;
        }
        // An instruction that shares the stop of the one before it may share it with the one after it too.
        for _ in 0..4 {
            // Another thread may have mapped it since.
            let Some(known) = code.or_else(|| self.fetch(ip)) else {
                break;
            };
            let known = self.as_it_ran(ip, known, rip);
            let after = known.insn.next_ip(Ip(ip), self.thread.mode).0;
            match known.insn.class {
                Class::Syscall => {
                    self.in_user(ip);
                    self.enter_kernel(Entry::Instruction {
                        ip: Ip(ip),
                        insn: known.insn,
                    });
                    let table = match self.thread.mode {
                        ExecMode::Bits64 => Table::Native,
                        _ => Table::Compat,
                    };
                    return Ok(Stepped::SystemCall(table));
                }
                Class::SoftwareInterrupt if !(traced && known.special == Special::Into) => {
                    self.in_user(ip);
                    // One whose vector is not for programs faults instead.
                    let executed = rip == after || known.special == Special::SystemCall;
                    self.enter_kernel(match executed {
                        true => Entry::SoftwareInterrupt {
                            ip: Ip(ip),
                            insn: known.insn,
                        },
                        false => Entry::Event { from: Ip(ip) },
                    });
                    return Ok(match known.special {
                        Special::SystemCall => Stepped::SystemCall(Table::Compat),
                        _ => Stepped::Interrupt,
                    });
                }
                _ if known.insn.repeats && rip == ip => return Ok(Stepped::Iterated),
                _ => {}
            }
            if leads_to(&known, after, rip) {
                self.retire(ip, &known, rip, regs);
                match known.special {
                    Special::PushFlags if !self.thread.own_trap => self.hide_trap_flag(regs)?,
                    Special::LoadsFlags if regs.eflags & TRAP_FLAG == 0 => {
                        self.thread.forget_step = true;
                    }
                    _ => {}
                }
                return Ok(Stepped::Retired);
            }
            match known.special {
                Special::LoadsStackSegment => self.retire(ip, &known, after, regs),
                Special::Emulated => {
                    self.in_user(ip);
                    self.enter_kernel(Entry::Event { from: Ip(ip) });
                }
                _ => break,
            }
            ip = after;
            code = self.fetch(ip);
        }
        self.in_user(ip);
        self.enter_kernel(Entry::Event { from: Ip(ip) });
        let text = "control went where nothing explains; the trace has an interrupt there";
        self.observer.missing(Missing::of(self.tid, text));
        Ok(Stepped::Lost)
    }

    /// Clears the trap flag of our step in what PUSHF has stored.
    fn hide_trap_flag(&mut self, regs: &Regs) -> io::Result<()> {
        let at = regs.rsp.wrapping_add(1);
        let mut byte = [0];
        if sys::read_memory(self.tid as i32, at, &mut byte) == 1 && byte[0] & 1 != 0 {
            sys::write_memory(self.tid as i32, at, &[byte[0] & !1])?;
        }
        Ok(())
    }

    /// Tells of a stop for a signal that is about to be delivered. `fault`: an instruction raised it.
    pub(super) fn signaled(&mut self, regs: &Regs, fault: bool) -> io::Result<()> {
        let At::User(next) = self.thread.at else {
            return Ok(());
        };
        let ran = regs.rip != next.ip && !(next.restarts && is_restart(regs));
        let at = if ran {
            self.step(regs, false)?;
            regs.rip
        } else {
            next.ip
        };
        if fault && !ran {
            self.in_user(at);
        }
        self.interrupted_at(at);
        Ok(())
    }
}

/// Whether an instruction whose successor is at `after` may lead to `to`.
#[inline]
fn leads_to(code: &Code, after: u64, to: u64) -> bool {
    let target = code.insn.target.map(|ip| ip.0);
    match code.insn.class {
        Class::Conditional => to == after || Some(to) == target,
        Class::DirectJump | Class::DirectCall => Some(to) == target,
        Class::IndirectJump
        | Class::IndirectCall
        | Class::Return
        | Class::FarJump
        | Class::FarCall
        | Class::FarReturn => true,
        _ => to == after,
    }
}
