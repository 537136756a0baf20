//! Which part of a trace is wanted: streams, and from where to where.

use crate::args::{Range, Select};
use crate::input;
use crate::output::tell;
use crate::point::{Moment, Place, Point};
use crate::psb_index::PsbIndex;
use anyhow::{Result, bail};
use cofi_packet::{Ip, StreamOffset};
use cofi_session::{Session, Stream, ThreadFlow};
use std::collections::VecDeque;
use std::io::Write;

/// The part of a trace that is wanted.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) from: Option<Place>,
    pub(crate) to: Option<Place>,
    pub(crate) around: Option<Place>,
    context: usize,
    /// The threads; none means all.
    pub(crate) tids: Vec<u32>,
    cpus: Vec<u32>,
}

impl Window {
    /// What the options say, in this trace.
    pub(crate) fn of(select: &Select, session: &Session<'_>) -> Result<Self> {
        let Select {
            range,
            around,
            context,
            cpu_stream,
        } = select;
        let place = |point: &Option<Point>| {
            let place = point.as_ref().map(|point| Place::find(point, session));
            place.transpose()
        };
        let window = Self {
            around: place(around)?,
            context: *context,
            cpus: cpu_stream.clone(),
            ..Self::of_range(range, session)?
        };
        for cpu in &window.cpus {
            let known = |stream: &Stream<'_>| stream.key().cpu() == Some(*cpu);
            if !session.streams().iter().any(known) {
                bail!("--cpu-stream {cpu}: no such stream; {}", there_is(session));
            }
        }
        if window.around.is_some() {
            window.warn(session);
        }
        Ok(window)
    }

    /// What the options say, in this trace.
    pub(crate) fn of_range(range: &Range, session: &Session<'_>) -> Result<Self> {
        let Range { from, to, tid } = range;
        let by_cpu = is_by_cpu(session);
        for tid in tid {
            let has_stream = |stream: &Stream<'_>| stream.key().tid() == Some(*tid);
            let is_known = match by_cpu {
                true => session.is_known(*tid),
                false => session.streams().iter().any(has_stream),
            };
            if !is_known {
                bail!("--tid {tid}: no such thread; {}", there_is(session));
            }
        }
        let place = |point: &Option<Point>| {
            let place = point.as_ref().map(|point| Place::find(point, session));
            place.transpose()
        };
        let (from, to) = (place(from)?, place(to)?);
        if let (Some(from), Some(to)) = (&from, &to)
            && to.is_before(from, session)
        {
            bail!("--to {to} lies before --from {from}: there is nothing between them");
        }
        let window = Self {
            from,
            to,
            around: None,
            context: 0,
            tids: tid.clone(),
            cpus: Vec::new(),
        };
        if !window.is_all() {
            window.warn(session);
        }
        Ok(window)
    }

    /// Points are those of a processor, not of one of its threads.
    fn warn(&self, session: &Session<'_>) {
        if !self.tids.is_empty() && is_by_cpu(session) {
            tell(format_args!(
                "the points count in each processor's stream, whichever thread runs there; --tid only leaves out the others"
            ));
        }
    }

    /// Whether all of a stream is wanted.
    pub(crate) fn is_all(&self) -> bool {
        self.from.is_none() && self.to.is_none() && self.around.is_none()
    }

    /// Whether of each stream all is wanted or nothing.
    pub(crate) fn is_whole_streams(&self, session: &Session<'_>) -> bool {
        self.is_all() && (self.tids.is_empty() || !is_by_cpu(session))
    }

    /// The streams that are wanted.
    pub(crate) fn streams<'s, 't>(&self, session: &'s Session<'t>) -> Vec<&'s Stream<'t>> {
        let wanted = |stream: &&Stream<'_>| {
            let key = stream.key();
            let is_cpu = key.cpu().is_some_and(|cpu| self.cpus.contains(&cpu));
            let is_thread = key.tid().is_some_and(|tid| self.tids.contains(&tid));
            (self.cpus.is_empty() || is_cpu)
                && (self.tids.is_empty() || key.cpu().is_some() || is_thread)
        };
        session.streams().iter().filter(wanted).collect()
    }

    /// The instructions at which points may be.
    pub(crate) fn instructions(&self) -> impl Iterator<Item = Ip> {
        let places = [&self.from, &self.to, &self.around].into_iter().flatten();
        places.flat_map(|place| place.instructions().iter().copied())
    }

    /// Whether the time tells what is wanted.
    pub(crate) fn asks_time(&self) -> bool {
        let mut places = [&self.from, &self.to, &self.around].into_iter().flatten();
        places.any(Place::asks_time)
    }

    /// Where decoding of a stream begins.
    pub(crate) fn start(&self, session: &Session<'_>, sync: PsbIndex<'_>) -> usize {
        let from = self.around.as_ref().or(self.from.as_ref());
        from.map_or(0, |place| place.psb_before(session, sync))
    }

    /// Says of points that no stream has come to.
    pub(crate) fn report_missed(&self, found: Found) {
        let missed = |place: &Place| match place.is_instruction() {
            true => format!("{place} never ran"),
            false => format!("nothing that was traced is at or after {place}"),
        };
        match (self.around.as_ref().or(self.from.as_ref()), &self.to) {
            (Some(place), _) if !found.begin => tell(format_args!("{}", missed(place))),
            (_, Some(place)) if !found.end => {
                tell(format_args!(
                    "{}: what there is ends before it",
                    missed(place)
                ));
            }
            (Some(from), Some(to)) if !found.any => {
                tell(format_args!(
                    "nothing that was traced lies between {from} and {to}"
                ));
            }
            _ => {}
        }
    }
}

