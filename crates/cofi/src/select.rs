//! Which part of a trace is wanted: streams, and from where to where.

use crate::args::Select;
use crate::input;
use crate::notes::Now;
use crate::sync::Sync;
use anyhow::{Result, bail};
use cofi_packet::{Ip, StreamOffset, Tsc};
use cofi_perf::PerfTime;
use cofi_session::{Session, Stream, ThreadFlow};
use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::str::FromStr;

/// A place in a trace, as a person names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Point {
    /// A byte of the packet stream.
    Offset(u64),
    /// A value of the time stamp counter.
    Tsc(Tsc),
    /// A time of perf's clock.
    Time(PerfTime),
    /// An instruction.
    Ip(Ip),
}

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is none of time:SECONDS, tsc:N, offset:N, ip:0x…");
        let (kind, value) = text.split_once(':').ok_or_else(wrong)?;
        let number = |text: &str| {
            match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => text.parse(),
            }
            .ok()
        };
        match kind {
            "offset" => number(value).map(Self::Offset),
            "tsc" => number(value).map(Tsc).map(Self::Tsc),
            "time" => nanoseconds(value).map(PerfTime).map(Self::Time),
            "ip" => u64::from_str_radix(value.trim_start_matches("0x"), 16)
                .ok()
                .map(Ip)
                .map(Self::Ip),
            _ => None,
        }
        .ok_or_else(wrong)
    }
}

/// `1.234567`, `1.234567s` or `1234567000ns` in nanoseconds, exactly.
fn nanoseconds(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_suffix("ns") {
        return digits.parse().ok();
    }
    let text = text.strip_suffix('s').unwrap_or(text);
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() > 9 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part: u64 = format!("{part:0<9}").parse().ok()?;
    let whole: u64 = whole.parse().ok()?;
    whole.checked_mul(1_000_000_000)?.checked_add(part)
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offset(offset) => write!(f, "offset:{offset:#x}"),
            Self::Tsc(tsc) => write!(f, "tsc:{tsc}"),
            Self::Time(time) => write!(f, "time:{time}"),
            Self::Ip(ip) => write!(f, "ip:{ip}"),
        }
    }
}

impl Point {
    /// Whether the line made last, of what `flow` gave last, is at this point or after it.
    fn is_reached(self, flow: &mut ThreadFlow<'_>, lines: &impl Lines) -> bool {
        let moment = lines.moment();
        let time = |flow: &mut ThreadFlow<'_>| match moment {
            Some(moment) => moment.now.tsc,
            None => flow.time().map(|time| time.tsc),
        };
        match self {
            Self::Offset(offset) => {
                moment.map_or(flow.offset(), |moment| moment.offset).0 >= offset
            }
            Self::Tsc(tsc) => time(flow).is_some_and(|now| now >= tsc),
            Self::Time(time) => match moment {
                Some(moment) => moment.now.perf.is_some_and(|now| now >= time.0),
                None => flow.perf_time().is_some_and(|now| now >= time),
            },
            Self::Ip(ip) => lines.holds(ip),
        }
    }

    /// Where decoding may begin so that nothing from this point on is missed: a PSB before it, and not one right at it, as what
    /// is told when decoding begins is not all of the flow.
    fn psb_before(self, session: &Session<'_>, sync: Sync<'_>) -> usize {
        match self {
            Self::Offset(offset) => sync.before(usize::try_from(offset).unwrap_or(usize::MAX)),
            Self::Tsc(tsc) => sync.by_time(tsc),
            Self::Time(time) => session
                .time_conversion()
                .and_then(|conversion| conversion.tsc_of(time))
                .map_or(0, |tsc| sync.by_time(tsc)),
            Self::Ip(_) => 0,
        }
    }
}

/// The streams that are wanted.
pub(crate) fn streams<'s, 't>(
    select: &Select,
    session: &'s Session<'t>,
) -> Result<Vec<&'s Stream<'t>>> {
    let time = [select.from, select.to, select.around]
        .into_iter()
        .flatten()
        .find(|point| matches!(point, Point::Time(_)));
    if let (Some(point), None) = (time, session.time_conversion()) {
        bail!(
            "{point}: the trace does not say how the time stamp counter converts to perf's time; use tsc:N"
        );
    }
    let by_cpu = session
        .streams()
        .iter()
        .any(|stream| stream.key().cpu().is_some());
    for tid in &select.tid {
        let known = |stream: &Stream<'_>| stream.key().tid() == Some(*tid);
        if !by_cpu && !session.streams().iter().any(known) {
            bail!("--tid {tid}: {}", there_is(session));
        }
    }
    for cpu in &select.cpu_stream {
        let known = |stream: &Stream<'_>| stream.key().cpu() == Some(*cpu);
        if !session.streams().iter().any(known) {
            bail!("--cpu-stream {cpu}: {}", there_is(session));
        }
    }
    let wanted = |stream: &&Stream<'_>| {
        let key = stream.key();
        (select.cpu_stream.is_empty()
            || key
                .cpu()
                .is_some_and(|cpu| select.cpu_stream.contains(&cpu)))
            && (select.tid.is_empty()
                || key.cpu().is_some()
                || key.tid().is_some_and(|tid| select.tid.contains(&tid)))
    };
    Ok(session.streams().iter().filter(wanted).collect())
}

