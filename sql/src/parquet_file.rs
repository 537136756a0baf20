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

/// So many rows are a group, which is compressed, and skipped by its statistics, as one. Twice as many as 262,144 take a fourteenth less.
const GROUP: usize = 1 << 19;

/// Numbers of which each byte is written with those of the same place in others, and why not by differences: they hardly rise, but much of each stands in one nearby.
/// (What a difference was is not found again by a compressor: it has as many bits as the others around it need.)
const SPLIT: [&str; 9] = [
    "parent",
    "depth",
    "instructions",
    "self_instructions",
    "count",
    "taken",
    "not_taken",
    "entries",
    "line",
];

/// ZSTD's level. 15 leaves more, for four fifths of an export's time; the next one compresses twice as long for a fortieth.
const LEVEL: i32 = 18;

/// A group ends earlier if it would take so many bytes of memory.
const GROUP_BYTES: usize = 64 << 20;

/// A Parquet file that is being written.
pub(crate) struct ParquetFile<W: Write + Send>(ArrowWriter<W>);

impl<W: Write + Send> ParquetFile<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn new(out: W, schema: SchemaRef) -> Result<Self, ParquetError> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(LEVEL)?))
            .set_dictionary_enabled(true)
            .set_statistics_enabled(EnabledStatistics::Page)
            .set_max_row_group_row_count(Some(GROUP))
            // A page is compressed by itself: the larger, the more of it is found again. It ends with the group and no earlier: then one column after the other
            // is compressed, which takes tens of MiB, and not all of them at once.
            .set_data_page_row_count_limit(usize::MAX)
            .set_data_page_size_limit(GROUP_BYTES)
            .set_created_by(concat!("cofi-sql ", env!("CARGO_PKG_VERSION")).into());
        // Offsets, times and numbers mostly rise by little from row to row, and hardly repeat.
        let numbers = schema.fields().iter();
        let numbers = numbers.filter(|field| *field.data_type() == DataType::Int64);
        let properties = numbers.fold(properties, |properties, field| {
            let column = ColumnPath::from(field.name().as_str());
            let encoding = match SPLIT.contains(&field.name().as_str()) {
                true => Encoding::BYTE_STREAM_SPLIT,
                false => Encoding::DELTA_BINARY_PACKED,
            };
            properties
                .set_column_dictionary_enabled(column.clone(), false)
                .set_column_encoding(column, encoding)
        });
        // Of addresses the same ones follow each other again and again. Of their numbers in a dictionary that could not be seen: these are no whole bytes.
        let addresses = schema.fields().iter();
        let addresses = addresses.filter(|field| *field.data_type() == DataType::UInt64);
        let properties = addresses.fold(properties, |properties, field| {
            let column = ColumnPath::from(field.name().as_str());
            properties
                .set_column_dictionary_enabled(column.clone(), false)
                .set_column_encoding(column, Encoding::PLAIN)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, UInt64Array};
    use bytes::Bytes;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReader;

    use super::*;

    /// Calls of a program that is not quite regular, in the order in which they begin: the number of each, and that of the one around it.
    fn calls(count: i64) -> Vec<(i64, i64)> {
        let (mut all, mut open, mut state) = (Vec::new(), Vec::new(), 1_u32);
        for call in 0..count {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let left = (state >> 24) as usize % 4;
            if open.len() > left.max(3) {
                open.truncate(open.len() - left);
            }
            all.push((call, open.last().copied().unwrap_or(-1)));
            open.push(call);
        }
        all
    }

    #[test]
    fn a_tree_of_calls_takes_little_and_is_read_as_it_was() {
        let all = calls(200_000);
        let column = |of: fn(&(i64, i64)) -> i64| -> ArrayRef {
            Arc::new(all.iter().map(of).collect::<Int64Array>())
        };
        let ips: UInt64Array = all
            .iter()
            .map(|(call, _)| 0x40_1000 + (*call as u64 & 1))
            .collect();
        let columns: [(&str, ArrayRef); 3] = [
            ("call", column(|it| it.0)),
            ("parent", column(|it| it.1)),
            ("ip", Arc::new(ips)),
        ];
        let batch = RecordBatch::try_from_iter(columns).expect("a batch");
        let mut bytes = Vec::new();
        let mut file = ParquetFile::new(&mut bytes, batch.schema()).expect("begun");
        for start in (0..batch.num_rows()).step_by(8192) {
            let len = 8192.min(batch.num_rows() - start);
            file.write(&batch.slice(start, len)).expect("written");
        }
        file.finish().expect("ended");
        // By differences it is 1.9 bytes a call.
        assert!(
            bytes.len() * 10 < all.len() * 13,
            "{} bytes of {} calls",
            bytes.len(),
            all.len()
        );
        let read = ParquetRecordBatchReader::try_new(Bytes::from(bytes), 1 << 20).expect("a file");
        let read: Vec<RecordBatch> = read.collect::<Result<_, _>>().expect("rows");
        assert_eq!(
            read.iter().map(RecordBatch::num_rows).sum::<usize>(),
            all.len()
        );
        assert_eq!(read[0].columns(), batch.columns());
    }
}