/// What of a window was there.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Found {
    /// Its beginning.
    pub(crate) begin: bool,
    /// Its end.
    pub(crate) end: bool,
    /// Anything in it.
    pub(crate) any: bool,
}

impl std::ops::BitOrAssign for Found {
    fn bitor_assign(&mut self, other: Self) {
        self.begin |= other.begin;
        self.end |= other.end;
        self.any |= other.any;
    }
}

fn is_by_cpu(session: &Session<'_>) -> bool {
    session
        .streams()
        .iter()
        .any(|stream| stream.key().cpu().is_some())
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

/// Writes the wanted part of a stream. What of it there is.
pub(crate) fn write<L: Lines>(
    window: &Window,
    session: &Session<'_>,
    stream: &Stream<'_>,
    mut begin: impl FnMut(StreamOffset) -> L,
    out: &mut impl Write,
) -> Result<(Found, L)> {
    let is_timed = window.asks_time() || begin(StreamOffset(0)).has_time();
    let sync = PsbIndex::of(session, stream.bytes(), is_timed);
    let mut start = window.start(session, sync);
    let mut lines = begin(StreamOffset(start as u64));
    let Some(place) = &window.around else {
        let mut flow = session.decode_from(stream, StreamOffset(start as u64));
        let found = between(window, &mut flow, &mut lines, out)?;
        return Ok((found, lines));
    };
    // The PSB right before the point may have too few instructions behind it.
    let mut steps = 1_u64;
    loop {
        let mut flow = session.decode_from(stream, StreamOffset(start as u64));
        let mut before = Ring::new(window.context);
        if !before.fill(place, &mut flow, &mut lines) {
            return Ok((Found::default(), lines));
        }
        if before.instructions < window.context && start > 0 {
            for _ in 0..steps {
                start = sync.before(start);
            }
            steps = steps.saturating_mul(2);
            lines = begin(StreamOffset(start as u64));
            continue;
        }
        for (line, ..) in &before.lines {
            out.write_all(line)?;
        }
        let mut left = window.context;
        while left > 0 {
            if lines.is_wanted() {
                out.write_all(lines.line())?;
                left = left.saturating_sub(lines.instructions());
            }
            if left == 0 || !lines.next(&mut flow) {
                break;
            }
        }
        let found = Found {
            begin: true,
            any: true,
            ..Found::default()
        };
        return Ok((found, lines));
    }
}

/// What lies between --from and --to.
fn between<L: Lines>(
    window: &Window,
    flow: &mut ThreadFlow<'_>,
    lines: &mut L,
    out: &mut impl Write,
) -> Result<Found> {
    let mut found = Found {
        begin: window.from.is_none(),
        ..Found::default()
    };
    while lines.next(flow) {
        if let (false, Some(from)) = (found.begin, &window.from) {
            if !is_reached(from, flow, lines) {
                // A decoder that begins in the midst of it may have had to find its way first.
                *lines.errors() = false;
                continue;
            }
            found.begin = true;
        }
        let end = window.to.as_ref().filter(|to| is_reached(to, flow, lines));
        found.end |= end.is_some();
        if end.is_some_and(|end| !end.is_instruction()) {
            break;
        }
        if lines.is_wanted() {
            found.any = true;
            out.write_all(lines.line())?;
        }
        if found.end {
            break;
        }
    }
    Ok(found)
}

/// Whether the line made last, of what `flow` gave last, is at this place or after it.
fn is_reached(place: &Place, flow: &mut ThreadFlow<'_>, lines: &impl Lines) -> bool {
    place.is_reached(flow, lines.moment(), |ip| lines.holds(ip))
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

    /// Goes on to `place`, whose line comes last and is not kept; `false` if there is none.
    fn fill(&mut self, place: &Place, flow: &mut ThreadFlow<'_>, lines: &mut impl Lines) -> bool {
        while lines.next(flow) {
            if lines.is_wanted() && is_reached(place, flow, lines) {
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
