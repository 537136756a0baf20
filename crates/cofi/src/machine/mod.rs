//! `cofi machine`: a virtual machine whose guest has Intel PT.

mod processor;

use crate::Ended;
use crate::args::{MachineArgs, MachineClock};
use anyhow::{Context, Result};
use cofi_capture::child::ask;
use cofi_machine::{Machine, Qemu};
use processor::Processor;
use std::process::Command;
use std::time::Duration;

/// How long QEMU may take to say its version.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a program says, or why it says nothing.
pub(crate) fn said_by(command: &mut Command, patience: Duration) -> Result<String, String> {
    let answer = ask(command, patience).map_err(|error| error.to_string())?;
    if answer.status.success() {
        return Ok(answer.stdout);
    }
    let words = answer.stderr.lines().next().unwrap_or("it says nothing");
    Err(format!("{}: {words}", answer.status))
}

/// Becomes QEMU: its terminal, its signals and its exit status are the machine's.
pub(crate) fn run(args: MachineArgs) -> Result<Ended> {
    let processor = Processor::new(&args.processor, &args.caps, &args.unit_option)?;
    let qemu = Qemu::find(args.qemu.as_deref(), &|command| said_by(command, PATIENCE))?;
    if let Some(folder) = &args.list {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let machine = Machine {
        processor: processor.name,
        settings: processor.settings,
        is_virtual: args.clock == MachineClock::Virtual,
        says: args.verbose,
        list: args.list,
        arguments: args.arguments,
    };
    Err(machine.exec(&qemu).into())
}
