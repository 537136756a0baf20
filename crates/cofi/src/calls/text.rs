//! Calls as an indented tree.

use super::lasted;
use crate::check::duration;
use crate::output::{Color, is_coloured};
use crate::table::{shortened, width_of};
use cofi_analysis::{CallKind, CallNames, FinishedCall, Left};
use cofi_session::Session;
use cofi_text::digits::{self, grouped};
use console::{Style, Term};
use std::io::{self, Write};

/// How a tree is printed.
#[derive(Debug)]
pub(crate) struct TreeStyle {
    /// How many columns there are, if that matters.
    width: Option<usize>,
    is_coloured: bool,
    dim: Style,
    bold: Style,
}

impl TreeStyle {
    pub(crate) fn of_terminal(color: Color) -> Self {
        let is_coloured = is_coloured(color);
        Self {
            width: width_of(&Term::stdout()),
            is_coloured,
            dim: Style::new().dim().force_styling(is_coloured),
            bold: Style::new().bold().force_styling(is_coloured),
        }
    }
}

impl TreeStyle {
    /// Appends what is of less weight.
    fn dim(&self, line: &mut Vec<u8>, text: &str) {
        if self.is_coloured {
            line.extend_from_slice(self.dim.apply_to(text).to_string().as_bytes());
        } else {
            line.extend_from_slice(text.as_bytes());
        }
    }
}

/// Appends a text at the right end of a column.
fn right(line: &mut Vec<u8>, text: &str, width: usize) {
    let len = text.chars().count();
    digits::fill(line, line.len() + width.saturating_sub(len));
    line.extend_from_slice(text.as_bytes());
}

/// The columns before the function.
const TIME: usize = 10;
const INSNS: usize = 14;

/// Levels are indented by so much, up to so many.
const INDENT: usize = 2;
const INDENTED: usize = 40;

/// Prints the calls of a thread as they come in order. Calls of one function that call nothing and follow each other share a line.
pub(crate) struct Tree<'a, 's> {
    session: &'a Session<'s>,
    names: &'a CallNames,
    style: &'a TreeStyle,
    has_time: bool,
    /// Calls that are alike, of which all but the last are known to have called nothing.
    alike: Option<Alike>,
    last: Option<FinishedCall>,
    /// The stack of the call that was printed last.
    stack: u32,
    line: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Alike {
    first: FinishedCall,
    times: u64,
    insns: u64,
    lasted: u64,
}

impl<'a, 's> Tree<'a, 's> {
    pub(crate) fn new(
        session: &'a Session<'s>,
        names: &'a CallNames,
        style: &'a TreeStyle,
    ) -> Self {
        Self {
            session,
            names,
            style,
            has_time: session.time_conversion().is_some(),
            alike: None,
            last: None,
            stack: 0,
            line: Vec::new(),
        }
    }

    /// The heads of the columns.
    pub(crate) fn head(&self, out: &mut impl Write) -> io::Result<()> {
        let time = match self.has_time {
            true => format!("{:>TIME$}", "time"),
            false => String::new(),
        };
        let head = format!("{time}{:>INSNS$}  call", "instructions");
        writeln!(out, "{}", self.style.bold.apply_to(head))
    }

    /// The next call.
    pub(crate) fn call(&mut self, call: &FinishedCall, out: &mut impl Write) -> io::Result<()> {
        if let Some(last) = self.last.replace(*call) {
            // One that has called something stands by itself.
            match call.call.depth > last.call.depth {
                true => {
                    self.put(out)?;
                    self.add(&last, out)?;
                    self.put(out)?;
                }
                false => self.add(&last, out)?,
            }
        }
        Ok(())
    }

    /// All have come.
    pub(crate) fn end(&mut self, out: &mut impl Write) -> io::Result<()> {
        if let Some(last) = self.last.take() {
            self.add(&last, out)?;
        }
        self.put(out)
    }

    fn add(&mut self, call: &FinishedCall, out: &mut impl Write) -> io::Result<()> {
        let lasted = lasted(self.session, call).unwrap_or(0);
        if let Some(alike) = &mut self.alike {
            let same = |call: &FinishedCall| {
                let FinishedCall { call, end, .. } = call;
                let function = (call.function, self.names.entry(call));
                (function, call.depth, call.kind, end.left, call.stack)
            };
            if same(&alike.first) == same(call) {
                alike.times += 1;
                alike.insns += call.end.insns;
                alike.lasted += lasted;
                return Ok(());
            }
        }
        self.put(out)?;
        self.alike = Some(Alike {
            first: *call,
            times: 1,
            insns: call.end.insns,
            lasted,
        });
        Ok(())
    }

    /// Prints those that are alike.
    fn put(&mut self, out: &mut impl Write) -> io::Result<()> {
        let Some(alike) = self.alike.take() else {
            return Ok(());
        };
        let FinishedCall { call, end, .. } = alike.first;
        let depth = usize::try_from(call.depth).unwrap_or(0);
        let line = &mut self.line;
        line.clear();
        if self.has_time {
            // What is shorter than what timing packets tell apart takes no time.
            let lasted = Some(alike.lasted).filter(|lasted| *lasted > 0);
            right(line, &lasted.map_or_else(String::new, duration), TIME);
        }
        right(line, &grouped(alike.insns), INSNS);
        line.extend_from_slice(b"  ");
        let (mut before, mut marks) = (String::new(), String::new());
        if depth > INDENTED {
            before = format!("[{depth}] ");
        }
        if alike.times > 1 {
            marks += &format!(" ×{}", grouped(alike.times));
        }
        match call.kind {
            CallKind::Tail => marks += " (by a jump)",
            CallKind::Signal => marks += " (signal)",
            CallKind::Inline => marks += " (inlined)",
            CallKind::Assumed => marks += " (open before)",
            CallKind::Call if call.stack != self.stack => marks += " (on another stack)",
            CallKind::Entry if depth > 0 => marks += " (entered)",
            _ => {}
        }
        self.stack = call.stack;
        match end.left {
            Left::Unwound => marks += " unwound",
            Left::End => marks += " still open",
            Left::Gap => marks += " up to a gap",
            _ => {}
        }
        let indent = INDENT * depth.min(INDENTED);
        let name = self.names.label(&call);
        let columns = if self.has_time { TIME } else { 0 } + INSNS + 2;
        let others = columns + indent + before.len() + marks.chars().count();
        let room = self
            .style
            .width
            .map_or(usize::MAX, |width| width.saturating_sub(others).max(12));
        digits::fill(line, line.len() + indent);
        self.style.dim(line, &before);
        line.extend_from_slice(shortened(&name, room).as_bytes());
        self.style.dim(line, &marks);
        line.push(b'\n');
        out.write_all(line)
    }
}
