//! `cofi insn`: the executed instructions of a trace, in order.

use crate::Ended;
use crate::args::{InsnArgs, Show};
use crate::item::Loss;
use crate::json::Line;
use crate::notes::{self, NameWidth, Notes, Now};
use crate::output::stdout;
use crate::select::{self, Found, Lines, Window};
use crate::table::width_of;
use crate::who::Who;
use crate::{digits, input, item};
use anyhow::Result;
use cofi_flow::{Item, Part};
use cofi_image::SourceLines;
use cofi_packet::{Ip, StreamOffset};
use cofi_session::{Session, Signal, Signals, Stream, ThreadFlow};
use console::Term;
use std::io::Write;

/// Runs the command.
pub(crate) fn run(args: &InsnArgs) -> Result<Ended> {
    let bytes = input::map(&args.flow.input.file)?;
    let session = input::open_flow(&args.flow, &bytes)?;
    let window = Window::of(&args.select, &session)?;
    let mut out = stdout();
    let mut errors = input::report(&session);
    let several = session.streams().len() > 1;
    let mut found = Found::default();
    for stream in window.streams(&session) {
        if several && !args.json {
            writeln!(out, "{}", input::title(stream))?;
        }
        let (here, wrong) = if args.json && window.is_all() && is_plain(args, stream) {
            (Found::default(), plain(&session, stream, &mut out)?)
        } else if args.json {
            write::<true>(args, &window, (&session, stream), &mut out)?
        } else {
            write::<false>(args, &window, (&session, stream), &mut out)?
        };
        found |= here;
        errors |= wrong;
    }
    out.flush()?;
    window.report_missed(found);
    errors |= input::report_code(&session);
    Ok(if errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}

/// Whether nothing is asked for but the addresses, of a stream that is about one thread.
fn is_plain(args: &InsnArgs, stream: &Stream<'_>) -> bool {
    let Show {
        time,
        symbols,
        source,
        disasm,
        bytes,
    } = args.show;
    !(time || symbols || source || disasm || bytes) && stream.key().cpu().is_none()
}

/// Writes a stream's flow as JSON, as fast as can be; whether it holds errors.
fn plain(session: &Session<'_>, stream: &Stream<'_>, out: &mut impl Write) -> Result<bool> {
    const FULL: usize = 1 << 15;
    let mut line = Line::default();
    // What every object ends with.
    let mut end = Line::default();
    let who = Who::new(stream, &[]);
    who.tag(end.begin());
    let tag = end.members();
    let comma: &[u8] = if tag.is_empty() { b"" } else { b"," };
    let end = [b"\"", comma, tag, b"}\n"].concat();

    let mut text = Vec::with_capacity(2 * FULL);
    let mut errors = false;
    let mut loss = Loss::default();
    let mut signals = stream.signals_from(StreamOffset(0));
    let mut flow = session.decode(stream);
    while let Some(part) = flow.next_part() {
        let item = match part {
            Part::Run(run) => {
                for insn in run.iter() {
                    text.extend_from_slice(b"{\"insn\":\"0x");
                    digits::hex(&mut text, insn.ip.0);
                    text.extend_from_slice(&end);
                }
                if text.len() >= FULL {
                    out.write_all(&text)?;
                    text.clear();
                }
                continue;
            }
            Part::Event(event) => Item::Event(event),
            Part::Error(error) => {
                errors = true;
                Item::Error(error)
            }
        };
        while let Some(signal) = signals.before(flow.offset()) {
            item::describe_signal(signal, &mut line);
            who.tag(&mut line);
            text.extend_from_slice(line.end());
        }
        item::describe(&item, &mut line);
        let place = || (flow.offset(), flow.time().map(|time| time.tsc));
        loss.note(&item, place, Some(&mut line));
        who.tag(&mut line);
        text.extend_from_slice(line.end());
    }
    while let Some(signal) = signals.at_end() {
        item::describe_signal(signal, &mut line);
        who.tag(&mut line);
        text.extend_from_slice(line.end());
    }
    out.write_all(&text)?;
    Ok(errors)
}

/// Writes the wanted part of a stream: whether there is one, and whether it holds errors.
fn write<const JSON: bool>(
    args: &InsnArgs,
    window: &Window,
    (session, stream): (&Session<'_>, &Stream<'_>),
    out: &mut impl Write,
) -> Result<(Found, bool)> {
    let names = NameWidth::of(width_of(&Term::stdout()), args.show.time);
    let begin = |start| Insns::<JSON> {
        session,
        signals: stream.signals_from(start),
        waiting: None,
        who: Who::new(stream, &window.tids),
        show: args.show,
        names,
        notes: Notes::default(),
        sources: SourceLines::new(),
        line: Line::default(),
        text: Vec::new(),
        ip: None,
        errors: false,
        loss: Loss::default(),
    };
    let (found, lines) = select::write(window, session, stream, begin, out)?;
    Ok((found, lines.errors))
}

/// Makes a line of each item, as JSON or as text.
struct Insns<'s, const JSON: bool> {
    session: &'s Session<'s>,
    signals: Signals<'s>,
    /// What came behind a signal that was shown last.
    waiting: Option<Item>,
    who: Who<'s>,
    show: Show,
    names: NameWidth,
    notes: Notes,
    sources: SourceLines,
    line: Line,
    text: Vec<u8>,
    /// The instruction that the line is about.
    ip: Option<Ip>,
    errors: bool,
    loss: Loss,
}

