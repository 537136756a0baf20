//! A trace file, opened.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::compact;
use cofi_flow::{Cpu, Errata, FlowConfig, RtitFlowConfig};
use cofi_image::{
    AddressSpace, CodeFile, ElfSpec, FileStore, ImageError, ImageView, Kallsyms, KernelCode,
    Mapped, RawSpec, Version, Within, load_elf, load_raw,
};
use cofi_packet::{ExecMode, Ip, StreamOffset};
use cofi_perf::{File, PerfTime, Seal, TimeConv};

use crate::Task;
use crate::bytes::{JoinPieces, OpenFile};
use crate::clock::Clock;
use crate::code::{CodeOptions, kernel_ranges, names_beside};
use crate::error::{Diagnostic, SessionError};
use crate::events::StreamEvents;
use crate::flow::{CodeCaches, Host, Subject, ThreadFlow};
use crate::lldb::{self, Module};
use crate::parts::Parts;
use crate::perf::{self, Contents};
use crate::recording::Recording;
use crate::seals;
use crate::signal::{Signal, Signals};
use crate::stream::{Piece, Pieces, Seam, StreamKey};
use crate::timeline::{Cursor, Sources, Timeline};

/// How a trace is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileFormat {
    /// Linux's perf.data.
    Perf,
    /// Bare Intel PT packets.
    Pt,
    /// Bare RTIT packets, of which nothing but [`SessionOptions::format`] tells.
    Rtit,
    /// The description of a bundle of LLDB, `trace.json`.
    Lldb,
}

impl FileFormat {
    /// Recognises a trace by its bytes; what is neither perf.data nor a bundle is taken for bare packets.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::of_file(bytes, None)
    }

    /// Recognises a trace, of which the name may be known.
    fn of_file(bytes: &[u8], path: Option<&Path>) -> Self {
        if bytes.starts_with(b"PERFILE2") {
            Self::Perf
        } else if lldb::is_bundle(bytes, path) {
            Self::Lldb
        } else {
            Self::Pt
        }
    }
}

/// What a session cannot know from the trace alone.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SessionOptions {
    /// The format, if it is not to be recognised.
    pub format: Option<FileFormat>,
    /// The trace file: a bundle's other files are named relative to its folder.
    pub path: Option<PathBuf>,
    /// Folders in which to look, by last name, for files of code that are not where the trace says.
    pub folders: Vec<PathBuf>,
    /// ELF files that every process has mapped, or the address spaces that they name.
    pub elf: Vec<ElfSpec>,
    /// Raw bytes that every process has mapped, or the address spaces that they name. They cover ELF files.
    pub raw: Vec<RawSpec>,
    /// Where other code comes from.
    pub code: CodeOptions,
    /// The names of the kernel's functions, in every process or address space.
    pub kernel_names: Option<Arc<Kallsyms>>,
    /// The processor, whose errata are worked around, if the trace does not say or says wrong.
    pub cpu: Option<Cpu>,
    /// Workarounds to switch on or off beyond what the processor asks for, in the words of [`Errata::change`].
    pub errata: Option<String>,
    /// How a bundle's files of packets come to memory; if it is not given, they are read. Each file is asked for once, however many threads
    /// name it. Who maps files here takes the memory of none.
    pub open: Option<OpenFile>,
    /// How the packets of a stream that lie in several pieces of a file are put together. If it is not given, or tells nothing, they are copied.
    /// It is given slices of the file that was opened or of those that [`open`](Self::open) gave. Who can show them as one without a copy takes
    /// the memory of none.
    pub join: Option<JoinPieces>,
    /// What the decoder is told. Whatever a perf.data file says of it itself counts more.
    pub flow: FlowConfig,
}

