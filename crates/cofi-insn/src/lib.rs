//! Branch class, length and direct target of one x86 instruction
