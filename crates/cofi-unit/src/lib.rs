//! The trace unit of Processor Trace as an executable model
