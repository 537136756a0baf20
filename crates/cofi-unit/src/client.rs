//! What the unit asks of whoever embeds it.

use cofi_packet::intel::Kind;

/// A physical address, to which trace output is stored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PhysAddr(pub u64);

/// The processor's clocks at one moment (33.8.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Clock {
    /// The time stamp counter of VMX root operation. The core crystal clock (ART) follows from it by
    /// [`crate::CrystalRatio`]; the offset and the scaling that a guest sees are the unit's to add
    /// ([`crate::GuestTsc`]).
    pub tsc: u64,
    /// Core clock cycles, from any origin. They do not count while the processor sleeps (33.3.6.1).
    pub cycles: u64,
}

/// The world around the unit: clocks, memory, the interrupt controller.
///
/// Only [`Client::now`] and [`Client::store`] are asked of everybody; each other method says which feature needs it.
pub trait Client {
    /// The time at which the present instruction or event happens. It must not run backwards.
    fn now(&mut self) -> Clock;

    /// Stores trace output to physical memory: one or more packets, or a part of one. Stores come in stream order; a circular region wraps
    /// around.
    fn store(&mut self, address: PhysAddr, bytes: &[u8]);

    /// As [`Client::store`], of `len` bytes, at most sixteen, the first in the lowest bits of `word`, which has zeros above the last. They are one
    /// or more packets, but no PSB. It is there for speed: a client that appends to a buffer can write all sixteen, which takes no look at
    /// `len`. (Not one that writes to memory at `address`: what is behind these bytes there is not to change.)
    #[inline]
    fn store_short(&mut self, address: PhysAddr, word: u128, len: usize) {
        self.store(address, &word.to_le_bytes()[..len]);
    }

    /// The time at which a packet of this kind of the present operation is made. Differs from [`Client::now`] only where
    /// one operation takes so long that its packets have different times (33.3.6.2, Example 33-2).
    #[inline]
    fn packet_time(&mut self, kind: Kind) -> Clock {
        let _ = kind;
        self.now()
    }

    /// Reads an entry of a Table of Physical Addresses, 8 bytes, little-endian (33.2.7.2). Needed for ToPA output. The
    /// default reads all ones, as from restricted memory, which is a malformed entry.
    fn load(&mut self, address: PhysAddr) -> u64 {
        let _ = address;
        u64::MAX
    }

    /// Whether any of the `len` bytes (at least one) from `address` on lies in memory to which the platform lets no trace output go: the SMRR
    /// regions, and outside SMM whatever the SMM handler uses (33.2.7.4). The default knows of none.
    fn is_restricted(&mut self, address: PhysAddr, len: u64) -> bool {
        let _ = (address, len);
        false
    }

    /// Trace output that would have gone to restricted memory was dropped (Table 33-5); the write pointer moved on. The default does nothing.
    fn dropped(&mut self, address: PhysAddr, bytes: &[u8]) {
        let _ = (address, bytes);
    }

    /// Hands trace output to the platform's trace transport subsystem (33.2.7.3). Needed where FabricEn can be set. The
    /// default drops it.
    fn transport(&mut self, bytes: &[u8]) {
        let _ = bytes;
    }

    /// A ToPA PMI: signals the performance-monitoring interrupt of the local APIC and sets
    /// IA32_PERF_GLOBAL_STATUS.Trace_ToPA_PMI\[55\] (33.2.7.2). Needed for ToPA entries with INT=1. The default ignores it.
    fn topa_pmi(&mut self) {}
}
