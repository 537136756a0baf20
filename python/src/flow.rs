//! The flow of a stream, in batches of instructions or blocks, or as its events and gaps.

use crate::arrow::{schema_capsule, stream_capsule};
use crate::batches::{Batches, Outlet, Turn};
use crate::columns::batch;
use crate::events::{PyEvent, PyGap};
use crate::names::Places;
use crate::owner::Part;
use cofi_flow::{Event, Executed, Item, Part as Piece};
use cofi_packet::Ip;
use cofi_session::{OwnedFlow, ThreadFlow};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::sync::Arc;

/// A time that no packet tells.
pub(crate) const NO_TIME: i64 = -1;

fn tsc(flow: &mut ThreadFlow<'_>) -> i64 {
    let tsc = flow.time().and_then(|time| i64::try_from(time.tsc.0).ok());
    tsc.unwrap_or(NO_TIME)
}

/// What is missing, if an item says so.
fn gap(item: &Item, flow: &ThreadFlow<'_>, instructions: u64) -> Option<PyGap> {
    match item {
        Item::Error(error) => Some(PyGap::of_error(error, instructions)),
        Item::Event(Event::Overflow { .. }) => {
            Some(PyGap::of_overflow(flow.offset().0, instructions))
        }
        _ => None,
    }
}

batch! {
    /// Instructions that ran one after the other, none missing between them.
    InstructionBatch of Insns { ip: u64, length: u8, class_: u8 }
    beside { first: u64, gap_before: Option<PyGap> }
}

/// Iterates over batches of instructions.
#[pyclass(module = "cofi", frozen)]
pub(crate) struct Instructions(Arc<Batches<Insns>>);

impl Instructions {
    pub(crate) fn new(part: &Part, size: usize) -> std::io::Result<Self> {
        let part = part.clone();
        Batches::begin(move |to| instructions(&part, size, to))
            .map(|batches| Self(Arc::new(batches)))
    }
}

impl Insns {
    /// Hands over what there is, and begins anew.
    fn put(&mut self, to: &Outlet<Self>) {
        if !self.ip.is_empty() || self.gap_before.is_some() {
            let first = self.first + self.ip.len() as u64;
            let whole = std::mem::take(self);
            to.put(whole);
            self.first = first;
        }
    }
}

fn instructions(part: &Part, size: usize, to: &Outlet<Insns>) {
    let flow = &mut part.decode();
    let mut made = Insns::default();
    loop {
        let item = flow.blocks(|block| {
            block.for_each(|insn| {
                made.ip.push(insn.ip.0);
                made.length.push(insn.len);
                made.class_.push(insn.class.index() as u8);
            });
            if made.ip.len() >= size {
                made.put(to);
            }
        });
        let Some(item) = item else { break };
        if let Some(gap) = gap(&item, flow, made.first + made.ip.len() as u64) {
            if !made.ip.is_empty() {
                made.put(to);
            }
            // Of several in a row the first says why.
            made.gap_before.get_or_insert(gap);
        }
    }
    made.put(to);
}

#[pymethods]
impl Instructions {
    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<InstructionBatch>> {
        let made = self.0.next(py)?;
        made.map(|made| InstructionBatch::new(py, made)).transpose()
    }

    /// Arrow's description of the batches (the PyCapsule interface).
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule::<Insns>(py)
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
        stream_capsule(py, &self.0)
    }
}

batch! {
    /// Blocks that ran one after the other, none missing between them.
    BlockBatch of Made {
        ip: u64,
        end: u64,
        instructions: u32,
        class_: u8,
        function: u32,
        offset: u64,
        tsc: i64 = NO_TIME,
    }
    beside { gap_before: Option<PyGap> }
}

/// A block as far as it is known.
struct Open {
    ip: Ip,
    last: Executed,
    instructions: u32,
    function: u32,
    offset: u64,
}

impl Made {
    /// Hands over what there is, and begins anew.
    fn put(&mut self, to: &Outlet<Self>) {
        if !self.ip.is_empty() || self.gap_before.is_some() {
            to.put(std::mem::take(self));
        }
    }
}

/// Puts blocks together: what runs may come in smaller pieces.
struct Maker<'m> {
    open: Option<Open>,
    made: Made,
    ran: u64,
    size: usize,
    to: &'m Outlet<Made>,
}

