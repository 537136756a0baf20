//! The questions of the page, and their answers: docs/serve.md lists them.
//!
//! PlaceRange are numbers of instructions of a row; times are nanoseconds since the first time known in the recording; addresses are text.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cofi_analysis::CallKind;
use cofi_index::{
    Axis, EventInfo, Explorer, FlameCall, FunctionInfo, FunctionSum, Hit, Index, PlaceRange, Row,
    Step, StripSum, Target,
};
use cofi_packet::Ip;
use serde_json::{Value, json};

use crate::parting::partings;
use crate::query::{ApiError, Query};
use crate::recording::{Ready, Recording, State};
use crate::source;

type Answer = Result<Value, ApiError>;

/// A picture is not wider.
const BINS: u64 = 8192;
/// Nor has a picture of many rows more bins than this in all.
const ALL_BINS: usize = 1 << 20;
/// A list is not longer.
const LISTED: usize = 5000;

/// Answers a question about recordings. Long ones end early once `cancel` is set: nobody waits for the answer.
pub(crate) fn answer(
    recordings: &[Arc<Recording>],
    name: &str,
    query: &str,
    cancel: &Arc<AtomicBool>,
) -> Answer {
    let query = Query::parse(query);
    if name == "state" {
        return Ok(json!({"recordings": recordings.iter().map(|r| state(r)).collect::<Vec<_>>()}));
    }
    if name == "parting" {
        let [a, b] = recordings else {
            return Err(ApiError::Unknown("there is one recording".to_owned()));
        };
        let value = a.partings(|| partings(a.opened.session, b.opened.session, cancel));
        return value.ok_or_else(gone);
    }
    let number = query.index("r", 0)?;
    let recording = recordings.get(number);
    let recording =
        recording.ok_or_else(|| ApiError::Unknown(format!("there is no recording {number}")))?;
    if name == "strip" {
        return strip(recording, &query);
    }
    if name == "sum" {
        return sum(recording, &query, cancel);
    }
    let ready = match recording.state() {
        State::Ready(ready) => ready,
        State::Building(_) => {
            return Err(ApiError::NotReady("the index is not there yet".to_owned()));
        }
        State::Failed(error) => return Err(ApiError::NotReady(error)),
    };
    let asked = Asked {
        query,
        ready: ready.clone(),
        cancel: cancel.clone(),
    };
    if name == "functions" {
        return Ok(functions(&ready.index));
    }
    let question = match name {
        "flame" => Asked::flame,
        "table" => Asked::table,
        "merged" => Asked::merged,
        "neighbours" => Asked::neighbours,
        "code" => Asked::code,
        "source" => Asked::source,
        "place" => Asked::place,
        "at" => Asked::at,
        "insns" => Asked::insns,
        "events" => Asked::events,
        "packets" => Asked::packets,
        "step" => Asked::step,
        "find" => Asked::find,
        "search" => Asked::search,
        _ => return Err(ApiError::Unknown(format!("there is no question {name:?}"))),
    };
    let answer = ready.pool.ask(move |explorer| match asked.is_gone() {
        true => Err(gone()),
        false => question(&asked, explorer),
    });
    answer.unwrap_or_else(|| Err(ApiError::NotReady("nobody answers any more".to_owned())))
}

/// What is not read by anybody.
fn gone() -> ApiError {
    ApiError::NotReady("nobody waits for the answer".to_owned())
}

fn row_json(row: &Row, start: u64) -> Value {
    json!({
        "pid": row.pid,
        "tid": row.tid,
        "cpu": row.cpu,
        "comm": row.comm,
        "insns": row.insns,
        "bytes": row.bytes,
        "calls": row.calls,
        "begin": row.begin.map(|time| time.saturating_sub(start)),
        "end": row.end.map(|time| time.saturating_sub(start)),
        "gaps": row.gap_count,
    })
}

