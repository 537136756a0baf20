//! What is kept of a recording beside it, so that a condition on functions or addresses leaves out the parts of streams that hold nothing of them.
//!
//! A part that can be decoded apart is here a *chunk*, as [`cofi_analysis::survey`] finds them: what is decoded of it alone is what is decoded of it within
//! the whole stream. Of each chunk there is which code ran, which functions' calls were left, which calls were open at its beginning, and what was known of the
//! time there: so nothing that is left out has to be read.

mod build;
mod ranges;
mod store;

use std::fmt::{self, Formatter};
use std::ops::{Range, RangeInclusive};

use cofi_analysis::{CallDictionary, CallStates, SavedClock};
use cofi_packet::StreamOffset;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::functions::{PartTimes, are_starts};
use crate::limits::Limits;
use crate::table::{Pick, WHOLE};
use ranges::Packed;

pub use store::KeptError;
pub(crate) use store::{Belonging, path_beside};

/// What is kept of a recording.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Kept {
    streams: Vec<KeptStream>,
    /// That of the file.
    #[serde(skip)]
    sum: u32,
}

/// What is kept of a stream.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptStream {
    #[serde(deserialize_with = "few")]
    chunks: Vec<Chunk>,
    /// The functions of instructions, and the files that hold them.
    places: Vec<Named>,
    /// The functions of calls, and the files that hold them.
    functions: Vec<Named>,
    /// What functions were entered at.
    entries: Vec<Entry>,
    dictionary: CallDictionary,
    states: CallStates,
    /// The times of the parts, for conditions on them.
    times: PartTimes,
    /// Something in it could not be decoded. The times of calls are then those of the whole stream only if all of it is followed at once.
    has_errors: bool,
    /// For each time that all calls were left, how much deeper they lie than was known when they began.
    deeper: Vec<u32>,
}

/// A function and its file.
type Named = (Option<String>, Option<String>);

/// The columns of conditions that are about code.
const IP: &str = "ip";
const LAST_IP: &str = "last_ip";
const ADDRESS: &str = "address";
const FUNCTION: &str = "function";
const FILE: &str = "file";

/// Where calls entered a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Entry {
    /// Which of the stream's functions.
    function: u32,
    ip: u64,
    /// As the column `address` has it.
    address: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Chunk {
    start: u64,
    /// The addresses of what ran in it, or at the end of what stands before: the first packets of a chunk may tell of that.
    code: Packed,
    /// The functions of that.
    places: Packed,
    /// The functions of which calls were left in it, by their entries.
    left: Packed,
    /// Which state holds at its beginning, if that is known.
    state: Option<u32>,
    /// The time there, for whoever goes on from that state; none where all packets before it have to be read.
    clock: Option<Box<SavedClock>>,
    /// How often all calls were left before it.
    era: u32,
    /// Somewhere in it a block begins, whatever stands before.
    is_sure: bool,
}

/// Chunks that follow each other, and how many before them are decoded, too.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chosen {
    lead: usize,
    wanted: Range<usize>,
}

/// A stream has no more chunks than this: in memory one takes many times what it takes in a file.
const MOST_CHUNKS: usize = 1 << 14;

/// Reads the chunks of a stream, unless there are more than it can have.
fn few<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Chunk>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = Vec<Chunk>;

        fn expecting(&self, to: &mut Formatter<'_>) -> fmt::Result {
            write!(to, "no more than {MOST_CHUNKS} chunks")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<Chunk>, A::Error> {
            let mut chunks = Vec::new();
            while let Some(chunk) = from.next_element()? {
                if chunks.len() == MOST_CHUNKS {
                    return Err(A::Error::invalid_length(MOST_CHUNKS + 1, &self));
                }
                chunks.push(chunk);
            }
            Ok(chunks)
        }
    }
    from.deserialize_seq(Few)
}

impl Kept {
    /// A sum over all of it: two that are the same have the same chunks.
    pub(crate) const fn sum(&self) -> u32 {
        self.sum
    }

    /// What is kept of a stream.
    pub(crate) fn stream(&self, index: usize) -> Option<&KeptStream> {
        self.streams.get(index)
    }
}

/// What is decoded apart has so many chunks at least: what stands before is decoded for it, too.
const LEAST_GROUP: usize = 4;

/// Whether limits are about code.
pub(crate) fn is_about_code(limits: &Limits) -> bool {
    [IP, LAST_IP, ADDRESS, FUNCTION, FILE]
        .iter()
        .any(|column| limits.is_about(column))
}

