//! `cofi diff`: where two recordings of a program part, and what ran oftener in one of them.

mod args;
mod counts;
mod json;
mod spots;
mod text;

use crate::Ended;
use crate::args::Range;
use crate::calls;
use crate::coverage::counting::tally;
use crate::input;
use crate::output::stdout;
use crate::progress::Printing;
use crate::select::{Found, Window};
use anyhow::{Result, bail};
pub(crate) use args::{DiffArgs, DiffLevel};
use cofi_analysis::diff::{
    DiffOptions, FileMatches, Level, Parting, ThreadDiff, ThreadPair, compare, match_threads,
};
use cofi_analysis::{FileCode, Summary, Tally};
use cofi_file::Bytes;
use cofi_session::compact;
use cofi_session::{Session, Stream};
use counts::Differences;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Runs the command.
pub(crate) fn run(args: &DiffArgs) -> Result<Ended> {
    let paths = paths(args)?;
    let bytes = [input::map(&paths[0])?, input::map(&paths[1])?];
    let sessions = [
        open(args, &paths[0], &bytes[0])?,
        open(args, &paths[1], &bytes[1])?,
    ];
    let mut errors = false;
    for (session, path) in sessions.iter().zip(&paths) {
        input::require_trace(path, session)?;
        errors |= input::report(session);
    }
    let pairs = pairs(args, &sessions)?;
    let sides = [
        Side::of(args, &sessions[0], &pairs, |pair| pair.a)?,
        Side::of(args, &sessions[1], &pairs, |pair| pair.b)?,
    ];
    if let (Some(from), false) = (&args.from, sides.iter().any(|side| side.begins)) {
        bail!("--from {from}: neither recording has come to it");
    }
    let level = match args.by {
        DiffLevel::Insns => Level::Instructions,
        DiffLevel::Lines => Level::Lines,
        DiffLevel::Functions => Level::Functions,
    };
    let [a, b] = &sides;
    let mut files = FileMatches::new(&a.files, &b.files, level, args.only.as_deref());
    let mut threads = Vec::new();
    let mut progress = Printing::of(pairs.iter().filter_map(|pair| pair.a));
    for pair in &pairs {
        threads.push(Thread {
            pair: *pair,
            diff: match (pair.a, pair.b) {
                (Some(x), Some(y)) => {
                    Some(compare_pair(args, &sides, (x, y), &mut files, &progress)?)
                }
                _ => None,
            },
        });
        if let Some(stream) = pair.a {
            progress.finish(stream);
        }
    }
    drop(progress);
    for session in &sessions {
        errors |= input::report_code(session);
    }
    let result = Outcome::of(args, &sides, threads, files, errors);
    let mut out = stdout();
    match args.json {
        true => json::print(&result, &mut out)?,
        false => text::print(&result, args, &mut out)?,
    }
    out.flush()?;
    Ok(match result.is_same() {
        Some(true) => Ended::Well,
        _ => Ended::WithErrors,
    })
}

/// The two recordings. If one is named, the other is what it replaced.
fn paths(args: &DiffArgs) -> Result<[PathBuf; 2]> {
    let first = args.flow.input.file.clone();
    if let Some(second) = &args.other {
        return Ok([first, second.clone()]);
    }
    let mut old = first.clone().into_os_string();
    old.push(".old");
    let old = PathBuf::from(old);
    if !old.exists() {
        bail!(
            "there is no {}, which `cofi record` keeps of the recording that it replaces: name a second recording",
            old.display()
        );
    }
    Ok([old, first])
}

fn open<'a>(args: &DiffArgs, path: &Path, bytes: &'a Bytes) -> Result<Session<'a>> {
    let mut flow = args.flow.clone();
    flow.input.file = path.to_owned();
    input::open_flow(&flow, bytes)
}

/// Which threads are compared.
fn pairs<'s, 't>(
    args: &DiffArgs,
    sessions: &'s [Session<'t>; 2],
) -> Result<Vec<ThreadPair<'s, 't>>> {
    let [a, b] = sessions;
    let streams = |session: &'s Session<'t>| -> Vec<&'s Stream<'t>> {
        session
            .streams()
            .iter()
            .filter(|stream| !stream.is_empty())
            .collect()
    };
    let mut pairs = match_threads(&streams(a), &streams(b));
    let tid_of = |stream: Option<&Stream<'_>>| stream.and_then(|stream| stream.key().tid());
    for tid in &args.tid {
        let has =
            |pair: &ThreadPair<'_, '_>| [tid_of(pair.a), tid_of(pair.b)].contains(&Some(*tid));
        if !pairs.iter().any(has) {
            bail!("--tid {tid}: neither recording has such a thread");
        }
    }
    let is_wanted =
        |stream: Option<&Stream<'_>>| tid_of(stream).is_some_and(|tid| args.tid.contains(&tid));
    pairs.retain(|pair| args.tid.is_empty() || is_wanted(pair.a) || is_wanted(pair.b));
    Ok(pairs)
}

/// A recording.
pub(crate) struct Side<'s, 't> {
    session: &'s Session<'t>,
    window: Window,
    /// It has come to `--from`, if there is one.
    begins: bool,
    /// What of each file ran.
    files: Vec<FileCode>,
    summary: Summary,
}