impl<const JSON: bool> Insns<'_, JSON> {
    #[inline]
    fn json(&mut self, flow: &mut ThreadFlow<'_>, item: &Item) {
        item::describe(item, &mut self.line);
        let (show, sources) = (self.show, &mut self.sources);
        if let Item::Insn(insn) = item
            && (show.symbols || show.source || show.disasm || show.bytes)
        {
            let members = self
                .notes
                .of(flow, insn, |flow| notes::members(flow, insn, show, sources));
            self.line.splice(members);
        }
        if !matches!(item, Item::Insn(_)) {
            let place = || (flow.offset(), flow.time().map(|time| time.tsc));
            self.loss.note(item, place, Some(&mut self.line));
        }
        if show.time {
            Now::of(self.session, flow).members(self.session, &mut self.line);
            if let Some(jump) = flow.time_jump() {
                self.line.number("tsc_set_back_from", jump.from.0);
            }
        }
        self.who.tag(&mut self.line);
        self.line.end();
    }

    /// The line of a signal.
    fn signal(&mut self, flow: &mut ThreadFlow<'_>, signal: &Signal) {
        self.ip = None;
        if JSON {
            item::describe_signal(signal, &mut self.line);
            if self.show.time {
                Now::of(self.session, flow).members(self.session, &mut self.line);
            }
            self.who.tag(&mut self.line);
            self.line.end();
            return;
        }
        self.text.clear();
        if self.show.time {
            Now::of(self.session, flow).column(&mut self.text);
        }
        // Writing to memory does not fail.
        let _ = writeln!(self.text, "  -- {}", item::signal_sentence(signal));
    }

    fn words(&mut self, flow: &mut ThreadFlow<'_>, item: &Item, switched: bool) {
        let text = &mut self.text;
        text.clear();
        if switched {
            self.who.heading(self.session, text);
        }
        if self.show.time {
            if let Some(jump) = flow.time_jump() {
                // Writing to memory does not fail.
                let _ = writeln!(text, "  -- {jump}");
            }
            Now::of(self.session, flow).column(text);
        }
        let (show, sources, names) = (self.show, &mut self.sources, self.names);
        // Writing to memory does not fail.
        let _ = match item {
            Item::Insn(insn) => {
                let line = self.notes.of(flow, insn, |flow| {
                    notes::text(flow, insn, show, sources, names)
                });
                text.write_all(line)
            }
            Item::Event(event) => writeln!(text, "  -- {}", item::sentence(event)),
            Item::Error(error) => writeln!(text, "  !! {}", item::wrong(error)),
        };
    }
}

impl<const JSON: bool> Lines for Insns<'_, JSON> {
    fn errors(&mut self) -> &mut bool {
        &mut self.errors
    }

    fn has_time(&self) -> bool {
        self.show.time
    }

    #[inline]
    fn next(&mut self, flow: &mut ThreadFlow<'_>) -> bool {
        let item = match self.waiting.take() {
            Some(item) => Some(item),
            None => flow.next(),
        };
        let signal = match &item {
            Some(Item::Insn(_)) => None,
            Some(_) => self.signals.before(flow.offset()),
            None => self.signals.at_end(),
        };
        if let Some(signal) = signal {
            self.waiting = item;
            self.signal(flow, signal);
            return true;
        }
        let Some(item) = item else {
            return false;
        };
        let mut switched = false;
        self.ip = match item {
            Item::Insn(insn) => Some(insn.ip),
            _ => {
                self.errors |= matches!(item, Item::Error(_));
                self.notes.changed();
                switched = self.who.follow(flow);
                None
            }
        };
        if JSON {
            self.json(flow, &item);
        } else {
            self.words(flow, &item, switched);
        }
        true
    }

    #[inline]
    fn line(&self) -> &[u8] {
        if JSON { self.line.bytes() } else { &self.text }
    }

    fn instructions(&self) -> usize {
        self.ip.is_some().into()
    }

    fn holds(&self, ip: Ip) -> bool {
        self.ip == Some(ip)
    }

    #[inline]
    fn is_wanted(&self) -> bool {
        self.who.is_wanted()
    }
}
