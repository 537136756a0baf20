//! Calls as the contract has them.

use super::lasted;
use crate::args::CallsArgs;
use cofi_analysis::{CallNames, CallPart, FinishedCall, Left};
use cofi_packet::Tsc;
use cofi_session::{Session, StreamKey, Task};
use cofi_text::Line;
use cofi_text::digits;
use std::io;

/// Writes calls of a thread.
#[derive(Debug)]
pub(crate) struct JsonCalls<'a, 's> {
    session: &'a Session<'s>,
    names: &'a CallNames,
    /// The members that all of them have.
    tail: Vec<u8>,
}

/// What lines have in common.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    /// What is the same of all calls of a site, by the site's number.
    list: Vec<Box<[u8]>>,
    /// Time passes at packets: many calls begin and end at the same moment. The last one, and the members that tell it, up to the next key.
    moment: Option<(Tsc, Vec<u8>)>,
}

impl Sites {
    /// The members that all calls of the site of `finished` have.
    #[inline]
    fn of(&mut self, finished: &FinishedCall, make: impl FnOnce() -> Box<[u8]>) -> &[u8] {
        let site = finished.site as usize;
        if self.list.get(site).is_none_or(|known| known.is_empty()) {
            if self.list.len() <= site {
                self.list.resize(site + 1, Box::default());
            }
            if let Some(new) = self.list.get_mut(site) {
                *new = make();
            }
        }
        self.list.get(site).map_or(&[], |site| &**site)
    }
}

/// A number, or null.
fn number(out: &mut Vec<u8>, number: Option<u64>) {
    match number {
        Some(number) => digits::decimal(out, number),
        None => out.extend_from_slice(b"null"),
    }
}

/// Whether a call is deep enough within others, or too short, to be left out.
pub(super) fn is_hidden(args: &CallsArgs, session: &Session<'_>, call: &FinishedCall) -> bool {
    let depth = u64::try_from(call.call.depth).unwrap_or(0);
    // What a function was asked for is shown from there on, however deep that is.
    // Of callers, --depth says how many are shown.
    let is_whole = args.function.is_none() && args.callers.is_none();
    let is_deep = || is_whole && args.depth.is_some_and(|most| depth >= most);
    let is_short = || {
        let least = args.min_time.map(|least| least.0);
        least.is_some_and(|least| lasted(session, call).is_none_or(|lasted| lasted < least))
    };
    is_deep() || is_short()
}

impl<'a, 's> JsonCalls<'a, 's> {
    pub(crate) fn new(
        session: &'a Session<'s>,
        names: &'a CallNames,
        (key, task): (StreamKey, Task),
    ) -> Self {
        let mut line = Line::default();
        line.begin();
        if task.tid != 0 || key.tid().is_some() {
            line.number("tid", task.tid);
        }
        if let Some(cpu) = key.cpu() {
            line.number("cpu", cpu);
        }
        Self {
            session,
            names,
            tail: line.members().to_vec(),
        }
    }

    /// Appends the lines of some calls.
    pub(super) fn part(
        &self,
        args: &CallsArgs,
        part: CallPart,
        sites: &mut Sites,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        part.for_each(|finished| {
            if !is_hidden(args, self.session, finished) {
                self.call(finished, &[], sites, out);
            }
            Ok(())
        })
    }

    /// Appends the line of a call, with the members `more`.
    pub(super) fn call(
        &self,
        finished: &FinishedCall,
        more: &[u8],
        sites: &mut Sites,
        out: &mut Vec<u8>,
    ) {
        out.push(b'{');
        self.members(finished, sites, out);
        for members in [more, &self.tail] {
            if !members.is_empty() {
                out.push(b',');
                out.extend_from_slice(members);
            }
        }
        out.extend_from_slice(b"}\n");
    }

    /// Appends the members that tell of a call.
    pub(crate) fn members(&self, finished: &FinishedCall, sites: &mut Sites, out: &mut Vec<u8>) {
        let FinishedCall { call, end, .. } = finished;
        out.extend_from_slice(sites.of(finished, || self.site(finished)));
        digits::decimal(out, u64::try_from(call.depth).unwrap_or(0));
        // Of what was still open nobody knows the end.
        let is_open = matches!(end.left, Left::End | Left::Gap);
        match call.begin.tsc {
            Some(tsc) if end.end.tsc == Some(tsc) && !is_open => match &mut sites.moment {
                Some((known, text)) if *known == tsc => out.extend_from_slice(text),
                moment => {
                    let text = moment.insert((tsc, Vec::new()));
                    text.1.clear();
                    self.times(call.begin.tsc, call.begin.tsc, &mut text.1);
                    out.extend_from_slice(&text.1);
                }
            },
            begin => self.times(begin, end.end.tsc.filter(|_| !is_open), out),
        }
        digits::decimal(out, end.insns);
        out.extend_from_slice(b",\"self_insns\":");
        digits::decimal(out, end.self_insns);
        out.extend_from_slice(match end.left {
            Left::Return => &b",\"left\":\"return\""[..],
            Left::Tail => b",\"left\":\"tail\"",
            Left::Unwound => b",\"left\":\"unwound\"",
            Left::End => b",\"left\":\"end\"",
            _ => b",\"left\":\"gap\"",
        });
        if end.end.cycles > 0 {
            out.extend_from_slice(b",\"cycles\":");
            digits::decimal(out, end.end.cycles.saturating_sub(call.begin.cycles));
        }
        if call.stack > 0 {
            out.extend_from_slice(b",\"stack\":");
            digits::decimal(out, call.stack.into());
        }
    }

    /// Appends when a call began and ended, and the key of what comes next.
    fn times(&self, begin: Option<Tsc>, end: Option<Tsc>, out: &mut Vec<u8>) {
        let conversion = self.session.time_conversion();
        let time = |tsc: Option<Tsc>| Some(conversion?.time_of(tsc?)?.0);
        out.extend_from_slice(b",\"begin\":");
        number(out, time(begin));
        out.extend_from_slice(b",\"end\":");
        number(out, time(end));
        out.extend_from_slice(b",\"insns\":");
    }

    /// The members that all calls of a site have, and the key of the next.
    fn site(&self, finished: &FinishedCall) -> Box<[u8]> {
        let call = &finished.call;
        let mut line = Line::default();
        line.begin();
        match self.names.name(call.function) {
            Some(name) => line.text("call", name),
            None => line.null("call"),
        };
        line.hex("ip", call.ip.0);
        if let Some(entry) = self.names.entry(call) {
            line.hex("address", entry.0);
        }
        line.text("kind", call.kind.name())
            .hex_or_null("from", call.from.map(|from| from.0));
        match self.names.file(call.function) {
            Some(file) => line.text("file", &file.to_string_lossy()),
            None => line.null("file"),
        };
        [line.members(), b",\"depth\":"].concat().into()
    }
}
