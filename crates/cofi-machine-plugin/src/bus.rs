//! What a processor's trace unit asks for: the clock, the guest's memory, the interrupt controller.

use crate::clock::Source;
use crate::qemu::Qemu;
use alloc::vec::Vec;
use cofi_unit::{Client, Clock, PhysAddr, rtit};

/// So many bytes of packets wait at most to be stored together.
const MOST_WAITING: usize = 1024;
/// The local APIC, as processors find it after a reset, and registers in it.
const APIC: u64 = 0xfee0_0000;
const ICR_LOW: u64 = APIC + 0x300;
const LVT_PERFORMANCE: u64 = APIC + 0x340;
/// Bits of an LVT register and of the ICR: the delivery mode, the mask; "asserted" and "to myself".
const DELIVERY: u32 = 0x7ff;
const MASKED: u32 = 1 << 16;
const ASSERTED: u32 = 1 << 14;
const TO_SELF: u32 = 1 << 18;

/// The unit's surroundings.
#[derive(Debug)]
pub(crate) struct Bus {
    qemu: Qemu,
    clock: Source,
    now: u64,
    /// Packets that are to be stored from this address on.
    address: u64,
    waiting: Vec<u8>,
    /// A ToPA PMI has been signalled.
    pub(crate) has_pmi: bool,
    /// Bytes that were stored, and bytes for which there was no memory.
    pub(crate) stored: u64,
    pub(crate) lost: u64,
}

impl Bus {
    pub(crate) fn new(qemu: Qemu, clock: Source) -> Self {
        Self {
            qemu,
            clock,
            now: 0,
            address: 0,
            waiting: Vec::with_capacity(MOST_WAITING),
            has_pmi: false,
            stored: 0,
            lost: 0,
        }
    }

    pub(crate) fn qemu(&self) -> &Qemu {
        &self.qemu
    }

    /// Reads the clock.
    #[inline]
    pub(crate) fn tick(&mut self) {
        // Of two processors' counters, one may be behind a little.
        self.now = self.now.max(self.clock.now(&self.qemu));
    }

    /// Reads the clock, after time in which nothing may have run. Not in callbacks of code.
    pub(crate) fn tick_after_sleep(&mut self) {
        self.clock.catch_up(&self.qemu);
        self.tick();
    }

    /// The clock as it was read last.
    pub(crate) fn tsc(&self) -> u64 {
        self.now
    }

    /// Stores what waits.
    pub(crate) fn flush(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let len = self.waiting.len() as u64;
        if self.qemu.write_physical(self.address, &self.waiting) {
            self.stored += len;
        } else {
            self.lost += len;
        }
        self.waiting.clear();
    }

    /// Delivers a performance-monitoring interrupt through the local APIC, which masks it then.
    pub(crate) fn deliver_pmi(&self) {
        let mut entry = [0; 4];
        if !self.qemu.read_physical(LVT_PERFORMANCE, &mut entry) {
            return;
        }
        let entry = u32::from_le_bytes(entry);
        if entry & MASKED != 0 {
            return;
        }
        let command = entry & DELIVERY | ASSERTED | TO_SELF;
        self.qemu
            .write_physical(LVT_PERFORMANCE, &(entry | MASKED).to_le_bytes());
        self.qemu.write_physical(ICR_LOW, &command.to_le_bytes());
    }
}

impl Client for Bus {
    #[inline]
    fn now(&mut self) -> Clock {
        Clock {
            tsc: self.now,
            cycles: self.now,
        }
    }

    fn store(&mut self, PhysAddr(address): PhysAddr, bytes: &[u8]) {
        let end = self.address.wrapping_add(self.waiting.len() as u64);
        if address != end || self.waiting.len() + bytes.len() > MOST_WAITING {
            self.flush();
            self.address = address;
        }
        self.waiting.extend_from_slice(bytes);
    }

    fn load(&mut self, PhysAddr(address): PhysAddr) -> u64 {
        let mut bytes = [0xff; 8];
        self.qemu.read_physical(address, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn topa_pmi(&mut self) {
        self.has_pmi = true;
    }
}

impl rtit::Client for Bus {
    #[inline]
    fn now(&mut self) -> Clock {
        Client::now(self)
    }

    fn store(&mut self, address: PhysAddr, bytes: &[u8]) {
        Client::store(self, address, bytes);
    }
}
