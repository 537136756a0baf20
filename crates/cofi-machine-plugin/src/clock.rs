//! The machine's time stamp counter: the host's, or one of the instructions that ran.
//!
//! The latter stands still while all processors sleep, and QEMU's timers do not. The HPET, if the guest has it run, tells what they take for the
//! time: where it is ahead, as far as it has gone on since it was looked at first, the machine has slept for so long.

use crate::qemu::Qemu;
use crate::sync::{Lock, Once};
use core::sync::atomic::{AtomicU64, Ordering};

/// Where the HPET is; its configuration, of which bit 0 has it run, and its counter, of so many nanoseconds a tick.
const HPET: u64 = 0xfed0_0000;
const HPET_CONFIGURATION: u64 = HPET + 0x10;
const HPET_COUNTER: u64 = HPET + 0xf0;
const HPET_PERIOD: u64 = 10;

/// What makes time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// The host's time stamp counter.
    Host,
    /// Instructions of all processors, each of which takes two to this power ticks, and as many nanoseconds.
    Instructions(u32),
}

/// The host's time stamp counter when the machine began.
static BEGIN: Once<u64> = Once::new();
/// So many ticks nothing ran.
static SLEPT: AtomicU64 = AtomicU64::new(0);
/// The HPET's time and the machine's, where they were compared first.
static COMPARED: Lock<Option<(u64, u64)>> = Lock::new(None);

impl Source {
    /// The time.
    #[inline]
    pub(crate) fn now(self, qemu: &Qemu) -> u64 {
        match self {
            Self::Host => {
                // What it reads first is where it begins.
                let now = host();
                now.saturating_sub(*BEGIN.get_or_init(|| now))
            }
            Self::Instructions(shift) => (qemu.executed() << shift) + SLEPT.load(Ordering::Relaxed),
        }
    }

    /// Takes notice of time that passed while nothing ran. Only where QEMU may look at its own clock: not in callbacks of code.
    pub(crate) fn catch_up(self, qemu: &Qemu) {
        if self == Self::Host {
            return;
        }
        let mut compared = COMPARED.lock();
        let now = self.now(qemu);
        let hpet = hpet(qemu);
        let late = hpet.and_then(|hpet| late(*compared, hpet, now));
        match late {
            Some(late) => {
                SLEPT.fetch_add(late, Ordering::Relaxed);
            }
            // It begins to run, or was set back.
            None => *compared = hpet.map(|hpet| (hpet, now)),
        }
    }
}

/// How far `now` is behind the HPET; `None` if they cannot be compared.
fn late(compared: Option<(u64, u64)>, hpet: u64, now: u64) -> Option<u64> {
    let (hpet_then, then) = compared?;
    let passed = hpet.checked_sub(hpet_then)?;
    Some((then + passed).saturating_sub(now))
}

/// The HPET's time in nanoseconds, if it runs.
fn hpet(qemu: &Qemu) -> Option<u64> {
    let read = |address| {
        let mut bytes = [0; 8];
        let is_read = qemu.read_physical(address, &mut bytes);
        is_read.then_some(u64::from_le_bytes(bytes))
    };
    // (Where there is none, all bits are read as 1, or none.)
    let configuration = read(HPET_CONFIGURATION)?;
    if configuration & 1 == 0 || configuration == u64::MAX {
        return None;
    }
    read(HPET_COUNTER)?.checked_mul(HPET_PERIOD)
}

#[inline]
#[allow(unsafe_code, reason = "an instruction that every x86-64 processor has")]
fn host() -> u64 {
    // SAFETY: every x86-64 processor has it, and Linux lets all programs use it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::late;

    #[test]
    fn what_the_hpet_is_ahead_was_slept() {
        assert_eq!(late(Some((100, 1000)), 150, 1030), Some(20));
        assert_eq!(late(Some((100, 1000)), 150, 1060), Some(0));
        assert_eq!(late(Some((100, 1000)), 50, 1060), None, "it was set back");
        assert_eq!(late(None, 50, 1060), None);
    }
}
