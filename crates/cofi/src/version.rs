//! What `cofi --version` says.

/// The version with its commit, if that is known, and what can run a program.
#[cfg(can_record)]
pub(crate) const LONG: &str = concat!(
    env!("COFI_VERSION"),
    "\nengines of `cofi record`: hardware, ptrace, qemu, qemu-system; machines with Intel PT: `cofi machine`",
    "\n`cofi doctor` tells which of them work here"
);

/// The version with its commit, if that is known.
#[cfg(not(can_record))]
pub(crate) const LONG: &str = concat!(
    env!("COFI_VERSION"),
    "\nreads traces; records on x86-64 Linux alone"
);
