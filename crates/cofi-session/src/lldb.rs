//! Bundles of LLDB: `trace.json`, which names the packets of threads or processors, context switches and code.
//!
//! The format is LLDB's schema of `trace load` for Intel PT. Paths are relative to the folder of the description.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofi_flow::Cpu;
use cofi_image::BuildId;
use cofi_perf::{File, SampleType, TimeConv};
use serde_json::Value;

use crate::SessionOptions;
use crate::Task;
use crate::bytes::{FileBytes, OpenFile};
use crate::clock::Clock;
use crate::code::TraceFile;
use crate::error::{Diagnostic, SessionError};
use crate::perf::Contents;
use crate::sched::Sched;
use crate::stream::{Piece, StreamKey};
use crate::timeline::{Entry, SidebandChange};

/// Where Linux is loaded if the bundle does not say: at its link address.
const KERNEL_BASE: u64 = 0xffff_ffff_8100_0000;

/// An ELF file in an address space.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    /// The process; none for the kernel, which is in all.
    pub(crate) pid: Option<u32>,
    pub(crate) path: PathBuf,
    /// The address of its lowest segment.
    pub(crate) base: u64,
    pub(crate) build_id: Option<BuildId>,
}

/// Whether a file is such a description: by its content, or by its name if it looks like JSON at all.
pub(crate) fn is_bundle(bytes: &[u8], path: Option<&Path>) -> bool {
    let begin = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if begin != Some(&b'{') {
        return false;
    }
    let named = path.is_some_and(|path| path.extension().is_some_and(|end| end == "json"));
    named || serde_json::from_slice::<Value>(bytes).is_ok_and(|value| value["type"] == "intel-pt")
}

/// A value in the description, and where it is.
#[derive(Clone)]
struct At<'j> {
    value: &'j Value,
    place: String,
}

impl<'j> At<'j> {
    fn wrong(&self, expected: &str) -> SessionError {
        SessionError::Bundle {
            place: self.place.clone(),
            reason: format!("expected {expected}"),
        }
    }

    fn get(&self, key: &str) -> Option<Self> {
        let value = self.value.get(key).filter(|value| !value.is_null())?;
        let place = format!("{}.{key}", self.place);
        Some(Self { value, place })
    }

    fn need(&self, key: &str) -> Result<Self, SessionError> {
        self.get(key)
            .ok_or_else(|| self.wrong(&format!("the key `{key}`")))
    }

    /// The entries of a list; none if there is no such key.
    fn list(&self, key: &str) -> Result<Vec<Self>, SessionError> {
        let Some(list) = self.get(key) else {
            return Ok(Vec::new());
        };
        let values = list.value.as_array().ok_or_else(|| list.wrong("a list"))?;
        let entry = |(index, value)| At {
            value,
            place: format!("{}[{index}]", list.place),
        };
        Ok(values.iter().enumerate().map(entry).collect())
    }

    fn text(&self) -> Result<&'j str, SessionError> {
        self.value.as_str().ok_or_else(|| self.wrong("a text"))
    }

    /// A number, or a text with one in decimal or hexadecimal.
    fn number(&self) -> Result<u64, SessionError> {
        let of_text = || {
            let text = self.value.as_str()?;
            match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
                Some(hex) => u64::from_str_radix(hex, 16).ok(),
                None => text.parse().ok(),
            }
        };
        // A negative number is one of 64 bits that wrapped.
        let of_number = || {
            let number = self.value.as_u64();
            number.or(self.value.as_i64().map(i64::cast_unsigned))
        };
        of_number()
            .or_else(of_text)
            .ok_or_else(|| self.wrong("a number of 64 bits"))
    }

    fn small<T: TryFrom<u64>>(&self) -> Result<T, SessionError> {
        let number = self.number()?;
        T::try_from(number).map_err(|_| self.wrong("a smaller number"))
    }
}

