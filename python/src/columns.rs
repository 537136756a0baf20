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

/// `batch! { CLASS of COLUMNS { NAME: TYPE = NONE, … } beside { NAME: TYPE, … } }`: the structure COLUMNS with a vector of each TYPE, and the class that
/// has an array of each, and all of them as Arrow has them. NONE, if it is there, is the number that stands for nothing. What is beside them implements [`Beside`].
macro_rules! batch {
    (
        $(#[$doc:meta])*
        $class:ident of $columns:ident { $($name:ident: $type:ty $(= $none:expr)?),* $(,)? }
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

        impl crate::arrow::Columns for $columns {
            fn fields() -> Vec<arrow_schema::Field> {
                vec![$(arrow_schema::Field::new(
                    stringify!($name),
                    <$type as crate::arrow::Number>::TYPE,
                    crate::columns::none!($type $(, $none)?).is_some(),
                )),*]
            }

            fn arrays(self) -> Vec<arrow_array::ArrayRef> {
                let lens = [$(self.$name.len()),*];
                vec![$(<$type as crate::arrow::Number>::column(
                    self.$name,
                    crate::columns::none!($type $(, $none)?),
                    lens[0],
                )),*]
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

            /// Arrow's description of the columns (the PyCapsule interface).
            fn __arrow_c_schema__<'py>(
                &self,
                py: Python<'py>,
            ) -> PyResult<Bound<'py, pyo3::types::PyCapsule>> {
                crate::arrow::schema_capsule::<$columns>(py)
            }

            /// The columns as Arrow has them: copies, as what others write into the arrays must not change these.
            #[pyo3(signature = (requested_schema = None))]
            fn __arrow_c_array__<'py>(
                &self,
                py: Python<'py>,
                requested_schema: Option<Bound<'py, PyAny>>,
            ) -> PyResult<(
                Bound<'py, pyo3::types::PyCapsule>,
                Bound<'py, pyo3::types::PyCapsule>,
            )> {
                // (Another schema is a wish, which one need not follow.)
                drop(requested_schema);
                let arrays = vec![$({
                    let array = numpy::PyArrayMethods::try_readonly(self.$name.bind(py))?;
                    let values = array.as_slice()?.to_vec();
                    <$type as crate::arrow::Number>::column(
                        values,
                        crate::columns::none!($type $(, $none)?),
                        self.len,
                    )
                }),*];
                crate::arrow::array_capsules::<$columns>(py, arrays)
            }

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

/// The number that stands for nothing, if there is one.
macro_rules! none {
    ($type:ty) => {
        None::<$type>
    };
    ($type:ty, $none:expr) => {
        Some::<$type>($none)
    };
}

pub(crate) use {batch, none};
