//! Columns as they are declared, and rows as they are put together into batches.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanBuilder, Int64Builder, RecordBatch, RecordBatchOptions, StringBuilder,
    UInt64Builder,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;

/// What a column holds. Each may be NULL: what the trace does not prove is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A text.
    Text,
    /// A count, an offset, a number or a time, signed so that differences are.
    Number,
    /// An address, unsigned.
    Address,
    /// True or false.
    Flag,
}

impl Kind {
    /// The type in Arrow and in Parquet.
    #[must_use]
    pub const fn data_type(self) -> DataType {
        match self {
            Self::Text => DataType::Utf8,
            Self::Number => DataType::Int64,
            Self::Address => DataType::UInt64,
            Self::Flag => DataType::Boolean,
        }
    }

    /// The type as SQL names it.
    #[must_use]
    pub const fn sql(self) -> &'static str {
        match self {
            Self::Text => "VARCHAR",
            Self::Number => "BIGINT",
            Self::Address => "BIGINT UNSIGNED",
            Self::Flag => "BOOLEAN",
        }
    }
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its name, which is never changed.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// What it means, with its unit.
    pub about: &'static str,
}

pub(crate) const fn text(name: &'static str, about: &'static str) -> Column {
    Column {
        name,
        kind: Kind::Text,
        about,
    }
}

pub(crate) const fn number(name: &'static str, about: &'static str) -> Column {
    Column {
        name,
        kind: Kind::Number,
        about,
    }
}

pub(crate) const fn address(name: &'static str, about: &'static str) -> Column {
    Column {
        name,
        kind: Kind::Address,
        about,
    }
}

pub(crate) const fn flag(name: &'static str, about: &'static str) -> Column {
    Column {
        name,
        kind: Kind::Flag,
        about,
    }
}