fn state(recording: &Recording) -> Value {
    let name = &recording.opened.name;
    match recording.state() {
        State::Failed(error) => json!({"name": name, "state": "failed", "error": error}),
        State::Building(partial) => {
            let start = start_of(&partial.rows);
            let rows: Vec<_> = partial
                .rows
                .iter()
                .map(|row| row_json(row, start))
                .collect();
            let all = partial.all_bytes.max(1) as f64;
            json!({
                "name": name,
                "state": "building",
                "done": partial.done_bytes as f64 / all,
                "rows": rows,
                "end": end_of(&partial.rows).saturating_sub(start),
            })
        }
        State::Ready(ready) => {
            let index = &ready.index;
            let start = start_of(index.rows());
            let rows: Vec<_> = index
                .rows()
                .iter()
                .map(|row| row_json(row, start))
                .collect();
            json!({
                "name": name,
                "state": "ready",
                "rows": rows,
                "end": end_of(index.rows()).saturating_sub(start),
                "ticks": index.is_in_ticks(),
                "inlined": index.with_inlined(),
                "note": ready.note,
            })
        }
    }
}

fn start_of(rows: &[Row]) -> u64 {
    rows.iter().filter_map(|row| row.begin).min().unwrap_or(0)
}

fn end_of(rows: &[Row]) -> u64 {
    rows.iter().filter_map(|row| row.end).max().unwrap_or(0)
}

/// Name, file, 1 if a symbol names it and 2 if it was inlined, instructions, calls.
fn functions(index: &Index) -> Value {
    let list = index.functions().iter().map(|function| {
        let FunctionInfo {
            name,
            file,
            is_named,
            is_inlined,
            instructions,
            calls,
            ..
        } = function;
        let flags = u8::from(*is_named) | u8::from(*is_inlined) << 1;
        json!([name, file, flags, instructions, calls])
    });
    json!({"functions": list.collect::<Vec<_>>()})
}

fn axis(query: &Query) -> Result<Axis, ApiError> {
    match query.get("axis").unwrap_or("time") {
        "time" => Ok(Axis::Time),
        "insns" => Ok(Axis::Instructions),
        "offset" => Ok(Axis::Offset),
        other => Err(ApiError::Wrong(format!("axis: {other:?} is none"))),
    }
}

/// Which rows are meant, each once: `all`, or numbers with commas.
fn rows(query: &Query, count: usize) -> Result<Vec<usize>, ApiError> {
    match query.get("rows").unwrap_or("all") {
        "all" => Ok((0..count).collect()),
        list => {
            let numbers = list.split(',').map(|word| {
                let number = word.parse().ok().filter(|number| *number < count);
                number.ok_or_else(|| ApiError::Wrong(format!("rows: {word:?} is none")))
            });
            let mut numbers = numbers.collect::<Result<Vec<_>, _>>()?;
            numbers.sort_unstable();
            numbers.dedup();
            Ok(numbers)
        }
    }
}

/// A range of an axis; times count from the beginning of the recording.
fn range(query: &Query, axis: Axis, start: u64) -> Result<Range<u64>, ApiError> {
    let ahead = if axis == Axis::Time { start } else { 0 };
    let from = query.number_or("from", 0)?.saturating_add(ahead);
    let to = query
        .number_or("to", u64::MAX - ahead)?
        .saturating_add(ahead);
    Ok(from..to.max(from))
}

fn strip(recording: &Recording, query: &Query) -> Answer {
    let with = |all: &[Row]| {
        let axis = axis(query)?;
        let range = range(query, axis, start_of(all))?;
        let bins = query.number_or("bins", 1000)?.clamp(1, BINS) as usize;
        let rows = rows(query, all.len())?;
        if rows.len().saturating_mul(bins) > ALL_BINS {
            return Err(ApiError::Wrong(format!(
                "rows, bins: more than {ALL_BINS} bins in all"
            )));
        }
        let list = rows.into_iter().map(|number| {
            let bins = all[number].strip(axis, &range, bins);
            let gaps = bins.iter().enumerate().filter(|(_, bin)| bin.has_gap);
            let events = bins.iter().enumerate().filter(|(_, bin)| bin.events != 0);
            json!({
                "row": number,
                "insns": bins.iter().map(|bin| bin.insns).collect::<Vec<_>>(),
                "functions": bins.iter().map(|bin| bin.function.map_or(-1, i64::from)).collect::<Vec<_>>(),
                "gaps": gaps.map(|(index, _)| index).collect::<Vec<_>>(),
                "events": events.map(|(index, bin)| json!([index, bin.events])).collect::<Vec<_>>(),
            })
        });
        Ok(json!({"rows": list.collect::<Vec<_>>()}))
    };
    match recording.state() {
        State::Ready(ready) => with(ready.index.rows()),
        State::Building(partial) => with(&partial.rows),
        State::Failed(error) => Err(ApiError::NotReady(error)),
    }
}

