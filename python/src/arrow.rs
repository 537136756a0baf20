//! Batches as Arrow has them, handed over by its PyCapsule interface: who takes them needs a library of Arrow, this module none.

use crate::batches::Batches;
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::{
    ArrowPrimitiveType, Int32Type, Int64Type, UInt8Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, PrimitiveArray, RecordBatch, RecordBatchReader, StructArray};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::sync::Arc;

/// A number that columns have.
pub(crate) trait Number: Copy + PartialEq {
    /// What Arrow calls its type.
    const TYPE: DataType;

    /// A column of so many rows, where `none` stands for nothing. All are nothing where there are no numbers, as nobody wanted them.
    fn column(values: Vec<Self>, none: Option<Self>, rows: usize) -> ArrayRef;
}

fn column<T: ArrowPrimitiveType>(
    values: Vec<T::Native>,
    none: Option<T::Native>,
    rows: usize,
) -> ArrayRef {
    if values.is_empty() {
        return Arc::new(PrimitiveArray::<T>::new_null(rows));
    }
    let has_none = none.is_some_and(|none| values.contains(&none));
    let known = has_none.then(|| values.iter().map(|value| Some(*value) != none).collect());
    Arc::new(PrimitiveArray::<T>::new(values.into(), known))
}

macro_rules! numbers {
    ($($native:ty: $type:ty),* $(,)?) => {
        $(impl Number for $native {
            const TYPE: DataType = <$type>::DATA_TYPE;

            fn column(values: Vec<Self>, none: Option<Self>, rows: usize) -> ArrayRef {
                column::<$type>(values, none, rows)
            }
        })*
    };
}

numbers! { u8: UInt8Type, u32: UInt32Type, u64: UInt64Type, i32: Int32Type, i64: Int64Type }

/// The columns of a batch.
pub(crate) trait Columns {
    /// Their names and types, and whether they may be nothing.
    fn fields() -> Vec<Field>;

    /// The columns, in the order of the fields.
    fn arrays(self) -> Vec<ArrayRef>;
}

fn schema<T: Columns>() -> SchemaRef {
    Arc::new(Schema::new(T::fields()))
}

fn refused(error: ArrowError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// The schema of batches with such columns, as a capsule.
pub(crate) fn schema_capsule<T: Columns>(py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(&*schema::<T>()).map_err(refused)?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

/// The two capsules of a batch, which is a structure of its columns there.
pub(crate) fn array_capsules<T: Columns>(
    py: Python<'_>,
    arrays: Vec<ArrayRef>,
) -> PyResult<(Bound<'_, PyCapsule>, Bound<'_, PyCapsule>)> {
    let batch = StructArray::try_new(T::fields().into(), arrays, None).map_err(refused)?;
    let array =
        PyCapsule::new_with_value(py, FFI_ArrowArray::new(&batch.to_data()), c"arrow_array")?;
    Ok((schema_capsule::<T>(py)?, array))
}

/// The batches that are still to come, as a capsule.
pub(crate) fn stream_capsule<'py, T: Columns + Send + 'static>(
    py: Python<'py>,
    batches: &Arc<Batches<T>>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let reader = Reader(batches.clone());
    PyCapsule::new_with_value(
        py,
        FFI_ArrowArrayStream::new(Box::new(reader)),
        c"arrow_array_stream",
    )
}

/// Reads batches without Python.
struct Reader<T>(Arc<Batches<T>>);

impl<T: Columns + Send + 'static> Iterator for Reader<T> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.0.receive() {
            Ok(batch) => {
                let columns = batch?.arrays();
                Some(RecordBatch::try_new(schema::<T>(), columns))
            }
            Err(failed) => Some(Err(ArrowError::ExternalError(Box::new(failed)))),
        }
    }
}

impl<T: Columns + Send + 'static> RecordBatchReader for Reader<T> {
    fn schema(&self) -> SchemaRef {
        schema::<T>()
    }
}
