//! Events and gaps as Python has them, in the words of `cofi events --json`.

use cofi_flow::{Event, Field, FlowError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Something that happened between two instructions.
#[pyclass(name = "Event", module = "cofi", frozen)]
pub(crate) struct PyEvent {
    /// What: `enabled`, `async_branch`, `overflow`, …
    #[pyo3(get)]
    kind: &'static str,
    /// Where in the stream the last packet begins that was used up to here.
    #[pyo3(get)]
    offset: u64,
    /// The time stamp counter, as far as packets tell.
    #[pyo3(get)]
    tsc: Option<u64>,
    /// How many instructions ran before it.
    #[pyo3(get)]
    instructions: u64,
    fields: Vec<(&'static str, Field)>,
}

impl PyEvent {
    pub(crate) fn new(event: &Event, offset: u64, tsc: Option<u64>, instructions: u64) -> Self {
        let mut fields = Vec::new();
        event.fields(&mut |name, field| fields.push((name, field)));
        Self {
            kind: event.name(),
            offset,
            tsc,
            instructions,
            fields,
        }
    }
}

#[pymethods]
impl PyEvent {
    /// Its values, by the names that `cofi events --json` has.
    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, field) in &self.fields {
            match field {
                Field::Hex(value) | Field::Number(value) => dict.set_item(name, value)?,
                Field::Flag(flag) => dict.set_item(name, flag)?,
                Field::Text(text) => dict.set_item(name, text)?,
                // (The flow has no events with outcomes of branches.)
                _ => dict.set_item(name, py.None())?,
            }
        }
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        let fields: String = self
            .fields
            .iter()
            .map(|(name, field)| match field {
                Field::Hex(Some(value)) => format!(" {name}={value:#x}"),
                Field::Number(Some(value)) => format!(" {name}={value}"),
                Field::Flag(true) => format!(" {name}=True"),
                Field::Flag(false) => format!(" {name}=False"),
                Field::Text(text) => format!(" {name}={text:?}"),
                _ => format!(" {name}=None"),
            })
            .collect();
        format!("<Event {}{fields} offset={:#x}>", self.kind, self.offset)
    }
}

/// A place where a part of the flow is missing: nobody knows what ran there.
#[pyclass(name = "Gap", module = "cofi", frozen)]
pub(crate) struct PyGap {
    /// The word for its cause, as `cofi check` has it: `overflow`, `missing`, `no-code`, …
    #[pyo3(get)]
    kind: &'static str,
    /// The cause in a sentence.
    #[pyo3(get)]
    text: String,
    /// Where in the stream.
    #[pyo3(get)]
    offset: u64,
    /// The instruction reached last, if that is known.
    #[pyo3(get)]
    ip: Option<u64>,
    /// How many instructions are known to have run before it.
    #[pyo3(get)]
    instructions: u64,
}

impl PyGap {
    pub(crate) fn of_error(error: &FlowError, instructions: u64) -> Self {
        Self {
            kind: error.kind.name(),
            text: error.kind.to_string(),
            offset: error.offset.0,
            ip: error.ip.map(|ip| ip.0),
            instructions,
        }
    }

    pub(crate) fn of_overflow(offset: u64, instructions: u64) -> Self {
        Self {
            kind: "overflow",
            text: "the processor could not store packets fast enough".to_owned(),
            offset,
            ip: None,
            instructions,
        }
    }
}

#[pymethods]
impl PyGap {
    fn __repr__(&self) -> String {
        format!(
            "<Gap {} offset={:#x}: {}>",
            self.kind, self.offset, self.text
        )
    }
}
