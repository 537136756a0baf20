//! The events of what is recorded: of a program, of each thread of a process, of processors.

use super::event::{Attr, Event, Extras, Owner};
use super::ring::{Buffers, Ring};
use super::{HardwareError, Levels, Samples, Subject, existing};
use cofi_perf::{IdPlace, KernelEvent, StreamPlace};
use std::collections::BTreeSet;
use std::io;

/// The events of a processor or a thread: those of packets, if it is recorded, and those of records.
type Spot = (StreamPlace, Vec<Event>, Vec<Event>);

/// Events that wait to be enabled.
#[derive(Debug)]
pub(super) struct Events {
    spots: Vec<Spot>,
    /// What the kernel was asked for: packets, records, changes of the kernel's code, samples; then instructions.
    kinds: Vec<KernelEvent>,
    has_changes: bool,
    /// The event of samples, if there are to be any.
    samples: Option<Attr>,
    /// Where its events are.
    places: Vec<IdPlace>,
}

/// What kernels refuse that do not know it.
const PAUSING: &str = "Intel PT, paused at first,";

impl Wanted<'_> {
    const fn packets(&self) -> &'static str {
        if self.is_paused { PAUSING } else { "Intel PT" }
    }
}

/// Places in `Events::kinds`.
const PACKETS: usize = 0;
const RECORDS: usize = 1;
const CHANGES: usize = 2;
const SAMPLES: usize = 3;

/// What events are asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'s> {
    /// The PMU's number and its configuration.
    pub(super) trace: (u32, u64),
    pub(super) subject: Subject<'s>,
    /// The program's process, which waits.
    pub(super) waiting: Option<u32>,
    /// Threads alone, each with a stream.
    pub(super) per_thread: bool,
    pub(super) levels: Levels,
    /// The processors that are recorded, and all that are online.
    pub(super) cpus: &'s [u32],
    pub(super) online: &'s [u32],
    pub(super) watermark: u32,
    /// The event begins paused.
    pub(super) is_paused: bool,
    /// That of a program begins when it is executed, and else when it is enabled.
    pub(super) from_exec: bool,
    pub(super) samples: Option<Samples>,
}

/// The event of packets and that of records.
type Pair<'a> = (&'a Attr, &'a Attr);

