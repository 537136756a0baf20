//! What code stood where, and when
