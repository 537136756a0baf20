//! perf.data: read and write, with Processor Trace and its sideband

mod config;
mod constants;
mod error;
mod reader;
mod time;
mod writer;

pub use config::{ConfigError, PtConfig};
pub use constants::{CpuMode, Feature, Misc, RecordKind, SampleType};
pub use error::{Error, ErrorKind, WriteError};
pub use reader::{Attr, Body, File, IntelPtInfo, Record, Records, SampleId};
pub use time::{PerfTime, TimeConv};
pub use writer::{Mmap2, Options, Task, Writer};