/// Of which of the names a row may be.
fn allowed(names: &[Named], limits: &Limits) -> Option<Vec<bool>> {
    if !limits.is_about(FUNCTION) && !limits.is_about(FILE) {
        return None;
    }
    let allows = |column, name: &Option<String>| match name {
        Some(name) => limits.allows_text(column, name),
        // Of NULL nothing is true.
        None => !limits.is_about(column),
    };
    let names = names.iter();
    let names = names.map(|(function, file)| allows(FUNCTION, function) && allows(FILE, file));
    Some(names.collect())
}

impl KeptStream {
    /// The parts that hold rows of instructions or blocks within the limits, of those between two places of the stream.
    pub(crate) fn code(&self, limits: &Limits, within: &Range<StreamOffset>) -> Vec<Pick> {
        let ips = [IP, LAST_IP].map(|column| limits.range(column));
        let places = allowed(&self.places, limits);
        let is_wanted = |chunk: &Chunk| {
            let mut ips = ips.iter().flatten();
            ips.all(|wanted| chunk.code.touches(wanted))
                && places.as_ref().is_none_or(|allowed| {
                    let mut places = chunk.places.iter();
                    places.any(|place| allowed.get(place as usize) == Some(&true))
                })
        };
        let lead = |number| self.lead_of_code(number);
        self.picks(&self.choose(is_wanted, lead, within))
    }

    /// From which chunk on is decoded for the rows of instructions or blocks of one: a block that is open where a chunk begins is known to who has read one
    /// in which a block begins for certain.
    fn lead_of_code(&self, number: usize) -> usize {
        let mut before = self.chunks.iter().take(number);
        before.rposition(|chunk| chunk.is_sure).unwrap_or(0)
    }

    /// The same for its calls, which are followed from where it is known which are open.
    fn lead_of_calls(&self, number: usize) -> usize {
        let mut up_to = self.chunks.iter().take(number + 1);
        up_to.rposition(|chunk| chunk.state.is_some()).unwrap_or(0)
    }

    /// Whether calls may be followed in parts.
    pub(crate) const fn divides_calls(&self) -> bool {
        !self.has_errors
    }

    /// What is picked for rows of instructions or blocks, in no more than so many groups that are about the same in size.
    pub(crate) fn divide_code(&self, picks: &[Pick], groups: usize) -> Vec<Vec<Pick>> {
        self.divide(picks, groups, |number| self.lead_of_code(number))
    }

    /// The same of what is picked for calls; all of the stream if nothing is.
    pub(crate) fn divide_calls(&self, picks: Option<&[Pick]>, groups: usize) -> Vec<Vec<Pick>> {
        let all = [Pick {
            range: WHOLE,
            rows: WHOLE,
        }];
        let picks = picks.unwrap_or(&all);
        self.divide(picks, groups, |number| self.lead_of_calls(number))
    }

    fn divide(
        &self,
        picks: &[Pick],
        groups: usize,
        lead: impl Fn(usize) -> usize,
    ) -> Vec<Vec<Pick>> {
        // (Where there is no chunk, the last one has ended.)
        let at = |offset: StreamOffset| self.chunks.partition_point(|it| it.start < offset.0);
        let numbers = picks
            .iter()
            .map(|pick| at(pick.rows.start)..at(pick.rows.end));
        let numbers: Vec<Range<usize>> = numbers.collect();
        let all: usize = numbers.iter().map(Range::len).sum();
        let share = all.div_ceil(groups.max(1)).max(LEAST_GROUP);
        let (mut divided, mut group, mut room) = (Vec::new(), Vec::new(), share);
        for mut rest in numbers {
            while !rest.is_empty() {
                let wanted = rest.start..rest.end.min(rest.start + room);
                rest.start = wanted.end;
                room -= wanted.len();
                let lead = lead(wanted.start);
                group.push(Chosen { lead, wanted });
                if room == 0 {
                    divided.push(self.picks(&std::mem::take(&mut group)));
                    room = share;
                }
            }
        }
        if !group.is_empty() {
            divided.push(self.picks(&group));
        }
        divided
    }

    /// The parts in which calls are left that are within the limits.
    pub(crate) fn calls(&self, limits: &Limits) -> Vec<Pick> {
        let functions = allowed(&self.functions, limits);
        let (ips, addresses) = (limits.range(IP), limits.range(ADDRESS));
        let holds = |wanted: &Option<RangeInclusive<i128>>, number: Option<u64>| {
            let within = |range: &RangeInclusive<i128>| {
                number.is_some_and(|number| range.contains(&number.into()))
            };
            wanted.as_ref().is_none_or(within)
        };
        let entries: Vec<bool> = self
            .entries
            .iter()
            .map(|entry| {
                let function = entry.function as usize;
                let functions = functions.as_ref();
                functions.is_none_or(|allowed| allowed.get(function) == Some(&true))
                    && holds(&ips, Some(entry.ip))
                    && holds(&addresses, entry.address)
            })
            .collect();
        let is_wanted = |chunk: &Chunk| {
            let mut left = chunk.left.iter();
            left.any(|entry| entries.get(entry as usize) == Some(&true))
        };
        let lead = |number| self.lead_of_calls(number);
        self.picks(&self.choose(is_wanted, lead, &WHOLE))
    }

