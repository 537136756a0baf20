//! The calls of a stream, in batches.

use crate::arrow::{schema_capsule, stream_capsule};
use crate::batches::{Batches, Outlet};
use crate::columns::batch;
use crate::flow::NO_TIME;
use crate::names::Shared;
use crate::owner::Part;
use cofi_analysis::{Call, CallEnd, CallMoment, CallNames, CallTracer, CallVisitor, GapCause};
use cofi_packet::StreamOffset;
use cofi_session::Task;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How calls begin and end, by number.
pub(crate) const KINDS: [&str; 6] = ["call", "tail", "signal", "entry", "assumed", "inline"];
pub(crate) const LEFT: [&str; 5] = ["return", "tail", "unwound", "end", "gap"];
/// A call that nothing of the trace is around.
pub(crate) const NO_CALL: i64 = i64::MIN;

fn place(word: &str, among: &[&str]) -> u8 {
    let place = among.iter().position(|known| *known == word);
    place.map_or(u8::MAX, |place| place as u8)
}

batch! {
    /// Calls, in the order in which they were left.
    CallBatch of Columns {
        tid: u32,
        era: u32,
        number: i64,
        parent: i64 = NO_CALL,
        depth: i32,
        function: u32,
        ip: u64,
        kind: u8,
        left: u8,
        begin: u64,
        end: u64,
        begin_tsc: i64 = NO_TIME,
        end_tsc: i64 = NO_TIME,
        instructions: u64,
        self_instructions: u64,
    }
    beside {}
}

/// Takes calls as they are left.
struct Taken<'n> {
    columns: Columns,
    names: &'n Shared,
    /// The recording's numbers of the functions that the tracer has numbered.
    known: Vec<Option<u32>>,
    gaps: &'n AtomicU64,
    /// How often numbers have begun anew.
    era: u32,
    size: usize,
    to: &'n Outlet<Columns>,
}

impl Taken<'_> {
    fn function(&mut self, call: &Call, names: &CallNames) -> u32 {
        let index = call.function.index();
        if self.known.len() <= index {
            self.known.resize(index + 1, None);
        }
        *self.known[index].get_or_insert_with(|| {
            let name = names.describe(call.function);
            let file = names.file(call.function);
            self.names.lock().number(name, file)
        })
    }
}

fn tsc(moment: &CallMoment) -> i64 {
    let tsc = moment.tsc.and_then(|tsc| i64::try_from(tsc.0).ok());
    tsc.unwrap_or(NO_TIME)
}

impl CallVisitor for Taken<'_> {
    fn enter(&mut self, _: &Call, _: &CallNames) {}

    fn leave(&mut self, call: &Call, end: &CallEnd, names: &CallNames) {
        let function = self.function(call, names);
        let columns = &mut self.columns;
        columns.tid.push(call.task.tid);
        columns.era.push(self.era);
        columns.number.push(call.number);
        columns.parent.push(call.parent.unwrap_or(NO_CALL));
        columns.depth.push(call.depth);
        columns.function.push(function);
        columns.ip.push(call.ip.0);
        columns.kind.push(place(call.kind.name(), &KINDS));
        columns.left.push(place(end.left.name(), &LEFT));
        columns.begin.push(call.begin.insns);
        columns.end.push(end.end.insns);
        columns.begin_tsc.push(tsc(&call.begin));
        columns.end_tsc.push(tsc(&end.end));
        columns.instructions.push(end.insns);
        columns.self_instructions.push(end.self_insns);
        if columns.number.len() >= self.size {
            self.to.put(std::mem::take(columns));
        }
    }

    fn all_left(&mut self, _: Task, _: &CallNames) {
        self.era += 1;
    }

    fn lost(&mut self, _: GapCause, _: StreamOffset) {
        self.gaps.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes out calls, and sends them in batches.
fn make(part: &Part, size: usize, gaps: &AtomicU64, to: &Outlet<Columns>) {
    let flow = &mut part.decode();
    let mut tracer = CallTracer::new(part.session(), part.stream());
    let mut taken = Taken {
        columns: Columns::default(),
        names: &part.owner.names,
        known: Vec::new(),
        gaps,
        era: 0,
        size,
        to,
    };
    while tracer.follow(flow, &mut taken) {}
    tracer.finish(&mut taken);
    if !taken.columns.number.is_empty() {
        to.put(taken.columns);
    }
}

/// Iterates over batches of calls.
#[pyclass(module = "cofi", frozen)]
pub(crate) struct Calls {
    batches: Arc<Batches<Columns>>,
    gaps: Arc<AtomicU64>,
}

impl Calls {
    pub(crate) fn new(part: &Part, size: usize) -> std::io::Result<Self> {
        let gaps = Arc::new(AtomicU64::new(0));
        let (part, counted) = (part.clone(), gaps.clone());
        let batches = Batches::begin(move |to| make(&part, size, &counted, to))?;
        let batches = Arc::new(batches);
        Ok(Self { batches, gaps })
    }
}

#[pymethods]
impl Calls {
    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<CallBatch>> {
        let columns = self.batches.next(py)?;
        columns
            .map(|columns| CallBatch::new(py, columns))
            .transpose()
    }

    /// Arrow's description of the batches (the PyCapsule interface).
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule::<Columns>(py)
    }

    /// The batches that are still to come, as Arrow's stream.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // (Another schema is a wish, which one need not follow.)
        drop(requested_schema);
        stream_capsule(py, &self.batches)
    }

    /// How many gaps have been found so far; all of them once the iterator has ended. At each all open calls are left, as nobody knows what ran.
    #[getter]
    fn gaps(&self) -> u64 {
        self.gaps.load(Ordering::Relaxed)
    }
}
