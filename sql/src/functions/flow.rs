//! What ran, instruction by instruction or block by block, with the places where something is missing.

use std::sync::Arc;

use cofi_flow::{Event, Executed, FlowError, Part};
use cofi_packet::{Ip, StreamOffset};
use cofi_session::{Stream, StreamKey, Task};

use super::parts::{PartClock, Window, cut, lead, units};
use super::places::Places;
use crate::columns::{Column, address, number, text};
use crate::limits::Limits;
use crate::recording::Recording;
use crate::table::{Outlet, Table, Unit, Units};
use crate::tables::{CPU, RECORDING, TID, head};

/// A row for each instruction, or for each block.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) by_blocks: bool,
}

const OFFSET: Column = number(
    "stream_offset",
    "the byte of the stream at which the last packet begins that tells that it ran; of a gap, the packet that was lost or does not fit",
);
const SEQ: Column = number(
    "seq",
    "its number among the rows of the stream with this `stream_offset`: by `stream_offset` and `seq` they are in the order in which they ran",
);
const TSC: Column = number(
    "tsc",
    "the time of that packet, in ticks of the time stamp counter, as far as the packets of its part tell",
);
const TIME: Column = number(
    "time_ns",
    "the same in perf's nanoseconds; NULL if the file does not say how to convert",
);
const FUNCTION: Column = text(
    "function",
    "the function that holds it (of a block, its first instruction), demangled; NULL if nothing names it",
);
const FILE: Column = text(
    "file",
    "the file that holds it; NULL where nothing is mapped",
);
const GAP: Column = text(
    "gap",
    "NULL of what ran; else the row is a place where something is missing before what follows, and this the word for the cause",
);
const REASON: Column = text("reason", "the cause in a sentence; NULL of what ran");

const INSTRUCTIONS: &[Column] = &[
    RECORDING,
    TID,
    CPU,
    OFFSET,
    SEQ,
    TSC,
    TIME,
    address("ip", "the address of the instruction; NULL of a gap"),
    number("length", "its length in bytes"),
    text(
        "class",
        "what it does to the flow: `other`, `conditional`, `direct_call`, …",
    ),
    FUNCTION,
    FILE,
    GAP,
    REASON,
];

const BLOCKS: &[Column] = &[
    RECORDING,
    TID,
    CPU,
    OFFSET,
    SEQ,
    TSC,
    TIME,
    address("ip", "the address of its first instruction; NULL of a gap"),
    address("last_ip", "the address of its last instruction"),
    number("instructions", "how many ran"),
    text("class", "what its last instruction does to the flow"),
    FUNCTION,
    FILE,
    GAP,
    REASON,
];

impl Table for Ran {
    fn name(&self) -> &'static str {
        match self.by_blocks {
            false => "instructions",
            true => "blocks",
        }
    }

    fn about(&self) -> &'static str {
        match self.by_blocks {
            false => {
                "One row for each instruction that ran, as `cofi insn` lists them, and one for each place where something is missing."
            }
            true => {
                "One row for each block that ran, as `cofi blocks` lists them: instructions up to one of which only the trace tells where it led, or an event; and one for each place where something is missing."
            }
        }
    }

    fn columns(&self) -> &'static [Column] {
        match self.by_blocks {
            false => INSTRUCTIONS,
            true => BLOCKS,
        }
    }

    fn units(&self, recording: &Arc<Recording>, limits: &Limits) -> Units {
        units(recording, limits)
    }

    fn fill(&self, unit: &Unit, out: &mut Outlet) {
        let (Some(index), Some(stream)) = (unit.stream, unit.stream()) else {
            return;
        };
        for pick in unit.picks.iter().flat_map(|picks| picks.iter()) {
            // Where it ends is known from what comes behind.
            let part = Unit {
                range: pick.range.start..StreamOffset(u64::MAX),
                rows: pick.rows.clone(),
                picks: None,
                ..unit.clone()
            };
            if !out.is_closed() {
                decode(&part, (index, stream), (pick.range.start, 0), out, self);
            }
        }
        if unit.picks.is_some() {
            return;
        }
        let start = lead(unit, unit.recording.parts(index));
        let decoded = decode(unit, (index, stream), (start, 0), out, self);
        if let Decoded::Lost { taken } = decoded {
            // How it goes on behind what is missing may depend on all that stands before.
            let start = unit.range.start;
            decode(unit, (index, stream), (start, taken), out, self);
        }
    }

    fn cut(&self, unit: Unit, pieces: usize) -> Vec<Unit> {
        cut(unit, pieces)
    }
}