/// The folder of a description.
struct Folder<'p> {
    path: Option<&'p Path>,
    /// The other files of the bundle, if they were packed with it: then no others are read.
    packed: Option<HashMap<&'p Path, &'p Arc<[u8]>>>,
    /// Those that were read, each once.
    parts: RefCell<Vec<PathBuf>>,
    noted: RefCell<HashSet<PathBuf>>,
    /// Those whose context switches were read.
    switches: RefCell<HashSet<PathBuf>>,
    open: OpenFile,
    /// The bytes of each file, by its name without links: any number of threads may name the same.
    known: RefCell<HashMap<PathBuf, FileBytes>>,
}

/// Reads a file.
fn whole(path: &Path) -> io::Result<FileBytes> {
    Ok(Arc::new(std::fs::read(path)?))
}

impl Folder<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.path
            .map_or_else(|| name.into(), |folder| folder.join(name))
    }

    fn read(&self, name: &str) -> Result<FileBytes, SessionError> {
        let path = self.path(name);
        let failed = |error| SessionError::Io {
            path: path.clone(),
            error,
        };
        if let Some(packed) = &self.packed {
            let found = packed.get(path.as_path());
            self.note(&path);
            return found
                .map(|bytes| Arc::new(Arc::clone(bytes)) as FileBytes)
                .ok_or_else(|| {
                    failed(std::io::Error::new(
                        std::io::ErrorKind::NotFound,
                        "it is not in the archive",
                    ))
                });
        }
        // A device or a pipe may never end.
        if !std::fs::metadata(&path).map_err(failed)?.is_file() {
            let kind = std::io::ErrorKind::InvalidInput;
            return Err(failed(std::io::Error::new(kind, "it is no regular file")));
        }
        let own_name = std::fs::canonicalize(&path).map_err(failed)?;
        self.note(&path);
        if let Some(bytes) = self.known.borrow().get(&own_name) {
            return Ok(bytes.clone());
        }
        let bytes = (self.open)(&path).map_err(failed)?;
        self.known.borrow_mut().insert(own_name, bytes.clone());
        Ok(bytes)
    }

    /// Notes that the trace consists of this file, too.
    fn note(&self, path: &Path) {
        if self.noted.borrow_mut().insert(path.to_owned()) {
            self.parts.borrow_mut().push(path.to_owned());
        }
    }
}

/// Reads a description, and the packets and context switches that it names.
pub(crate) fn read<'t>(
    bytes: &[u8],
    path: Option<&Path>,
    packed: Option<&[TraceFile]>,
    options: &SessionOptions,
) -> Result<Contents<'static, 't>, SessionError> {
    let json: Value = serde_json::from_slice(bytes).map_err(|error| SessionError::Bundle {
        place: format!("line {}, column {}", error.line(), error.column()),
        reason: "this is no JSON".into(),
    })?;
    let folder = Folder {
        path: path.and_then(Path::parent),
        packed: packed.map(|packed| {
            let parts = packed.iter();
            parts.map(|(path, bytes)| (path.as_path(), bytes)).collect()
        }),
        parts: RefCell::default(),
        noted: RefCell::default(),
        switches: RefCell::default(),
        open: options.open.unwrap_or(whole),
        known: RefCell::default(),
    };
    let bundle = At {
        value: &json,
        place: "bundle".into(),
    };
    let kind = bundle.need("type")?;
    if kind.text()? != "intel-pt" {
        return Err(kind.wrong("`intel-pt`"));
    }
    let mut contents = Contents::new(options.flow);
    contents.cpu = bundle
        .get("cpuInfo")
        .map(|info| cpu(&info))
        .transpose()?
        .flatten();
    if let Some(time) = bundle.get("tscPerfZeroConversion") {
        let conv = TimeConv {
            shift: time.need("timeShift")?.number()?,
            mult: time.need("timeMult")?.number()?,
            zero: time.need("timeZero")?.number()?,
        };
        contents.time = Some(Clock { conv, short: None });
    }
    for process in bundle.list("processes")? {
        read_process(&process, &folder, &mut contents)?;
    }
    for cpu in bundle.list("cpus")? {
        if contents.time.is_none() {
            return Err(bundle.wrong("the key `tscPerfZeroConversion`, as there are `cpus`"));
        }
        read_cpu(&cpu, &folder, &mut contents)?;
    }
    if let Some(kernel) = bundle.get("kernel") {
        let base = kernel.get("loadAddress").map(|address| address.number());
        contents.modules.push(Module {
            pid: None,
            path: folder.path(kernel.need("file")?.text()?),
            base: base.transpose()?.unwrap_or(KERNEL_BASE),
            build_id: None,
        });
    }
    if contents.streams.is_empty() {
        contents.diagnostics.push(Diagnostic::NoTrace);
    }
    contents.parts = folder.parts.into_inner();
    Ok(contents)
}

