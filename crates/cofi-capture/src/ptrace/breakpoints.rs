//! The debug registers of one thread: where it stops, beside where it must.

use super::sys;
use crate::Pid;
use std::io;

/// How many there are.
pub(super) const REGISTERS: usize = 4;

/// The register that switches the others on.
const CONTROL: usize = 7;

/// The breakpoints of a thread, which are its own: a new thread or program has none.
#[derive(Clone, Debug)]
pub(super) struct Breakpoints {
    at: [u64; REGISTERS],
    /// When each was last wanted.
    wanted: [u64; REGISTERS],
    now: u64,
    /// How many registers the kernel gives this thread; others may be taken, by perf events say.
    count: usize,
    /// They are switched on.
    on: bool,
}

impl Default for Breakpoints {
    fn default() -> Self {
        Self {
            at: [0; REGISTERS],
            wanted: [0; REGISTERS],
            now: 0,
            count: REGISTERS,
            on: false,
        }
    }
}

impl Breakpoints {
    /// No use is to be made of them.
    pub(super) fn none() -> Self {
        Self {
            count: 0,
            ..Self::default()
        }
    }

    /// How many addresses can be had at a time.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// How often they have been set.
    #[inline]
    pub(super) fn plans(&self) -> u64 {
        self.now
    }

    /// Whether the thread stops before it executes the instruction at `ip`.
    #[inline]
    pub(super) fn holds(&self, ip: u64) -> bool {
        self.on && self.at[..self.count].contains(&ip)
    }

    /// Makes a stopped thread stop at these addresses, of which there are no more than [`Breakpoints::count`], and at none for
    /// which `passes` is true. It may stop at others: setting a register costs more than leaving it. Whether this could be done.
    pub(super) fn set(&mut self, tid: Pid, stops: &[u64], passes: impl Fn(u64) -> bool) -> bool {
        let Some(first) = stops.first() else {
            return false;
        };
        if !self.on && !self.switch_on(tid, *first) {
            return false;
        }
        if stops.len() > self.count {
            return false;
        }
        self.now += 1;
        let mut missing = [0; REGISTERS];
        let mut count = 0;
        for stop in stops {
            match self.at[..self.count].iter().position(|at| at == stop) {
                Some(register) => self.wanted[register] = self.now,
                None => {
                    missing[count] = *stop;
                    count += 1;
                }
            }
        }
        let mut missing = missing[..count].iter();
        loop {
            // Those in the way first, then what has not been wanted for longest.
            let free = (0..self.count).filter(|register| self.wanted[*register] < self.now);
            let victim =
                free.min_by_key(|register| (!passes(self.at[*register]), self.wanted[*register]));
            let Some(victim) = victim else {
                return missing.next().is_none();
            };
            let stop = match missing.next() {
                Some(stop) => *stop,
                None if passes(self.at[victim]) => *first,
                None => return true,
            };
            if sys::set_debug_register(tid as i32, victim, stop).is_err() {
                return false;
            }
            (self.at[victim], self.wanted[victim]) = (stop, self.now);
        }
    }

    /// Takes as many registers as there are, all at one address.
    fn switch_on(&mut self, tid: Pid, at: u64) -> bool {
        let set = |register| sys::set_debug_register(tid as i32, register, at).is_ok();
        self.count = (0..self.count)
            .take_while(|register| set(*register))
            .count();
        self.at = [at; REGISTERS];
        // Two bits each, of which the lower one means this thread; the kind is 0, to be executed.
        let bits = (0..self.count).map(|register| 1 << (2 * register)).sum();
        self.on = self.count > 0 && sys::set_debug_register(tid as i32, CONTROL, bits).is_ok();
        if !self.on {
            self.count = 0;
        }
        self.on
    }

    /// Leaves a stopped thread without breakpoints.
    pub(super) fn clear(&mut self, tid: Pid) -> io::Result<()> {
        if std::mem::take(&mut self.on) {
            sys::set_debug_register(tid as i32, CONTROL, 0)?;
            for register in 0..self.count {
                sys::set_debug_register(tid as i32, register, 0)?;
            }
        }
        Ok(())
    }
}