fn there_is(session: &Session<'_>) -> String {
    const LISTED: usize = 20;
    let mut names: Vec<_> = session.streams().iter().map(input::title).collect();
    if names.len() > LISTED {
        names.truncate(LISTED);
        names.push("…".into());
    }
    format!("the trace has {}", names.join(", "))
}

/// Makes lines of a flow, one piece after the other.
pub(crate) trait Lines {
    /// The line of the next piece of the flow, ready to be written; nothing at the end. It stays until the next call.
    fn next(&mut self, flow: &mut ThreadFlow<'_>) -> bool;
    /// That line, line feed included.
    fn line(&self) -> &[u8];
    /// How many instructions it stands for.
    fn instructions(&self) -> usize;
    /// Whether the instruction at `ip` is one of them.
    fn holds(&self, ip: Ip) -> bool;
    /// Whether the piece is to be shown at all.
    fn is_wanted(&self) -> bool;
    /// Whether lines tell the time.
    fn has_time(&self) -> bool;
    /// Whether there were errors: to be cleared if they are of no line that is shown.
    fn errors(&mut self) -> &mut bool;
    /// Where the flow was at that piece, if it has been moved on since.
    fn moment(&self) -> Option<Moment> {
        None
    }
}

/// Where a flow is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) offset: StreamOffset,
    pub(crate) now: Now,
}

impl Moment {
    pub(crate) fn of(session: &Session<'_>, flow: &mut ThreadFlow<'_>) -> Self {
        Self {
            offset: flow.offset(),
            now: Now::of(session, flow),
        }
    }
}

impl Select {
    /// Whether the time tells what is wanted.
    fn asks_time(&self) -> bool {
        let is_time = |point: &Point| matches!(point, Point::Time(_) | Point::Tsc(_));
        let points = [self.from, self.to, self.around];
        points.iter().flatten().any(is_time)
    }

    /// Whether all of a stream is wanted.
    pub(crate) fn is_all(&self) -> bool {
        self.from.is_none() && self.to.is_none() && self.around.is_none()
    }
}

/// Writes the wanted part of a stream. Whether it has one.
pub(crate) fn write<L: Lines>(
    select: &Select,
    session: &Session<'_>,
    stream: &Stream<'_>,
    mut begin: impl FnMut() -> L,
    out: &mut impl Write,
) -> Result<(bool, L)> {
    let mut lines = begin();
    let sync = Sync::of(
        session,
        stream.bytes(),
        select.asks_time() || lines.has_time(),
    );
    let Some(point) = select.around else {
        let start = select
            .from
            .map_or(0, |point| point.psb_before(session, sync));
        let any = window(
            select,
            &mut flow_from(session, stream, start),
            &mut lines,
            out,
        )?;
        return Ok((any, lines));
    };
    let mut start = point.psb_before(session, sync);
    // The PSB right before the point may have too few instructions behind it.
    let mut steps = 1_u64;
    loop {
        let mut flow = flow_from(session, stream, start);
        let mut before = Ring::new(select.context);
        if !before.fill(point, &mut flow, &mut lines) {
            return Ok((false, lines));
        }
        if before.instructions < select.context && start > 0 {
            for _ in 0..steps {
                start = sync.before(start);
            }
            steps = steps.saturating_mul(2);
            lines = begin();
            continue;
        }
        for (line, ..) in &before.lines {
            out.write_all(line)?;
        }
        let mut left = select.context;
        while left > 0 {
            if lines.is_wanted() {
                out.write_all(lines.line())?;
                left = left.saturating_sub(lines.instructions());
            }
            if left == 0 || !lines.next(&mut flow) {
                break;
            }
        }
        return Ok((true, lines));
    }
}

fn flow_from<'s>(session: &'s Session<'_>, stream: &'s Stream<'_>, start: usize) -> ThreadFlow<'s> {
    if start == 0 {
        return session.decode(stream);
    }
    session.decode_within(stream, StreamOffset(start as u64)..StreamOffset(u64::MAX))
}

