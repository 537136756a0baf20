//! The events of what is recorded: of a program, of each thread of a process, of processors.

use super::event::{Attr, Event, Extras, Owner};
use super::ring::{Buffers, Ring};
use super::{HardwareError, Levels, Samples, Subject, existing};
use cofi_perf::{IdPlace, KernelEvent};
use std::collections::BTreeSet;
use std::io;

/// Events that wait to be enabled, by processor.
#[derive(Debug)]
pub(super) struct Events {
    /// Of each processor: those of packets, if it is recorded, and those of records.
    cpus: Vec<(u32, Vec<Event>, Vec<Event>)>,
    /// What the kernel was asked for: packets, records, changes of the kernel's code, samples.
    kinds: Vec<KernelEvent>,
    has_changes: bool,
    /// The event of samples, if there are to be any.
    samples: Option<Attr>,
    /// Where its events are.
    places: Vec<IdPlace>,
}

/// Places in `Events::kinds`.
const PACKETS: usize = 0;
const RECORDS: usize = 1;
const CHANGES: usize = 2;
const SAMPLES: usize = 3;

impl Events {
    /// Opens them. `trace` is the PMU and its configuration; the process is that of the program, which waits.
    pub(super) fn open(
        trace: (u32, u64),
        (subject, waiting): (Subject<'_>, Option<u32>),
        levels: Levels,
        (cpus, online): (&[u32], &[u32]),
        watermark: u32,
        samples: Option<Samples>,
    ) -> Result<Self, HardwareError> {
        let extras = Extras::of_kernel();
        let owner = match subject {
            Subject::Program(_) => Owner::Program(waiting.unwrap_or_default()),
            Subject::Process(pid) => Owner::Thread(pid),
            Subject::Processors(_) => Owner::Processor,
        };
        let packets = Attr::of_packets(trace, levels, owner, watermark);
        let records = Attr::of_records(levels, owner, extras);
        let suffix = match (levels.os, levels.user) {
            (true, true) => "",
            (true, false) => "k",
            (false, _) => "u",
        };
        let changes = Attr::of_changes(extras);
        let samples = samples.map(|samples| Attr::of_samples(samples, levels, owner));
        let kind = |attr: &Attr, name: String| KernelEvent {
            attr: attr.0.clone(),
            ids: Vec::new(),
            name,
        };
        let mut this = Self {
            cpus: cpus
                .iter()
                .map(|cpu| (*cpu, Vec::new(), Vec::new()))
                .collect(),
            kinds: vec![
                kind(&packets, format!("intel_pt//{suffix}")),
                kind(&records, "dummy:u".into()),
                kind(&changes, "dummy:u".into()),
                kind(
                    samples.as_ref().unwrap_or(&packets),
                    format!("cycles:{suffix}"),
                ),
            ],
            has_changes: extras.has_changes(),
            samples,
            places: Vec::new(),
        };
        match subject {
            Subject::Process(pid) => {
                // Where it cannot be done, it may be enough anyway.
                let _ = raise_limit();
                this.of_process(pid, (&packets, &records), subject, levels)?;
            }
            _ => this.of_one(owner, (&packets, &records), subject, levels)?,
        }
        // What is mapped on the others, and who is started there, may come to these.
        if owner == Owner::Processor {
            for cpu in online.iter().filter(|cpu| !cpus.contains(cpu)) {
                let opened = Event::open(&records, owner, *cpu);
                let event = opened.map_err(refused("a processor", *cpu, subject, levels))?;
                this.kinds[RECORDS].ids.push(event.id()?);
                this.cpus.push((*cpu, Vec::new(), vec![event]));
            }
        }
        // Those of processors tell of it themselves.
        if levels.os && owner != Owner::Processor {
            this.has_changes &= this.of_changes(&changes)?;
        }
        Ok(this)
    }

    /// One event of each kind on each processor.
    fn of_one(
        &mut self,
        owner: Owner,
        (packets, records): (&Attr, &Attr),
        subject: Subject<'_>,
        levels: Levels,
    ) -> Result<(), HardwareError> {
        for (index, (cpu, of_packets, of_records)) in (0..).zip(&mut self.cpus) {
            let refused = |what| refused(what, *cpu, subject, levels);
            let event = Event::open(packets, owner, *cpu).map_err(refused("Intel PT"))?;
            self.kinds[PACKETS].ids.push(event.id()?);
            if let Some(attr) = &self.samples {
                let member = event.open_member(attr, owner).map_err(refused("samples"))?;
                let id = member.id()?;
                self.kinds[SAMPLES].ids.push(id);
                self.places.push(owner.place(id, index, *cpu));
                of_records.push(member);
            }
            of_packets.push(event);
            let opened = Event::open(records, owner, *cpu);
            let event = opened.map_err(refused("a program's mappings"))?;
            self.kinds[RECORDS].ids.push(event.id()?);
            of_records.push(event);
        }
        Ok(())
    }

    /// Those of every thread, until no further one has been created meanwhile.
    fn of_process(
        &mut self,
        pid: u32,
        (packets, records): (&Attr, &Attr),
        subject: Subject<'_>,
        levels: Levels,
    ) -> Result<(), HardwareError> {
        let mut known = BTreeSet::new();
        loop {
            let found = existing::threads(pid);
            let is_first = known.is_empty();
            let new: Vec<u32> = found.into_iter().filter(|tid| known.insert(*tid)).collect();
            if new.is_empty() {
                break;
            }
            for tid in new {
                let owner = Owner::Thread(tid);
                for (index, (cpu, of_packets, of_records)) in (0..).zip(&mut self.cpus) {
                    let has_ended = |error: &io::Error| error.raw_os_error() == Some(libc::ESRCH);
                    // In this order: a thread that is created in between may have two events of records, but never none.
                    let record = match Event::open(records, owner, *cpu) {
                        Err(error) if has_ended(&error) => continue,
                        opened => opened.map_err(refused("a process", *cpu, subject, levels))?,
                    };
                    let pair = Event::open(packets, owner, *cpu).and_then(|packet| {
                        let attr = self.samples.as_ref();
                        let member = attr.map(|attr| packet.open_member(attr, owner));
                        Ok((packet, member.transpose()?))
                    });
                    let (packet, member) = match pair {
                        Err(error) if has_ended(&error) => continue,
                        // It has inherited its creator's.
                        Err(error) if !is_first && error.raw_os_error() == Some(libc::EBUSY) => {
                            continue;
                        }
                        pair => pair.map_err(refused("Intel PT", *cpu, subject, levels))?,
                    };
                    self.kinds[RECORDS].ids.push(record.id()?);
                    self.kinds[PACKETS].ids.push(packet.id()?);
                    if let Some(member) = member {
                        let id = member.id()?;
                        self.kinds[SAMPLES].ids.push(id);
                        self.places.push(owner.place(id, index, *cpu));
                        of_records.push(member);
                    }
                    of_records.push(record);
                    of_packets.push(packet);
                }
            }
        }
        if self.cpus.iter().any(|(_, packets, _)| packets.is_empty()) {
            return Err(HardwareError::NoProcess { pid });
        }
        Ok(())
    }

    /// Those that tell of changes of the kernel's code; whether they may.
    fn of_changes(&mut self, changes: &Attr) -> Result<bool, HardwareError> {
        for (cpu, _, of_records) in &mut self.cpus {
            let Ok(event) = Event::open(changes, Owner::Processor, *cpu) else {
                return Ok(false);
            };
            self.kinds[CHANGES].ids.push(event.id()?);
            of_records.push(event);
        }
        Ok(true)
    }

    /// Gives them their buffers.
    pub(super) fn rings(&mut self, buffers: Buffers) -> Result<Vec<Ring>, HardwareError> {
        self.cpus
            .drain(..)
            .map(|(cpu, packets, records)| Ring::new(cpu, packets, records, buffers))
            .collect()
    }

    /// Whether changes of the kernel's code are told of.
    pub(super) const fn tells_of_changes(&self) -> bool {
        self.has_changes
    }

    /// Where the events of samples are.
    pub(super) fn places(&self) -> &[IdPlace] {
        &self.places
    }

    /// As the file describes them.
    pub(super) fn described(&self) -> Vec<KernelEvent> {
        let kinds = self.kinds.iter();
        kinds.filter(|kind| !kind.ids.is_empty()).cloned().collect()
    }
}

/// Lets this process have as many files as it may: a thread takes two a processor.
fn raise_limit() -> nix::Result<()> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)
}

