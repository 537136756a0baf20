//! What keeps the output from holding all that was to be traced.

/// What keeps the output from holding all that was to be traced: [`Unit::check_output`](crate::Unit::check_output).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// IA32_RTIT_STATUS.Error: the table or the write pointer is malformed, or lies where no output may be (33.3.10).
    #[error("the output is misconfigured: IA32_RTIT_STATUS.Error is set (33.3.10)")]
    Operational,
    /// IA32_RTIT_STATUS.Stopped: a region with STOP is full (33.2.7.2), or a TraceStop range was entered (33.2.5.3).
    #[error("tracing has stopped: IA32_RTIT_STATUS.Stopped is set (33.2.7.2, 33.2.5.3)")]
    Stopped,
    /// Packets found no room in the internal buffer (33.3.8).
    #[error("packets were lost in {count} overflows of the internal buffer (33.3.8)")]
    Overflow {
        /// How often, an overflow that lasts included.
        count: u64,
    },
}
