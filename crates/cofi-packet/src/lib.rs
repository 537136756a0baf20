//! The packet formats of Processor Trace: decode, encode and print, from one table each
