//! Errata that more than a line makes (Appendix E).

use super::{Before, Unit};
use crate::event::At;
use crate::rtit::event::Client;
use crate::state::{Reader, RestoreError, Writer};
use alloc::vec::Vec;
use cofi_packet::{Ip, MAX_PACKET};

/// E8 applies to no more packets after a PSB.
const MOST_SCRAMBLED: u64 = 21;

/// The packets that follow a PSB, of which E8 spoils one when there are as many as it wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scramble {
    wanted: u8,
    packets: Vec<HeldPacket>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldPacket {
    len: u8,
    bytes: [u8; MAX_PACKET],
}

impl HeldPacket {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Unit {
    /// Whether what may happen happens this time.
    pub(super) const fn sometimes(&mut self) -> bool {
        self.choices.seed == 0 || self.dice.below(2) == 0
    }

    /// What FUP.FAR of a far transfer instruction has for NLIP: with more than 3 prefixes, perhaps an address within (E1).
    pub(super) const fn far_nlip(&mut self, at: At, prefixes: u8) -> Ip {
        let len = at.next.0.wrapping_sub(at.ip.0);
        // Between the first byte and the last.
        if !self.choices.errata.e1 || prefixes <= 3 || len < 3 || len > 15 {
            return at.next;
        }
        Ip(at.ip.0.wrapping_add(1 + self.dice.below(len - 2)))
    }

    /// E2: FUP.PGD although PacketEn was 0 before.
    pub(super) fn extra_pgd(
        &mut self,
        client: &mut impl Client,
        before: Before,
        ip: Ip,
        stops: bool,
    ) {
        let status = self.regs.status;
        let is_off = !before.packet_en && (!self.cached.packet_en || stops);
        let leaves = before.status.filter_en() && !status.filter_en();
        let begins = !before.status.context_en() && status.context_en()
            || !before.status.trigger_en() && status.trigger_en();
        // Without TriggerEn there are no packets at all (2.1.1).
        let happens = status.trigger_en() && is_off && (leaves || stops) && begins;
        if self.choices.errata.e2 && happens {
            self.pgd(client, ip);
        }
    }

    /// A PSB was sent, whose followers E8 may muddle.
    pub(super) fn begin_scramble(&mut self) {
        if self.choices.errata.e8 && self.sometimes() {
            self.scramble = Some(Scramble {
                wanted: 2 + self.dice.below(MOST_SCRAMBLED - 1) as u8,
                packets: Vec::new(),
            });
        }
    }

    /// Holds a packet back if E8 is at work.
    pub(super) fn hold(&mut self, client: &mut impl Client, bytes: &[u8]) -> bool {
        let Some(scramble) = &mut self.scramble else {
            return false;
        };
        let mut held = HeldPacket {
            len: bytes.len() as u8,
            bytes: [0; MAX_PACKET],
        };
        held.bytes[..bytes.len()].copy_from_slice(bytes);
        scramble.packets.push(held);
        if scramble.packets.len() >= scramble.wanted.into() {
            self.end_scramble(client);
        }
        true
    }

    /// So many bytes are held back.
    pub(super) fn held(&self) -> usize {
        self.scramble.as_ref().map_or(0, |scramble| {
            let packets = scramble.packets.iter();
            packets.map(|packet| usize::from(packet.len)).sum()
        })
    }

    /// What was held back goes on: the youngest overwrites an older packet, or precedes it.
    pub(super) fn end_scramble(&mut self, client: &mut impl Client) {
        let Some(Scramble { mut packets, .. }) = self.scramble.take() else {
            return;
        };
        let last = packets.len().saturating_sub(1);
        if last > 0 {
            let older = self.dice.below(last as u64) as usize;
            if let Some(youngest) = packets.pop() {
                match self.dice.below(2) {
                    0 => packets[older] = youngest,
                    _ => packets.insert(older, youngest),
                }
            }
        }
        for packet in packets {
            self.hand_on(client, packet.bytes());
        }
    }
}

impl Scramble {
    pub(super) fn save(&self, writer: &mut Writer) {
        writer.u8(self.wanted);
        writer.u8(self.packets.len() as u8);
        for packet in &self.packets {
            writer.u8(packet.len);
            writer.bytes(packet.bytes());
        }
    }

    pub(super) fn restore(reader: &mut Reader<'_>) -> Result<Self, RestoreError> {
        let most = MOST_SCRAMBLED as usize;
        let wanted = reader.len("how many packets E8 wants", most)? as u8;
        let count = reader.len("the number of packets that E8 holds", most)?;
        let mut packets = Vec::new();
        for _ in 0..count {
            let len = reader.len("the length of a packet that E8 holds", MAX_PACKET)?;
            let mut held = HeldPacket {
                len: len as u8,
                bytes: [0; MAX_PACKET],
            };
            held.bytes[..len].copy_from_slice(reader.bytes(len, "a packet that E8 holds")?);
            packets.push(held);
        }
        Ok(Self { wanted, packets })
    }
}
