//! Which thread of one recording is which of another.

use std::collections::{HashMap, VecDeque};

use cofi_session::compact;
use cofi_session::{Stream, StreamKey};

/// A thread of each of two recordings, or of one that has none in the other.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ThreadPair<'s, 't> {
    /// In the first.
    pub a: Option<&'s Stream<'t>>,
    /// In the second.
    pub b: Option<&'s Stream<'t>>,
}

/// What must be the same: the processor's number, or the thread's name and which of this name it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Name {
    Cpu(u32),
    /// No name is that of the program, which another build may have under another.
    Thread(Option<String>, u32),
    Only,
}

/// In the order of creation, each with its name.
fn named<'s, 't>(streams: &[&'s Stream<'t>]) -> Vec<(Name, &'s Stream<'t>)> {
    let mut streams = streams.to_vec();
    // The kernel numbers threads as it creates them.
    compact::sort_by_key(&mut streams, |stream| {
        (stream.key().tid(), stream.key().cpu())
    });
    let program = streams.first().and_then(|stream| stream.comm());
    let mut counts: HashMap<Option<String>, u32> = HashMap::new();
    let name = |stream: &'s Stream<'t>| match stream.key() {
        StreamKey::Cpu(cpu) => (Name::Cpu(cpu), stream),
        StreamKey::Thread(_) => {
            let name = stream.comm().filter(|name| Some(*name) != program);
            let name = name.map(str::to_owned);
            let count = counts.entry(name.clone()).or_default();
            *count += 1;
            (Name::Thread(name, *count), stream)
        }
        StreamKey::Only => (Name::Only, stream),
    };
    streams.iter().copied().map(name).collect()
}

/// Matches threads by their names and, of those with the same name, by the order in which they were created; processors by their numbers. The
/// first thread is the same, and those of its name, whatever that is. Those of the first recording come in their order, then those that only
/// the second has.
#[must_use]
pub fn match_threads<'s, 't>(
    a: &[&'s Stream<'t>],
    b: &[&'s Stream<'t>],
) -> Vec<ThreadPair<'s, 't>> {
    let mut others: Vec<Option<&'s Stream<'t>>> = Vec::new();
    // Names are unique but for streams that have none: of these the first comes first.
    let mut places: HashMap<Name, VecDeque<usize>> = HashMap::new();
    for (name, stream) in named(b) {
        places.entry(name).or_default().push_back(others.len());
        others.push(Some(stream));
    }
    let mut pairs: Vec<ThreadPair<'s, 't>> = Vec::new();
    for (name, stream) in named(a) {
        let place = places.get_mut(&name).and_then(VecDeque::pop_front);
        pairs.push(ThreadPair {
            a: Some(stream),
            b: place.and_then(|place| others[place].take()),
        });
    }
    let alone = others.into_iter().flatten().map(|stream| ThreadPair {
        a: None,
        b: Some(stream),
    });
    pairs.extend(alone);
    pairs
}