/// How a unit was decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decoded {
    /// All rows were put out, or nobody wants more.
    All,
    /// Something is missing, and decoding had not begun where that of the whole unit does. So many rows were put out.
    Lost { taken: usize },
}

/// Decodes a unit from `start` on, and puts out its rows but for the first `skip`.
fn decode(
    unit: &Unit,
    (index, stream): (usize, &Stream<'_>),
    (start, skip): (StreamOffset, usize),
    out: &mut Outlet,
    table: &Ran,
) -> Decoded {
    let (columns, by_blocks) = (table.columns(), table.by_blocks);
    let session = unit.recording.session();
    let mut flow = match start {
        StreamOffset(0) if unit.range.end.0 == u64::MAX => session.decode(stream),
        _ => session.decode_within(stream, start..unit.range.end),
    };
    let is_exact = start == unit.range.start;
    let at = |name| columns.iter().position(|column| column.name == name);
    let wants = |name| at(name).is_some_and(|index| out.wants(index));
    let wants_place = wants("function") || wants("file");
    let mut maker = Maker {
        unit,
        key: stream.key(),
        task: flow.task(),
        clock: PartClock::new(unit, stream, unit.recording.parts(index), start),
        window: Window::new(unit, skip),
        places: Places::default(),
        place: None,
        wants_place,
        last: (StreamOffset(u64::MAX), 0),
        time: (None, None),
        open: None,
        by_blocks,
        out,
    };
    loop {
        // What follows may be of another thread, or in other code.
        if maker.wants_place && maker.open.is_none() {
            maker.places.look_at(flow.view());
        }
        let item = match flow.next_part() {
            Some(Part::Run(run)) => {
                let offset = run.offset();
                if by_blocks {
                    if let Some(last) = run.last().or_else(|| run.iter().last()) {
                        maker.extend(run.ip(), last, run.len() as u64, offset);
                    }
                } else {
                    run.for_each(|insn| maker.instruction(&insn, offset));
                }
                None
            }
            Some(Part::Event(event)) => Some(Ok(event)),
            Some(Part::Error(error)) => Some(Err(error)),
            None => break,
        };
        if let Some(item) = item {
            let is_lost = match &item {
                Ok(event) => matches!(event, Event::Overflow { .. } | Event::Resync { .. }),
                Err(_) => true,
            };
            if is_lost && !is_exact && maker.window.may_hold(flow.offset()) {
                let taken = maker.window.taken();
                return Decoded::Lost { taken };
            }
            maker.close();
            maker.missing(&item, flow.offset());
            maker.task = flow.task();
        }
        if maker.out.is_closed() || maker.window.is_over() {
            unit.recording.note_gaps(flow.gaps());
            return Decoded::All;
        }
    }
    maker.close();
    unit.recording.note_gaps(flow.gaps());
    Decoded::All
}

/// A block as far as it is known.
struct Open {
    ip: Ip,
    last: Executed,
    count: u64,
    offset: StreamOffset,
}

/// Makes rows of what ran.
struct Maker<'a> {
    unit: &'a Unit,
    key: StreamKey,
    task: Task,
    clock: PartClock<'a>,
    window: Window,
    places: Places<'a>,
    /// Where the open block begins.
    place: Option<u32>,
    wants_place: bool,
    /// The offset of the last row, and how many there are with it.
    last: (StreamOffset, u64),
    /// The time of that packet, and the same in nanoseconds.
    time: (Option<u64>, Option<u64>),
    open: Option<Open>,
    by_blocks: bool,
    out: &'a mut Outlet,
}

