//! What the unit asks of whoever embeds it.

/// A physical address, to which trace output is stored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PhysAddr(pub u64);

/// The processor's clocks at one moment (33.8.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Clock {
    /// The time stamp counter, as RDTSC would return it. The core crystal clock (ART) follows from it by
    /// [`crate::CrystalRatio`].
    pub tsc: u64,
    /// Core clock cycles, from any origin.
    pub cycles: u64,
}

/// The world around the unit.
pub trait Client {
    /// The time at which the present instruction or event happens. It must not run backwards.
    fn now(&mut self) -> Clock;
    /// Stores trace output. Stores come in stream order; a circular region wraps around.
    fn store(&mut self, address: PhysAddr, bytes: &[u8]);
}
