//! Rows as they are written: aligned text, JSON Lines, CSV, Parquet.

use std::io::{self, Write};
use std::str::FromStr;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, RecordBatchOptions, StringArray};
use arrow::csv::WriterBuilder;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use parquet::errors::ParquetError;
use thiserror::Error;

use crate::columns::is_address;
use crate::parquet_file::ParquetFile;

/// In which form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// A table, aligned, for people.
    #[default]
    Text,
    /// One object a row.
    Json,
    /// Comma-separated, with names in the first line.
    Csv,
    /// A Parquet file.
    Parquet,
}

impl FromStr for Form {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "text" => Self::Text,
            "json" => Self::Json,
            "csv" => Self::Csv,
            "parquet" => Self::Parquet,
            _ => return Err("expected text, json, csv or parquet".into()),
        })
    }
}

/// Why rows cannot be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The query failed.
    #[error(transparent)]
    Query(#[from] DataFusionError),
    /// What is to be written does not fit its form.
    #[error(transparent)]
    Arrow(#[from] ArrowError),
    /// The same of Parquet.
    #[error(transparent)]
    Parquet(#[from] ParquetError),
    /// The output cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl OutputError {
    /// What the query failed with, if it did.
    #[must_use]
    pub fn query(&self) -> Option<&DataFusionError> {
        match self {
            Self::Query(error) => Some(error),
            _ => None,
        }
    }

    /// Whether the reader of the output went away, which is no error of ours.
    #[must_use]
    pub fn is_closed_pipe(&self) -> bool {
        let is_closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        match self {
            Self::Io(error) => is_closed(error),
            Self::Arrow(ArrowError::IoError(_, error)) => is_closed(error),
            Self::Arrow(ArrowError::CsvError(message)) => message.contains("Broken pipe"),
            _ => false,
        }
    }
}

/// A batch in which addresses are texts, as `cofi` writes them.
struct Shown {
    schema: SchemaRef,
    addresses: Vec<bool>,
}

impl Shown {
    fn new(schema: &SchemaRef) -> Self {
        let addresses: Vec<bool> = schema.fields().iter().map(|f| is_address(f)).collect();
        let fields = schema.fields().iter().zip(&addresses);
        let fields = fields.map(|(field, is_address)| match is_address {
            true => Arc::new(Field::new(field.name(), DataType::Utf8, true)),
            false => field.clone(),
        });
        Self {
            schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())),
            addresses,
        }
    }

    fn batch(&self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let columns = batch.columns().iter().zip(&self.addresses);
        let columns = columns.map(|(column, is_address)| {
            match column
                .as_primitive_opt::<UInt64Type>()
                .filter(|_| *is_address)
            {
                Some(numbers) => {
                    let texts = numbers.iter();
                    let texts = texts.map(|number| number.map(|number| format!("{number:#x}")));
                    Arc::new(texts.collect::<StringArray>()) as ArrayRef
                }
                None => column.clone(),
            }
        });
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(self.schema.clone(), columns.collect(), &options)
    }
}

/// So many rows are looked at to find how wide columns are: those behind them may be less aligned, but none has to wait in memory.
const ALIGNED: usize = 1000;

/// Writes all rows of a query.
///
/// # Errors
/// When the query fails, or the output cannot be written.
pub async fn write(
    mut rows: SendableRecordBatchStream,
    form: Form,
    out: &mut (dyn Write + Send),
) -> Result<(), OutputError> {
    let schema = rows.schema();
    let shown = Shown::new(&schema);
    match form {
        Form::Text => {
            let mut text = Text::new(&schema);
            while let Some(batch) = rows.next().await {
                text.batch(&shown.batch(&batch?)?, out)?;
            }
            text.finish(out)?;
        }
        Form::Json => {
            let mut writer = arrow::json::WriterBuilder::new()
                .with_explicit_nulls(true)
                .build::<_, arrow::json::writer::LineDelimited>(out);
            while let Some(batch) = rows.next().await {
                writer.write(&shown.batch(&batch?)?)?;
            }
            writer.finish()?;
        }
        Form::Csv => {
            let mut writer = WriterBuilder::new().with_header(true).build(out);
            // The names are there without rows, too.
            writer.write(&RecordBatch::new_empty(schema))?;
            while let Some(batch) = rows.next().await {
                writer.write(&batch?)?;
            }
        }
        Form::Parquet => {
            let mut file = ParquetFile::new(out, schema)?;
            while let Some(batch) = rows.next().await {
                file.write(&batch?)?;
            }
            file.finish()?;
        }
    }
    Ok(())
}