/// The processor; none if it is not Intel's, or unknown.
fn cpu(info: &At<'_>) -> Result<Option<Cpu>, SessionError> {
    let vendor = info.need("vendor")?;
    let cpu = Cpu {
        family: info.need("family")?.small()?,
        model: info.need("model")?.small()?,
        stepping: info.need("stepping")?.small()?,
    };
    Ok(matches!(vendor.text()?, "GenuineIntel" | "intel").then_some(cpu))
}

fn read_process(
    process: &At<'_>,
    folder: &Folder<'_>,
    contents: &mut Contents<'static, '_>,
) -> Result<(), SessionError> {
    let pid = process.need("pid")?.small()?;
    for thread in process.list("threads")? {
        let tid = thread.need("tid")?.small()?;
        let what = SidebandChange::Task(Task { pid, tid });
        contents.entries.push(Entry { time: None, what });
        if let Some(trace) = thread.get("iptTrace") {
            let packets = vec![Piece::new(0, folder.read(trace.text()?)?)];
            let key = StreamKey::Thread(tid);
            contents.streams.push((key, packets.into()));
        }
    }
    for module in process.list("modules")? {
        let file = match module.get("file") {
            Some(file) => file,
            None => module.need("systemPath")?,
        };
        let uuid = module.get("uuid").map(|uuid| uuid.text()).transpose()?;
        contents.modules.push(Module {
            pid: Some(pid),
            path: folder.path(file.text()?),
            base: module.need("loadAddress")?.number()?,
            build_id: uuid.and_then(|uuid| BuildId::parse(&uuid.replace('-', ""))),
        });
    }
    Ok(())
}

fn read_cpu(
    cpu: &At<'_>,
    folder: &Folder<'_>,
    contents: &mut Contents<'static, '_>,
) -> Result<(), SessionError> {
    let id: u32 = cpu.need("id")?.small()?;
    let packets = folder.read(cpu.need("iptTrace")?.text()?)?;
    let pieces = vec![Piece::new(0, packets)];
    contents.streams.push((StreamKey::Cpu(id), pieces.into()));
    let Some(switches) = cpu.get("contextSwitchTrace") else {
        return Ok(());
    };
    let name = switches.text()?;
    let path = folder.path(name);
    let own_name = std::fs::canonicalize(&path).unwrap_or(path);
    if !folder.switches.borrow_mut().insert(own_name) {
        // Every processor would get all records of it.
        return Err(switches.wrong("a file that no other processor has"));
    }
    let bytes = folder.read(name)?;
    // The kernel's buffer of an event that LLDB asks for: TID and TIME, which stand behind each record.
    let records = File::of_records(
        bytes.as_ref().as_ref(),
        SampleType::TID.with(SampleType::TIME),
    );
    let mut runs = Sched::of_cpu(id);
    let mut entries = Vec::new();
    for record in records.records() {
        match record {
            Ok(record) => runs.take(&record, None, false, &mut entries),
            Err(error) => {
                let text = format!("{}: {error}", folder.path(name).display());
                contents.diagnostics.push(Diagnostic::Perf(text));
            }
        }
    }
    // Nothing of what they hold is borrowed from the file's bytes.
    contents
        .entries
        .extend(entries.into_iter().filter_map(|entry| match entry.what {
            SidebandChange::Run { stream, task } => Some(Entry {
                time: entry.time,
                what: SidebandChange::Run { stream, task },
            }),
            _ => None,
        }));
    Ok(())
}
