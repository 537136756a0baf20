//! A recording and its streams.

use crate::calls::Calls;
use crate::flow::{Blocks, Events, Instructions};
use crate::owner::{Owner, Part};
use cofi_analysis::{CheckOptions, Gap, Tally, check};
use cofi_archive::Archive;
use cofi_flow::Cpu;
use cofi_image::Kallsyms;
use cofi_session::{FileFormat, Recording, Session, SessionOptions};
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use std::fmt::{Display, Write as _};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

pyo3::create_exception!(
    cofi,
    CofiError,
    pyo3::exceptions::PyException,
    "A recording cannot be read."
);

/// So many instructions, blocks or calls are in a batch if nobody says otherwise.
const BATCH: usize = 1 << 20;

fn parse<T: FromStr<Err: Display>>(words: Vec<String>, what: &str) -> PyResult<Vec<T>> {
    let parsed = words.iter().map(|word| {
        word.parse()
            .map_err(|error| PyValueError::new_err(format!("{what} {word:?}: {error}")))
    });
    parsed.collect()
}

fn format(word: &str) -> PyResult<FileFormat> {
    match word {
        "perf" => Ok(FileFormat::Perf),
        "pt" => Ok(FileFormat::Pt),
        "rtit" => Ok(FileFormat::Rtit),
        _ => Err(PyValueError::new_err(format!(
            "format is {word:?}, and must be \"perf\", \"pt\" or \"rtit\""
        ))),
    }
}

fn cpu((family, model, stepping): (u16, u8, u8)) -> Cpu {
    Cpu {
        family,
        model,
        stepping,
    }
}

/// Opens a recording: a perf.data file, of Cofi or of perf, or bare packets. What it tells of is decoded when it is asked for.
#[pyfunction]
#[pyo3(signature = (path, *, elf=vec![], raw=vec![], folders=vec![], kallsyms=None, format=None, cpu=None))]
#[expect(clippy::too_many_arguments, reason = "they are named in Python")]
pub(crate) fn open(
    py: Python<'_>,
    path: PathBuf,
    elf: Vec<String>,
    raw: Vec<String>,
    folders: Vec<PathBuf>,
    kallsyms: Option<PathBuf>,
    format: Option<&str>,
    cpu: Option<(u16, u8, u8)>,
) -> PyResult<PyRecording> {
    // `perf record --kcore` makes a folder.
    let file = match path.is_dir() {
        true => path.join("data"),
        false => path.clone(),
    };
    let owner = py.detach(|| -> PyResult<_> {
        let mut bytes = std::fs::read(&file)?;
        let mut options = SessionOptions::beside(&path);
        options.path = Some(file.clone());
        options.format = format.map(self::format).transpose()?;
        let wrong =
            |error: &dyn Display| CofiError::new_err(format!("{}: {error}", file.display()));
        let archive = match options.format {
            None => Archive::open(&bytes, Some(&file)).map_err(|error| wrong(&error))?,
            Some(_) => None,
        };
        let mut trace = 0..bytes.len();
        let is_archive = archive.is_some();
        if let Some(archive) = archive {
            let configured = archive.configure(&mut options);
            configured.map_err(|error| wrong(&error))?;
            let names = archive.kernel_names().map_err(|error| wrong(&error))?;
            options.kernel_names = names.map(Arc::new);
            trace = archive.trace_range().map_err(|error| wrong(&error))?;
        }
        bytes.truncate(trace.end);
        bytes.drain(..trace.start);
        options.elf.extend(parse(elf, "elf")?);
        options.raw.extend(parse(raw, "raw")?);
        options.folders.extend(folders);
        if let Some(cpu) = cpu {
            options.cpu = Some(self::cpu(cpu));
        }
        let beside = || {
            let list = options.folders.iter().map(|folder| folder.join("kallsyms"));
            list.into_iter().find(|list| list.is_file() && !is_archive)
        };
        if let Some(list) = kallsyms.clone().or_else(beside) {
            match Kallsyms::parse(&std::fs::read(&list)?) {
                Ok(names) => options.kernel_names = Some(Arc::new(names)),
                // One that lies there may be of no use, which is no reason not to read the trace.
                Err(error) if kallsyms.is_some() => {
                    let list = list.display();
                    return Err(CofiError::new_err(format!("{list}: {error}")));
                }
                Err(_) => {}
            }
        }
        Owner::open(bytes, &options).map_err(|error| wrong(&error))
    })?;
    Ok(PyRecording { owner, path })
}

/// A recording.
#[pyclass(name = "Recording", module = "cofi", frozen)]
pub(crate) struct PyRecording {
    owner: Arc<Owner>,
    path: PathBuf,
}

impl PyRecording {
    fn session(&self) -> &Session<'_> {
        self.owner.session()
    }
}

