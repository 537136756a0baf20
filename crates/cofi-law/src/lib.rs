//! The law: decode(trace(execution)) = execution, tested over generated programs
