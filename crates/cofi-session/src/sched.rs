//! Which thread a processor ran when, as a perf.data file tells it.
//!
//! perf asks for one of four ways: ITRACE_START each time a traced thread comes in; SWITCH records of the traced threads;
//! SWITCH_CPU_WIDE records of all; samples of the kernel's tracepoint sched_switch. All that are there are used.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::compact;
use cofi_perf::{Body, Feature, File, PerfTime, Record, TraceInfo};

use crate::Task;
use crate::stream::StreamKey;
use crate::timeline::{Entry, SidebandChange};

/// The tracepoint sched:sched_switch: who comes in stands in its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SchedSwitch {
    /// The number of the tracepoint: the event's config.
    id: u64,
    /// Where in the raw data the next thread's number is.
    next_pid: usize,
}

impl SchedSwitch {
    /// From the formats of tracepoints, which are texts as the kernel gives them.
    fn of(formats: &[u8]) -> Option<Self> {
        let text = after(formats, b"name: sched_switch\n")?;
        // The next one's format is none of this.
        let end = find(text, b"\nname: ").unwrap_or(text.len());
        let text = &text[..end];
        let id = number(after(text, b"ID: ")?)?;
        let field = after(text, b" next_pid;")?;
        let next_pid = number(after(field, b"offset:")?)?;
        Some(Self {
            id,
            next_pid: usize::try_from(next_pid).ok()?,
        })
    }

    /// The number of the thread that comes in.
    fn next(self, raw: &[u8]) -> Option<u32> {
        let bytes = raw.get(self.next_pid..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

fn after<'a>(text: &'a [u8], part: &[u8]) -> Option<&'a [u8]> {
    text.get(find(text, part)? + part.len()..)
}

fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// Who was on the processor before a switch.
fn before(record: &Record<'_>) -> Option<(u32, u32)> {
    match record.body {
        Body::Switch { out: true, .. } => record.id.task,
        Body::Switch { out: false, other } => other,
        _ => None,
    }
}

/// What is known so far.
#[derive(Debug, Default)]
pub(crate) struct Sched {
    sched_switch: Option<SchedSwitch>,
    /// The ids of the events of that tracepoint.
    sched_ids: HashSet<u64>,
    /// The tracepoints among the events: their numbers, and the ids that name them.
    tracepoints: Vec<(u64, Vec<u64>)>,
    /// The processor of an event's id, for records that do not tell it.
    cpus: HashMap<u64, u32>,
    /// All records are of this processor.
    only_cpu: Option<u32>,
    /// The processors of which a switch was seen.
    begun: HashSet<u32>,
    /// When which thread created which.
    forks: Vec<(Option<PerfTime>, u32, u32)>,
    /// The process of each thread so far: tracepoints tell only the thread.
    pids: HashMap<u32, u32>,
}

impl Sched {
    pub(crate) fn new(file: &File<'_>) -> Self {
        const TRACEPOINT: u32 = 2;
        let tracepoints = file.attrs().iter().filter(|attr| attr.kind == TRACEPOINT);
        let mut this = Self {
            tracepoints: tracepoints
                .map(|attr| (attr.config, attr.ids.clone()))
                .collect(),
            ..Self::default()
        };
        if let Some(formats) = file.feature(Feature::TRACING_DATA) {
            this.formats(formats);
        }
        this
    }

    /// For the records of one processor, which do not say which it is.
    pub(crate) fn of_cpu(cpu: u32) -> Self {
        Self {
            only_cpu: Some(cpu),
            ..Self::default()
        }
    }

    fn formats(&mut self, formats: &[u8]) {
        if self.tracepoints.is_empty() {
            return;
        }
        self.sched_switch = SchedSwitch::of(formats);
        let wanted = self.sched_switch.map(|found| found.id);
        let events = self.tracepoints.iter();
        let events = events.filter(|(id, _)| Some(*id) == wanted);
        self.sched_ids = events.flat_map(|(_, ids)| ids).copied().collect();
    }