#[pymethods]
impl PyRecording {
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Its streams: one a thread, or one a processor.
    #[getter]
    fn threads(&self) -> Vec<Thread> {
        Part::all(&self.owner).map(Thread).collect()
    }

    /// What is not in it although it ran, in one sentence each, as far as its recorder knows; and what is wrong with it as a whole.
    #[getter]
    fn missing(&self) -> Vec<String> {
        let recording = self.session().recording();
        let missing = recording.into_iter().flat_map(Recording::sentences);
        let wrong = self.session().diagnostics().iter();
        missing.chain(wrong.map(ToString::to_string)).collect()
    }

    /// Code that could not be read, in one sentence each, as far as it has been asked for.
    #[getter]
    fn code_problems(&self) -> Vec<String> {
        let problems = self.session().code_problems();
        problems.map(ToString::to_string).collect()
    }

    /// The name of a function, by the number that batches have.
    fn function_name(&self, number: u32) -> PyResult<String> {
        let names = self.owner.names.lock();
        let named = names.get(number);
        named
            .map(|named| named.name.clone())
            .ok_or_else(|| no_function(number))
    }

    /// The file in which the code of a function is.
    fn function_file(&self, number: u32) -> PyResult<Option<PathBuf>> {
        let names = self.owner.names.lock();
        let named = names.get(number);
        named
            .map(|named| named.file.clone())
            .ok_or_else(|| no_function(number))
    }

    /// The names of all functions that batches have had numbers of, by number.
    #[getter]
    fn functions(&self) -> Vec<String> {
        let names = self.owner.names.lock();
        names
            .list()
            .iter()
            .map(|named| named.name.clone())
            .collect()
    }

    /// Decodes everything, on all processors, and counts.
    fn summary(&self, py: Python<'_>) -> Summary {
        py.detach(|| {
            let session = self.session();
            let streams: Vec<_> = session.streams().iter().collect();
            let mut tally = Tally::new();
            let options = CheckOptions::default();
            tally.add_all(session, &streams, options.threads, &|_| {});
            Summary(tally.finish())
        })
    }

    /// Decodes everything, on all processors, and tells each place where a part is missing (the first 10,000 of a stream).
    fn check(&self, py: Python<'_>) -> Vec<StreamCheck> {
        let checks = py.detach(|| check(self.session(), CheckOptions::default(), &|_| {}));
        checks.into_iter().map(StreamCheck).collect()
    }

    fn __repr__(&self) -> String {
        let count = self.session().streams().len();
        format!("<Recording {:?}, {count} streams>", self.path)
    }

    fn _repr_html_(&self) -> String {
        let mut html = format!("<p>{}</p>", escaped(&self.path.display().to_string()));
        html += "<table><tr><th>stream</th><th>name</th><th>bytes</th></tr>";
        for part in Part::all(&self.owner) {
            let thread = Thread(part);
            let name = thread.name().unwrap_or_default();
            let _ = write!(
                html,
                "<tr><td>{}</td><td>{}</td><td>{}</td></tr>",
                thread.title(),
                escaped(&name),
                thread.0.stream().len()
            );
        }
        html += "</table>";
        for sentence in self.missing() {
            let _ = write!(html, "<p>{}</p>", escaped(&sentence));
        }
        html
    }
}

fn no_function(number: u32) -> PyErr {
    PyIndexError::new_err(format!("no function has the number {number}"))
}

/// A text as HTML has it: names come from the trace, and may be anything.
fn escaped(text: &str) -> String {
    let mut html = String::new();
    for letter in text.chars() {
        match letter {
            '&' => html += "&amp;",
            '<' => html += "&lt;",
            '>' => html += "&gt;",
            '"' => html += "&quot;",
            letter => html.push(letter),
        }
    }
    html
}

/// One stream: what a thread ran, or what a processor did.
#[pyclass(module = "cofi", frozen)]
pub(crate) struct Thread(Part);

impl Thread {
    fn title(&self) -> String {
        match (self.tid(), self.cpu()) {
            (Some(tid), _) => format!("thread {tid}"),
            (None, Some(cpu)) => format!("processor {cpu}"),
            (None, None) => "stream".to_owned(),
        }
    }
}

fn size(batch: usize) -> PyResult<usize> {
    match batch {
        0 => Err(PyValueError::new_err("a batch must hold something")),
        some => Ok(some),
    }
}

#[pymethods]
impl Thread {
    /// The thread; none of a processor's stream.
    #[getter]
    fn tid(&self) -> Option<u32> {
        self.0.stream().key().tid()
    }

    /// The processor; none of a thread's stream.
    #[getter]
    fn cpu(&self) -> Option<u32> {
        self.0.stream().key().cpu()
    }

    /// The process of a thread.
    #[getter]
    fn pid(&self) -> Option<u32> {
        let stream = self.0.stream();
        stream.key().tid().map(|_| stream.task().pid)
    }