impl SessionOptions {
    /// Options for the trace at `path`: code the recorder saved is looked for in the folder beside it.
    #[must_use]
    pub fn beside(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let with_ending = |path: &Path, ending: &str| {
            let mut path = path.as_os_str().to_owned();
            path.push(ending);
            PathBuf::from(path)
        };
        let mut folders = vec![with_ending(path, ".code")];
        if path.extension().is_some_and(|ending| ending == "old") {
            // An earlier recording, which made way for a later one.
            folders.insert(0, with_ending(&path.with_extension(""), ".code.old"));
        }
        Self {
            path: Some(path.to_owned()),
            folders,
            ..Self::default()
        }
    }

    /// Those that ELF files and raw bytes name.
    fn address_spaces(&self) -> impl Iterator<Item = Within> {
        let elf = self.elf.iter().map(|elf| elf.within);
        let all = elf.chain(self.raw.iter().map(|raw| raw.within));
        all.filter(|within| !within.is_everywhere())
    }
}

/// Loads what the options have for these address spaces.
fn load(
    options: &SessionOptions,
    within: &Within,
    image: &mut AddressSpace,
    files: &mut FileStore,
) -> Result<(), ImageError> {
    for elf in options.elf.iter().filter(|elf| elf.within == *within) {
        load_elf(image, files, &elf.path, elf.base, Version(0))?;
    }
    for raw in options.raw.iter().filter(|raw| raw.within == *within) {
        load_raw(image, files, &raw.path, raw.address, Version(0))?;
    }
    Ok(())
}

/// Maps a module of a bundle; what is wrong with it, if anything is.
fn load_module(
    space: &mut AddressSpace,
    files: &mut FileStore,
    module: &Module,
) -> Option<Diagnostic> {
    let loaded = load_elf(space, files, &module.path, Some(module.base), Version(0));
    if let Err(error) = loaded {
        return Some(Diagnostic::Code(error.to_string()));
    }
    let (told, found) = (module.build_id?, files.named(&module.path).own_build_id()?);
    (told != found).then(|| {
        let path = module.path.display();
        Diagnostic::Code(format!(
            "{path}: its build id is {found}, that of the code that ran was {told}"
        ))
    })
}

/// A packet stream of a session.
#[derive(Debug)]
pub struct Stream<'t> {
    key: StreamKey,
    task: Task,
    name: Option<String>,
    pub(crate) pieces: Pieces<'t>,
    /// From which byte on code runs in another mode, where packets do not tell it.
    pub(crate) modes: Vec<(StreamOffset, ExecMode)>,
    pub(crate) seals: Vec<Seal>,
    signals: Vec<Signal>,
}

impl Stream<'_> {
    /// Whose packets these are.
    #[must_use]
    pub fn key(&self) -> StreamKey {
        self.key
    }

    /// The thread and its process; zeros if this is not a thread's stream.
    #[must_use]
    pub fn task(&self) -> Task {
        self.task
    }

    /// What the thread was called last.
    #[must_use]
    pub fn comm(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The signals that interrupted the thread, or ended its process, as far as the recorder has reported them.
    #[must_use]
    pub fn signals(&self) -> &[Signal] {
        &self.signals
    }

    /// The signals from a place of the stream on, to be put between the items of its flow.
    #[must_use]
    pub fn signals_from(&self, start: StreamOffset) -> Signals<'_> {
        Signals::new(&self.signals, start)
    }

    /// The packets.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.pieces.bytes()
    }

    /// The parts of [`bytes`](Self::bytes) between which something is missing.
    pub fn parts(&self) -> impl Iterator<Item = std::ops::Range<StreamOffset>> {
        let segments = self.pieces.segments();
        let ends = segments.iter().skip(1).map(|next| next.start);
        let ends = ends.chain([self.len() as u64]);
        let starts = segments.iter().map(|segment| segment.start);
        starts
            .zip(ends)
            .map(|(start, end)| StreamOffset(start)..StreamOffset(end))
    }

    /// What the recorder says that ran in stretches of [`bytes`](Self::bytes), one after the other; none if it was not Cofi's.
    #[must_use]
    pub fn seals(&self) -> &[Seal] {
        &self.seals
    }

    /// How many bytes of packets there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether there are no packets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A trace file, opened: its streams, and what is known of the code.
