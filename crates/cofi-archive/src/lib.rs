#![doc = include_str!("../README.md")]

mod bare;
mod catalogue;
mod error;
mod manifest;
mod reader;
pub mod wire;
mod writer;

pub use bare::{BareArgs, BareError, BareRange, parse_cpu, rtit_mode, without_rtit};
pub use catalogue::{Added, Catalogue, Entry, Listed, MARKER, Pruned, RECORDINGS, Work};
pub use error::{ArchiveError, CatalogueError};
pub use manifest::{Kept, MANIFEST, Manifest, PackedFile};
pub use reader::Archive;
pub use writer::{Contents, write};
