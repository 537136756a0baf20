//! Where two recordings part.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cofi_analysis::diff::{
    DiffOptions, Feed, FileMatches, Level, PartingCause, compare, match_threads,
};
use cofi_analysis::{CallTracer, Tally};
use cofi_session::{Session, Stream};
use serde_json::{Value, json};

/// So many places are told of each pair of threads.
const PLACES: usize = 100;

/// Each pair of threads, and where they part, as the page gets it; none if `cancel` is set meanwhile.
pub(crate) fn partings(
    a: &Session<'_>,
    b: &Session<'_>,
    cancel: &Arc<AtomicBool>,
) -> Option<Value> {
    let is_cancelled = || cancel.load(Ordering::Relaxed);
    let pairs = match_threads(&streams(a), &streams(b));
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let code = |session: &Session<'_>| {
        let mut tally = Tally::new().with_code().with_cancel(cancel);
        tally.add_all(session, &streams(session), threads, &|_| {});
        tally.take_code().into_files()
    };
    let (code_a, code_b) = (code(a), code(b));
    if is_cancelled() {
        return None;
    }
    let mut files = FileMatches::new(&code_a, &code_b, Level::Instructions, None);
    let row = |session: &Session<'_>, stream: Option<&Stream<'_>>| {
        let mut streams = session.streams().iter();
        streams.position(|other| stream.is_some_and(|stream| std::ptr::eq(stream, other)))
    };
    let list = pairs.iter().map(|pair| {
        let rows = json!([row(a, pair.a), row(b, pair.b)]);
        if is_cancelled() {
            return Value::Null;
        }
        let (Some(x), Some(y)) = (pair.a, pair.b) else {
            return json!({"rows": rows, "same": false, "places": []});
        };
        let mut options = DiffOptions::default();
        options.partings = PLACES;
        options.has_calls = x.key().cpu().is_none() && y.key().cpu().is_none();
        let (diff, (), ()) = compare(
            &mut files,
            &options,
            |feed| follow(a, x, feed, cancel),
            |feed| follow(b, y, feed, cancel),
        );
        let places = diff.partings.iter().map(|parting| {
            let turn = |side: usize| {
                let turn = &parting.turns[side];
                json!({
                    "at": turn.before,
                    "skipped": turn.skipped,
                    "function": turn.frames.first().map(|frame| frame.name.clone()),
                    "entered": turn.entered.iter().map(|frame| frame.name.clone()).collect::<Vec<_>>(),
                })
            };
            json!({"why": why(parting.cause), "turns": [turn(0), turn(1)]})
        });
        json!({
            "rows": rows,
            "same": diff.is_same(),
            "count": diff.count,
            "aside": diff.aside,
            "insns": diff.insns,
            "equal": diff.equal,
            "gaps": diff.gaps,
            "places": places.collect::<Vec<_>>(),
        })
    });
    let list = Value::Array(list.collect());
    // What was cut short is not where they part.
    (!is_cancelled()).then_some(list)
}

fn streams<'s, 't>(session: &'s Session<'t>) -> Vec<&'s Stream<'t>> {
    session.streams().iter().collect()
}

fn follow(session: &Session<'_>, stream: &Stream<'_>, feed: &mut Feed, cancel: &AtomicBool) {
    let mut flow = session.decode(stream);
    let mut tracer = CallTracer::new(session, stream);
    while !cancel.load(Ordering::Relaxed) && feed.follow(&mut tracer, &mut flow) {}
    tracer.finish(feed);
}

fn why(cause: PartingCause) -> String {
    const SIDES: [&str; 2] = ["first", "second"];
    let side = |side: usize| SIDES.get(side).copied().unwrap_or_default();
    match cause {
        PartingCause::Other => "another instruction came".to_owned(),
        PartingCause::Strings => "another way through a string function".to_owned(),
        PartingCause::Lock => "another way through a lock".to_owned(),
        PartingCause::Signal(on) => format!("a signal's handler ran in the {}", side(on)),
        PartingCause::End(on) => format!("the {} ended", side(on)),
        PartingCause::Gap => "trace is missing".to_owned(),
        _ => "not known".to_owned(),
    }
}
