//! The packets of Intel PT (33.4.2): decode, encode, print, last IP, synchronisation.

mod field;
mod ip;
mod last_ip;
mod stream;
mod table;
mod tnt;
mod value;

pub use field::{Cr3, Field, Hex64, TsxState, Uint, VmcsBase};
pub use ip::{IpPayload, U48};
pub use last_ip::LastIp;
pub use stream::{Item, Packets, find_psb, sync_forward};
pub use table::{DecodeError, Decoded, Kind, MAX_PACKET, PSB, Packet, Raw, decode};
pub use tnt::Tnt;
pub use value::Value;

#[cfg(test)]
mod tests;
