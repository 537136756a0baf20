//! The code: what was mapped where, from which files, and its functions.

use std::sync::Arc;

use cofi_image::CodeFile;

use super::RECORDING;
use crate::columns::{Column, address, flag, number, text};
use crate::limits::Limits;
use crate::recording::Recording;
use crate::table::{Outlet, Table, Unit, Units};

/// A row for each piece of a file that was mapped.
#[derive(Debug)]
pub(super) struct Mappings;

const MAPPINGS: &[Column] = &[
    RECORDING,
    number(
        "pid",
        "the process; NULL of what all have, as the kernel's code",
    ),
    number(
        "version",
        "its place in the order of all that the file tells of mappings and threads",
    ),
    number(
        "time_ns",
        "when, in perf's nanoseconds; NULL of what was there before",
    ),
    address("first", "the first address"),
    address("last", "the last address"),
    text("file", "the file, as the mapping names it"),
    number(
        "file_offset",
        "the byte of the file that is at the first address",
    ),
    flag(
        "is_inherited",
        "it came with the whole address space, when the process was forked or executed another program",
    ),
];

impl Table for Mappings {
    fn name(&self) -> &'static str {
        "mappings"
    }

    fn about(&self) -> &'static str {
        "One row for each piece of a file that was mapped as code at any time. A later mapping takes the place of earlier ones at the same addresses. Nothing is decoded for it."
    }

    fn columns(&self) -> &'static [Column] {
        MAPPINGS
    }

    fn units(&self, recording: &Arc<Recording>, _: &Limits) -> Units {
        Units::whole(recording)
    }

    fn fill(&self, unit: &Unit, out: &mut Outlet) {
        let recording = &unit.recording;
        recording.session().for_each_mapped(|pid, time, mapped| {
            out.put(|row| {
                row.text(recording.name())
                    .number(pid.map(u64::from))
                    .number(mapped.version.0)
                    .number(time.map(|time| time.0))
                    .address(mapped.first.0)
                    .address(mapped.last.0)
                    .text(&*mapped.file.path().to_string_lossy())
                    .number(mapped.offset)
                    .flag(mapped.is_inherited);
            });
        });
    }
}

/// A row for each file of code that the trace names.
#[derive(Debug)]
pub(super) struct CodeFiles;

const CODE_FILES: &[Column] = &[
    RECORDING,
    text("file", "the file, as the mapping names it"),
    text(
        "build_id",
        "the build id that the trace tells of it, in hexadecimal; that of the file that was found if the trace tells none; NULL if there is none",
    ),
    text(
        "found_at",
        "where the file was found; NULL if it was not, or is in the recording",
    ),
    text(
        "problem",
        "why its code cannot be used, in a sentence; NULL if it can",
    ),
];

fn build_id(file: &CodeFile) -> Option<String> {
    let id = file.build_id().or_else(|| file.own_build_id())?;
    Some(id.to_string())
}

impl Table for CodeFiles {
    fn name(&self) -> &'static str {
        "code_files"
    }

    fn about(&self) -> &'static str {
        "One row for each file of code that the trace names. Each is looked for and opened; nothing is decoded."
    }

    fn columns(&self) -> &'static [Column] {
        CODE_FILES
    }

    fn units(&self, recording: &Arc<Recording>, _: &Limits) -> Units {
        Units::whole(recording)
    }

    fn fill(&self, unit: &Unit, out: &mut Outlet) {
        for file in unit.recording.session().code_files() {
            let problem = file.load().err().map(ToString::to_string);
            let found = file.found_at().map(|path| path.to_string_lossy());
            out.put(|row| {
                row.text(unit.recording.name())
                    .text(&*file.path().to_string_lossy())
                    .text(build_id(file).as_deref())
                    .text(found.as_deref())
                    .text(problem.as_deref());
            });
        }
    }
}

/// A row for each function that ran.
#[derive(Debug)]
pub(super) struct Functions;

const FUNCTIONS: &[Column] = &[
    RECORDING,
    text(
        "function",
        "its name, demangled; NULL for code outside of any function",
    ),
    text(
        "file",
        "the file that its code is in, `[generated]`, `[kernel]` or `[MODULE]`; NULL where nothing is mapped",
    ),
    address(
        "address",
        "its first address in the file's own terms; NULL for code outside of any function, and for generated code",
    ),
    number("instructions", "instructions of its own that ran"),
    number("entries", "how often its first instruction ran"),
];

impl Table for Functions {
    fn name(&self) -> &'static str {
        "functions"
    }

    fn about(&self) -> &'static str {
        "One row for each function that ran, as `cofi report --json` has them, of all threads together. All is decoded for it, once for `threads` and `functions`."
    }

    fn columns(&self) -> &'static [Column] {
        FUNCTIONS
    }

    fn units(&self, recording: &Arc<Recording>, _: &Limits) -> Units {
        Units::whole(recording)
    }

    fn fill(&self, unit: &Unit, out: &mut Outlet) {
        for function in &unit.recording.summary(out.threads).functions {
            let file = function.file.as_ref().map(|file| file.to_string_lossy());
            out.put(|row| {
                row.text(unit.recording.name())
                    .text(function.is_named.then_some(function.name.as_str()))
                    .text(file.as_deref())
                    .address(function.address)
                    .number(function.instructions)
                    .number(function.entries);
            });
        }
    }
}