impl Maker<'_> {
    /// A piece ran: its first and last instruction, how many there are, and the packet. Returns whether the block ends with it.
    #[inline]
    fn ran(
        &mut self,
        (ip, last, count): (Ip, Executed, usize),
        offset: u64,
        function: impl FnOnce(Ip) -> u32,
    ) -> bool {
        let count = count as u32;
        self.ran += u64::from(count);
        match &mut self.open {
            Some(open) => {
                open.last = last;
                open.instructions += count;
                open.offset = offset;
            }
            None => {
                self.open = Some(Open {
                    ip,
                    last,
                    instructions: count,
                    function: function(ip),
                    offset,
                });
            }
        }
        last.class.needs_packet()
    }

    /// Ends the block that is open.
    #[inline]
    fn close(&mut self, tsc: Option<i64>) {
        let Some(open) = self.open.take() else { return };
        let made = &mut self.made;
        made.ip.push(open.ip.0);
        made.end.push(open.last.ip.0);
        made.instructions.push(open.instructions);
        made.class_.push(open.last.class.index() as u8);
        made.function.push(open.function);
        made.offset.push(open.offset);
        made.tsc.extend(tsc);
        if made.ip.len() >= self.size {
            made.put(self.to);
        }
    }

    fn item(&mut self, item: &Item, flow: &mut ThreadFlow<'_>, is_timed: bool) {
        let tsc = is_timed.then(|| tsc(flow));
        self.close(tsc);
        if let Some(gap) = gap(item, flow, self.ran) {
            if !self.made.ip.is_empty() {
                self.made.put(self.to);
            }
            // Of several in a row the first says why.
            self.made.gap_before.get_or_insert(gap);
        }
    }
}

fn blocks(part: &Part, size: usize, is_timed: bool, to: &Outlet<Made>) {
    let names = &part.owner.names;
    let flow = &mut part.decode();
    let mut places = Places::default();
    let mut maker = Maker {
        open: None,
        made: Made::default(),
        ran: 0,
        size,
        to,
    };
    loop {
        let item = if is_timed {
            match flow.next_part() {
                Some(Piece::Run(run)) => {
                    let (ip, count, offset) = (run.ip(), run.len(), run.offset().0);
                    let Some(last) = run.last().or_else(|| run.iter().last()) else {
                        continue;
                    };
                    let function = |ip| places.function(ip, flow.view(), names);
                    if maker.ran((ip, last, count), offset, function) {
                        let tsc = tsc(flow);
                        maker.close(Some(tsc));
                    }
                    continue;
                }
                Some(Piece::Event(event)) => Some(Item::Event(event)),
                Some(Piece::Error(error)) => Some(Item::Error(error)),
                None => None,
            }
        } else {
            // The code does not change until the next item.
            let view = flow.view().clone();
            flow.blocks(|block| {
                let Some(last) = block.last().or_else(|| block.iter().last()) else {
                    return;
                };
                let what = (block.ip(), last, block.len());
                let function = |ip| places.function(ip, &view, names);
                if maker.ran(what, block.offset().0, function) {
                    maker.close(None);
                }
            })
        };
        match item {
            Some(item) => maker.item(&item, flow, is_timed),
            None => break,
        }
    }
    let tsc = is_timed.then(|| tsc(flow));
    maker.close(tsc);
    maker.made.put(to);
}

/// Iterates over batches of blocks.
#[pyclass(module = "cofi", frozen)]
pub(crate) struct Blocks(Arc<Batches<Made>>);

impl Blocks {
    pub(crate) fn new(part: &Part, size: usize, is_timed: bool) -> std::io::Result<Self> {
        let part = part.clone();
        Batches::begin(move |to| blocks(&part, size, is_timed, to))
            .map(|batches| Self(Arc::new(batches)))
    }
}

#[pymethods]
impl Blocks {
    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<BlockBatch>> {
        let made = self.0.next(py)?;
        made.map(|made| BlockBatch::new(py, made)).transpose()
    }

    /// Arrow's description of the batches (the PyCapsule interface).
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule::<Made>(py)
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
        stream_capsule(py, &self.0)
    }
}

/// How far events have been told.
struct Told {
    flow: OwnedFlow,
    instructions: u64,
    gap: Option<PyGap>,
}

/// Iterates over events and gaps, in their order.
#[pyclass(module = "cofi", frozen)]
pub(crate) struct Events(Turn<Told>);

impl Events {
    pub(crate) fn new(part: &Part) -> Self {
        Self(Turn::new(Told {
            flow: part.flow(),
            instructions: 0,
            gap: None,
        }))
    }
}

/// An event, or a gap.
enum Happening {
    Event(PyEvent),
    Gap(PyGap),
}

impl Told {
    fn next(&mut self) -> Option<Happening> {
        if let Some(gap) = self.gap.take() {
            return Some(Happening::Gap(gap));
        }
        let ran = &mut self.instructions;
        let waiting = &mut self.gap;
        self.flow.with(|flow| {
            let item = flow.blocks(|block| *ran += block.len() as u64)?;
            let missing = gap(&item, flow, *ran);
            match item {
                Item::Event(event) => {
                    // What an overflow has lost is told behind it.
                    *waiting = missing;
                    let tsc = u64::try_from(tsc(flow)).ok();
                    let event = PyEvent::new(&event, flow.offset().0, tsc, *ran);
                    Some(Happening::Event(event))
                }
                _ => missing.map(Happening::Gap),
            }
        })
    }
}

#[pymethods]
impl Events {
    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        Ok(match self.0.take(py, Told::next) {
            None => None,
            Some(Happening::Event(event)) => Some(Py::new(py, event)?.into_any()),
            Some(Happening::Gap(gap)) => Some(Py::new(py, gap)?.into_any()),
        })
    }
}
