#![doc = include_str!("../README.md")]
//! # Parts
//!
//! [`Qemu::find`] looks for a QEMU that takes the plugin (`cofi-machine-plugin`), [`Machine`] is what is to be run, and [`Machine::exec`] becomes that QEMU.

mod arguments;
mod find;

pub use find::{Ask, Qemu, QemuError};

use lzma_rust2::LzipReader;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The plugin, packed.
const PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/plugin.so.lz"));

/// Why a machine cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The plugin sees nothing of machines that the processor itself runs.
    #[error(
        "{argument:?} lets the processor itself run the machine, and it has no trace unit of Cofi's: leave it out"
    )]
    Accelerated {
        /// The argument.
        argument: OsString,
    },
    /// A saved machine has no state of trace units.
    #[error(
        "{argument:?} goes on with a machine that was saved, and what its trace units held was not: start it anew"
    )]
    Saved {
        /// The argument.
        argument: OsString,
    },
    /// `-cpu` without a word behind it.
    #[error("\"-cpu\" must be followed by a processor")]
    NoProcessor,
    /// QEMU names its plugins the processor for which a block was translated then, and not the one that runs it.
    #[error(
        "one thread of QEMU's (-icount, thread=single) cannot run several processors with Cofi's trace units: leave -smp out, or have a thread for each"
    )]
    OneThread,
    /// The time of instructions is no constant.
    #[error(
        "-icount {argument:?} does not say how long an instruction takes, which the clock of instructions must know: say -icount shift=N, with N from 0 to 10"
    )]
    NoShift {
        /// What follows `-icount`.
        argument: OsString,
    },
    /// There is no memory for the plugin.
    #[error("cannot put the plugin into memory")]
    Plugin(#[source] io::Error),
    /// QEMU does not start.
    #[error("cannot run {}", path.display())]
    Launch {
        /// The program.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A machine with Intel PT.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The generation of the processors' trace units, as `cofi unit generations` names them; `silvermont` and `airmont` have RTIT.
    pub processor: String,
    /// What is otherwise with them: `caps.NAME=VALUE` for a capability, `unit.NAME=VALUE` for a choice of the unit's.
    pub settings: Vec<String>,
    /// The time stamp counter is of instructions that ran, and not the host's.
    pub is_virtual: bool,
    /// QEMU says at the end what was traced.
    pub says: bool,
    /// A folder in which each processor's list of the instructions is written that ran while PacketEn was 1: `cpuN.ips`, with eight bytes for the
    /// address of each.
    pub list: Option<PathBuf>,
    /// QEMU's own arguments.
    pub arguments: Vec<OsString>,
}

impl Machine {
    /// The command that is the machine, and the plugin, which must stay open until it runs.
    ///
    /// # Errors
    /// [`MachineError`] where the arguments are not for such a machine, or there is no memory for the plugin.
    pub fn command(&self, qemu: &Qemu) -> Result<(Command, File), MachineError> {
        let arguments = arguments::with_processor(&self.arguments)?;
        if arguments::share_a_thread(&arguments) {
            return Err(MachineError::OneThread);
        }
        let plugin = in_memory(PLUGIN).map_err(MachineError::Plugin)?;
        let mut command = qemu.command();
        let says = if self.says { "on" } else { "off" };
        let mut words = OsString::from(format!(
            "/proc/self/fd/{},processor={},says={says}",
            plugin.as_raw_fd(),
            self.processor
        ));
        if self.is_virtual {
            let shift = arguments::shift(&self.arguments)?.unwrap_or(0);
            words.push(format!(",clock={shift}"));
        }
        for setting in &self.settings {
            words.push(",");
            words.push(arguments::value(setting.as_ref()));
        }
        if let Some(folder) = &self.list {
            words.push(",list=");
            words.push(arguments::value(folder.as_os_str()));
        }
        command.arg("-plugin").arg(words).args(arguments);
        Ok((command, plugin))
    }

    /// Becomes QEMU. It returns only if that fails.
    #[must_use]
    pub fn exec(&self, qemu: &Qemu) -> MachineError {
        match self.command(qemu) {
            Ok((mut command, _plugin)) => MachineError::Launch {
                path: qemu.path().to_owned(),
                source: command.exec(),
            },
            Err(error) => error,
        }
    }
}

/// A file that is in memory only, and open in programs that are executed, with what was packed.
fn in_memory(packed: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"cofi-machine-plugin", MFdFlags::empty())?);
    io::copy(&mut LzipReader::new(packed), &mut file)?;
    Ok(file)
}
