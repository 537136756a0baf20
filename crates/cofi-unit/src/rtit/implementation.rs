//! What the programming reference leaves to the processor, and its errata, as values.

/// The processor's internal RTIT buffer (4.2.5), from which packets drain to the memory unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InternalBuffer {
    /// Its size in bytes, at least 32.
    pub size: u32,
    /// So many bytes drain...
    pub drain_bytes: u32,
    /// ...in so many core clock cycles. Zero: nothing drains by itself, only by [`super::Unit::drain`] and by what drains RTIT.
    pub drain_cycles: u32,
}

/// When output reaches memory (2.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lines {
    /// As soon as it leaves the internal buffer.
    #[default]
    Immediate,
    /// In lines of 64 bytes. A fence or a drain writes a line before it is filled.
    Lines,
    /// As [`Lines::Lines`], and younger lines may be written before older ones as far as 2.3.2 allows.
    Reordered,
}

/// The errata of Appendix E. Those that happen "in some cases" or "may" happen at any time (E3, E4, E5, E7, E8) happen when
/// [`Implementation::seed`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Errata {
    /// FUP.FAR of a far transfer instruction with more than 3 prefixes has an address inside the instruction.
    pub e1: bool,
    /// Extra FUP.PGD by IP filtering or TraceStop.
    pub e2: bool,
    /// A PSB may come one packet late.
    pub e3: bool,
    /// TraceStop detected during a buffer overflow may not clear TraceActive.
    pub e4: bool,
    /// FUP.BuffOvf may be followed by a TIP.
    pub e5: bool,
    /// Cycle counts are one too low.
    pub e6: bool,
    /// The first MTC after enabling may come at the wrong time.
    pub e7: bool,
    /// Packets after a PSB may be sent out of order or dropped.
    pub e8: bool,
}

impl Errata {
    /// All of them.
    pub const ALL: Self = Self {
        e1: true,
        e2: true,
        e3: true,
        e4: true,
        e5: true,
        e6: true,
        e7: true,
        e8: true,
    };
}

/// The choices that the reference leaves to the processor. The default is the plainest: no limit of the internal buffer, output
/// at once, no errata.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Implementation {
    /// The internal buffer; `None` is one that never overflows and hands every packet on at once.
    pub buffer: Option<InternalBuffer>,
    /// So many packets after a PSB that Pkt_Mask asked for are still compressed by what was before it: 0 to 4, more counts as 4
    /// (3.3.9).
    pub psb_effect_delay: u8,
    /// FUP.PGD is sent, too, when PacketEn becomes 0 because TriggerEn does (4.2.8: it "may not be generated").
    pub pgd_on_disable: bool,
    /// When output reaches memory.
    pub lines: Lines,
    /// The errata that the processor has.
    pub errata: Errata,
    /// Decides the order of re-ordered lines, and when an erratum that happens only sometimes does. The same seed does the same;
    /// with 0 such errata happen each time that they can.
    pub seed: u64,
}

impl Implementation {
    /// So many packets at most are compressed by what was before a PSB (3.3.9).
    pub(crate) const MOST_PSB_DELAY: u8 = 4;
}
