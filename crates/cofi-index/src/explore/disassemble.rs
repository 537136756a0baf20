//! Code as it stood at a place, whether or not it ran.

use cofi_analysis::{Call, CallEnd, CallNames, CallTracer, CallVisitor, OpenCall, RanBlock};
use cofi_image::{ImageView, Place, SourceLine};
use cofi_packet::{ExecMode, Ip};
use cofi_session::ThreadFlow;

use super::Explorer;
use super::walk::Walker;

/// An instruction of the code.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CodeLine {
    /// Its address.
    pub ip: Ip,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// It as text.
    pub text: String,
    /// The function there.
    pub function: Option<String>,
    /// The line of the source.
    pub source: Option<SourceLine>,
}

impl Explorer<'_> {
    /// The code around an address as it stood when the instruction at a place ran: at most so many instructions before it, as far as that is known
    /// from where its function begins, and so many from it on.
    pub fn disassemble(
        &mut self,
        row: usize,
        at: u64,
        ip: Ip,
        before: usize,
        behind: usize,
    ) -> Vec<CodeLine> {
        let mut walker = Taker {
            at,
            next: 0,
            ip,
            before,
            behind,
            found: Vec::new(),
            is_done: false,
        };
        if self.walk(row, &(at..at + 1), &mut walker).is_none() {
            return Vec::new();
        }
        let found = walker.found.into_iter();
        found
            .map(|(ip, bytes, mode, place)| CodeLine {
                ip,
                text: cofi_insn::text(&bytes, ip, mode),
                bytes,
                function: place.symbol().map(|symbol| symbol.demangled()),
                source: self.lines.at(&place),
            })
            .collect()
    }
}

struct Taker {
    at: u64,
    /// The place of the next block.
    next: u64,
    ip: Ip,
    before: usize,
    behind: usize,
    found: Vec<(Ip, Vec<u8>, ExecMode, Place)>,
    is_done: bool,
}

impl Taker {
    fn take(&mut self, view: &ImageView<'_>, mode: ExecMode) {
        let start = view.place(self.ip).and_then(|place| {
            let symbol = place.symbol()?;
            Some(Ip(self.ip.0.wrapping_sub(symbol.offset)))
        });
        let mut all = linear(view, start.unwrap_or(self.ip), mode, self.ip);
        let known = all.iter().position(|(ip, ..)| *ip == self.ip);
        // Where the function's instructions do not lead to the address, nothing is known of what stands before.
        all.truncate(known.unwrap_or(0));
        let skipped = all.len().saturating_sub(self.before);
        self.found = all.split_off(skipped);
        let mut ip = self.ip;
        for _ in 0..self.behind {
            let Some((insn, len)) = one(view, ip, mode) else {
                break;
            };
            self.found.push(insn);
            ip = ip.wrapping_add(len);
        }
        self.is_done = true;
    }
}

type Found = (Ip, Vec<u8>, ExecMode, Place);

fn one(view: &ImageView<'_>, ip: Ip, mode: ExecMode) -> Option<(Found, u64)> {
    let place = view.place(ip)?;
    let mut bytes = [0; 15];
    let read = place.file.read_at(place.offset, &mut bytes);
    let insn = cofi_insn::decode(bytes.get(..read)?, ip, mode).ok()?;
    let len = usize::from(insn.len);
    Some(((ip, bytes.get(..len)?.to_vec(), mode, place), len as u64))
}

/// The instructions from one address up to another.
fn linear(view: &ImageView<'_>, from: Ip, mode: ExecMode, to: Ip) -> Vec<Found> {
    /// A function is no longer than this.
    const LONGEST: u64 = 1 << 20;
    let mut all = Vec::new();
    let mut ip = from;
    while ip <= to
        && to.0 - ip.0 <= LONGEST
        && let Some((insn, len)) = one(view, ip, mode)
    {
        all.push(insn);
        ip = ip.wrapping_add(len);
    }
    all
}

impl Walker for Taker {
    fn begin(&mut self, at: u64, _: &mut dyn Iterator<Item = OpenCall>) {
        self.next = at;
    }

    fn piece(&mut self, _: u64, tracer: &CallTracer<'_>, _: &mut ThreadFlow<'_>) -> bool {
        self.next = tracer.instructions();
        !self.is_done
    }
}

impl CallVisitor for Taker {
    fn enter(&mut self, _: &Call, _: &CallNames) {}

    fn leave(&mut self, _: &Call, _: &CallEnd, _: &CallNames) {}

    fn wants_blocks(&self) -> bool {
        true
    }

    fn ran(&mut self, block: &RanBlock<'_>) {
        let from = self.next;
        self.next += block.len() as u64;
        if !self.is_done && (from..self.next).contains(&self.at) {
            let mut mode = ExecMode::default();
            block.for_each(|_, _, of| mode = of);
            self.take(block.view(), mode);
        }
    }
}
