//! What is told of an instruction beside its address: where it stands, its text, its time.

use crate::args::Show;
use crate::table::shortened;
use cofi_flow::Executed;
use cofi_image::{ImageView, LineFinder, Place, Version};
use cofi_insn::CodeSource;
use cofi_packet::{ExecMode, Ip, Tsc};
use cofi_session::{Session, ThreadFlow};
use cofi_text::Line;
use cofi_text::digits;
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use std::fmt::Write;

/// How many instructions are remembered. More distinct ones than that are worked out again.
const REMEMBERED: usize = 1 << 20;

/// Code as it is in place.
pub(crate) trait Code {
    /// Where in which file an instruction stands.
    fn place(&mut self, ip: Ip) -> Option<Place>;
    /// Reads as much of `buf` as there is at `ip`.
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize;
}

impl Code for ThreadFlow<'_> {
    fn place(&mut self, ip: Ip) -> Option<Place> {
        ThreadFlow::place(self, ip)
    }

    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        self.read_code(ip, buf)
    }
}

impl Code for ImageView<'_> {
    fn place(&mut self, ip: Ip) -> Option<Place> {
        ImageView::place(self, ip)
    }

    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        CodeSource::read(self, ip, buf)
    }
}

/// Code that is in place: an address space, by where it is in memory, which outlives this, and its version.
type Era = (usize, Version);

/// Works out what does not change from one execution of an instruction to the next, once for each.
#[derive(Default)]
pub(crate) struct Notes {
    eras: HashMap<Era, u32>,
    /// The code in place; none if it may have changed.
    era: Option<u32>,
    known: FxHashMap<(u32, Ip, ExecMode), Box<[u8]>>,
}

impl Notes {
    /// Other code may be in place.
    pub(crate) fn changed(&mut self) {
        self.era = None;
    }

    /// What `make` makes of the instruction, or has made of it before.
    pub(crate) fn of(
        &mut self,
        flow: &mut ThreadFlow<'_>,
        insn: &Executed,
        make: impl FnOnce(&mut ThreadFlow<'_>) -> Box<[u8]>,
    ) -> &[u8] {
        let era = self.era(flow);
        self.in_era(era, insn, || make(flow))
    }

    /// What `make` makes of an instruction of this code, or has made of it before.
    pub(crate) fn in_era(
        &mut self,
        era: u32,
        insn: &Executed,
        make: impl FnOnce() -> Box<[u8]>,
    ) -> &[u8] {
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        self.known
            .entry((era, insn.ip, insn.mode))
            .or_insert_with(make)
    }

    /// A number for the code that is in place.
    pub(crate) fn era(&mut self, flow: &mut ThreadFlow<'_>) -> u32 {
        match self.era {
            Some(era) => era,
            None => self.enter(flow),
        }
    }

    fn enter(&mut self, flow: &mut ThreadFlow<'_>) -> u32 {
        let view = flow.view();
        let era = (std::ptr::from_ref(view.space()).addr(), view.version());
        let next = self.eras.len() as u32;
        let number = *self.eras.entry(era).or_insert(next);
        self.era = Some(number);
        number
    }
}

/// The code that was in place, by its numbers, to be asked where the flow cannot be.
#[derive(Default)]
pub(crate) struct Views<'s>(FxHashMap<u32, ImageView<'s>>);

impl<'s> Views<'s> {
    /// The code of so many eras is kept at hand.
    const MOST: usize = 64;

