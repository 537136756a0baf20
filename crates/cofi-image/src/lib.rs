#![doc = include_str!("../README.md")]
//! # Parts
//!
//! - [`CodeFile`] is one file (or bytes saved from memory), read at most once, on first use; [`FileStore`] hands
//!   out one `CodeFile` a path and knows where else to look for a file that has moved.
//! - [`AddressSpace`] is the history of one process's mappings. Every change carries a [`Version`].
//! - [`ImageView`] is an address space at one version. It is a [`cofi_insn::CodeSource`], so an instruction decoder
//!   reads through it, and it names addresses by symbol.
//! - [`Kallsyms`] names the functions of a kernel, whose code no ELF file may hold.
//!
//! # What the caller must know
//!
//! Files are opened when code in them is first wanted, so a missing one is noticed late: the bytes then read as
//! unmapped, and [`FileStore::problems`] tells which files failed and why. A file that was replaced since the trace was
//! taken is recognised by its [`BuildId`], and not used; where the trace tells none, it yields wrong instructions.
//! [`Places`] says where else than at their paths files are looked for.

mod build_id;
mod contents;
mod debug;
mod elf;
mod error;
mod file;
mod jitdump;
mod kallsyms;
mod kernel;
mod landing_pads;
mod lazy;
mod line_reader;
mod line_table;
mod lines;
mod perf_map;
mod places;
mod sections;
mod source_functions;
mod space;
mod spec;
mod store;
mod stubs;
mod symbols;
mod tables;
mod tree;
mod unit_index;
mod vdso;
mod wanted_code;

pub use build_id::BuildId;
pub use elf::{ElfSegment, LoadedElf, load_elf, load_raw};
pub use error::ImageError;
pub use file::CodeFile;
pub use jitdump::{JitDump, JitEntry, is_jitdump};
pub use kallsyms::{Kallsyms, KallsymsError};
pub use kernel::{KernelCode, KernelHints};
pub use landing_pads::LandingPads;
pub use line_table::{LineRow, LineTable, SourceFunction};
pub use lines::{InlinedFunction, LineFinder, SourceLine};
pub use perf_map::PerfMap;
pub use places::Places;
pub use space::{AddressSpace, CodeChange, ImageView, Mapped, Place, Version};
pub use spec::{ElfSpec, Paging, RawSpec, SpecError, Within};
pub use store::FileStore;
pub use symbols::{Symbol, demangle};
