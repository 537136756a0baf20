//! Where tracing begins and ends: at the first instructions of functions.

use crate::{Mapping, Missing, Pid, ProcessCause};
use object::{Object, ObjectSegment, ObjectSymbol, ReadCache, SymbolKind};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// An instruction, as a person names it.
#[derive(Clone, Debug)]
pub enum Gate {
    /// The one at this address, in each process.
    Address(u64),
    /// The first one of each function of this name in the files that are mapped.
    Function {
        /// The name.
        name: String,
        /// Whether a symbol, as a file has it, is of a function of that name.
        is: fn(symbol: &str, name: &str) -> bool,
    },
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address:#x}"),
            Self::Function { name, .. } => write!(f, "sym:{name}"),
        }
    }
}

impl Gate {
    fn is(&self, symbol: &str) -> bool {
        match self {
            Self::Address(_) => false,
            Self::Function { name, is } => is(symbol, name),
        }
    }

    /// In a process that has these files mapped.
    pub(crate) fn addresses_in(&self, mappings: &[Mapping]) -> Vec<u64> {
        let window = Window {
            start: Some(self.clone()),
            stop: None,
        };
        let mut all = self.addresses();
        if matches!(self, Self::Address(_)) {
            return all;
        }
        for map in mappings {
            let places = Places::of(&map.path, &window).unwrap_or_default();
            let starts = places.starts.iter();
            all.extend(starts.filter_map(|place| map.address_of(*place)));
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Of symbols that are not a file's, the addresses of those that it names.
    pub(crate) fn addresses_among<'s>(
        &self,
        symbols: impl Iterator<Item = (&'s str, u64)>,
    ) -> Vec<u64> {
        let mut all = self.addresses();
        let named = symbols.filter(|(symbol, _)| self.is(symbol));
        all.extend(named.map(|(_, address)| address));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// In a process of which no file is mapped yet.
    fn addresses(&self) -> Vec<u64> {
        match self {
            Self::Address(address) => vec![*address],
            Self::Function { .. } => Vec::new(),
        }
    }
}

/// What of a process is traced.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Window {
    /// Where tracing begins; without it, with the process.
    pub start: Option<Gate>,
    /// Where it ends.
    pub stop: Option<Gate>,
}

/// Which file is mapped.
type FileKey = (PathBuf, (u32, u32), u64);

/// The places of a file at which tracing begins, and those at which it ends: offsets in the file.
#[derive(Clone, Debug, Default)]
struct Places {
    starts: Vec<u64>,
    stops: Vec<u64>,
}

/// One process.
#[derive(Clone, Debug)]
struct Process {
    is_on: bool,
    starts: Vec<u64>,
    stops: Vec<u64>,
    /// All of them.
    watched: Vec<u64>,
}

/// The gates of all processes.
#[derive(Debug)]
pub(super) struct Gates {
    window: Window,
    files: HashMap<FileKey, Rc<Places>>,
    processes: BTreeMap<Pid, Process>,
    /// Whether a file has a function for each of the two.
    has_start: bool,
    has_stop: bool,
    /// How often tracing began at a gate, and the address of the first time.
    begun: u64,
    first: u64,
    /// How often it ended at one.
    ended: u64,
}

impl Gates {
    pub(super) fn new(window: Window) -> Self {
        let is_known = |gate: &Option<Gate>| !matches!(gate, Some(Gate::Function { .. }));
        Self {
            has_start: is_known(&window.start),
            has_stop: is_known(&window.stop),
            window,
            files: HashMap::new(),
            processes: BTreeMap::new(),
            begun: 0,
            first: 0,
            ended: 0,
        }
    }

    fn fresh(&self) -> Process {
        let addresses = |gate: &Option<Gate>| gate.as_ref().map(Gate::addresses);
        let mut process = Process {
            is_on: self.window.start.is_none(),
            starts: addresses(&self.window.start).unwrap_or_default(),
            stops: addresses(&self.window.stop).unwrap_or_default(),
            watched: Vec::new(),
        };
        process.watch();
        process
    }

    /// A process exists, or executes a program. A child goes on as its parent did.
    pub(super) fn process(&mut self, pid: Pid, parent: Option<Pid>, cause: ProcessCause) {
        let parent = parent.filter(|_| cause == ProcessCause::Fork);
        let process = parent
            .and_then(|parent| self.processes.get(&parent))
            .cloned();
        let process = process.unwrap_or_else(|| self.fresh());
        self.processes.insert(pid, process);
    }

    /// Files have come to be mapped.
    pub(super) fn mapped(&mut self, pid: Pid, mappings: &[Mapping]) {
        for map in mappings {
            let places = self.places(map);
            self.has_start |= !places.starts.is_empty();
            self.has_stop |= !places.stops.is_empty();
            let Some(process) = self.processes.get_mut(&pid) else {
                continue;
            };
            let gates = [&self.window.start, &self.window.stop];
            let lists = [
                (&mut process.starts, &places.starts),
                (&mut process.stops, &places.stops),
            ];
            for (gate, (list, places)) in gates.into_iter().zip(lists) {
                if !matches!(gate, Some(Gate::Function { .. })) {
                    continue;
                }
                list.retain(|address| !(map.start..map.end).contains(address));
                list.extend(places.iter().filter_map(|place| map.address_of(*place)));
            }
            process.watch();
        }
    }

    /// The gates in a file, read once.
    fn places(&mut self, map: &Mapping) -> Rc<Places> {
        let key = (map.path.clone(), map.device, map.inode);
        let window = &self.window;
        let places = self.files.entry(key);
        let read = || Rc::new(Places::of(&map.path, window).unwrap_or_default());
        Rc::clone(places.or_insert_with(read))
    }

    /// The instruction at `ip` is about to run in a process: whether its tracing begins there or ends, if either.
    pub(super) fn turn(&mut self, pid: Pid, ip: u64) -> Option<bool> {
        let process = self.processes.get_mut(&pid)?;
        let gates = match process.is_on {
            true => &process.stops,
            false => &process.starts,
        };
        if !gates.contains(&ip) {
            return None;
        }
        process.is_on = !process.is_on;
        if process.is_on {
            if self.begun == 0 {
                self.first = ip;
            }
            self.begun += 1;
        } else {
            self.ended += 1;
        }
        Some(process.is_on)
    }

    /// Whether a process is traced as things are.
    pub(super) fn is_on(&self, pid: Pid) -> bool {
        self.processes.get(&pid).is_none_or(|process| process.is_on)
    }

    /// The gates of a process.
    pub(super) fn watched(&self, pid: Pid) -> &[u64] {
        let process = self.processes.get(&pid);
        process.map_or(&[], |process| &process.watched)
    }

    /// What is not in the trace because of the gates, if anything.
    pub(super) fn omitted(&self) -> Option<Missing> {
        let Window { start, stop } = &self.window;
        let mut text = match (start, stop) {
            (Some(start), Some(stop)) => {
                format!("what ran before {start}, and from {stop} on up to the next {start}")
            }
            (Some(start), None) => format!("what ran before {start}"),
            (None, Some(stop)) if self.ended > 0 => format!("what ran from {stop} on"),
            _ => return None,
        };
        if let Some(start) = start {
            text += &match self.begun {
                0 => format!("; nothing came to {start}"),
                1 => format!("; tracing began once, at {:#x}", self.first),
                count => format!("; tracing began {count} times, first at {:#x}", self.first),
            };
        }
        Some(Missing::new(text))
    }

    /// The gates of which no file that was mapped has the function.
    pub(super) fn unknown(&self) -> Vec<String> {
        let Window { start, stop } = &self.window;
        let sides = [
            ("--start-at", start, self.has_start),
            ("--stop-at", stop, self.has_stop),
        ];
        let unknown = sides.into_iter().filter(|(_, _, is_known)| !is_known);
        let sentence = |(option, gate, _): (&str, &Option<Gate>, bool)| {
            let gate = gate.as_ref()?;
            Some(format!(
                "{option} {gate}: no file that was mapped has a function of this name"
            ))
        };
        unknown.filter_map(sentence).collect()
    }
}

impl Process {
    fn watch(&mut self) {
        self.watched.clear();
        self.watched.extend(self.starts.iter().chain(&self.stops));
        self.watched.sort_unstable();
        self.watched.dedup();
    }
}

impl Places {
    /// Looks through the symbols of a file. Nothing if it has none that can be read.
    fn of(path: &Path, window: &Window) -> Option<Self> {
        if !path.is_absolute() {
            return None;
        }
        let cache = ReadCache::new(File::open(path).ok()?);
        let file = object::File::parse(&cache).ok()?;
        let offset_of = |address: u64| {
            file.segments().find_map(|segment| {
                let (offset, size) = segment.file_range();
                let inside = address.checked_sub(segment.address())?;
                (inside < size).then(|| offset.checked_add(inside))?
            })
        };
        let mut places = Self::default();
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            // The entry of a program in assembler may have no type.
            let is_code = matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Unknown);
            let (true, true, Ok(name)) = (is_code, symbol.is_definition(), symbol.name()) else {
                continue;
            };
            let sides = [
                (&window.start, &mut places.starts),
                (&window.stop, &mut places.stops),
            ];
            for (gate, list) in sides {
                if gate.as_ref().is_some_and(|gate| gate.is(name))
                    && let Some(offset) = offset_of(symbol.address())
                    && !list.contains(&offset)
                {
                    list.push(offset);
                }
            }
        }
        Some(places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MappingKind;

    fn function(name: &str) -> Option<Gate> {
        let is = |symbol: &str, name: &str| symbol == name;
        let name = name.to_owned();
        Some(Gate::Function { name, is })
    }

    fn mapping(start: u64, path: &Path) -> Mapping {
        Mapping {
            start,
            end: start + (1 << 40),
            offset: 0,
            prot: 5,
            device: (0, 0),
            inode: 0,
            path: path.to_owned(),
            kind: MappingKind::File,
        }
    }

    #[test]
    fn gates_are_where_the_file_is_mapped() {
        let this = std::env::current_exe().expect("the path of the test");
        let mut gates = Gates::new(Window {
            start: function("main"),
            stop: function("no_such_function"),
        });
        gates.process(7, None, ProcessCause::Launch);
        assert!(!gates.is_on(7));
        gates.mapped(7, &[mapping(1 << 41, &this)]);
        let [main] = *gates.watched(7) else {
            panic!("one address: {:x?}", gates.watched(7));
        };
        assert_eq!(gates.turn(7, main + 1), None);
        assert_eq!(gates.turn(7, main), Some(true));
        assert_eq!(gates.turn(7, main), None);
        // A child goes on; another program begins anew, elsewhere.
        gates.process(8, Some(7), ProcessCause::Fork);
        assert!(gates.is_on(8) && gates.watched(8) == [main]);
        gates.process(8, None, ProcessCause::Exec);
        assert!(!gates.is_on(8) && gates.watched(8).is_empty());
        gates.mapped(8, &[mapping(1 << 43, &this)]);
        assert_eq!(gates.watched(8), [main - (1 << 41) + (1 << 43)]);
        let unknown = gates.unknown();
        assert_eq!(unknown.len(), 1);
        assert!(unknown[0].contains("--stop-at sym:no_such_function"));
    }

    #[test]
    fn what_is_left_out_is_said() {
        let window = Window {
            start: None,
            stop: Some(Gate::Address(0x1000)),
        };
        let mut gates = Gates::new(window);
        gates.process(1, None, ProcessCause::Launch);
        assert_eq!((gates.is_on(1), gates.omitted()), (true, None));
        assert_eq!(gates.turn(1, 0x1000), Some(false));
        assert_eq!(gates.turn(1, 0x1000), None);
        let omitted = gates.omitted().expect("a sentence");
        assert_eq!(omitted.text, "what ran from 0x1000 on");
        assert!(gates.unknown().is_empty());
    }
}
