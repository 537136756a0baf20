//! From packets and code to the exact flow of control
