//! The differences as JSON Lines.

use super::counts::FunctionCounts;
use super::spots::{self, Reader};
use super::{Outcome, Thread};
use crate::output::Stdout;
use anyhow::Result;
use cofi_analysis::diff::{FileMatch, Parting, PartingCause, Spot, Turn};
use cofi_text::Line;
use std::io::Write;
use std::path::Path;

/// So many steps are shown of what comes.
const STEPS: usize = 12;

pub(super) fn print(outcome: &Outcome<'_, '_>, out: &mut Stdout) -> Result<()> {
    let mut line = Line::default();
    let mut reader = Reader::default();
    let partings = outcome.partings();
    let equal = outcome.equal();
    line.begin();
    match outcome.is_same() {
        Some(true) => {
            line.flag("same", true).number("insns", equal[0]);
        }
        None => {
            line.null("same").number("insns", equal[0]);
        }
        Some(false) => {
            match partings.split_first() {
                Some(((thread, first), rest)) => {
                    line.object("parts", |line| part(thread, first, &mut reader, line));
                    line.list("more", rest, |line, (thread, parting)| {
                        part(thread, parting, &mut reader, line);
                    });
                }
                // Nothing but a thread that only one of them has.
                None => {
                    line.object("parts", |line| {
                        line.number("index", 0_u64)
                            .null("a")
                            .null("b")
                            .text("cause", "thread");
                    });
                }
            }
            line.number("places", outcome.partings_count())
                .number("insns", equal[0]);
        }
    }
    about(outcome, &mut line);
    out.write_all(line.end())?;
    for counts in &outcome.counts.functions {
        line.begin();
        function(counts, &mut line);
        out.write_all(line.end())?;
    }
    Ok(())
}

/// What was compared, and what could not be.
fn about(outcome: &Outcome<'_, '_>, line: &mut Line) {
    line.list("threads", &outcome.threads, |line, thread| {
        let tid = |stream: Option<&cofi_session::Stream<'_>>| {
            stream.and_then(|stream| stream.key().tid())
        };
        if let Some(comm) = thread
            .pair
            .a
            .or(thread.pair.b)
            .and_then(cofi_session::Stream::comm)
        {
            line.text("thread", comm);
        }
        number_or_null(line, "a_tid", tid(thread.pair.a));
        number_or_null(line, "b_tid", tid(thread.pair.b));
        if let Some(diff) = &thread.diff {
            line.number("a_insns", diff.insns[0])
                .number("b_insns", diff.insns[1])
                .number("a_equal", diff.equal[0])
                .number("b_equal", diff.equal[1])
                .number("places", diff.count);
            if diff.left_out.iter().any(|count| *count > 0) {
                line.number("a_left_out", diff.left_out[0])
                    .number("b_left_out", diff.left_out[1]);
            }
            if diff.aside > 0 {
                line.object("aside", |line| {
                    line.number("places", diff.aside)
                        .number("a_insns", diff.aside_insns[0])
                        .number("b_insns", diff.aside_insns[1]);
                });
            }
        }
    });
    line.list("files", outcome.files.list(), |line, file| {
        line.text("file", &file.path.to_string_lossy());
        if let Some(other) = &file.other {
            line.text("b_file", &other.to_string_lossy());
        }
        match file.how {
            FileMatch::Same => line.text("match", "same"),
            FileMatch::Alone => line.text("match", "alone"),
            FileMatch::Rebuilt {
                alike,
                by_line,
                by_offset,
            } => line
                .text("match", "rebuilt")
                .number("alike", alike)
                .number("by_line", by_line)
                .number("by_offset", by_offset),
        };
    });
    let gaps = outcome.gaps();
    line.number("a_gaps", gaps[0]).number("b_gaps", gaps[1]);
    for (key, missing) in ["a_missing", "b_missing"].into_iter().zip(&outcome.missing) {
        if !missing.is_empty() {
            line.texts(key, missing.iter().cloned());
        }
    }
}

fn number_or_null(line: &mut Line, key: &str, number: Option<u32>) {
    match number {
        Some(number) => line.number(key, number),
        None => line.null(key),
    };
}

