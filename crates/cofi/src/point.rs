//! Places in a trace as a person names them, and what they mean in a given one.

use crate::function_names::{Wanted, is_named, of_stub};
use crate::notes::Now;
use crate::psb_index::PsbIndex;
use anyhow::{Result, bail};
use cofi_packet::{Ip, StreamOffset, Tsc};
use cofi_perf::PerfTime;
use cofi_session::compact;
use cofi_session::{Session, ThreadFlow};
use std::fmt;
use std::str::FromStr;

/// A place in a trace, as a person names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Point {
    /// A byte of the packet stream.
    Offset(u64),
    /// A value of the time stamp counter.
    Tsc(Tsc),
    /// A time of perf's clock.
    Time(PerfTime),
    /// So many nanoseconds before the end of the trace.
    BeforeEnd(u64),
    /// An instruction.
    Ip(Ip),
    /// The first instruction of a function.
    Function(String),
}

/// A span of time, as a person names it, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span(pub(crate) u64);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no time: a number with s, ms, us or ns behind it");
        nanoseconds(text).map(Self).ok_or_else(wrong)
    }
}

/// What a person can say.
pub(crate) const FORMS: &str = "time:SECONDS (or with ms, us, ns; negative: before the end), tsc:N, offset:N, ip:0x…, sym:NAME";

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is none of {FORMS}");
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
            "time" => match value.strip_prefix('-') {
                Some(value) => nanoseconds(value).map(Self::BeforeEnd),
                None => nanoseconds(value).map(PerfTime).map(Self::Time),
            },
            "ip" => u64::from_str_radix(value.trim_start_matches("0x"), 16)
                .ok()
                .map(Ip)
                .map(Self::Ip),
            "sym" if !value.is_empty() => Some(Self::Function(value.to_owned())),
            _ => None,
        }
        .ok_or_else(wrong)
    }
}

/// `1.234567`, `1.234567s`, `1234.567ms`, `1234567us` or `1234567000ns` in nanoseconds, exactly.
fn nanoseconds(text: &str) -> Option<u64> {
    let units = [
        ("ns", 0),
        ("us", 3),
        ("µs", 3),
        ("ms", 6),
        ("s", 9),
        ("", 9),
    ];
    let (text, digits) = units
        .into_iter()
        .find_map(|(unit, digits)| Some((text.strip_suffix(unit)?, digits)))?;
    let (whole, part) = match text.split_once('.') {
        Some((whole, part)) => (whole, part),
        None => (text, ""),
    };
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if part.len() > digits || whole.is_empty() || !is_number(whole) || !is_number(part) {
        return None;
    }
    // Without a point, and filled up with zeros, it counts nanoseconds.
    format!("{whole}{part:0<digits$}").parse().ok()
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offset(offset) => write!(f, "offset:{offset:#x}"),
            Self::Tsc(tsc) => write!(f, "tsc:{tsc}"),
            Self::Time(time) => write!(f, "time:{time}"),
            Self::BeforeEnd(before) => write!(f, "time:-{}", PerfTime(*before)),
            Self::Ip(ip) => write!(f, "ip:{ip}"),
            Self::Function(name) => write!(f, "sym:{name}"),
        }
    }
}

/// A point of a given trace.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// As it was named.
    point: Point,
    at: At,
}