impl Maker<'_> {
    /// The number of a row among those with its offset. Of the first of them its time is found, too.
    fn seq(&mut self, offset: StreamOffset) -> u64 {
        if self.last.0 == offset {
            self.last.1 += 1;
        } else {
            self.last = (offset, 0);
            let tsc = self.clock.at(offset);
            self.time = (tsc.map(|tsc| tsc.0), self.unit.recording.nanoseconds(tsc));
        }
        self.last.1
    }

    fn instruction(&mut self, insn: &Executed, offset: StreamOffset) {
        let place = self.wants_place.then(|| self.places.of(insn.ip));
        let insn = Row {
            ip: Some(insn.ip),
            last: None,
            count: insn.len.into(),
            class: Some(insn.class.name()),
            gap: None,
            reason: None,
        };
        self.put(&insn, place, offset);
    }

    /// Adds instructions to the open block.
    fn extend(&mut self, ip: Ip, last: Executed, count: u64, offset: StreamOffset) {
        match &mut self.open {
            Some(open) => {
                open.last = last;
                open.count += count;
                open.offset = offset;
            }
            None => {
                self.place = self.wants_place.then(|| self.places.of(ip));
                self.open = Some(Open {
                    ip,
                    last,
                    count,
                    offset,
                });
            }
        }
        if last.class.needs_packet() {
            self.close();
        }
    }

    /// Ends the block that is open.
    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let place = self.place.take();
        let block = Row {
            ip: Some(open.ip),
            last: Some(open.last.ip),
            count: open.count,
            class: Some(open.last.class.name()),
            gap: None,
            reason: None,
        };
        self.put(&block, place, open.offset);
    }

    /// Puts out what is missing, if an item says so.
    fn missing(&mut self, item: &Result<Event, FlowError>, offset: StreamOffset) {
        let (offset, word, reason) = match item {
            Err(error) => (error.offset, error.kind.name(), error.kind.to_string()),
            Ok(Event::Overflow { .. }) => {
                let reason = "the processor could not store packets fast enough".to_owned();
                (offset, "overflow", reason)
            }
            Ok(_) => return,
        };
        let gap = Row {
            ip: None,
            last: None,
            count: 0,
            class: None,
            gap: Some(word),
            reason: Some(&reason),
        };
        self.put(&gap, None, offset);
    }

    fn put(&mut self, what: &Row<'_>, place: Option<u32>, offset: StreamOffset) {
        let seq = self.seq(offset);
        if !self.window.takes(offset) {
            return;
        }
        let (tsc, time) = self.time;
        let Self {
            unit,
            key,
            task,
            places,
            by_blocks,
            ..
        } = self;
        let count = what.ip.map(|_| what.count);
        self.out.put(|row| {
            head(row, unit, *key, task.tid)
                .number(offset.0)
                .number(seq)
                .number(tsc)
                .number(time)
                .address(what.ip.map(|ip| ip.0));
            if *by_blocks {
                row.address(what.last.map(|ip| ip.0));
            }
            let place = place.and_then(|place| places.get(place));
            row.number(count)
                .text(what.class)
                .text(place.and_then(|place| place.function.as_deref()))
                .text(place.and_then(|place| place.file.as_deref()))
                .text(what.gap)
                .text(what.reason);
        });
    }
}

/// What a row says beside where and when.
struct Row<'a> {
    ip: Option<Ip>,
    last: Option<Ip>,
    /// Bytes of an instruction, instructions of a block.
    count: u64,
    class: Option<&'static str>,
    gap: Option<&'static str>,
    reason: Option<&'a str>,
}
