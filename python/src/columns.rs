//! Batches as classes of Python: the vectors that a thread fills while it decodes, each as an array of NumPy.

use crate::events::PyGap;
use pyo3::prelude::*;

/// What a batch has beside its columns.
pub(crate) trait Beside {
    /// The same, as Python has it.
    type Shown;

    fn show(self, py: Python<'_>) -> PyResult<Self::Shown>;

    /// What `repr` says of it.
    fn words(shown: &Self::Shown) -> String;
}

/// The number of the first.
impl Beside for u64 {
    type Shown = Self;

    fn show(self, _: Python<'_>) -> PyResult<Self> {
        Ok(self)
    }

    fn words(first: &Self) -> String {
        format!(" from number {first}")
    }
}

/// What is missing before it.
impl Beside for Option<PyGap> {
    type Shown = Option<Py<PyGap>>;

    fn show(self, py: Python<'_>) -> PyResult<Self::Shown> {
        self.map(|gap| Py::new(py, gap)).transpose()
    }

    fn words(gap: &Self::Shown) -> String {
        let words = gap.as_ref().map(|_| ", behind a gap");
        words.unwrap_or_default().to_owned()
    }
}

/// `batch! { CLASS of COLUMNS { NAME: TYPE, … } beside { NAME: TYPE, … } }`: the structure COLUMNS with a vector of each TYPE, and the class that
/// has an array of each. What is beside them implements [`Beside`].
macro_rules! batch {
    (
        $(#[$doc:meta])*
        $class:ident of $columns:ident { $($name:ident: $type:ty),* $(,)? }
        beside { $($beside:ident: $kept:ty),* $(,)? }
    ) => {
        #[derive(Default)]
        struct $columns {
            $($name: Vec<$type>,)*
            $($beside: $kept,)*
        }

        $(#[$doc])*
        #[pyclass(module = "cofi", frozen)]
        pub(crate) struct $class {
            $($name: Py<numpy::PyArray1<$type>>,)*
            $(
                #[pyo3(get)]
                $beside: <$kept as crate::columns::Beside>::Shown,
            )*
            len: usize,
        }

        impl $class {
            fn new(py: Python<'_>, columns: $columns) -> PyResult<Self> {
                let lens = [$(columns.$name.len()),*];
                Ok(Self {
                    $($name: numpy::IntoPyArray::into_pyarray(columns.$name, py).unbind(),)*
                    $($beside: crate::columns::Beside::show(columns.$beside, py)?,)*
                    len: lens[0],
                })
            }
        }

        #[pymethods]
        impl $class {
            $(
                #[getter]
                fn $name<'py>(&self, py: Python<'py>) -> Bound<'py, numpy::PyArray1<$type>> {
                    self.$name.bind(py).clone()
                }
            )*

            fn __len__(&self) -> usize {
                self.len
            }

            fn __repr__(&self) -> String {
                let beside: &[String] =
                    &[$(<$kept as crate::columns::Beside>::words(&self.$beside)),*];
                format!("<{} of {}{}>", stringify!($class), self.len, beside.concat())
            }
        }
    };
}

pub(crate) use batch;