    /// The chunks that are wanted. Where what is decoded for some reaches into others that are, they are one.
    fn choose(
        &self,
        is_wanted: impl Fn(&Chunk) -> bool,
        lead: impl Fn(usize) -> usize,
        within: &Range<StreamOffset>,
    ) -> Vec<Chosen> {
        let mut chosen: Vec<Chosen> = Vec::new();
        for (number, chunk) in self.chunks.iter().enumerate() {
            let begins_behind = chunk.start >= within.end.0;
            let ends_before = self.start(number + 1) <= within.start;
            if begins_behind || ends_before || !is_wanted(chunk) {
                continue;
            }
            let lead = lead(number);
            match chosen.last_mut() {
                Some(last) if lead <= last.wanted.end => last.wanted.end = number + 1,
                _ => chosen.push(Chosen {
                    lead,
                    wanted: number..number + 1,
                }),
            }
        }
        chosen
    }

    fn picks(&self, chosen: &[Chosen]) -> Vec<Pick> {
        let pick = |chosen: &Chosen| {
            let end = self.start(chosen.wanted.end);
            Pick {
                range: self.start(chosen.lead)..end,
                rows: self.start(chosen.wanted.start)..end,
            }
        };
        chosen.iter().map(pick).collect()
    }

    /// Where a chunk begins, or the last one ends.
    fn start(&self, number: usize) -> StreamOffset {
        let chunk = self.chunks.get(number);
        StreamOffset(chunk.map_or(u64::MAX, |chunk| chunk.start))
    }

    /// The chunks of a pick: their parts of the stream, and how often all calls were left before each.
    pub(crate) fn chunks(&self, pick: &Pick) -> impl Iterator<Item = (Range<StreamOffset>, u32)> {
        let chunks = self.chunks.iter().enumerate();
        let range = pick.range.clone();
        let chunks = chunks.filter(move |(_, chunk)| range.contains(&StreamOffset(chunk.start)));
        chunks.map(|(number, chunk)| (self.start(number)..self.start(number + 1), chunk.era))
    }

    /// The chunk with which a pick begins.
    fn first(&self, pick: &Pick) -> Option<&Chunk> {
        let begin = pick.range.start.0;
        let number = self
            .chunks
            .binary_search_by_key(&begin, |chunk| chunk.start);
        self.chunks.get(number.ok()?)
    }

    /// Which state holds where a pick begins.
    pub(crate) fn state(&self, pick: &Pick) -> Option<usize> {
        Some(self.first(pick)?.state? as usize)
    }

    /// What is known of the time where a pick begins.
    pub(crate) fn clock(&self, pick: &Pick) -> Option<&SavedClock> {
        self.first(pick)?.clock.as_deref()
    }

    /// The times of the stream's parts.
    pub(crate) const fn times(&self) -> &PartTimes {
        &self.times
    }

    pub(crate) const fn states(&self) -> &CallStates {
        &self.states
    }

    pub(crate) fn dictionary(&self) -> CallDictionary {
        self.dictionary.clone()
    }

    /// How much deeper the calls of an era lie than was known when they began.
    pub(crate) fn deeper(&self, era: u64) -> i32 {
        let era = usize::try_from(era).ok();
        let deeper = era.and_then(|era| self.deeper.get(era));
        deeper.map_or(0, |deeper| i32::try_from(*deeper).unwrap_or(i32::MAX))
    }

    /// Whether all numbers in it mean something, of what was read from a file: for a stream of so many bytes.
    fn is_sound(&self, len: u64) -> bool {
        let starts = self.chunks.iter().map(|chunk| chunk.start);
        let states = self.chunks.iter().filter_map(|chunk| chunk.state);
        are_starts(starts, len)
            && self.times.is_sound(len)
            && self
                .chunks
                .iter()
                .take(1)
                .all(|chunk| chunk.state.is_some())
            && states
                .clone()
                .all(|state| (state as usize) < self.states.len())
            && self
                .entries
                .iter()
                .all(|entry| (entry.function as usize) < self.functions.len())
            && self.states.is_sound(&self.dictionary)
    }
}