#[derive(Debug)]
pub struct Session<'t> {
    streams: Vec<Stream<'t>>,
    /// Whether a packet of any stream tells of a host, once that was asked.
    has_host: OnceLock<bool>,
    /// Code that was decoded before.
    caches: CodeCaches,
    timeline: Timeline,
    files: FileStore,
    diagnostics: Vec<Diagnostic>,
    flow: FlowConfig,
    time: Option<Clock>,
    is_guest: bool,
    /// The kernel's code, and which ranges of addresses the trace tells that it has.
    kernel: Option<(KernelCode, Vec<(u64, u64)>)>,
    only_guests: bool,
    parts: Vec<PathBuf>,
    /// Threads in the order in which they ended.
    ended: Vec<Task>,
    /// The process that the file tells of first.
    first_process: Option<u32>,
    recording: Option<Recording>,
}

impl<'t> Session<'t> {
    /// Opens the trace in `bytes`. Its packets are not copied as long as each stream is in one piece.
    ///
    /// # Errors
    /// When `bytes` are a perf.data file that cannot be read at all, or a file or an erratum that `options` name cannot be had.
    pub fn new(bytes: &'t [u8], options: &SessionOptions) -> Result<Self, SessionError> {
        // It must last for longer than what is read from it.
        let file;
        let path = options.path.as_deref();
        let recognised = || FileFormat::of_file(bytes, path);
        let mut contents = match options.format.unwrap_or_else(recognised) {
            FileFormat::Lldb => {
                let packed = options.code.packed.as_ref();
                let packed = packed.map(|packed| packed.parts.as_slice());
                lldb::read(bytes, path, packed, options)?
            }
            FileFormat::Perf => {
                file = File::parse(bytes)?;
                perf::read(&file, options.flow)
            }
            format @ (FileFormat::Pt | FileFormat::Rtit) => {
                let mut flow = options.flow;
                if format == FileFormat::Rtit && flow.format == cofi_flow::TraceFormat::IntelPt {
                    flow.format = cofi_flow::TraceFormat::Rtit(RtitFlowConfig::default());
                }
                let whole = vec![Piece::new(0, bytes)];
                Contents {
                    streams: vec![(StreamKey::Only, whole.into())],
                    ..Contents::new(flow)
                }
            }
        };
        if let Some(cpu) = options.cpu.or(contents.cpu) {
            contents.flow.errata = Errata::for_cpu(cpu);
        }
        if let Some(words) = &options.errata
            && let Err(word) = contents.flow.errata.change(words)
        {
            return Err(SessionError::Erratum(word.into()));
        }
        Self::join(contents, options)
    }

