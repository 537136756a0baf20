//! perf.data: read and write, with Processor Trace and its sideband