/// What ran in all rows together.
fn sum(recording: &Recording, query: &Query, cancel: &AtomicBool) -> Answer {
    let with = |all: &[Row]| {
        let axis = axis(query)?;
        let range = range(query, axis, start_of(all))?;
        let bins = query.number_or("bins", 1000)?.clamp(1, BINS) as usize;
        let rows = rows(query, all.len())?;
        let mut sum = StripSum::new(bins);
        for number in rows {
            if cancel.load(Ordering::Relaxed) {
                return Err(gone());
            }
            all[number].add_to(axis, &range, &mut sum);
        }
        let gaps = sum.gaps.iter().enumerate().filter(|(_, has)| **has);
        Ok(json!({
            "insns": sum.insns,
            "gaps": gaps.map(|(index, _)| index).collect::<Vec<_>>(),
        }))
    };
    match recording.state() {
        State::Ready(ready) => with(ready.index.rows()),
        State::Building(partial) => with(&partial.rows),
        State::Failed(error) => Err(ApiError::NotReady(error)),
    }
}

/// A question about a recording whose index is there.
struct Asked {
    query: Query,
    ready: Arc<Ready>,
    cancel: Arc<AtomicBool>,
}

fn sums(list: &[FunctionSum]) -> Value {
    let list = list.iter().take(LISTED);
    let list = list.map(|sum| json!([function(sum.function), sum.own, sum.total, sum.calls]));
    Value::Array(list.collect())
}

/// The number of a function, or -1.
fn function(number: u32) -> i64 {
    if number == u32::MAX {
        -1
    } else {
        i64::from(number)
    }
}

fn source_json(source: Option<&cofi_index::SourceLine>) -> Value {
    source.map_or(Value::Null, |source| json!([source.file, source.line]))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const fn kind_name(kind: CallKind) -> &'static str {
    kind.name()
}

impl Asked {
    fn index(&self) -> &Index {
        &self.ready.index
    }

