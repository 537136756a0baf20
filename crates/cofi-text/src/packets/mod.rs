//! Packets as lines: the text form, in which `cofi asm` reads them, and JSON.

mod filter;
mod known;
mod lines;
mod objects;
mod text;

pub use filter::{Filter, UnknownPacket};
pub use known::{Family, IpForm, Known, Name};
pub use lines::{PacketLines, PacketStream};
pub use objects::describe;
pub use text::Text;
