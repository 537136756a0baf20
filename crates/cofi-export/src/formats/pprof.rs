//! pprof's profiles.

use std::collections::HashMap;
use std::io::{self, Write};

use prost::Message;

use super::CREATOR;
use crate::tree::Step;
use crate::{Frames, StackTree, Weight};

/// `perftools.profiles.Profile`, as far as it is written. Numbers of fields are those of pprof's `proto/profile.proto`.
#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
}

/// Strings, each once; the first is empty.
struct Strings {
    list: Vec<String>,
    numbers: HashMap<String, i64>,
}

impl Strings {
    fn number(&mut self, text: &str) -> i64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.list.len() as i64;
        self.list.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

/// Writes a profile with a sample for each distinct stack. A function is a location.
pub(super) fn write(tree: &StackTree, frames: &Frames, out: &mut dyn Write) -> io::Result<()> {
    let mut strings = Strings {
        list: vec![String::new()],
        numbers: HashMap::from([(String::new(), 0)]),
    };
    let (kind, unit) = match tree.weight() {
        Weight::Time => ("time", "nanoseconds"),
        Weight::Instructions => ("instructions", "count"),
    };
    let value = ValueType {
        r#type: strings.number(kind),
        unit: strings.number(unit),
    };
    let mut profile = Profile {
        sample_type: vec![value],
        period_type: Some(value),
        period: 1,
        comment: vec![strings.number(CREATOR)],
        ..Profile::default()
    };
    let mut mappings: HashMap<i64, u64> = HashMap::new();
    for (number, frame) in frames.iter().enumerate() {
        let id = number as u64 + 1;
        let name = strings.number(&frame.name);
        profile.function.push(Function {
            id,
            name,
            system_name: name,
        });
        let file = frame.file.as_ref();
        let mapping_id = file.map_or(0, |file| {
            let filename = strings.number(&file.to_string_lossy());
            *mappings.entry(filename).or_insert_with(|| {
                let id = profile.mapping.len() as u64 + 1;
                profile.mapping.push(Mapping {
                    id,
                    filename,
                    has_functions: true,
                });
                id
            })
        });
        profile.location.push(Location {
            id,
            mapping_id,
            line: vec![Line { function_id: id }],
        });
    }
    let thread = strings.number("thread");
    for (number, node) in tree.nodes().iter().enumerate() {
        if node.own == 0 {
            continue;
        }
        let mut sample = Sample {
            value: vec![i64::try_from(node.own).unwrap_or(i64::MAX)],
            ..Sample::default()
        };
        for step in tree.steps(number) {
            match step {
                Step::Function(frame) => sample.location_id.push(u64::from(frame.0) + 1),
                Step::Thread(_) => sample.label.push(Label {
                    key: thread,
                    str: strings.number(tree.name(step, frames)),
                }),
            }
        }
        profile.sample.push(sample);
    }
    profile.string_table = strings.list;
    out.write_all(&profile.encode_to_vec())
}
