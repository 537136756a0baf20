//! What to record, and what can go wrong.

use super::gates::Window;
use super::thread::Setup;
use cofi_perf::{Subject, TraceConfig, WriteError};
use cofi_unit::{Capabilities, Ctl, Fault, rtit};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What to record and where to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The perf.data file.
    pub file: PathBuf,
    /// Also the bare packets of the first thread.
    pub raw_output: Option<PathBuf>,
    /// The trace's configuration, which says of which format it is.
    pub config: TraceConfig,
    /// The command line that is recorded, for the file's header.
    pub command_line: Vec<String>,
    /// Whose trace it is.
    pub subject: Subject,
    /// The engine, by its name on the command line.
    pub engine: String,
    /// How long what was recorded may wait to be written: if the recorder is killed, no more is lost.
    pub patience: Duration,
    /// Of each thread only so many of the last bytes of packets are kept, and written when the recording ends.
    pub last: Option<u64>,
    /// What of each process is traced, if not all.
    pub window: Option<Window>,
}

impl Settings {
    /// What the processes that this engine runs do, as a whole.
    #[must_use]
    pub fn new(
        file: impl Into<PathBuf>,
        config: impl Into<TraceConfig>,
        engine: impl Into<String>,
    ) -> Self {
        Self {
            file: file.into(),
            raw_output: None,
            config: config.into(),
            command_line: Vec::new(),
            subject: Subject::Processes,
            engine: engine.into(),
            patience: Self::PATIENCE,
            last: None,
            window: None,
        }
    }
}

/// Why a recording cannot begin or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The trace unit refuses the configuration.
    #[error("the software trace unit does not have what --config asks for")]
    Unit(#[from] Fault),
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The perf.data file cannot be written.
    #[error("cannot write {}", path.display())]
    Perf {
        /// The file.
        path: PathBuf,
        /// Why.
        source: WriteError,
    },
}

impl RecordError {
    /// The file at `path` cannot be written.
    pub(super) fn of(path: &Path, source: WriteError) -> Self {
        let path = path.to_owned();
        match source {
            WriteError::Io(source) => Self::Write { path, source },
            source => Self::Perf { path, source },
        }
    }

    /// In one sentence, with the cause.
    #[must_use]
    pub fn sentence(&self) -> String {
        match self {
            Self::Unit(_) => self.to_string(),
            Self::Write { source, .. } => format!("{self}: {source}"),
            Self::Perf { source, .. } => format!("{self}: {source}"),
        }
    }
}

/// The core:bus ratio and the maximum non-turbo ratio alike: the virtual core clock and the TSC run at one speed.
pub(super) const CORE_BUS_RATIO: u8 = 20;

impl Settings {
    /// For how long what was recorded waits to be written, mostly.
    pub const PATIENCE: Duration = Duration::from_millis(500);

    /// The processor that the recorder models: without what no engine tells of, so that asking for it is refused.
    #[must_use]
    pub fn capabilities() -> Capabilities {
        let mut caps = Capabilities::default();
        caps.ptwrite = false;
        caps.power_event = false;
        caps.event_trace = false;
        caps.tnt_disable = false;
        caps
    }

    /// What each thread's trace unit is to be.
    pub(super) fn setup(&self) -> Setup {
        let (os, user) = match self.subject {
            Subject::Processes => (false, true),
            Subject::Guest { os, user } => (os, user),
        };
        let core_bus_ratio = CORE_BUS_RATIO;
        match self.config {
            // The bits of the PMU's config are the register's own, but for bit 0.
            TraceConfig::Pt(config) => Setup::Pt {
                ctl: Ctl(config.bits() & !1).with_os(os).with_user(user),
                caps: Self::capabilities(),
                core_bus_ratio,
            },
            TraceConfig::Rtit(config) => Setup::Rtit {
                ctl: rtit::Ctl(config.bits()).with_os(os).with_user(user),
                pkt_cnt: config.pkt_cnt(),
                core_bus_ratio,
            },
        }
    }
}