const fn cause(cause: PartingCause) -> &'static str {
    match cause {
        PartingCause::Strings => "strings",
        PartingCause::Lock => "lock",
        PartingCause::Signal(_) => "signal",
        PartingCause::End(_) => "end",
        PartingCause::Gap => "gap",
        _ => "other",
    }
}

fn part(thread: &Thread<'_, '_>, parting: &Parting, reader: &mut Reader, line: &mut Line) {
    line.number("index", parting.index);
    let streams = [thread.pair.a, thread.pair.b];
    for ((key, turn), stream) in ["a", "b"].into_iter().zip(&parting.turns).zip(streams) {
        match turn.coming.first() {
            Some(first) => {
                line.object(key, |line| {
                    spot(first, reader, line);
                    if let Some(tid) = stream.and_then(|stream| stream.key().tid()) {
                        line.number("tid", tid);
                    }
                    self::turn(turn, reader, line);
                });
            }
            None => {
                line.null(key);
            }
        }
    }
    line.text("cause", cause(parting.cause));
    for (key, spots) in [("last", &parting.last), ("together", &parting.together)] {
        match spots {
            Some([a, b]) => {
                line.object(key, |line| {
                    line.object("a", |line| spot(a, reader, line));
                    line.object("b", |line| spot(b, reader, line));
                });
            }
            None => {
                line.null(key);
            }
        }
    }
}

fn turn(turn: &Turn, reader: &mut Reader, line: &mut Line) {
    line.number("before", turn.before)
        .number("skipped", turn.skipped);
    line.texts("stack", turn.frames.iter().map(|frame| frame.name.clone()));
    line.texts(
        "called",
        turn.entered.iter().map(|frame| frame.name.clone()),
    );
    let steps = reader.steps(&turn.coming, STEPS, false);
    line.list("next", &steps, |line, step| {
        line.text("function", &step.function);
        if let Some(source) = &step.source {
            line.text("file", &source.file);
            if let Some(number) = source.line {
                line.number("line", number);
            }
        }
        if let Some(text) = &step.text {
            line.text("text", text);
        }
        line.number("insns", step.insns);
    });
    if !turn.missing.is_empty() {
        line.list("gaps", &turn.missing, |line, (cause, offset)| {
            line.text("gap", cause.word()).number("offset", offset.0);
        });
    }
}

/// An instruction: its source file and line, or else the file that holds it.
fn spot(spot: &Spot, reader: &mut Reader, line: &mut Line) {
    line.hex("ip", spot.ip.0);
    let place = spot.place.as_ref();
    match place.and_then(cofi_image::Place::symbol) {
        Some(symbol) => line
            .text("symbol", &symbol.demangled())
            .number("symbol_offset", symbol.offset),
        None => line.null("symbol"),
    };
    let source = reader.source(spot);
    let binary = place.map(|place| place.owner().to_string_lossy().into_owned());
    match (&source, &binary) {
        (Some(source), _) => line.text("file", &source.file),
        (None, Some(binary)) => line.text("file", binary),
        (None, None) => line.null("file"),
    };
    number_or_null(line, "line", source.and_then(|source| source.line));
    if let Some(place) = place {
        line.text("binary", &place.owner().to_string_lossy())
            .number("offset", place.offset);
    }
    if let Some(text) = spots::disassembled(spot) {
        line.text("disasm", &text);
    }
}

fn function(counts: &FunctionCounts, line: &mut Line) {
    match &counts.name {
        Some(name) => line.text("function", name),
        None => line.null("function"),
    };
    line.number("a", counts.insns[0])
        .number("b", counts.insns[1]);
    match counts.file.as_deref().map(Path::to_string_lossy) {
        Some(file) => line.text("file", &file),
        None => line.null("file"),
    };
    line.number("a_calls", counts.calls[0])
        .number("b_calls", counts.calls[1]);
    if !counts.lines.is_empty() {
        line.list("lines", &counts.lines, |line, counts| {
            line.text("file", &counts.file);
            let [a, b] = counts.lines;
            number_or_null(line, "line", a.or(b));
            if a != b {
                number_or_null(line, "b_line", b);
            }
            line.number("a", counts.counts[0])
                .number("b", counts.counts[1]);
        });
    }
}