    pub(crate) fn join(
        contents: Contents<'_, 't>,
        options: &SessionOptions,
    ) -> Result<Self, SessionError> {
        let Contents {
            mut entries,
            streams: pieces,
            mut diagnostics,
            flow,
            time,
            cpu: _,
            is_guest,
            only_guests,
            modules,
            mut modes,
            mut seals,
            parts,
            recording,
            code,
            mut signals,
            ended,
            first_process,
        } = contents;
        let mut files = FileStore::with_places(code.places(&options.code));
        if let Some(packed) = &options.code.packed {
            packed.files.iter().for_each(|file| files.add(file.clone()));
        }
        for folder in &options.folders {
            files.add_folder(folder);
        }
        let mut base = AddressSpace::new();
        load(options, &Within::default(), &mut base, &mut files)?;
        let kernel = code.kernel(&entries, &options.code, &mut files)?;
        if options.code.packed.is_some() {
            // What the user names may lie elsewhere, but nothing else.
            for path in &options.code.jitdumps {
                files.named(path);
            }
            for within in options.address_spaces() {
                load(options, &within, &mut AddressSpace::new(), &mut files)?;
            }
            files.seal();
        }
        let (kernels, modules): (Vec<_>, Vec<_>) =
            modules.into_iter().partition(|module| module.pid.is_none());
        for module in &kernels {
            diagnostics.extend(load_module(&mut base, &mut files, module));
        }
        let names = kernel.as_ref().and_then(names_beside);
        if let Some(names) = options.kernel_names.as_ref().or(names.as_ref()) {
            base.name_kernel(names);
        }
        let mut guests: Vec<(Within, AddressSpace)> = Vec::new();
        for within in options.address_spaces() {
            if !guests.iter().any(|(known, _)| *known == within) {
                let mut image = base.clone();
                load(options, &within, &mut image, &mut files)?;
                guests.push((within, image));
            }
        }
        let mut dumps = Vec::new();
        let told = code.read_jitdumps(&mut entries, &mut dumps, &options.code, &mut files)?;
        diagnostics.extend(told.into_iter().map(Diagnostic::Code));
        let ranges = kernel_ranges(&entries);
        let sources = Sources {
            known: &code,
            kernel,
            dumps,
            guests,
            is_guest,
        };
        let mut timeline = Timeline::new(entries, &base, &mut files, &sources);
        let kernel = sources.kernel.map(|kernel| (kernel, ranges));
        for module in &modules {
            let image = &mut timeline.space_mut(module.pid.unwrap_or(0), &base).image;
            diagnostics.extend(load_module(image, &mut files, module));
        }
        let mut streams = Vec::with_capacity(pieces.len());
        for (key, pieces) in pieces {
            let (pieces, seams) = Pieces::new(pieces, options.join);
            diagnostics.extend(seams.into_iter().map(|seam| match seam {
                Seam::Gap { at, len } => Diagnostic::Gap {
                    stream: key,
                    at,
                    len,
                },
                Seam::Overlap { at, len } => Diagnostic::Overlap {
                    stream: key,
                    at,
                    len,
                },
            }));
            timeline.place_marks(key, |offset| pieces.place(offset));
            let modes = modes.remove(&key).unwrap_or_default().into_iter();
            let modes = modes.map(|(offset, mode)| (pieces.place(offset), mode));
            let modes = modes.collect();
            let seals = seals.remove(&key).unwrap_or_default();
            let seals = seals::placed(seals, |offset| pieces.place(offset));
            let mut signals = signals.remove(&key).unwrap_or_default();
            for signal in &mut signals {
                signal.offset = pieces.place(signal.offset.0);
            }
            compact::sort_by_key(&mut signals, |signal| signal.offset);
            let task = Cursor::new(&timeline, key).task();
            let name = key
                .tid()
                .and_then(|tid| timeline.name_of(tid))
                .map(str::to_owned);
            streams.push(Stream {
                key,
                task,
                name,
                pieces,
                modes,
                seals,
                signals,
            });
        }
        Ok(Self {
            streams,
            has_host: OnceLock::new(),
            caches: CodeCaches::default(),
            timeline,
            files,
            diagnostics,
            flow,
            time,
            is_guest,
            kernel,
            only_guests,
            parts,
            ended,
            first_process,
            recording,
        })
    }

    /// The packet streams, in the order the file has them.
    #[must_use]
    pub fn streams(&self) -> &[Stream<'t>] {
        &self.streams
    }

    /// What the recorder says of the recording, if it is one of Cofi's.
    #[must_use]
    pub fn recording(&self) -> Option<&Recording> {
        self.recording.as_ref()
    }