impl<'s, 't> Side<'s, 't> {
    fn of(
        args: &DiffArgs,
        session: &'s Session<'t>,
        pairs: &[ThreadPair<'s, 't>],
        of: impl Fn(&ThreadPair<'s, 't>) -> Option<&'s Stream<'t>>,
    ) -> Result<Self> {
        let tids = pairs.iter().filter_map(|pair| of(pair)?.key().tid());
        let range = Range {
            from: args.from.clone(),
            to: args.to.clone(),
            tid: match args.tid.is_empty() {
                true => Vec::new(),
                false => tids.collect(),
            },
        };
        // It has none of the threads that are wanted.
        let is_empty = !args.tid.is_empty() && range.tid.is_empty();
        let window = Window::of_range(&range, session)?;
        let mut found = Found::default();
        let mut tally = match is_empty {
            true => Tally::new().with_code(),
            false => tally(session, &window, args.parallel, None, &mut found),
        };
        if !window.is_all() && !is_empty {
            window.report_missed(found);
        }
        Ok(Self {
            session,
            begins: found.begin,
            window,
            files: tally.take_code().into_files(),
            summary: tally.finish(),
        })
    }
}

/// Compares two threads.
fn compare_pair<'s>(
    args: &DiffArgs,
    [a, b]: &'s [Side<'s, '_>; 2],
    (x, y): (&'s Stream<'_>, &'s Stream<'_>),
    files: &mut FileMatches,
    progress: &Printing,
) -> Result<ThreadDiff> {
    let is_thread = |stream: &Stream<'_>| stream.key().cpu().is_none();
    let mut options = DiffOptions::default();
    options.partings = args.number.max(1);
    options.strict = args.strict;
    options.has_calls = is_thread(x) && is_thread(y);
    let (diff, one, other) = compare(
        files,
        &options,
        |feed| {
            let reached = |at| progress.reached(at);
            let mut feed = calls::Visitor::Feed(feed);
            calls::follow(a.session, x, &a.window, false, &mut feed, reached)
                .map(|traced| traced.found)
        },
        |feed| {
            let mut feed = calls::Visitor::Feed(feed);
            calls::follow(b.session, y, &b.window, false, &mut feed, |_| {})
                .map(|traced| traced.found)
        },
    );
    one?;
    other?;
    Ok(diff)
}

/// Two threads, or one that has no counterpart.
pub(crate) struct Thread<'s, 't> {
    pair: ThreadPair<'s, 't>,
    diff: Option<ThreadDiff>,
}

/// All that was found.
pub(crate) struct Outcome<'s, 't> {
    sides: &'s [Side<'s, 't>; 2],
    threads: Vec<Thread<'s, 't>>,
    files: FileMatches,
    /// Something is wrong with a file.
    errors: bool,
    /// What is not in the recordings, of each.
    missing: [Vec<String>; 2],
    /// Nothing if there is no difference.
    counts: Differences,
    /// No more places are told in detail.
    most: usize,
}

impl<'s, 't> Outcome<'s, 't> {
    fn of(
        args: &DiffArgs,
        sides: &'s [Side<'s, 't>; 2],
        threads: Vec<Thread<'s, 't>>,
        files: FileMatches,
        errors: bool,
    ) -> Self {
        let missing = sides
            .each_ref()
            .map(|side| input::missing(side.session).collect());
        let mut this = Self {
            sides,
            threads,
            files,
            errors,
            missing,
            counts: Differences::default(),
            most: args.number.max(1),
        };
        if this.differs() {
            this.counts = Differences::of(sides, &this.files, args.only.as_deref());
        }
        this
    }

    /// Whether anything differs.
    fn differs(&self) -> bool {
        let differs =
            |thread: &Thread<'_, '_>| thread.diff.as_ref().is_none_or(|diff| diff.count > 0);
        self.threads.iter().any(differs)
    }

    /// Whether they are the same; none if nothing differs, but something is missing.
    fn is_same(&self) -> Option<bool> {
        let whole = self.missing.iter().all(Vec::is_empty) && self.gaps() == [0, 0] && !self.errors;
        match (self.differs(), whole) {
            (true, _) => Some(false),
            (false, true) => Some(true),
            (false, false) => None,
        }
    }

    fn diffs(&self) -> impl Iterator<Item = (&Thread<'s, 't>, &ThreadDiff)> {
        let with = |thread: &'_ Thread<'s, 't>| thread.diff.is_some();
        self.threads
            .iter()
            .filter(move |thread| with(thread))
            .filter_map(|thread| Some((thread, thread.diff.as_ref()?)))
    }

    /// Instructions of both recordings that were found the same.
    fn equal(&self) -> [u64; 2] {
        [0, 1].map(|side: usize| self.diffs().map(|(_, diff)| diff.equal[side]).sum())
    }

    fn gaps(&self) -> [u64; 2] {
        [0, 1].map(|side: usize| self.diffs().map(|(_, diff)| diff.gaps[side]).sum())
    }

    /// All places where threads part that are told in detail, the earliest of the first recording first. Where the time is not known, those of
    /// the thread that was created first.
    fn partings(&self) -> Vec<(&Thread<'s, 't>, &Parting)> {
        let all = self
            .diffs()
            .flat_map(|(thread, diff)| diff.partings.iter().map(move |parting| (thread, parting)));
        let mut list: Vec<_> = all.collect();
        let time = |parting: &Parting| parting.turns[0].tsc.map(|tsc| tsc.0);
        if list.iter().all(|(_, parting)| time(parting).is_some()) {
            compact::sort_by_key(&mut list, |(_, parting)| time(parting));
        }
        list.truncate(self.most);
        list
    }

    /// Those that are not told in detail, too.
    fn partings_count(&self) -> u64 {
        self.diffs().map(|(_, diff)| diff.count).sum()
    }
}