/// Where a place is.
#[derive(Clone, Debug)]
enum At {
    Offset(u64),
    Tsc(Tsc),
    Time(PerfTime),
    Ip(Ip),
    /// The first instructions of functions of that name.
    Function {
        wanted: Wanted,
        entries: Vec<Ip>,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.point.fmt(f)
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

impl Place {
    /// Finds a point in a trace.
    pub(crate) fn find(point: &Point, session: &Session<'_>) -> Result<Self> {
        let is_time = matches!(point, Point::Time(_) | Point::BeforeEnd(_));
        if is_time && session.time_conversion().is_none() {
            bail!(
                "{point}: the trace does not say how the time stamp counter converts to perf's time; use tsc:N"
            );
        }
        let at = match point {
            Point::Offset(offset) => At::Offset(*offset),
            Point::Tsc(tsc) => At::Tsc(*tsc),
            Point::Time(time) => At::Time(*time),
            Point::BeforeEnd(before) => {
                let Some(end) = end_of(session) else {
                    bail!("{point}: the trace does not say when it ends");
                };
                At::Time(PerfTime(end.0.saturating_sub(*before)))
            }
            Point::Ip(ip) => At::Ip(*ip),
            Point::Function(name) => At::Function {
                entries: entries(name, session)?,
                wanted: Wanted::of(name, session),
            },
        };
        Ok(Self {
            point: point.clone(),
            at,
        })
    }

    /// Whether the flow is at this place or behind it: at `moment`, or where it is now. `holds` tells whether an instruction is
    /// among those that the flow gave last.
    pub(crate) fn is_reached(
        &self,
        flow: &mut ThreadFlow<'_>,
        moment: Option<Moment>,
        holds: impl Fn(Ip) -> bool,
    ) -> bool {
        match &self.at {
            At::Offset(offset) => {
                moment
                    .map_or_else(|| flow.offset(), |moment| moment.offset)
                    .0
                    >= *offset
            }
            At::Tsc(tsc) => {
                let now = match moment {
                    Some(moment) => moment.now.tsc,
                    None => flow.time().map(|time| time.tsc),
                };
                now.is_some_and(|now| now >= *tsc)
            }
            At::Time(time) => match moment {
                Some(moment) => moment.now.perf.is_some_and(|now| now >= time.0),
                None => flow.perf_time().is_some_and(|now| now >= *time),
            },
            At::Ip(ip) => holds(*ip),
            At::Function { wanted, entries } => entries.iter().any(|ip| {
                // Other code may stand there at another time, or in another process.
                holds(*ip)
                    && flow.place(*ip).is_some_and(|place| {
                        place.symbol_or_stub().is_some_and(|symbol| {
                            symbol.offset == 0 && wanted.is(&symbol.demangled())
                        })
                    })
            }),
        }
    }

    /// The instructions at which the place may be.
    pub(crate) fn instructions(&self) -> &[Ip] {
        match &self.at {
            At::Ip(ip) => std::slice::from_ref(ip),
            At::Function { entries, .. } => entries,
            _ => &[],
        }
    }

    /// Whether an instruction is meant, which belongs to what ends with it.
    pub(crate) fn is_instruction(&self) -> bool {
        matches!(self.at, At::Ip(_) | At::Function { .. })
    }

    /// Whether the time tells where it is.
    pub(crate) fn asks_time(&self) -> bool {
        matches!(self.at, At::Tsc(_) | At::Time(_))
    }

    /// Where decoding may begin so that nothing from this place on is missed: a PSB before it, and not one right at it, as what
    /// is told when decoding begins is not all of the flow.
    pub(crate) fn psb_before(&self, session: &Session<'_>, sync: PsbIndex<'_>) -> usize {
        match self.at {
            At::Offset(offset) => sync.before(usize::try_from(offset).unwrap_or(usize::MAX)),
            At::Tsc(tsc) => sync.by_time(tsc),
            At::Time(time) => tsc_of(session, time).map_or(0, |tsc| sync.by_time(tsc)),
            At::Ip(_) | At::Function { .. } => 0,
        }
    }

    /// Whether it surely lies before another one.
    pub(crate) fn is_before(&self, other: &Self, session: &Session<'_>) -> bool {
        let tsc = |at: &At| match at {
            At::Tsc(tsc) => Some(*tsc),
            At::Time(time) => tsc_of(session, *time),
            _ => None,
        };
        match (&self.at, &other.at) {
            (At::Offset(this), At::Offset(other)) => this < other,
            (At::Time(this), At::Time(other)) => this < other,
            (this, other) => tsc(this)
                .zip(tsc(other))
                .is_some_and(|(this, other)| this < other),
        }
    }
}

fn tsc_of(session: &Session<'_>, time: PerfTime) -> Option<Tsc> {
    session.time_conversion()?.tsc_of(time)
}

/// The last time of all streams.
fn end_of(session: &Session<'_>) -> Option<PerfTime> {
    let end_of = |stream| {
        let stream: &cofi_session::Stream<'_> = stream;
        let sync = PsbIndex::of(session, stream.bytes(), true);
        let mut start = stream.len();
        // Not every PSB+ is followed by a time.
        while start > 0 {
            start = sync.before(start);
            let range = StreamOffset(start as u64)..StreamOffset(u64::MAX);
            let mut flow = session.decode_within(stream, range);
            let mut last = None;
            while flow.next_part().is_some() {
                last = flow.perf_time().or(last);
            }
            if last.is_some() {
                return last;
            }
        }
        None
    };
    session.streams().iter().filter_map(end_of).max()
}

/// Where functions of a name begin.
fn entries(name: &str, session: &Session<'_>) -> Result<Vec<Ip>> {
    let mut entries = Vec::new();
    session.for_each_function(|symbol, ip| {
        if is_named(&cofi_image::demangle(symbol), name) {
            entries.push(ip);
        }
    });
    session.for_each_other_name(|other, _, ip| {
        if is_named(&cofi_image::demangle(other), name) {
            entries.push(ip);
        }
    });
    if of_stub(name).is_some() {
        session.for_each_stub(|stub, ip| {
            if stub == name {
                entries.push(ip);
            }
        });
    }
    if !entries.is_empty() {
        entries.sort_unstable();
        entries.dedup();
        return Ok(entries);
    }
    let near = near(name, session);
    if near.is_empty() {
        bail!("sym:{name}: no function of the traced code is called so, or anything like it");
    }
    bail!(
        "sym:{name}: no function of the traced code is called so; near to it: {}",
        near.join(", ")
    );
}

/// How many names are listed that are near to one that is not there.
const NEAR: usize = 5;

/// Names of functions that are like one that is not there, the nearest first.
pub(crate) fn near(name: &str, session: &Session<'_>) -> Vec<String> {
    let wanted = name.to_lowercase();
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut look_at = |symbol: &str| {
        let mut spelt = cofi_image::demangle(symbol);
        // A version is nothing that a person has to give.
        if of_stub(&spelt).is_none()
            && let Some(at) = spelt.find('@').filter(|at| *at > 0)
        {
            spelt.truncate(at);
        }
        let known = spelt.to_lowercase();
        let far = if known.contains(&wanted) {
            // What begins or ends so is nearer than what only holds it.
            let is_edge = known.starts_with(&wanted) || known.ends_with(&wanted);
            Some(known.len() - wanted.len() + usize::from(!is_edge))
        } else {
            let most = (wanted.chars().count() / 3).max(1);
            distance(&wanted, &known, most)
        };
        let Some(far) = far else { return };
        if found.iter().any(|(_, name)| *name == spelt) {
            return;
        }
        found.push((far, spelt));
        compact::sort_by(&mut found, Ord::cmp);
        found.truncate(NEAR);
    };
    session.for_each_function(|symbol, _| look_at(symbol));
    session.for_each_other_name(|other, _, _| look_at(other));
    if of_stub(name).is_some() {
        session.for_each_stub(|stub, _| look_at(stub));
    }
    found.into_iter().map(|(_, name)| name).collect()
}

/// How many letters differ, if no more than `most`.
fn distance(a: &str, b: &str, most: usize) -> Option<usize> {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > most {
        return None;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().filter(|far| *far <= most)
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
        let function = |name: &str| Some(Point::Function(name.to_owned()));
        assert_eq!(point("sym:main"), function("main"));
        assert_eq!(point("sym:a::b(int)"), function("a::b(int)"));
        let time = |ns| Some(Point::Time(PerfTime(ns)));
        assert_eq!(point("time:1.5"), time(1_500_000_000));
        assert_eq!(point("time:12s"), time(12_000_000_000));
        assert_eq!(point("time:0.000000001"), time(1));
        assert_eq!(point("time:77ns"), time(77));
        assert_eq!(point("time:1.5ms"), time(1_500_000));
        assert_eq!(point("time:20us"), time(20_000));
        assert_eq!(point("time:0.001µs"), time(1));
        let before = |ns| Some(Point::BeforeEnd(ns));
        assert_eq!(point("time:-10ms"), before(10_000_000));
        assert_eq!(point("time:-1"), before(1_000_000_000));
        assert_eq!(point("time:-0"), before(0));
        for wrong in [
            "",
            "12",
            "time:",
            "time:ms",
            "time:1.0000000001",
            "time:1.5ns",
            "time:--1",
            "time:1.-1",
            "time:+1",
            "offset:x",
            "ip:xyz",
            "tsc:-1",
            "sym:",
            "time:99999999999999999999",
        ] {
            assert_eq!(point(wrong), None, "{wrong}");
        }
        for text in [
            "offset:0x10",
            "tsc:77",
            "time:1.500000000",
            "time:-0.010000000",
            "ip:0x401000",
            "sym:main",
        ] {
            let again = point(text).map(|point| point.to_string());
            assert_eq!(again.as_deref(), Some(text));
        }
    }

    #[test]
    fn letters_that_differ() {
        assert_eq!(distance("main", "main", 1), Some(0));
        assert_eq!(distance("mian", "main", 2), Some(2));
        assert_eq!(distance("man", "main", 1), Some(1));
        assert_eq!(distance("main", "mine", 1), None);
        assert_eq!(distance("a", "abcdef", 2), None);
    }
}