    /// What is wrong with the trace file.
    #[must_use]
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.diagnostics
    }

    /// The files of code that decoding needed so far and could not use, each once.
    pub fn code_problems(&self) -> impl Iterator<Item = &ImageError> {
        self.files.problems()
    }

    /// The files of code that decoding needed so far and found, without the kernel's.
    pub fn code_used(&self) -> impl Iterator<Item = &Arc<CodeFile>> {
        let kernel = self.kernel.as_ref().map(|(kernel, _)| kernel.file());
        let others = self.files.used();
        others.filter(move |file| !kernel.is_some_and(|kernel| Arc::ptr_eq(kernel, file)))
    }

    /// All files of code that the trace names, with the kernel's, whether or not decoding needed them so far.
    pub fn code_files(&self) -> impl Iterator<Item = &Arc<CodeFile>> {
        let kernel = self.kernel.as_ref().map(|(kernel, _)| kernel.file());
        self.files.all().chain(kernel)
    }

    /// The files, beside the one that was opened, of which the trace consists.
    #[must_use]
    pub fn parts(&self) -> &[PathBuf] {
        &self.parts
    }

    /// Processes' own lists of the code that they generated.
    pub fn lists_of_generated(&self) -> impl Iterator<Item = &Arc<CodeFile>> {
        self.timeline.perf_maps.iter().map(|names| names.file())
    }

    /// The kernel's code as far as the trace tells of it, as an ELF core file; `None` if decoding has needed none so far.
    #[must_use]
    pub fn kernel_core(&self) -> Option<Vec<u8>> {
        let (kernel, ranges) = self.kernel.as_ref()?;
        kernel.to_kcore(ranges)
    }

    /// The kernel's own list of its symbols, where it was found with its code.
    #[must_use]
    pub fn kernel_list(&self) -> Option<&Path> {
        self.kernel.as_ref()?.0.kallsyms.as_deref()
    }

    /// What the decoder is told.
    #[must_use]
    pub fn flow_config(&self) -> FlowConfig {
        self.flow
    }

    /// Whether the trace is of a whole machine, a guest: address spaces take the place of processes, numbered by the page frame
    /// to which CR3 points, and a stream is what a processor did in all of them.
    #[must_use]
    pub fn is_guest(&self) -> bool {
        self.is_guest
    }

    /// How the time stamp counter converts to perf's time, where the file says so.
    #[must_use]
    pub fn time_conversion(&self) -> Option<TimeConv> {
        self.time.map(|clock| clock.conv)
    }

    /// Whether the file tells of a thread.
    #[must_use]
    pub fn is_known(&self, tid: u32) -> bool {
        self.timeline.pids.contains_key(&tid)
    }

    /// Every thread that the file tells of, by process and number.
    #[must_use]
    pub fn tasks(&self) -> Vec<Task> {
        let pids = self.timeline.pids.iter();
        let mut tasks: Vec<Task> = pids
            .map(|(tid, pid)| Task {
                pid: *pid,
                tid: *tid,
            })
            .collect();
        compact::sort_by(&mut tasks, Ord::cmp);
        tasks
    }

    /// Every piece of a file that was mapped at any time: in which process (none if in all, as the kernel is), when (none of what was there
    /// before the recording began, or where no time is told), and what.
    pub fn for_each_mapped(
        &self,
        mut visit: impl FnMut(Option<u32>, Option<PerfTime>, &Mapped<'_>),
    ) {
        for (pid, space) in self.timeline.by_process() {
            space.image.for_each_mapped(|mapped| {
                visit(pid, space.time_of(mapped.version), mapped);
            });
        }
    }

    /// What a thread was called last.
    #[must_use]
    pub fn comm_of(&self, tid: u32) -> Option<&str> {
        self.timeline.name_of(tid)
    }

    /// The stream of the thread that the end of the first process was about: the one that a signal hit that ended it, else the one
    /// that ended last. The first stream where no record says who ended.
    #[must_use]
    pub fn last_stream(&self) -> Option<&Stream<'t>> {
        let is_first = |stream: &&Stream<'_>| Some(stream.task.pid) == self.first_process;
        let of_first = || self.streams.iter().filter(is_first);
        let is_hit = |stream: &&Stream<'_>| stream.signals.iter().any(|signal| signal.is_fatal);
        let ended = |stream: &Stream<'_>| self.ended.iter().rposition(|task| *task == stream.task);
        let last = || of_first().max_by_key(|stream| ended(stream));
        of_first()
            .find(is_hit)
            .or_else(|| last().filter(|stream| ended(stream).is_some()))
            .or(self.streams.first())
    }

    /// The flow of one stream of this session.
    #[must_use]
    pub fn decode<'s>(&'s self, stream: &'s Stream<'t>) -> ThreadFlow<'s> {
        let cursor = Cursor::new(&self.timeline, stream.key);
        let subject = match (self.is_guest, self.only_guests) {
            (true, _) => Subject::Machine,
            // Bare packets are of what the user says.
            _ if stream.key == StreamKey::Only => Subject::Machine,
            (false, true) => Subject::Guests,
            (false, false) => Subject::Processes,
        };
        let host = Host {
            streams: &self.streams,
            known: &self.has_host,
        };
        ThreadFlow::new(
            stream,
            self.flow,
            cursor,
            self.time,
            subject,
            host,
            &self.caches,
        )
    }

    /// What the packets of one stream of this session tell by themselves, without any code.
    #[must_use]
    pub fn events<'s>(&'s self, stream: &'s Stream<'t>) -> StreamEvents<'s> {
        StreamEvents::new(Parts::new(&stream.pieces), self.flow)
    }

    /// What the packets of a part of a stream tell: see [`EventDecoder::within`](cofi_flow::EventDecoder::within).
    #[must_use]
    pub fn events_within<'s>(
        &'s self,
        stream: &'s Stream<'t>,
        range: std::ops::Range<StreamOffset>,
    ) -> StreamEvents<'s> {
        self.events(stream).within(range)
    }

    /// The flow of a part of a stream: see [`FlowDecoder::within`](cofi_flow::FlowDecoder::within).
    #[must_use]
    pub fn decode_within<'s>(
        &'s self,
        stream: &'s Stream<'t>,
        range: std::ops::Range<StreamOffset>,
    ) -> ThreadFlow<'s> {
        self.decode(stream).within(range)
    }

    /// The flow of a stream from a place on, with the time that the flow of all of it tells there: see
    /// [`FlowDecoder::with_time_from`](cofi_flow::FlowDecoder::with_time_from).
    #[must_use]
    pub fn decode_from<'s>(
        &'s self,
        stream: &'s Stream<'t>,
        start: StreamOffset,
    ) -> ThreadFlow<'s> {
        match start {
            StreamOffset(0) => self.decode(stream),
            start => self.decode(stream).starting_at(start),
        }
    }

    /// Every function of code that was mapped in any process at any time: its name as the list of symbols spells it, and the address
    /// of its first instruction. One that was mapped several times comes as often. All files of code are read for that.
    pub fn for_each_function(&self, mut visit: impl FnMut(&str, Ip)) {
        for image in self.images() {
            image.for_each_function(&mut visit);
        }
    }

    /// Every other name of such a function, which is not shown as it has a better known one: it, the one that is shown, and the address of the
    /// first instruction.
    pub fn for_each_other_name(&self, mut visit: impl FnMut(&str, &str, Ip)) {
        for image in self.images() {
            image.for_each_other_name(&mut visit);
        }
    }

    /// Every stub of a procedure linkage table (`puts@plt`) in such code: its name and the address of its first instruction.
    pub fn for_each_stub(&self, mut visit: impl FnMut(&str, Ip)) {
        for image in self.images() {
            image.for_each_stub(&mut visit);
        }
    }

    fn images(&self) -> impl Iterator<Item = &AddressSpace> {
        let spaces = self.timeline.spaces.iter().chain([&self.timeline.kernel]);
        spaces.map(|space| &space.image)
    }

    /// The code of a process (of 0 for bare packets) as it was last.
    #[must_use]
    pub fn last_view(&self, pid: u32) -> ImageView<'_> {
        self.timeline.view(pid, Version(u64::MAX))
    }
}
