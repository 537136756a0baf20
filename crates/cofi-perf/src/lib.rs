//! perf.data: read and write, with Processor Trace and its sideband

mod config;
mod constants;
mod error;
mod time;
mod write;

pub use config::{ConfigError, PtConfig};
pub use constants::{CpuMode, Feature, Misc, RecordKind, SampleType};
pub use error::{Error, ErrorKind, WriteError};
pub use time::{PerfTime, TimeConv};
pub use write::{Mmap2, Options, Task, Writer};
