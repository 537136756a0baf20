//! Engines that run a program and drive the trace unit