/// Makes an aligned table.
struct Text {
    heads: Vec<String>,
    /// Numbers stand at the right.
    is_number: Vec<bool>,
    widths: Vec<usize>,
    /// Rows from which the widths come.
    waiting: Vec<Vec<String>>,
    is_begun: bool,
    count: u64,
}

impl Text {
    fn new(schema: &SchemaRef) -> Self {
        let heads: Vec<String> = schema.fields().iter().map(|f| f.name().clone()).collect();
        Self {
            widths: heads.iter().map(|head| head.chars().count()).collect(),
            is_number: schema
                .fields()
                .iter()
                .map(|field| field.data_type().is_numeric())
                .collect(),
            heads,
            waiting: Vec::new(),
            is_begun: false,
            count: 0,
        }
    }

    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> Result<(), OutputError> {
        let options = FormatOptions::new().with_null("–");
        let columns = batch.columns().iter();
        let columns = columns.map(|column| ArrayFormatter::try_new(column, &options));
        let columns: Vec<ArrayFormatter<'_>> = columns.collect::<Result<_, _>>()?;
        for row in 0..batch.num_rows() {
            let mut cells = Vec::with_capacity(columns.len());
            for column in &columns {
                // What comes from a trace may hold anything; a table has one line a row.
                let cell = column.value(row).try_to_string()?;
                let is_plain = !cell.chars().any(char::is_control);
                cells.push(if is_plain { cell } else { escaped(&cell) });
            }
            self.row(cells, out)?;
        }
        Ok(())
    }

    fn row(&mut self, cells: Vec<String>, out: &mut dyn Write) -> io::Result<()> {
        self.count += 1;
        if self.is_begun {
            return self.line(&cells, out);
        }
        for (width, cell) in self.widths.iter_mut().zip(&cells) {
            *width = (*width).max(cell.chars().count());
        }
        self.waiting.push(cells);
        match self.waiting.len() {
            ALIGNED => self.begin(out),
            _ => Ok(()),
        }
    }

    fn begin(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.is_begun = true;
        let heads = std::mem::take(&mut self.heads);
        self.line(&heads, out)?;
        let rules: Vec<String> = self.widths.iter().map(|width| "-".repeat(*width)).collect();
        self.line(&rules, out)?;
        for cells in std::mem::take(&mut self.waiting) {
            self.line(&cells, out)?;
        }
        Ok(())
    }

    fn line(&self, cells: &[String], out: &mut dyn Write) -> io::Result<()> {
        let mut line = String::new();
        for ((cell, width), is_number) in cells.iter().zip(&self.widths).zip(&self.is_number) {
            if !line.is_empty() {
                line.push_str("  ");
            }
            let room = " ".repeat(width.saturating_sub(cell.chars().count()));
            match is_number {
                true => line.extend([room.as_str(), cell]),
                false => line.extend([cell, room.as_str()]),
            }
        }
        writeln!(out, "{}", line.trim_end())
    }

    fn finish(mut self, out: &mut dyn Write) -> io::Result<()> {
        if !self.is_begun {
            self.begin(out)?;
        }
        let rows = if self.count == 1 { "row" } else { "rows" };
        writeln!(out, "({} {rows})", self.count)
    }
}

fn escaped(cell: &str) -> String {
    let mut text = String::new();
    for letter in cell.chars() {
        match letter.is_control() {
            true => text.extend(letter.escape_default()),
            false => text.push(letter),
        }
    }
    text
}
