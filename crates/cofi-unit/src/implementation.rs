//! What the chapter leaves to the implementation, as a value.

/// How TNT results are sent: "an implementation may choose to use long TNTs, short TNTs, or both" (33.4.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TntForm {
    /// Short packets of up to 6 results.
    #[default]
    Short,
    /// Long packets of up to 47 results.
    Long,
    /// Up to 47 results are gathered; 6 and fewer go in a short packet, more in a long one.
    Both,
}

/// How IPs are compressed, "an optional compression technique the processor may choose to employ" (33.4.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IpCompression {
    /// Every IP in its shortest form; the first after a PSB whole, as processors send it.
    #[default]
    Shortest,
    /// As [`IpCompression::Shortest`], and the first after a PSB too is compressed, against zero.
    AgainstZero,
    /// Every IP whole.
    Off,
}

/// The processor's internal buffer (33.3.8), from which packets drain to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InternalBuffer {
    /// Its size in bytes, at least 64.
    pub size: u32,
    /// So many bytes drain...
    pub drain_bytes: u32,
    /// ...in so many core clock cycles. Zero: nothing drains by itself, only by [`crate::Unit::drain`] and when TraceEn is
    /// cleared.
    pub drain_cycles: u32,
    /// An overflow is resolved when no more than so many bytes are left in the buffer.
    pub resume_at: u32,
}

/// The choices that the chapter leaves to the processor. The default is the plainest processor: short TNTs, no deferred
/// TIPs, a cycle counter and an internal buffer without limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Implementation {
    /// The form of TNT packets.
    pub tnt: TntForm,
    /// The TIPs of near indirect JMP and CALL wait until their TNT is full (33.4.2.3). Not while CYCEn is set, as their
    /// times would be lost.
    pub deferred_tips: bool,
    /// The form of IPs.
    pub ip_compression: IpCompression,
    /// Width of the cycle counter in bits, 6 to 63, before whose wrap a stand-alone CYC is sent (33.3.6); `None` is a
    /// counter that never wraps.
    pub cycle_counter_bits: Option<u8>,
    /// Setting TraceEn sends MODE.Exec even where ContextEn stays 0, as case 1 of Table 33-56 has it, and against the
    /// dependencies of Table 33-26.
    pub mode_exec_on_enable: bool,
    /// While TraceEn is set, RDMSR of IA32_RTIT_OUTPUT_BASE, IA32_RTIT_OUTPUT_MASK_PTRS and of
    /// IA32_RTIT_STATUS.PacketByteCnt returns what they held when it was set (33.2.8.1: "may return stale values").
    pub stale_reads: bool,
    /// The internal buffer; `None` is one that never overflows and hands every packet on at once.
    pub buffer: Option<InternalBuffer>,
}
