//! Packets: bytes to packets, and text to bytes.

use cofi_packet::intel::IntelPt;
use cofi_packet::rtit::{Mode, Rtit};
use cofi_packet::{Format, Listing, Packets, extent};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A packet, or bytes that are none.
#[pyclass(module = "cofi", frozen)]
pub(crate) struct Packet {
    /// Where it begins.
    #[pyo3(get)]
    offset: u64,
    /// How many bytes it has.
    #[pyo3(get)]
    size: usize,
    /// Its text, from which `assemble` makes the same bytes: `tip.pge 0x401000`; of bytes that are no packet, why.
    #[pyo3(get)]
    text: String,
    /// Whether it is none.
    #[pyo3(get)]
    is_error: bool,
}

#[pymethods]
impl Packet {
    /// The word with which the text begins: `tnt.8`, `tip`, `psb`, …; `error` of bytes that are no packet.
    #[getter]
    fn name(&self) -> &str {
        if self.is_error {
            return "error";
        }
        self.text.split(' ').next().unwrap_or_default()
    }

    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> String {
        format!("<Packet {:#x}: {}>", self.offset, self.text)
    }
}

fn list<F: Format>(bytes: &[u8], context: F::Context) -> Vec<Packet> {
    let mut listing = Listing::<F>::new();
    let mut all = Vec::new();
    for item in Packets::<F>::new(bytes).in_context(context) {
        let (offset, size) = extent(&item);
        let listed = listing.item(&item);
        let (text, is_error) = match (&item, listed) {
            (Ok(_), Some(listed)) => (listed.to_string(), false),
            (Err(error), _) => (error.error.to_string(), true),
            (Ok(_), None) => continue,
        };
        all.push(Packet {
            offset: offset.0,
            size,
            text,
            is_error,
        });
    }
    all
}

enum Family {
    Pt,
    Rtit(Mode),
}

fn family(format: &str, cycle_accurate: bool) -> PyResult<Family> {
    match (format, cycle_accurate) {
        ("pt", false) => Ok(Family::Pt),
        ("rtit", false) => Ok(Family::Rtit(Mode::Plain)),
        ("rtit", true) => Ok(Family::Rtit(Mode::CycleAccurate)),
        ("pt", true) => Err(PyValueError::new_err(
            "cycle_accurate concerns RTIT alone (format=\"rtit\")",
        )),
        _ => Err(PyValueError::new_err(format!(
            "format is {format:?}, and must be \"pt\" or \"rtit\""
        ))),
    }
}

/// The packets of a stream of bytes, which begins with a packet. Bytes that are none are told as such, up to the next PSB.
#[pyfunction]
#[pyo3(signature = (data, *, format="pt", cycle_accurate=false))]
pub(crate) fn packets(
    py: Python<'_>,
    data: &[u8],
    format: &str,
    cycle_accurate: bool,
) -> PyResult<Vec<Packet>> {
    let family = family(format, cycle_accurate)?;
    Ok(py.detach(|| match family {
        Family::Pt => list::<IntelPt>(data, Default::default()),
        Family::Rtit(mode) => list::<Rtit>(data, mode),
    }))
}

/// The bytes of packets that stand in a text, one in a line, as `cofi asm` reads them.
#[pyfunction]
#[pyo3(signature = (text, *, format="pt", cycle_accurate=false))]
pub(crate) fn assemble(
    py: Python<'_>,
    text: &str,
    format: &str,
    cycle_accurate: bool,
) -> PyResult<Vec<u8>> {
    let family = family(format, cycle_accurate)?;
    let bytes = py.detach(|| match family {
        Family::Pt => cofi_packet::assemble::<IntelPt, _>(text, Default::default()),
        Family::Rtit(mode) => cofi_packet::assemble::<Rtit, _>(text, mode),
    });
    bytes.map_err(|error| PyValueError::new_err(error.to_string()))
}