impl Events {
    /// Opens them.
    pub(super) fn open(wanted: &Wanted<'_>) -> Result<Self, HardwareError> {
        let (subject, levels) = (wanted.subject, wanted.levels);
        let extras = Extras::of_kernel();
        let owner = match subject {
            Subject::Program(_) => Owner::Program(wanted.waiting.unwrap_or_default()),
            Subject::Process(pid) => Owner::Thread(pid),
            Subject::Thread { tid, .. } => Owner::Thread(tid),
            Subject::Processors(_) => Owner::Processor,
        };
        let how = (wanted.watermark, wanted.is_paused);
        let alone = |tid| Owner::Alone {
            tid,
            from_exec: wanted.from_exec && matches!(subject, Subject::Program(_)),
        };
        let of_packets = if wanted.per_thread { alone(0) } else { owner };
        let packets = Attr::of_packets(wanted.trace, levels, of_packets, how);
        let records = Attr::of_records(levels, owner, extras);
        let suffix = match (levels.os, levels.user) {
            (true, true) => "",
            (true, false) => "k",
            (false, _) => "u",
        };
        let changes = Attr::of_changes(extras);
        let samples = wanted.samples;
        let samples = samples.map(|samples| Attr::of_samples(samples, levels, of_packets));
        let kind = |attr: &Attr, name: String| KernelEvent {
            attr: attr.0.clone(),
            ids: Vec::new(),
            name,
        };
        let mut this = Self {
            spots: Vec::new(),
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
        let pair = (&packets, &records);
        if !wanted.per_thread {
            let processors = wanted.cpus.iter();
            let empty = |cpu| (StreamPlace::Processor(cpu), Vec::new(), Vec::new());
            this.spots.extend(processors.copied().map(empty));
        }
        match (subject, wanted.per_thread) {
            (Subject::Program(_), true) => {
                let pid = wanted.waiting.unwrap_or_default();
                this.of_threads(&[pid], alone, &packets, wanted)?;
                this.of_processors(&[owner], &records, wanted)?;
            }
            (Subject::Process(pid) | Subject::Thread { pid, .. }, true) => {
                let _ = raise_limit();
                let all = existing::threads(pid);
                let traced = match subject {
                    Subject::Thread { tid, .. } => &[tid][..],
                    _ => &all[..],
                };
                // In this order: what a thread maps while it is traced is told of.
                let owners: Vec<Owner> = all.iter().copied().map(Owner::Thread).collect();
                this.of_processors(&owners, &records, wanted)?;
                this.of_threads(traced, alone, &packets, wanted)?;
                if !this.spots.iter().any(|(_, packets, _)| !packets.is_empty()) {
                    return Err(HardwareError::NoProcess { pid });
                }
            }
            (Subject::Process(pid), false) => {
                // Where it cannot be done, it may be enough anyway.
                let _ = raise_limit();
                this.of_process(pid, pair, subject, levels)?;
            }
            _ => this.of_one(owner, pair, wanted)?,
        }
        // What is mapped on the others, and who is started there, may come to these.
        if owner == Owner::Processor {
            let others = wanted.online.iter().copied();
            for cpu in others.filter(|cpu| !wanted.cpus.contains(cpu)) {
                let place = StreamPlace::Processor(cpu);
                let opened = Event::open(&records, owner, place);
                let event = opened.map_err(refused("a processor", place, subject, levels))?;
                this.kinds[RECORDS].ids.push(event.id()?);
                this.spots.push((place, Vec::new(), vec![event]));
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
        (packets, records): Pair<'_>,
        wanted: &Wanted<'_>,
    ) -> Result<(), HardwareError> {
        for (index, (place, of_packets, of_records)) in (0..).zip(&mut self.spots) {
            let refused = |what| refused(what, *place, wanted.subject, wanted.levels);
            let event = Event::open(packets, owner, *place).map_err(refused(wanted.packets()))?;
            self.kinds[PACKETS].ids.push(event.id()?);
            if let Some(attr) = &self.samples {
                let member = event.open_member(attr).map_err(refused("samples"))?;
                let id = member.id()?;
                self.kinds[SAMPLES].ids.push(id);
                self.places.push(owner.place(id, index, *place));
                of_records.push(member);
            }
            of_packets.push(event);
            let opened = Event::open(records, owner, *place);
            let event = opened.map_err(refused("a program's mappings"))?;
            self.kinds[RECORDS].ids.push(event.id()?);
            of_records.push(event);
        }
        Ok(())
    }

    /// A stream for each of these threads, and none for what they start.
    fn of_threads(
        &mut self,
        threads: &[u32],
        alone: impl Fn(u32) -> Owner,
        packets: &Attr,
        wanted: &Wanted<'_>,
    ) -> Result<(), HardwareError> {
        for tid in threads {
            let (owner, place) = (alone(*tid), StreamPlace::Thread(*tid));
            let refused = |what| refused(what, place, wanted.subject, wanted.levels);
            let event = match Event::open(packets, owner, place) {
                Err(error) if has_ended(&error) => continue,
                opened => opened.map_err(refused(wanted.packets()))?,
            };
            self.kinds[PACKETS].ids.push(event.id()?);
            let mut members = Vec::new();
            if let Some(attr) = &self.samples {
                let member = event.open_member(attr).map_err(refused("samples"))?;
                let id = member.id()?;
                self.kinds[SAMPLES].ids.push(id);
                let index = self.spots.len() as u32;
                self.places.push(owner.place(id, index, place));
                members.push(member);
            }
            self.spots.push((place, vec![event], members));
        }
        Ok(())
    }

    /// Records of these, on each processor: nothing inherits from a thread's event that has a buffer for all processors.
    fn of_processors(
        &mut self,
        owners: &[Owner],
        records: &Attr,
        wanted: &Wanted<'_>,
    ) -> Result<(), HardwareError> {
        for cpu in wanted.online {
            let place = StreamPlace::Processor(*cpu);
            let mut events = Vec::new();
            for owner in owners {
                let event = match Event::open(records, *owner, place) {
                    Err(error) if has_ended(&error) => continue,
                    opened => opened.map_err(refused(
                        "a program's mappings",
                        place,
                        wanted.subject,
                        wanted.levels,
                    ))?,
                };
                self.kinds[RECORDS].ids.push(event.id()?);
                events.push(event);
            }
            if !events.is_empty() {
                self.spots.push((place, Vec::new(), events));
            }
        }
        Ok(())
    }

    /// Those of every thread, until no further one has been created meanwhile.
    fn of_process(
        &mut self,
        pid: u32,
        (packets, records): Pair<'_>,
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
                for (index, (place, of_packets, of_records)) in (0..).zip(&mut self.spots) {
                    // In this order: a thread that is created in between may have two events of records, but never none.
                    let record = match Event::open(records, owner, *place) {
                        Err(error) if has_ended(&error) => continue,
                        opened => opened.map_err(refused("a process", *place, subject, levels))?,
                    };
                    let pair = Event::open(packets, owner, *place).and_then(|packet| {
                        let attr = self.samples.as_ref();
                        let member = attr.map(|attr| packet.open_member(attr));
                        Ok((packet, member.transpose()?))
                    });
                    let (packet, member) = match pair {
                        Err(error) if has_ended(&error) => continue,
                        // It has inherited its creator's.
                        Err(error) if !is_first && error.raw_os_error() == Some(libc::EBUSY) => {
                            continue;
                        }
                        pair => pair.map_err(refused("Intel PT", *place, subject, levels))?,
                    };
                    self.kinds[RECORDS].ids.push(record.id()?);
                    self.kinds[PACKETS].ids.push(packet.id()?);
                    if let Some(member) = member {
                        let id = member.id()?;
                        self.kinds[SAMPLES].ids.push(id);
                        self.places.push(owner.place(id, index, *place));
                        of_records.push(member);
                    }
                    of_records.push(record);
                    of_packets.push(packet);
                }
            }
        }
        if self.spots.iter().any(|(_, packets, _)| packets.is_empty()) {
            return Err(HardwareError::NoProcess { pid });
        }
        Ok(())
    }

    /// Those that tell of changes of the kernel's code; whether they may.
    fn of_changes(&mut self, changes: &Attr) -> Result<bool, HardwareError> {
        let spots = self.spots.iter_mut();
        for (place, _, of_records) in spots.filter(|(place, ..)| place.cpu().is_some()) {
            let Ok(event) = Event::open(changes, Owner::Processor, *place) else {
                return Ok(false);
            };
            self.kinds[CHANGES].ids.push(event.id()?);
            of_records.push(event);
        }
        Ok(true)
    }

    /// Gives them their buffers.
    pub(super) fn rings(&mut self, buffers: Buffers) -> Result<Vec<Ring>, HardwareError> {
        self.spots
            .drain(..)
            .map(|(place, packets, records)| Ring::new(place, packets, records, buffers))
            .collect()
    }

    /// Something comes of it when the instruction at an address is about to run: these are the kernel's numbers of it, and what it was asked for.
    pub(super) fn watched(&mut self, events: Vec<(u64, Attr)>, address: u64) {
        let name = format!("mem:{address:#x}:x");
        for (id, attr) in events {
            let kinds = self.kinds.iter_mut();
            match kinds.skip(SAMPLES + 1).find(|kind| kind.attr == attr.0) {
                Some(kind) => kind.ids.push(id),
                None => self.kinds.push(KernelEvent {
                    attr: attr.0,
                    ids: vec![id],
                    name: name.clone(),
                }),
            }
        }
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

/// Whether there is no such thread any more.
fn has_ended(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}

/// What the kernel's refusal of an event means.
pub(super) fn refused(
    what: &'static str,
    place: StreamPlace,
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
        (Subject::Process(1..) | Subject::Thread { .. }, false) => {
            " (another user's process may be recorded by root only; one's own, where \
             /proc/sys/kernel/perf_event_paranoid is 2 or less)"
        }
        _ => " (/proc/sys/kernel/perf_event_paranoid: more than 2 forbids it to users)",
    };
    move |source| {
        let hint = match source.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => forbidden,
            Some(libc::EBUSY) => " (somebody else records with it)",
            Some(libc::EINVAL) if what == PAUSING => " (that takes Linux 6.13)",
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
            place,
            hint,
            source,
        }
    }
}
