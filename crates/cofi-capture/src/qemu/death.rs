//! Signals that end a process under QEMU: which thread they hit, where that was, and what they were about.
//!
//! QEMU catches the signals of a fault itself. One that the program does not handle it sends to itself again, this time to
//! die of it. So the fault's own stop has the address, and at the second one QEMU's copy of the registers is up to date.

use crate::Pid;
use crate::ptrace::sys;
use cofi_packet::Ip;
use libc::{c_int, pid_t};
use std::collections::BTreeMap;

/// In QEMU's state of a CPU, the address of the next instruction: behind sixteen registers.
const IP_IN_STATE: u64 = 16 * 8;

/// Whether an instruction raised the signal, and nobody sent it.
pub(super) const fn is_fault(signal: c_int, code: c_int) -> bool {
    let by_instruction = matches!(
        signal,
        libc::SIGILL | libc::SIGBUS | libc::SIGFPE | libc::SIGSEGV | libc::SIGTRAP
    );
    by_instruction && code > 0
}

/// How a signal ended a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Death {
    /// The thread that it hit.
    pub(super) tid: Pid,
    number: c_int,
    code: c_int,
    address: Option<u64>,
    /// Where the instruction was that raised it, perhaps: the thread's last block must agree. Of a signal from elsewhere none:
    /// it may have come while QEMU ran code of its own, where nothing says what the guest's registers are.
    pub(super) ip: Option<Ip>,
}

impl Death {
    /// Of a signal of which nothing more is known, as SIGKILL.
    fn unseen(pid: Pid, number: c_int) -> Self {
        Self {
            tid: pid,
            number,
            code: 0,
            address: None,
            ip: None,
        }
    }

    /// As it is reported, of a thread that was at `ip`.
    pub(super) fn signal(&self, ip: Option<Ip>) -> crate::Signal {
        crate::Signal {
            number: self.number as u32,
            code: self.code,
            ip,
            address: self.address,
            is_fatal: true,
        }
    }
}

/// A stop of a thread for a signal that may end the process.
#[derive(Clone, Copy, Debug)]
struct Stop {
    /// How many there were before.
    number: u64,
    signal: c_int,
    code: c_int,
    address: Option<u64>,
    /// What may be the address of QEMU's state of the CPU, if an instruction raised it: QEMU's generated code has that in RBP.
    state: Option<u64>,
}

/// What stops have said so far.
#[derive(Debug, Default)]
pub(super) struct Deaths {
    count: u64,
    /// The last stop of each thread.
    stops: BTreeMap<pid_t, Stop>,
    /// What a process is about to die of, by process.
    dying: BTreeMap<pid_t, Death>,
}

impl Deaths {
    /// A thread has stopped for a signal, which will be delivered.
    pub(super) fn stopped(&mut self, tid: pid_t, signal: c_int) {
        let ends = matches!(
            signal,
            libc::SIGSEGV
                | libc::SIGBUS
                | libc::SIGILL
                | libc::SIGFPE
                | libc::SIGTRAP
                | libc::SIGABRT
                | libc::SIGSYS
                | libc::SIGQUIT
                | libc::SIGTERM
                | libc::SIGINT
                | libc::SIGHUP
                | libc::SIGPIPE
        );
        let mut regs = sys::no_registers();
        let (true, Ok(info), Ok(())) =
            (ends, sys::signal_info(tid), sys::registers(tid, &mut regs))
        else {
            return;
        };
        self.count += 1;
        if let Some(sender) = info.sender()
            && sender == super::follow::process_of(tid)
            && info.code() == libc::SI_USER
            && let Some((victim, stop)) = self.cause(sender, signal)
        {
            let ip = stop.state.and_then(|state| {
                let mut ip = [0; 8];
                let at = state.wrapping_add(IP_IN_STATE);
                let is_read = sys::read_memory(victim, at, &mut ip) == ip.len();
                is_read.then(|| Ip(u64::from_ne_bytes(ip)))
            });
            let death = Death {
                tid: victim as Pid,
                number: signal,
                code: stop.code,
                address: stop.address,
                ip,
            };
            self.dying.insert(sender, death);
            return;
        }
        let is_fault = is_fault(signal, info.code());
        let stop = Stop {
            number: self.count,
            signal,
            code: info.code(),
            address: info.address(),
            state: is_fault.then_some(regs.rbp),
        };
        self.stops.insert(tid, stop);
    }

    /// The thread of a process that stopped last for a signal.
    fn cause(&self, pid: pid_t, signal: c_int) -> Option<(pid_t, Stop)> {
        let is_of = |tid: &pid_t| std::path::Path::new(&format!("/proc/{pid}/task/{tid}")).exists();
        let stops = self
            .stops
            .iter()
            .filter(|(tid, stop)| stop.signal == signal && is_of(tid));
        let last = stops.max_by_key(|(_, stop)| stop.number);
        last.map(|(tid, stop)| (*tid, *stop))
    }

    /// A process (or a thread) has ended, of a signal if that is given: what is known of that.
    pub(super) fn ended(&mut self, tid: pid_t, signal: Option<c_int>) -> Option<Death> {
        self.stops.remove(&tid);
        let dying = self.dying.remove(&tid);
        let signal = signal?;
        let known = dying.filter(|death| death.number == signal);
        Some(known.unwrap_or_else(|| Death::unseen(tid as Pid, signal)))
    }
}