    /// Takes a record in, if it is about who runs where.
    pub(crate) fn take(
        &mut self,
        record: &Record<'_>,
        info: Option<TraceInfo>,
        is_machine: bool,
        entries: &mut Vec<Entry<'_>>,
    ) {
        let id = record.id;
        let told = id.cpu.or(self.only_cpu);
        let cpu = told.or_else(|| self.cpus.get(&id.id?).copied());
        let run = |task: (u32, u32)| {
            // No thread has this number: the one that left has ended.
            let (pid, tid) = Some(task).filter(|(_, tid)| *tid != u32::MAX)?;
            Some(SidebandChange::Run {
                stream: StreamKey::Cpu(cpu?),
                task: Task { pid, tid },
            })
        };
        if let (Some(cpu), Some(before)) = (cpu, before(record))
            && self.begun.insert(cpu)
        {
            // Who leaves with the first switch was there before it.
            entries.extend(run(before).map(|what| Entry { time: None, what }));
        }
        let what = match record.body {
            Body::TracingData(formats) => {
                self.formats(formats);
                None
            }
            Body::IdIndex(ref index) => {
                let known = index.iter().filter_map(|entry| {
                    let cpu = u32::try_from(entry.cpu).ok()?;
                    (cpu != u32::MAX).then_some((entry.id, cpu))
                });
                self.cpus.extend(known);
                None
            }
            Body::Fork { pid, tid, ptid, .. } => {
                self.forks.push((id.time, ptid, tid));
                self.pids.insert(tid, pid);
                None
            }
            Body::Comm { pid, tid, .. } => {
                self.pids.insert(tid, pid);
                None
            }
            // Of a machine it says which address space a processor uses.
            Body::ItraceStart { pid, tid } if is_machine => Some(SidebandChange::Run {
                stream: StreamKey::Thread(tid),
                task: Task { pid, tid },
            }),
            Body::ItraceStart { pid, tid } => {
                self.pids.insert(tid, pid);
                let per_cpu = info.is_some_and(|info| info.per_cpu);
                let task = Task { pid, tid };
                let runs = per_cpu.then(|| run((pid, tid))).flatten();
                runs.or(Some(SidebandChange::Task(task)))
            }
            Body::Switch { out: false, .. } => id.task.and_then(run),
            Body::Switch { other, .. } => other.and_then(run),
            Body::Sample { raw: Some(raw), .. } => {
                let ours = id.id.is_some_and(|id| self.sched_ids.contains(&id));
                let tid = self
                    .sched_switch
                    .filter(|_| ours)
                    .and_then(|sched| sched.next(raw));
                let pid = |tid| self.pids.get(&tid).copied().unwrap_or(tid);
                tid.and_then(|tid| run((pid(tid), tid)))
            }
            _ => None,
        };
        entries.extend(what.map(|what| Entry {
            time: id.time,
            what,
        }));
    }

    /// Restricts what was found to the threads that the streams are about.
    pub(crate) fn finish(self, entries: &mut Vec<Entry<'_>>, only_thread: &BTreeMap<u32, u32>) {
        restrict(entries, only_thread, self.forks);
    }
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
    compact::sort_by_key(&mut forks, |(time, ..)| time.unwrap_or_default());
    let mut traced: HashSet<u32> = only_thread.values().copied().collect();
    for (_, parent, child) in forks {
        if traced.contains(&parent) {
            traced.insert(child);
        }
    }
    entries.retain(|entry| match entry.what {
        SidebandChange::Run {
            stream: StreamKey::Cpu(cpu),
            task,
        } => !only_thread.contains_key(&cpu) || traced.contains(&task.tid),
        _ => true,
    });
    // Before its first record there, it is the thread that is named.
    let tasks = entries.iter().filter_map(|entry| match entry.what {
        SidebandChange::Task(task) | SidebandChange::Run { task, .. } => Some((task.tid, task.pid)),
        _ => None,
    });
    let pids: HashMap<u32, u32> = tasks.collect();
    for (cpu, tid) in only_thread {
        let pid = pids.get(tid).copied().unwrap_or(*tid);
        let what = SidebandChange::Run {
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
            what: SidebandChange::Run {
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
                SidebandChange::Run {
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

    const FORMATS: &[u8] = b"junk name: sched_stat\nID: 7\n field:pid_t next_pid;\toffset:8;\n\0\
name: sched_switch\nID: 314\nformat:\n\tfield:char prev_comm[16];\toffset:8;\tsize:16;\n\
\tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;\n\0\0name: sched_wakeup\nID: 5\n";

    #[test]
    fn the_format_of_the_tracepoint() {
        let found = SchedSwitch::of(FORMATS).expect("a format");
        assert_eq!((found.id, found.next_pid), (314, 56));
        let mut raw = [0; 64];
        raw[56] = 42;
        assert_eq!(found.next(&raw), Some(42));
        assert_eq!(found.next(&raw[..58]), None);
        assert_eq!(SchedSwitch::of(b"name: sched_switch\nID: x"), None);
        assert_eq!(SchedSwitch::of(b""), None);
    }
}
