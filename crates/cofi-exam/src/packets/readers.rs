//! The readers of packets: Cofi, libipt through `ptpackets`, perf.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::listing::{self, Entry};
use super::perf;
use super::quirks::Who;
use crate::build;
use crate::run::patient;

/// The readers at hand.
pub(super) struct Readers {
    cofi: PathBuf,
    libipt: Result<PathBuf, String>,
    perf: Result<String, String>,
}

impl Readers {
    /// Builds them, except for a `cofi` that is there already.
    pub(super) fn new(root: &Path, folder: &Path, cofi: &Path) -> Self {
        Self {
            cofi: cofi.to_owned(),
            libipt: build::libipt_program(root, folder, "ptpackets"),
            perf: build::perf(),
        }
    }

    /// Why somebody cannot be asked.
    pub(super) fn missing(&self, who: Who) -> Option<&str> {
        match who {
            Who::Intent | Who::Manual => None,
            Who::Libipt => self.libipt.as_ref().err().map(String::as_str),
            Who::Perf => self.perf.as_ref().err().map(String::as_str),
        }
    }

    /// Cofi's list of the packets in a file.
    pub(super) fn cofi(&self, file: &Path) -> Result<Vec<Entry>> {
        let mut command = patient(&self.cofi);
        command.args(["dump", "--json", "--format", "pt"]).arg(file);
        listing::parse(&listen(command)?)
    }

    /// Cofi's list of the RTIT packets in a file.
    pub(super) fn rtit(&self, file: &Path, cycle_accurate: bool) -> Result<Vec<Entry>> {
        let mut command = patient(&self.cofi);
        command.args(["dump", "--json", "--format", "rtit"]);
        if cycle_accurate {
            command.arg("--cycle-accurate");
        }
        command.arg(file);
        listing::parse(&listen(command)?)
    }

    /// A peer's list; `None` when there is no such peer here.
    pub(super) fn peer(&self, who: Who, file: &Path, bytes: &[u8]) -> Result<Option<Vec<Entry>>> {
        match who {
            Who::Libipt => {
                let Ok(program) = &self.libipt else {
                    return Ok(None);
                };
                let mut command = patient(program);
                command.arg("dump").arg(file);
                listing::parse(&listen(command)?).map(Some)
            }
            Who::Perf if self.perf.is_ok() => {
                let data = file.with_extension("data");
                fs::write(&data, perf::file(bytes)?)
                    .with_context(|| format!("writing {}", data.display()))?;
                let mut command = patient(Path::new("perf"));
                command.args(["script", "-f", "-D", "-i"]).arg(&data);
                perf::parse(&listen(command)?).map(Some)
            }
            Who::Perf | Who::Intent | Who::Manual => Ok(None),
        }
    }
}

/// What a reader prints. Status 1 only says that its list holds errors.
fn listen(mut command: Command) -> Result<String> {
    let name = format!("{command:?}");
    let output = command
        .output()
        .with_context(|| format!("running {name}"))?;
    ensure!(
        matches!(output.status.code(), Some(0 | 1)),
        "{name}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    String::from_utf8(output.stdout).with_context(|| format!("{name} prints no text"))
}