    /// The code in place, which has this number.
    pub(crate) fn of(&mut self, era: u32, flow: &mut ThreadFlow<'s>) -> &mut ImageView<'s> {
        if self.0.len() >= Self::MOST && !self.0.contains_key(&era) {
            self.0.clear();
        }
        self.0.entry(era).or_insert_with(|| flow.view().clone())
    }
}

/// An instruction's bytes.
fn bytes_of(code: &mut impl Code, insn: &Executed) -> ([u8; 15], usize) {
    let mut bytes = [0; 15];
    let len = code.read(insn.ip, &mut bytes).min(insn.len.into());
    (bytes, len)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The members of an instruction's JSON object that [`Show`] asks for, but for the time.
pub(crate) fn members(
    code: &mut impl Code,
    insn: &Executed,
    show: Show,
    sources: &mut LineFinder,
) -> Box<[u8]> {
    let mut line = Line::default();
    line.begin();
    if show.symbols
        && let Some(place) = code.place(insn.ip)
    {
        if let Some(symbol) = place.symbol_or_stub() {
            line.text("symbol", &symbol.demangled())
                .number("symbol_offset", symbol.offset);
        }
        line.text("file", &place.owner().to_string_lossy());
    }
    if show.source
        && let Some(found) = code.place(insn.ip).and_then(|place| sources.at(&place))
    {
        line.text("source", &found.file);
        if let Some(number) = found.line {
            line.number("line", number);
        }
    }
    if show.disasm || show.bytes {
        let (bytes, len) = bytes_of(code, insn);
        let bytes = &bytes[..len];
        if show.bytes {
            line.text("bytes", &hex(bytes));
        }
        if show.disasm {
            line.text("disasm", &cofi_insn::text(bytes, insn.ip, insn.mode));
        }
    }
    line.members().into()
}

/// How much room the names of places have in lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameWidth {
    /// Shorter ones are filled up.
    pub(crate) least: usize,
    /// Longer ones are shortened.
    pub(crate) most: usize,
}

impl NameWidth {
    /// On a terminal of so many columns, or elsewhere. Lines may begin with the time.
    pub(crate) fn of(width: Option<usize>, is_timed: bool) -> Self {
        // Address and spaces, an instruction of middling length, the time.
        const OTHERS: usize = 19 + 26;
        const TIME: usize = 29;
        const LEAST: usize = 16;
        const USUAL: usize = 36;
        let others = if is_timed { OTHERS + TIME } else { OTHERS };
        match width {
            None => Self {
                least: USUAL,
                most: usize::MAX,
            },
            Some(width) => {
                let room = width.saturating_sub(others).max(LEAST);
                Self {
                    least: room.min(USUAL),
                    most: room,
                }
            }
        }
    }
}

/// An instruction as a person reads it: address, place, text. With a line feed.
pub(crate) fn text(
    code: &mut impl Code,
    insn: &Executed,
    show: Show,
    sources: &mut LineFinder,
    names: NameWidth,
) -> Box<[u8]> {
    let (bytes, len) = bytes_of(code, insn);
    let bytes = &bytes[..len];
    let place = code.place(insn.ip);
    let name = place.as_ref().map(Place::to_string).unwrap_or_default();
    let (name, least) = (shortened(&name, names.most), names.least);
    let mut line = format!("{:16x}  {name:<least$}", insn.ip.0);
    if show.symbols {
        let owner = place.as_ref().map(Place::owner);
        let file = owner
            .and_then(|owner| owner.file_name())
            .unwrap_or_default();
        let _ = write!(line, " {:<20}", file.display());
    }
    if show.bytes {
        let _ = write!(line, " {:<30}", hex(bytes));
    }
    let words = cofi_insn::text(bytes, insn.ip, insn.mode);
    match place
        .filter(|_| show.source)
        .and_then(|place| sources.at(&place))
    {
        None => line.extend([" ", &words]),
        Some(source) => {
            let file = source.file.rsplit('/').next().unwrap_or_default();
            let number = source
                .line
                .map_or_else(|| "?".into(), |line| line.to_string());
            let _ = write!(line, " {words:<40} ; {file}:{number}");
        }
    }
    line.push('\n');
    line.into_bytes().into()
}

/// An instruction as the text of `cofi insn` shows it, without a line feed.
pub(crate) fn line(flow: &mut ThreadFlow<'_>, insn: &Executed, names: NameWidth) -> String {
    let line = text(flow, insn, Show::default(), &mut LineFinder::new(), names);
    String::from_utf8_lossy(&line).trim_end().to_owned()
}

/// The time of the item that a flow gave last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) tsc: Option<Tsc>,
    /// How far the truth may be from it, if the packets bound that.
    uncertainty: Option<u64>,
    /// Nanoseconds of perf's clock, where the trace says how to convert.
    pub(crate) perf: Option<u64>,
    perf_uncertainty: Option<u64>,
}

impl Now {
    pub(crate) fn of(session: &Session<'_>, flow: &mut ThreadFlow<'_>) -> Self {
        let time = flow.time();
        let uncertainty = time
            .map(|time| time.uncertainty)
            .filter(|uncertainty| *uncertainty != u64::MAX);
        let tsc = time.map(|time| time.tsc);
        let conversion = session.time_conversion();
        let perf = |tsc| Some(conversion?.time_of(tsc)?.0);
        let at = tsc.and_then(perf);
        let late = tsc
            .zip(uncertainty)
            .and_then(|(tsc, uncertainty)| perf(Tsc(tsc.0.saturating_add(uncertainty))));
        Self {
            tsc,
            uncertainty,
            perf: at,
            perf_uncertainty: late.zip(at).map(|(late, at)| late.wrapping_sub(at)),
        }
    }

    /// Adds the time to an object.
    pub(crate) fn members(&self, session: &Session<'_>, line: &mut Line) {
        let mut number = |key, value: Option<u64>| {
            match value {
                Some(value) => line.number(key, value),
                None => line.null(key),
            };
        };
        number("tsc", self.tsc.map(|tsc| tsc.0));
        number("tsc_uncertainty", self.uncertainty);
        if session.time_conversion().is_some() {
            number("time", self.perf);
        }
    }

    /// Appends the time as a column: seconds and nanoseconds, or TSC ticks where the trace does not convert.
    pub(crate) fn column(&self, text: &mut Vec<u8>) {
        let begin = text.len();
        let pad = |text: &mut Vec<u8>, from: usize, width: usize| {
            let len = text.len() - from;
            if len < width {
                text.splice(from..from, std::iter::repeat_n(b' ', width - len));
            }
        };
        let uncertainty = match (self.perf, self.tsc) {
            (Some(perf), _) => {
                digits::decimal(text, perf / 1_000_000_000);
                text.push(b'.');
                let part = text.len();
                digits::decimal(text, perf % 1_000_000_000 + 1_000_000_000);
                text.remove(part);
                self.perf_uncertainty
            }
            (None, Some(tsc)) => {
                digits::decimal(text, tsc.0);
                self.uncertainty
            }
            (None, None) => {
                text.push(b'?');
                pad(text, begin, 27);
                text.extend_from_slice(b"  ");
                return;
            }
        };
        pad(text, begin, 18);
        text.extend_from_slice(" ±".as_bytes());
        let from = text.len();
        match uncertainty {
            Some(uncertainty) => digits::decimal(text, uncertainty),
            None => text.push(b'?'),
        }
        // To the left: it belongs to the sign.
        let len = text.len() - from;
        text.extend(std::iter::repeat_n(b' ', 7_usize.saturating_sub(len) + 2));
    }
}