    fn is_gone(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    fn start(&self) -> u64 {
        start_of(self.index().rows())
    }

    fn row(&self) -> Result<(usize, &Row), ApiError> {
        let number = self.query.index("row", 0)?;
        let row = self.index().rows().get(number);
        let unknown = || ApiError::Unknown(format!("there is no row {number}"));
        Ok((number, row.ok_or_else(unknown)?))
    }

    fn time(&self, time: Option<u64>) -> Option<u64> {
        time.map(|time| time.saturating_sub(self.start()))
    }

    /// The places of rows that are selected.
    fn ranges(&self) -> Result<Vec<(usize, PlaceRange)>, ApiError> {
        let all = self.index().rows();
        let axis = axis(&self.query)?;
        let range = range(&self.query, axis, self.start())?;
        let numbers = rows(&self.query, all.len())?;
        let places = numbers.into_iter().map(|number| {
            let row = &all[number];
            (number, places(row, axis, &range))
        });
        Ok(places.filter(|(_, places)| !places.is_empty()).collect())
    }

    fn flame(&self, explorer: &mut Explorer<'_>) -> Answer {
        let (number, row) = self.row()?;
        let axis = axis(&self.query)?;
        let range = range(&self.query, axis, self.start())?;
        let places = places(row, axis, &range);
        let width = self.query.number_or("width", 1000)?.clamp(1, BINS);
        let shortest = (places.end - places.start) / width;
        let flame = explorer.flame(number, &places, shortest);
        let at = |place: u64, time: Option<u64>| {
            let value = match (axis, time) {
                (Axis::Time, Some(time)) => time,
                _ => row.value(axis, place).unwrap_or(0),
            };
            match axis {
                Axis::Time => value.saturating_sub(self.start()),
                _ => value,
            }
        };
        let call = |call: &FlameCall| {
            let flags = u8::from(call.kind == CallKind::Assumed)
                | u8::from(call.kind == CallKind::Inline) << 1
                | u8::from(call.left.is_none()) << 2;
            json!([
                at(call.begin, call.begin_time),
                at(call.end, call.end_time),
                call.depth,
                function(call.function),
                flags,
                call.begin,
                call.end,
            ])
        };
        Ok(json!({
            "calls": flame.calls.iter().map(call).collect::<Vec<_>>(),
            "shortest": flame.shortest,
            "whole": flame.is_whole,
        }))
    }

    fn table(&self, explorer: &mut Explorer<'_>) -> Answer {
        let table = explorer.functions(&self.ranges()?, &|| self.is_gone());
        Ok(json!({
            "insns": table.instructions,
            "functions": sums(&table.rows),
            "count": table.rows.len(),
        }))
    }

    fn merged(&self, explorer: &mut Explorer<'_>) -> Answer {
        let merged = explorer.merged(&self.ranges()?, &|| self.is_gone());
        // Nodes too small to be seen are left out, and with them what lies within.
        let least = merged.nodes.first().map_or(0, |root| root.total) / 4000;
        let mut numbers = vec![None; merged.nodes.len()];
        let mut list = Vec::new();
        for (index, node) in merged.nodes.iter().enumerate() {
            let parent = match index {
                0 => Some(0),
                _ => numbers.get(node.parent as usize).copied().flatten(),
            };
            if let Some(parent) = parent.filter(|_| node.total >= least && list.len() < LISTED) {
                numbers[index] = Some(list.len());
                list.push(json!([
                    parent,
                    function(node.function),
                    node.own,
                    node.total,
                    node.calls
                ]));
            }
        }
        Ok(json!({"nodes": list, "shortest": merged.shortest}))
    }

    fn neighbours(&self, explorer: &mut Explorer<'_>) -> Answer {
        let function = self.function()?;
        let found = explorer.neighbours(function, &self.ranges()?, &|| self.is_gone());
        Ok(json!({
            "callers": sums(&found.callers),
            "callees": sums(&found.callees),
            "shortest": found.shortest,
        }))
    }

    fn function(&self) -> Result<u32, ApiError> {
        let number = self.query.number("function")?;
        let known = u32::try_from(number).ok();
        let known = known.filter(|number| (*number as usize) < self.index().functions().len());
        known.ok_or_else(|| ApiError::Unknown(format!("there is no function {number}")))
    }

    fn code(&self, explorer: &mut Explorer<'_>) -> Answer {
        let is_gone = || self.is_gone();
        let code = explorer.code(self.function()?, &self.ranges()?, &is_gone);
        let insns = code.insns.iter().map(|insn| {
            json!([
                insn.ip.to_string(),
                hex(&insn.bytes),
                insn.text,
                insn.count,
                insn.outcomes,
                source_json(insn.source.as_ref()),
            ])
        });
        Ok(json!({
            "insns": insns.collect::<Vec<_>>(),
            "whole": code.is_whole,
            "counted": code.counted,
        }))
    }

    fn source(&self, explorer: &mut Explorer<'_>) -> Answer {
        let path = self.query.text("path")?;
        if !explorer.has_source(path) {
            return Err(ApiError::Unknown(
                "no code of this recording was made of that file".to_owned(),
            ));
        }
        Ok(source::read(path))
    }

    fn place(&self, explorer: &mut Explorer<'_>) -> Answer {
        let (number, row) = self.row()?;
        let at = self.query.number("at")?;
        let Some(place) = explorer.place(number, at) else {
            return Err(ApiError::Unknown(format!(
                "{at} instructions did not run there"
            )));
        };
        let stack = place.stack.iter().map(|frame| {
            json!({
                "function": frame.function,
                "kind": kind_name(frame.kind),
                "depth": frame.depth,
                "begin": frame.begin,
                "ip": frame.ip.map(|ip| ip.to_string()),
                "source": source_json(frame.source.as_ref()),
            })
        });
        let (from, to) = place.time.unzip();
        Ok(json!({
            "row": number,
            "at": at,
            "of": row.insns,
            "offset": place.offset,
            "time": self.time(from).zip(self.time(to)),
            "tid": place.task.tid,
            "ip": place.ip.to_string(),
            "function": place.function,
            "source": source_json(place.source.as_ref()),
            "stack": stack.collect::<Vec<_>>(),
        }))
    }

    /// The place at a value of an axis.
    fn at(&self, _: &mut Explorer<'_>) -> Answer {
        let (number, row) = self.row()?;
        let axis = axis(&self.query)?;
        let ahead = if axis == Axis::Time { self.start() } else { 0 };
        let value = self.query.number("value")?.saturating_add(ahead);
        let last = row.insns.checked_sub(1);
        let at = last.map(|last| row.at(axis, value).min(last));
        Ok(json!({"row": number, "at": at}))
    }

    fn insns(&self, explorer: &mut Explorer<'_>) -> Answer {
        let (number, _) = self.row()?;
        let at = self.query.number("at")?;
        let (before, behind) = (
            self.query.number_or("before", 20)?.min(2000),
            self.query.number_or("behind", 20)?.min(2000),
        );
        let range = at.saturating_sub(before)..at.saturating_add(behind);
        let list = explorer.instructions(number, &range);
        let list = list.iter().map(|insn| {
            json!({
                "at": insn.at,
                "ip": insn.ip.to_string(),
                "bytes": hex(&insn.bytes),
                "text": insn.text,
                "function": insn.function,
                "depth": insn.depth,
                "source": source_json(insn.source.as_ref()),
                "events": insn.events.iter().map(|event| self.event(event)).collect::<Vec<_>>(),
            })
        });
        Ok(json!({"insns": list.collect::<Vec<_>>()}))
    }

    fn event(&self, event: &EventInfo) -> Value {
        json!({
            "at": event.at,
            "offset": event.offset,
            "time": self.time(event.time),
            "kind": event.kind.name(),
            "text": event.text,
        })
    }

    fn events(&self, explorer: &mut Explorer<'_>) -> Answer {
        let most = self.query.index("most", 1000)?.min(LISTED);
        let axis = axis(&self.query)?;
        let (mut list, mut is_whole) = (Vec::new(), true);
        for (number, range) in self.ranges()? {
            let events = explorer.events(number, &range, most - list.len().min(most));
            is_whole &= events.is_whole;
            let row = &self.index().rows()[number];
            for event in &events.list {
                let value = match axis {
                    Axis::Time => self.time(event.time.or_else(|| row.value(axis, event.at))),
                    Axis::Instructions => Some(event.at),
                    Axis::Offset => Some(event.offset),
                };
                let mut event = self.event(event);
                event["row"] = number.into();
                event["value"] = value.into();
                list.push(event);
            }
        }
        Ok(json!({"events": list, "whole": is_whole}))
    }

    fn packets(&self, explorer: &mut Explorer<'_>) -> Answer {
        let (number, _) = self.row()?;
        let offset = self.query.number("offset")?;
        let before = self.query.index("before", 20)?.min(500);
        let behind = self.query.index("behind", 40)?.min(500);
        let list = explorer.packets(number, offset, before, behind);
        let list = list.iter();
        let list =
            list.map(|packet| json!([packet.offset, packet.len, packet.text, packet.is_error]));
        Ok(json!({"packets": list.collect::<Vec<_>>()}))
    }

    fn is_forward(&self) -> Result<bool, ApiError> {
        match self.query.get("dir").unwrap_or("next") {
            "next" => Ok(true),
            "previous" => Ok(false),
            other => Err(ApiError::Wrong(format!("dir: {other:?} is none"))),
        }
    }

    fn step(&self, explorer: &mut Explorer<'_>) -> Answer {
        let (number, _) = self.row()?;
        let at = self.query.number("at")?;
        let step = match self.query.text("by")? {
            "insn" => Step::Insn,
            "line" => Step::Line,
            "over" => Step::Over,
            "call" => Step::Call,
            "out" => Step::Out,
            other => return Err(ApiError::Wrong(format!("by: {other:?} is none"))),
        };
        let forward = self.is_forward()?;
        if self.query.get("rows") == Some("all") {
            let found = explorer.step_in_time(number, at, step, forward);
            let row = found.map_or(number, |(row, _)| row);
            return Ok(json!({"row": row, "at": found.map(|(_, at)| at)}));
        }
        let found = explorer.step(number, at, step, forward);
        Ok(json!({"row": number, "at": found}))
    }

    fn target(&self) -> Result<Target, ApiError> {
        let value = || self.query.text("value");
        Ok(match self.query.text("what")? {
            "function" => Target::Function(self.function()?),
            "ip" => {
                let text = value()?;
                let digits = text.strip_prefix("0x").unwrap_or(text);
                let ip = u64::from_str_radix(digits, 16);
                let wrong = |_| ApiError::Wrong(format!("value: {text:?} is no address"));
                Target::Ip(Ip(ip.map_err(wrong)?))
            }
            "line" => Target::Line {
                file: value()?.to_owned(),
                line: u32::try_from(self.query.number("line")?).unwrap_or(u32::MAX),
            },
            "gap" => Target::Gap,
            other => return Err(ApiError::Wrong(format!("what: {other:?} is none"))),
        })
    }

    /// In the row, or with `rows=all` in all: there, in the order of time.
    fn find(&self, explorer: &mut Explorer<'_>) -> Answer {
        let (number, row) = self.row()?;
        let at = self.query.number("at")?;
        let (target, forward) = (self.target()?, self.is_forward()?);
        let is_gone = || self.is_gone();
        let here = explorer.find(number, at, &target, forward, &is_gone);
        if self.query.get("rows") != Some("all") {
            return Ok(json!({"row": number, "at": here}));
        }
        let now = row.value(Axis::Time, at);
        let mut best = here.map(|here| (row.value(Axis::Time, here), number, here));
        for (other, row) in self.index().rows().iter().enumerate() {
            if other == number {
                continue;
            }
            let Some(from) = now.map(|now| row.at(Axis::Time, now)) else {
                continue;
            };
            let Some(found) = explorer.find(other, from, &target, forward, &is_gone) else {
                continue;
            };
            let found = (row.value(Axis::Time, found), other, found);
            let is_nearer = best.is_none_or(|best| match forward {
                true => found.0 < best.0,
                false => found.0 > best.0,
            });
            if is_nearer {
                best = Some(found);
            }
        }
        Ok(match best {
            Some((_, row, at)) => json!({"row": row, "at": at}),
            None => json!({"row": number, "at": null}),
        })
    }

    fn search(&self, explorer: &mut Explorer<'_>) -> Answer {
        let hits = explorer.search(self.query.text("text")?, 200);
        let hits = hits.into_iter().map(|hit| match hit {
            Hit::Function(number) => json!({"kind": "function", "function": number}),
            Hit::Address(ip) => json!({"kind": "ip", "ip": ip.to_string()}),
            Hit::Line { file, line } => json!({"kind": "line", "file": file, "line": line}),
            _ => Value::Null,
        });
        Ok(json!({"hits": hits.collect::<Vec<_>>()}))
    }
}

/// The places of a row in a range of an axis.
fn places(row: &Row, axis: Axis, range: &Range<u64>) -> PlaceRange {
    let own = row.range(axis).unwrap_or(0..0);
    if axis == Axis::Time && (range.end <= own.start || range.start > own.end) {
        return 0..0;
    }
    let from = if range.start <= own.start {
        0
    } else {
        row.at(axis, range.start)
    };
    let to = if range.end >= own.end {
        row.insns
    } else {
        row.at(axis, range.end)
    };
    from..to.max(from)
}
