//! Instructions at which tracing begins or ends, or a snapshot is taken.

use super::event::Action;
use super::launch::mapped;
use super::{HardwareError, Keep, Settings, Started, Subject};
use crate::Mapping;
use crate::record::Gate;
use cofi_perf::StreamPlace;
use std::fs;
use std::io;

/// What is waited for.
#[derive(Debug)]
pub(super) struct Gates<'s> {
    subject: Subject<'s>,
    all: Vec<(&'static str, &'s Gate, Action)>,
}

impl<'s> Gates<'s> {
    /// Of what is to be recorded.
    pub(super) fn new(
        settings: &'s Settings<'_>,
        subject: Subject<'s>,
    ) -> Result<Self, HardwareError> {
        let window = &settings.window;
        let is_window = window.start.is_some() || window.stop.is_some();
        let is_alone = settings.per_thread
            || matches!(subject, Subject::Thread { .. } | Subject::Processors(_));
        if is_window && !is_alone {
            return Err(HardwareError::Unpausable);
        }
        debug_assert!(
            settings.snapshot_at.is_none() || matches!(settings.keep, Keep::Snapshots(_))
        );
        let all = [
            ("--start-at", &window.start, Action::Resume),
            ("--stop-at", &window.stop, Action::Pause),
            ("--snapshot-at", &settings.snapshot_at, Action::Snapshot),
        ];
        let all = all.into_iter();
        Ok(Self {
            subject,
            all: all
                .filter_map(|(option, gate, action)| Some((option, gate.as_ref()?, action)))
                .collect(),
        })
    }

    /// Whether nothing is traced at first.
    pub(super) fn begins_late(&self) -> bool {
        self.all
            .iter()
            .any(|(.., action)| *action == Action::Resume)
    }

    /// Whether the trace unit's event begins paused.
    ///
    /// Linux (to 7.3) clears a processor's count of bytes, by which the next PSB comes, where it configures an event first. If the thread has moved when its event is
    /// resumed, there may be no PSB, and nobody can read what comes before the next. So a program's event begins at an instruction that pauses it.
    pub(super) fn begins_paused(&self) -> bool {
        self.begins_late() && !self.are_of_program()
    }

    /// Whether a program has to be there before its instructions can be waited for.
    pub(super) fn are_of_program(&self) -> bool {
        matches!(self.subject, Subject::Program(_)) && !self.all.is_empty()
    }

    /// Whether files that are mapped have them all.
    pub(super) fn are_all_in(&self, maps: &[Mapping]) -> bool {
        let mut gates = self.all.iter();
        gates.all(|(_, gate, _)| !gate.addresses_in(maps).is_empty())
    }

    /// Their addresses.
    pub(super) fn resolve(&self, started: &Started) -> Result<Vec<(u64, Action)>, HardwareError> {
        let mut found: Vec<(u64, Action)> = Vec::new();
        if self.all.is_empty() {
            return Ok(found);
        }
        let maps = match (self.subject, started) {
            (Subject::Program(_), Started::Held(held)) => mapped(held.pid()),
            (Subject::Process(pid) | Subject::Thread { pid, .. }, _) => mapped(pid),
            _ => Vec::new(),
        };
        let is_kernel = matches!(self.subject, Subject::Processors(_));
        let symbols = match is_kernel {
            true => fs::read_to_string("/proc/kallsyms").unwrap_or_default(),
            false => String::new(),
        };
        if let (true, Started::Held(held)) = (self.begins_late(), started) {
            found.extend(held.ip().map(|ip| (ip, Action::Pause)));
        }
        for (option, gate, action) in &self.all {
            let addresses = match is_kernel {
                true => gate.addresses_among(functions(&symbols)),
                false => gate.addresses_in(&maps),
            };
            if addresses.is_empty() {
                return Err(HardwareError::NoInstruction {
                    option,
                    gate: gate.to_string(),
                    nowhere: match is_kernel {
                        true => {
                            "the kernel has no function of this name, or does not say where (/proc/kallsyms); of whole processors, only its own count"
                        }
                        false => "no file that was mapped has a function of this name",
                    },
                });
            }
            for address in addresses {
                if let (Started::Held(held), Action::Resume) = (started, action)
                    && held.ip() == Some(address)
                {
                    // It begins there.
                    found.clear();
                }
                if found.iter().any(|(other, _)| *other == address) {
                    return Err(HardwareError::Ambiguous { address });
                }
                found.push((address, *action));
            }
        }
        Ok(found)
    }
}

/// Functions of the kernel, as it lists them; none of those whose address it keeps to itself.
fn functions(symbols: &str) -> impl Iterator<Item = (&str, u64)> {
    symbols.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let kind = words.next()?;
        let is_code = matches!(kind, "t" | "T" | "w" | "W");
        (is_code && address != 0).then_some((words.next()?, address))
    })
}

/// What the kernel's refusal of a breakpoint means.
pub(super) fn unwatched(
    address: u64,
    action: Action,
    place: StreamPlace,
    subject: Subject<'_>,
) -> impl FnOnce(io::Error) -> HardwareError {
    let is_kernel = matches!(subject, Subject::Processors(_));
    move |source| HardwareError::NoBreakpoint {
        address,
        place,
        hint: match source.raw_os_error() {
            Some(libc::EINVAL) if action != Action::Snapshot => " (pausing takes Linux 6.13)",
            Some(libc::EINVAL) if is_kernel => {
                " (it is in code that the kernel keeps free of them)"
            }
            Some(libc::ENOSPC) => {
                " (there are four, and others may have some: of a function that is in several places, name one by its address)"
            }
            Some(libc::EACCES | libc::EPERM) => {
                " (in the kernel they are root's, and of who has CAP_PERFMON)"
            }
            _ => "",
        },
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_the_kernel() {
        let list = "ffffffff81000000 T _stext\n0000000000000000 t hidden\nffffffff82000000 D data\n\
                    ffffffffc0000010 t helper\t[ext4]\nnonsense\n";
        let all: Vec<_> = functions(list).collect();
        let (first, second) = (0xffff_ffff_8100_0000, 0xffff_ffff_c000_0010);
        assert_eq!(all, [("_stext", first), ("helper", second)]);
    }
}