    /// What the thread is called.
    #[getter]
    fn name(&self) -> Option<String> {
        self.0.stream().comm().map(str::to_owned)
    }

    /// The bytes of its packets.
    #[getter]
    fn data(&self) -> &[u8] {
        self.0.stream().bytes()
    }

    /// The instructions that ran, in batches of about so many.
    #[pyo3(signature = (*, batch=BATCH))]
    fn instructions(&self, batch: usize) -> PyResult<Instructions> {
        Ok(Instructions::new(&self.0, size(batch)?)?)
    }

    /// The blocks that ran, in batches of about so many; with the time of each if that is wanted.
    #[pyo3(signature = (*, batch=BATCH, time=false))]
    fn blocks(&self, batch: usize, time: bool) -> PyResult<Blocks> {
        Ok(Blocks::new(&self.0, size(batch)?, time)?)
    }

    /// The calls, in the order in which they were left, in batches of about so many.
    #[pyo3(signature = (*, batch=BATCH))]
    fn calls(&self, batch: usize) -> PyResult<Calls> {
        Ok(Calls::new(&self.0, size(batch)?)?)
    }

    /// Events and gaps, in their order.
    fn events(&self) -> Events {
        Events::new(&self.0)
    }

    fn __repr__(&self) -> String {
        let name = self.name().unwrap_or_default();
        format!(
            "<Thread {} {name:?}, {} bytes>",
            self.title(),
            self.0.stream().len()
        )
    }
}

/// How whole a stream is.
#[pyclass(module = "cofi", frozen)]
pub(crate) struct StreamCheck(cofi_analysis::StreamCheck);

#[pymethods]
impl StreamCheck {
    /// Instructions that could be told.
    #[getter]
    fn instructions(&self) -> u64 {
        self.0.instructions
    }

    /// How many gaps there are.
    #[getter]
    fn gap_count(&self) -> u64 {
        self.0.gap_count()
    }

    /// The first gaps: the word for the cause, where in the stream, and how many bytes could not be used.
    #[getter]
    fn gaps(&self) -> Vec<(&'static str, u64, u64)> {
        let told = |gap: &Gap| (gap.cause.word(), gap.offset.0, gap.bytes);
        self.0.gaps.iter().map(told).collect()
    }

    /// Whether nothing is known to be missing.
    #[getter]
    fn is_whole(&self) -> bool {
        self.0.is_whole()
    }

    fn __repr__(&self) -> String {
        format!(
            "<StreamCheck {} instructions, {} gaps>",
            self.0.instructions,
            self.0.gap_count()
        )
    }
}

/// What a recording was about.
#[pyclass(module = "cofi", frozen)]
pub(crate) struct Summary(cofi_analysis::Summary);

/// So many functions are shown in a notebook.
const SHOWN: usize = 30;

#[pymethods]
impl Summary {
    /// All instructions.
    #[getter]
    fn instructions(&self) -> u64 {
        self.0.total.instructions
    }

    /// Where the flow is missing, how often.
    #[getter]
    fn gaps(&self) -> u64 {
        self.0.gaps()
    }

    /// The functions' names, the one with the most instructions of its own first.
    #[getter]
    fn names(&self) -> Vec<String> {
        let functions = self.0.functions.iter();
        functions.map(|function| function.name.clone()).collect()
    }

    /// The files of their code.
    #[getter]
    fn files(&self) -> Vec<Option<PathBuf>> {
        let functions = self.0.functions.iter();
        functions.map(|function| function.file.clone()).collect()
    }

    /// The instructions of each.
    #[getter]
    fn counts<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        let functions = self.0.functions.iter();
        let counts: Vec<u64> = functions.map(|function| function.instructions).collect();
        counts.into_pyarray(py)
    }

    /// How often the first instruction of each ran.
    #[getter]
    fn entries<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        let functions = self.0.functions.iter();
        let entries: Vec<u64> = functions.map(|function| function.entries).collect();
        entries.into_pyarray(py)
    }

    fn __repr__(&self) -> String {
        format!(
            "<Summary {} instructions, {} functions, {} gaps>",
            self.0.total.instructions,
            self.0.functions.len(),
            self.0.gaps()
        )
    }

    fn _repr_html_(&self) -> String {
        let mut html = format!(
            "<p>{} instructions, {} gaps</p><table><tr><th>instructions</th><th>entries</th><th>function</th></tr>",
            self.0.total.instructions,
            self.0.gaps()
        );
        for function in self.0.functions.iter().take(SHOWN) {
            let _ = write!(
                html,
                "<tr><td>{}</td><td>{}</td><td>{}</td></tr>",
                function.instructions,
                function.entries,
                escaped(&function.name)
            );
        }
        html += "</table>";
        let more = self.0.functions.len().saturating_sub(SHOWN);
        if more > 0 {
            let _ = write!(html, "<p>and {more} more</p>");
        }
        html
    }
}
