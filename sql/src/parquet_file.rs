//! Parquet files: ZSTD, names by dictionaries, statistics of each column and page.

use std::io::Write;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

/// So many rows are a group, which is compressed, and skipped by its statistics, as one.
const GROUP: usize = 1 << 18;

/// A group ends earlier if it would take so many bytes of memory.
const GROUP_BYTES: usize = 32 << 20;

/// A Parquet file that is being written.
pub(crate) struct ParquetFile<W: Write + Send>(ArrowWriter<W>);

impl<W: Write + Send> ParquetFile<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn new(out: W, schema: SchemaRef) -> Result<Self, ParquetError> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
            .set_dictionary_enabled(true)
            .set_statistics_enabled(EnabledStatistics::Page)
            .set_max_row_group_row_count(Some(GROUP))
            .set_created_by(concat!("cofi-sql ", env!("CARGO_PKG_VERSION")).into());
        // Offsets, times and numbers mostly rise by little from row to row, and hardly repeat.
        let numbers = schema.fields().iter();
        let numbers = numbers.filter(|field| *field.data_type() == DataType::Int64);
        let properties = numbers.fold(properties, |properties, field| {
            let column = ColumnPath::from(field.name().as_str());
            properties
                .set_column_dictionary_enabled(column.clone(), false)
                .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED)
        });
        let properties = properties.build();
        // Everybody knows the types of Parquet; those of Arrow would only be for readers of Arrow.
        let options = ArrowWriterOptions::new()
            .with_properties(properties)
            .with_skip_arrow_metadata(true);
        ArrowWriter::try_new_with_options(out, schema, options).map(Self)
    }

    /// Adds rows.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        self.0.write(batch)?;
        if self.0.in_progress_size() > GROUP_BYTES {
            self.0.flush()?;
        }
        Ok(())
    }

    /// Ends the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn finish(mut self) -> Result<(), ParquetError> {
        self.0.finish()?;
        self.0.inner_mut().flush()?;
        Ok(())
    }
}
