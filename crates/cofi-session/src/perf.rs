//! What a session needs of a perf.data file.

use cofi_flow::{Cpu, FlowConfig};
use cofi_perf::{AuxFlags, Body, Feature, File, IntelPtInfo, PerfTime, TimeConv};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use crate::code::Known;
use crate::error::Diagnostic;
use crate::stream::{Piece, StreamKey};
use crate::timeline::{Entry, Task, What};

/// What a trace file holds.
#[derive(Debug)]
pub(crate) struct Contents<'f, 't> {
    pub(crate) entries: Vec<Entry<'f>>,
    pub(crate) streams: Vec<(StreamKey, Vec<Piece<'t>>)>,
    pub(crate) diagnostics: Vec<Diagnostic>,
    pub(crate) flow: FlowConfig,
    pub(crate) time: Option<TimeConv>,
    pub(crate) cpu: Option<Cpu>,
    /// The trace is of a guest: address spaces, which CR3 chooses, take the place of processes.
    pub(crate) is_guest: bool,
    /// What the file tells of the code besides where it was mapped.
    pub(crate) code: Known<'f>,
}

impl Contents<'_, '_> {
    /// Nothing yet.
    pub(crate) fn new(flow: FlowConfig) -> Self {
        Self {
            entries: Vec::new(),
            streams: Vec::new(),
            diagnostics: Vec::new(),
            flow,
            time: None,
            cpu: None,
            is_guest: false,
            code: Known::default(),
        }
    }
}

/// The processor in the file's CPUID feature: "GenuineIntel,6,94,3".
fn cpu_of(text: &str) -> Option<Cpu> {
    let mut words = text.strip_prefix("GenuineIntel,")?.split(',');
    let mut number = || words.next()?.trim().parse::<u16>().ok();
    let (family, model, stepping) = (number()?, number()?, number()?);
    Some(Cpu {
        family,
        model: model.try_into().ok()?,
        stepping: stepping.try_into().ok()?,
    })
}

/// Reads the records of a perf.data file.
pub(crate) fn read<'f, 't>(file: &'f File<'t>, flow: FlowConfig) -> Contents<'f, 't> {
    const PROT_EXEC: u32 = 4;
    const DATA: u16 = 1 << 13;
    const NONE: u32 = u32::MAX;
    let mut contents = Contents::new(flow);
    contents.diagnostics.extend(
        file.problems()
            .iter()
            .map(|p| Diagnostic::Perf(p.to_string())),
    );
    contents.cpu = file.feature_text(Feature::CPUID).and_then(cpu_of);
    contents.code = Known::of(file);
    let mut info = None;
    let is_guest = |info: Option<IntelPtInfo>| {
        let attr = info.and_then(|info| file.attr_of_pmu(info.pmu_type));
        attr.is_some_and(cofi_perf::Attr::is_guest_only)
    };
    let mut streams: BTreeMap<StreamKey, Vec<Piece<'t>>> = BTreeMap::new();
    // Processors whose stream holds one thread, and those it created, only.
    let mut only_thread = BTreeMap::new();
    let mut forks = Vec::new();
    for record in file.records() {
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                contents
                    .diagnostics
                    .push(Diagnostic::Perf(error.to_string()));
                continue;
            }
        };
        let id = record.id;
        let what = match record.body {
            Body::Mmap {
                pid,
                start,
                len,
                pgoff,
                prot,
                build_id,
                path,
                ..
            } => {
                if prot.is_some_and(|prot| prot & PROT_EXEC == 0)
                    || prot.is_none() && record.misc.0 & DATA != 0
                {
                    continue;
                }
                What::Map {
                    pid,
                    start,
                    len,
                    offset: pgoff,
                    path,
                    build_id,
                }
            }
            Body::TextPoke { address, old, new } => What::Poke { address, old, new },
            Body::Ksymbol {
                address,
                len,
                kind,
                gone,
                name,
            } => What::KernelSymbol {
                address,
                len,
                is_program: kind == 1,
                gone,
                name,
            },
            Body::HeaderBuildId(build_id) => {
                contents.code.add_build_id(&build_id);
                continue;
            }
            Body::Comm {
                pid,
                tid,
                exec,
                name,
            } => {
                contents.entries.push(Entry {
                    time: id.time,
                    what: What::Task(Task { pid, tid }),
                });
                if exec {
                    contents.entries.push(Entry {
                        time: id.time,
                        what: What::Exec { pid },
                    });
                }
                What::Name { tid, name }
            }
            Body::Fork {
                pid,
                ppid,
                tid,
                ptid,
            } => {
                forks.push((id.time, ptid, tid));
                contents.entries.push(Entry {
                    time: id.time,
                    what: What::Task(Task { pid, tid }),
                });
                What::Fork { pid, parent: ppid }
            }
            // Of a guest it says which address space a processor uses.
            Body::ItraceStart { pid, tid } if is_guest(info) => What::Run {
                stream: StreamKey::Thread(tid),
                task: Task { pid, tid },
            },
            Body::ItraceStart { pid, tid } => match (id.cpu, info) {
                (Some(cpu), Some(IntelPtInfo { per_cpu: true, .. })) => What::Run {
                    stream: StreamKey::Cpu(cpu),
                    task: Task { pid, tid },
                },
                _ => What::Task(Task { pid, tid }),
            },
            Body::Switch { out: false, .. } => match (id.cpu, id.task) {
                (Some(cpu), Some((pid, tid))) => What::Run {
                    stream: StreamKey::Cpu(cpu),
                    task: Task { pid, tid },
                },
                _ => continue,
            },
            Body::Aux {
                offset,
                size,
                flags,
            } => {
                let per_cpu = info.is_some_and(|info: IntelPtInfo| info.per_cpu);
                let stream = match (per_cpu, id.cpu, id.task) {
                    (true, Some(cpu), _) => StreamKey::Cpu(cpu),
                    (false, _, Some((_, tid))) => StreamKey::Thread(tid),
                    _ => continue,
                };
                let end = offset.saturating_add(size);
                if flags.contains(AuxFlags::TRUNCATED) {
                    contents
                        .diagnostics
                        .push(Diagnostic::Truncated { stream, at: end });
                }
                What::Mark { stream, end }
            }
            Body::Auxtrace {
                offset,
                tid,
                cpu,
                payload,
                stated,
                ..
            } => {
                if (payload.len() as u64) < stated {
                    let text = format!(
                        "AUXTRACE record at {:#x}: {} of {stated} bytes are there",
                        record.offset,
                        payload.len()
                    );
                    contents.diagnostics.push(Diagnostic::Perf(text));
                }
                let key = match cpu {
                    NONE => StreamKey::Thread(tid),
                    cpu => StreamKey::Cpu(cpu),
                };
                if cpu != NONE && tid != NONE {
                    only_thread.insert(cpu, tid);
                }
                // perf compresses no packets; in a file of another's making they are kept apart.
                let bytes = file
                    .part_of_input(payload)
                    .map_or_else(|| payload.to_vec().into(), Cow::Borrowed);
                streams
                    .entry(key)
                    .or_default()
                    .push(Piece { offset, bytes });
                continue;
            }
            Body::AuxtraceInfo(found) => {
                info = Some(found);
                continue;
            }
            Body::TimeConv { conv, .. } => {
                contents.time = Some(conv);
                continue;
            }
            Body::Lost { count } => {
                contents.diagnostics.push(Diagnostic::Lost { count });
                continue;
            }
            _ => continue,
        };
        contents.entries.push(Entry {
            time: id.time,
            what,
        });
    }
    match info {
        Some(info) => {
            contents.is_guest = is_guest(Some(info));
            let config = file.attr_of_pmu(info.pmu_type).map(|attr| attr.config);
            contents.flow.mtc_freq = info.mtc_freq(config.unwrap_or(0));
            contents.flow.tsc_art_ratio = info.tsc_ctc_ratio;
            contents.flow.max_nonturbo_ratio = info.max_nonturbo_ratio.try_into().unwrap_or(0);
            // Packets that never tell the time cannot be compared with records that do.
            let timeless = config.is_some_and(|config| config & info.tsc_bit == 0);
            contents.code.clock = contents.time.or(info.time);
            contents.time = contents.time.or(info.time).filter(|_| !timeless);
        }
        None => contents.diagnostics.push(Diagnostic::NoTrace),
    }
    restrict(&mut contents.entries, &only_thread, forks);
    contents.streams = streams.into_iter().collect();
    contents
}

