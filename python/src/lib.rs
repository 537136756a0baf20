//! Cofi for Python: what the module `cofi` is made of.
//!
//! A recording is opened, and its streams are iterated over in batches: arrays of NumPy's, no object for each instruction. While a batch is decoded, other
//! threads of Python run.

mod arrow;
mod batches;
mod calls;
mod columns;
mod events;
mod flow;
mod names;
mod owner;
mod packets;
mod recording;
mod unit;

use pyo3::prelude::*;

#[pymodule]
mod _cofi {
    use super::*;

    #[pymodule_export]
    use super::calls::{CallBatch, Calls};
    #[pymodule_export]
    use super::events::{PyEvent, PyGap};
    #[pymodule_export]
    use super::flow::{BlockBatch, Blocks, Events, InstructionBatch, Instructions};
    #[pymodule_export]
    use super::packets::{Packet, assemble, packets};
    #[pymodule_export]
    use super::recording::{CofiError, PyRecording, StreamCheck, Summary, Thread, open};
    #[pymodule_export]
    use super::unit::{Fault, OutputLost, PyUnit};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let classes: Vec<_> = cofi_insn::Class::ALL
            .iter()
            .map(|class| class.name())
            .collect();
        module.add("CLASSES", classes)?;
        module.add("CALL_KINDS", super::calls::KINDS.to_vec())?;
        module.add("CALL_LEFT", super::calls::LEFT.to_vec())?;
        module.add("NO_CALL", super::calls::NO_CALL)?;
        module.add("NO_TIME", super::flow::NO_TIME)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