/// What lies between --from and --to; whether there is anything.
fn window<L: Lines>(
    select: &Select,
    flow: &mut ThreadFlow<'_>,
    lines: &mut L,
    out: &mut impl Write,
) -> Result<bool> {
    let mut any = false;
    let mut inside = select.from.is_none();
    while lines.next(flow) {
        if let (false, Some(from)) = (inside, select.from) {
            if !from.is_reached(flow, lines) {
                // A decoder that begins in the midst of it may have had to find its way first.
                *lines.errors() = false;
                continue;
            }
            inside = true;
        }
        let is_end = select.to.is_some_and(|to| to.is_reached(flow, lines));
        if is_end && !matches!(select.to, Some(Point::Ip(_))) {
            break;
        }
        if lines.is_wanted() {
            any = true;
            out.write_all(lines.line())?;
        }
        if is_end {
            break;
        }
    }
    Ok(any)
}

/// The last lines before a point.
struct Ring {
    /// Each with how many instructions it stands for, and whether it is of an error.
    lines: VecDeque<(Vec<u8>, usize, bool)>,
    instructions: usize,
    wanted: usize,
    /// The memory of a line that is not kept any more.
    spare: Vec<u8>,
}

impl Ring {
    fn new(wanted: usize) -> Self {
        Self {
            lines: VecDeque::new(),
            instructions: 0,
            wanted,
            spare: Vec::new(),
        }
    }

    /// Goes on to `point`, whose line comes last and is not kept; `false` if there is none.
    fn fill(&mut self, point: Point, flow: &mut ThreadFlow<'_>, lines: &mut impl Lines) -> bool {
        while lines.next(flow) {
            if lines.is_wanted() && point.is_reached(flow, lines) {
                *lines.errors() |= self.lines.iter().any(|(.., is_error)| *is_error);
                return true;
            }
            let is_error = std::mem::take(lines.errors());
            if lines.is_wanted() {
                self.push(lines.line(), lines.instructions(), is_error);
            }
        }
        false
    }

    fn push(&mut self, line: &[u8], instructions: usize, is_error: bool) {
        let mut kept = std::mem::take(&mut self.spare);
        kept.extend_from_slice(line);
        self.lines.push_back((kept, instructions, is_error));
        self.instructions += instructions;
        while let Some((_, first, _)) = self.lines.front()
            && self.instructions - first >= self.wanted
            && let Some((mut line, first, _)) = self.lines.pop_front()
        {
            self.instructions -= first;
            line.clear();
            self.spare = line;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points() {
        let point = |text: &str| text.parse::<Point>().ok();
        assert_eq!(point("offset:0x10"), Some(Point::Offset(16)));
        assert_eq!(point("offset:10"), Some(Point::Offset(10)));
        assert_eq!(point("tsc:77"), Some(Point::Tsc(Tsc(77))));
        assert_eq!(point("ip:0x401000"), Some(Point::Ip(Ip(0x40_1000))));
        assert_eq!(point("ip:401000"), point("ip:0x401000"));
        let time = |ns| Some(Point::Time(PerfTime(ns)));
        assert_eq!(point("time:1.5"), time(1_500_000_000));
        assert_eq!(point("time:12s"), time(12_000_000_000));
        assert_eq!(point("time:0.000000001"), time(1));
        assert_eq!(point("time:77ns"), time(77));
        for wrong in [
            "",
            "12",
            "time:",
            "time:1.0000000001",
            "time:-1",
            "time:1.-1",
            "offset:x",
            "ip:xyz",
            "tsc:-1",
            "time:99999999999999999999",
        ] {
            assert_eq!(point(wrong), None, "{wrong}");
        }
        for text in ["offset:0x10", "tsc:77", "time:1.500000000", "ip:0x401000"] {
            assert_eq!(
                point(text).map(|point| point.to_string()).as_deref(),
                Some(text)
            );
        }
    }

    #[test]
    fn the_ring_keeps_what_is_wanted() {
        let mut ring = Ring::new(3);
        for (line, instructions) in [(1, 1), (2, 0), (3, 1), (4, 1), (5, 0), (6, 1), (7, 0)] {
            ring.push(&[line], instructions, false);
        }
        let kept: Vec<u8> = ring.lines.iter().map(|(line, ..)| line[0]).collect();
        assert_eq!(kept, [3, 4, 5, 6, 7]);
        let mut none = Ring::new(0);
        none.push(&[1], 1, false);
        none.push(&[2], 0, false);
        assert_eq!((none.instructions, none.lines.len()), (0, 0));
    }
}
