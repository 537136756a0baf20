//! One thread's place in its flow: tells the observer, stop by stop, how it got there.

use super::code::{Code, CodeSpace};
use super::special::Special;
use super::sys::{self, Regs, TRAP_FLAG};
use super::syscall::Table;
use super::thread::{At, Next, Thread, VSYSCALL, is_restart, mode};
use crate::{Entry, Observer, Pid};
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
    pub(super) observer: &'a mut dyn Observer,
}

impl Cursor<'_> {
    fn fetch(&mut self, ip: u64) -> Option<Code> {
        let who = (self.thread.pid, self.tid);
        self.space
            .fetch(who, ip, self.thread.mode, &mut *self.observer)
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
                    self.enter_kernel(Entry::Event { from: Ip(ip) });
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