/// The schema of a table with these columns.
#[must_use]
pub fn schema_of(columns: &[Column]) -> SchemaRef {
    let fields = columns.iter().map(|column| {
        let field = Field::new(column.name, column.kind.data_type(), true);
        match column.kind {
            Kind::Address => field.with_metadata([(SHOWN.into(), HEX.into())].into()),
            _ => field,
        }
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// What a field says of how it is shown: it goes with the column wherever a query takes it as it is.
const SHOWN: &str = "cofi.shown";
const HEX: &str = "hex";

/// Whether the numbers of a field are shown in hexadecimal.
#[must_use]
pub fn is_address(field: &Field) -> bool {
    *field.data_type() == DataType::UInt64
        && field.metadata().get(SHOWN).is_some_and(|how| how == HEX)
}

/// The values of a column, as far as they have come.
#[derive(Debug)]
enum Values {
    /// Nobody wants them.
    Unwanted,
    Text(StringBuilder),
    Number(Int64Builder),
    Address(UInt64Builder),
    Flag(BooleanBuilder),
}

/// Rows that become a batch. Each row is given the values of all columns, in their order; those that nobody wants are not kept.
#[derive(Debug)]
pub struct Rows {
    values: Vec<Values>,
    /// Which columns the batch has, in which order.
    wanted: Vec<usize>,
    schema: SchemaRef,
    count: usize,
    /// The column that comes next in the row.
    next: usize,
    /// A value was of another kind than its column, or a row had too few or too many.
    is_wrong: bool,
}

impl Rows {
    /// No rows yet. `schema` is that of the `wanted` columns.
    #[must_use]
    pub fn new(columns: &[Column], wanted: Vec<usize>, schema: SchemaRef) -> Self {
        let values = columns.iter().enumerate().map(|(index, column)| {
            if !wanted.contains(&index) {
                return Values::Unwanted;
            }
            match column.kind {
                Kind::Text => Values::Text(StringBuilder::new()),
                Kind::Number => Values::Number(Int64Builder::new()),
                Kind::Address => Values::Address(UInt64Builder::new()),
                Kind::Flag => Values::Flag(BooleanBuilder::new()),
            }
        });
        Self {
            values: values.collect(),
            wanted,
            schema,
            count: 0,
            next: 0,
            is_wrong: false,
        }
    }

    /// How many rows there are.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Whether the column that comes next is wanted: what costs something need not be worked out for nobody.
    #[must_use]
    pub fn wants_next(&self) -> bool {
        !matches!(self.values.get(self.next), Some(Values::Unwanted))
    }

    /// Whether the column with this index is wanted.
    #[must_use]
    pub fn wants(&self, index: usize) -> bool {
        self.wanted.contains(&index)
    }

    fn next(&mut self) -> Option<&mut Values> {
        let at = self.next;
        self.next += 1;
        self.is_wrong |= at >= self.values.len();
        self.values.get_mut(at)
    }

    /// The next column: a text, or NULL.
    pub fn text<'v>(&mut self, value: impl Into<Option<&'v str>>) -> &mut Self {
        match self.next() {
            Some(Values::Text(values)) => values.append_option(value.into()),
            Some(Values::Unwanted) => {}
            _ => self.is_wrong = true,
        }
        self
    }

    /// The next column: a number, or NULL. So is one that is so large that it can only come from a damaged file.
    pub fn number(&mut self, value: impl Into<Option<u64>>) -> &mut Self {
        let value = value.into().and_then(|value| i64::try_from(value).ok());
        self.signed(value)
    }

    /// The next column: a number that may be negative, or NULL.
    pub fn signed(&mut self, value: impl Into<Option<i64>>) -> &mut Self {
        match self.next() {
            Some(Values::Number(values)) => values.append_option(value.into()),
            Some(Values::Unwanted) => {}
            _ => self.is_wrong = true,
        }
        self
    }

    /// The next column: an address, or NULL.
    pub fn address(&mut self, value: impl Into<Option<u64>>) -> &mut Self {
        match self.next() {
            Some(Values::Address(values)) => values.append_option(value.into()),
            Some(Values::Unwanted) => {}
            _ => self.is_wrong = true,
        }
        self
    }

    /// The next column: true or false, or NULL.
    pub fn flag(&mut self, value: impl Into<Option<bool>>) -> &mut Self {
        match self.next() {
            Some(Values::Flag(values)) => values.append_option(value.into()),
            Some(Values::Unwanted) => {}
            _ => self.is_wrong = true,
        }
        self
    }

    /// The row is complete.
    pub fn end(&mut self) {
        self.is_wrong |= self.next != self.values.len();
        self.next = 0;
        self.count += 1;
    }

    /// The rows so far as a batch; what comes is for the next one.
    ///
    /// # Errors
    /// When a row did not have the values of all columns.
    pub fn take(&mut self) -> Result<RecordBatch, ArrowError> {
        if self.is_wrong {
            let message = "a row does not fit its table".to_owned();
            return Err(ArrowError::SchemaError(message));
        }
        let values = &mut self.values;
        let arrays = self
            .wanted
            .iter()
            .map(|index| match values.get_mut(*index) {
                Some(Values::Text(values)) => Arc::new(values.finish()) as ArrayRef,
                Some(Values::Number(values)) => Arc::new(values.finish()),
                Some(Values::Address(values)) => Arc::new(values.finish()),
                Some(Values::Flag(values)) => Arc::new(values.finish()),
                _ => arrow::array::new_null_array(&DataType::Null, self.count),
            });
        let arrays: Vec<ArrayRef> = arrays.collect();
        // A batch without columns counts its rows all the same.
        let options = RecordBatchOptions::new().with_row_count(Some(self.count));
        self.count = 0;
        RecordBatch::try_new_with_options(self.schema.clone(), arrays, &options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::{Int64Type, UInt64Type};

    const COLUMNS: &[Column] = &[
        text("name", ""),
        number("count", ""),
        address("ip", ""),
        flag("fatal", ""),
    ];

    fn rows(wanted: &[usize]) -> Rows {
        let schema = schema_of(COLUMNS).project(wanted).expect("columns");
        Rows::new(COLUMNS, wanted.to_vec(), Arc::new(schema))
    }

    #[test]
    fn only_what_is_wanted_is_kept_in_the_wanted_order() {
        let mut rows = rows(&[2, 1]);
        assert!(!rows.wants_next());
        rows.text("f").number(7).address(u64::MAX).flag(true).end();
        rows.text(None::<&str>)
            .number(u64::MAX)
            .address(None::<u64>)
            .flag(None::<bool>)
            .end();
        let batch = rows.take().expect("a batch");
        assert_eq!(batch.num_rows(), 2);
        let ips = batch.column(0).as_primitive::<UInt64Type>();
        assert_eq!((ips.value(0), ips.is_null(1)), (u64::MAX, true));
        // No file that is sound has such a count.
        let counts = batch.column(1).as_primitive::<Int64Type>();
        assert_eq!((counts.value(0), counts.is_null(1)), (7, true));
        assert_eq!(rows.take().expect("a batch").num_rows(), 0);
    }

    #[test]
    fn rows_are_counted_without_columns() {
        let mut rows = rows(&[]);
        rows.text("f").number(7).address(1).flag(true).end();
        assert_eq!(rows.take().expect("a batch").num_rows(), 1);
    }

    #[test]
    fn a_row_that_does_not_fit_is_an_error() {
        let mut short = rows(&[0]);
        short.text("f").end();
        assert!(short.take().is_err());
        let mut other = rows(&[0]);
        other.number(1).number(7).address(1).flag(true).end();
        assert!(other.take().is_err());
        let mut long = rows(&[0]);
        long.text("f")
            .number(7)
            .address(1)
            .flag(true)
            .flag(true)
            .end();
        assert!(long.take().is_err());
    }
}