/// Processors whose stream is of one thread and those it created: others that run there meanwhile leave no trace, and
/// must not be taken for the one that does because the clocks differ by a little.
fn restrict(
    entries: &mut Vec<Entry<'_>>,
    only_thread: &BTreeMap<u32, u32>,
    mut forks: Vec<(Option<PerfTime>, u32, u32)>,
) {
    if only_thread.is_empty() {
        return;
    }
    forks.sort_by_key(|(time, ..)| time.unwrap_or_default());
    let mut traced: HashSet<u32> = only_thread.values().copied().collect();
    for (_, parent, child) in forks {
        if traced.contains(&parent) {
            traced.insert(child);
        }
    }
    entries.retain(|entry| match entry.what {
        What::Run {
            stream: StreamKey::Cpu(cpu),
            task,
        } => !only_thread.contains_key(&cpu) || traced.contains(&task.tid),
        _ => true,
    });
    // Before its first record there, it is the thread that is named.
    let tasks = entries.iter().filter_map(|entry| match entry.what {
        What::Task(task) | What::Run { task, .. } => Some((task.tid, task.pid)),
        _ => None,
    });
    let pids: HashMap<u32, u32> = tasks.collect();
    for (cpu, tid) in only_thread {
        let pid = pids.get(tid).copied().unwrap_or(*tid);
        let what = What::Run {
            stream: StreamKey::Cpu(*cpu),
            task: Task { pid, tid: *tid },
        };
        entries.push(Entry { time: None, what });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_thread_are_not_given_to_others() {
        let time = |at| Some(PerfTime(at));
        let run = |at, cpu, tid| Entry {
            time: time(at),
            what: What::Run {
                stream: StreamKey::Cpu(cpu),
                task: Task { pid: 5, tid },
            },
        };
        let mut entries = vec![
            run(1, 0, 7),
            run(2, 0, 8),
            run(3, 0, 9),
            run(4, 0, 10),
            run(5, 1, 9),
        ];
        let forks = vec![(time(3), 8, 10), (time(2), 7, 8), (time(9), 9, 11)];
        restrict(&mut entries, &BTreeMap::from([(0, 7)]), forks);
        let left: Vec<_> = entries
            .iter()
            .map(|entry| match entry.what {
                What::Run {
                    stream: StreamKey::Cpu(cpu),
                    task,
                } => (entry.time.map(|time| time.0), cpu, task.pid, task.tid),
                _ => unreachable!("only such were put in"),
            })
            .collect();
        assert_eq!(
            left,
            [
                (Some(1), 0, 5, 7),
                (Some(2), 0, 5, 8),
                (Some(4), 0, 5, 10),
                (Some(5), 1, 5, 9),
                (None, 0, 5, 7)
            ]
        );
    }

    #[test]
    fn the_processor_as_perf_writes_it() {
        let cpu = cpu_of("GenuineIntel,6,79,1").expect("a processor");
        assert_eq!((cpu.family, cpu.model, cpu.stepping), (6, 79, 1));
        assert!(cpu_of("AuthenticAMD,23,1,2").is_none() && cpu_of("GenuineIntel,6").is_none());
    }
}
