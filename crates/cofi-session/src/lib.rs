//! Joins trace, sideband and code into the flow of every thread