/// What the kernel's refusal of an event means.
pub(super) fn refused(
    what: &'static str,
    cpu: u32,
    subject: Subject<'_>,
    levels: Levels,
) -> impl FnOnce(io::Error) -> HardwareError {
    let forbidden = match (subject, levels.os) {
        (Subject::Processors(_), _) => {
            " (whole processors may be recorded by root, by who has CAP_PERFMON, and by all where \
             /proc/sys/kernel/perf_event_paranoid is 0 or less)"
        }
        (_, true) => {
            " (the kernel may be recorded by root, by who has CAP_PERFMON, and by all where \
             /proc/sys/kernel/perf_event_paranoid is 1 or less; programs with --privilege user)"
        }
        (Subject::Process(1..), false) => {
            " (another user's process may be recorded by root only; one's own, where \
             /proc/sys/kernel/perf_event_paranoid is 2 or less)"
        }
        _ => " (/proc/sys/kernel/perf_event_paranoid: more than 2 forbids it to users)",
    };
    move |source| {
        let hint = match source.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => forbidden,
            Some(libc::EBUSY) => " (somebody else records with it)",
            Some(libc::ENOENT | libc::EOPNOTSUPP) if what == "samples" => {
                " (the processor, or the machine that it is part of, has no counter of cycles that interrupts)"
            }
            Some(libc::EMFILE | libc::ENFILE) => {
                " (each thread takes two files a processor: ulimit -n limits them)"
            }
            _ => "",
        };
        HardwareError::Refused {
            what,
            cpu,
            hint,
            source,
        }
    }
}
