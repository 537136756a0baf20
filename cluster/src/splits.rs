//! Units of work as rows of a table: what the scheduler divides among executors.
//!
//! The scheduler gives each task some partitions of a plan's leaves, and it knows how to do that with tables in memory alone. So the leaf below
//! [the decoder](crate::operator::Decoder) is such a table, with a row for each unit.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use cofi_packet::StreamOffset;
use cofi_sql::Recording;
use cofi_sql::table::{Pick, Unit};
use datafusion::common::{Result, exec_err};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::physical_plan::ExecutionPlan;

/// The columns of numbers: which recording, which stream of it (NULL: all), from where to where it is decoded, of which packets the rows are, and how many
/// parts of the stream these are.
const COLUMNS: [&str; 7] = [
    "recording",
    "stream",
    "begin",
    "end",
    "rows_begin",
    "rows_end",
    "parts",
];

/// The last column: what of the range is decoded, if that is not all. Of each pick its range and that of its rows.
const PICKS: &str = "picks";

fn schema() -> SchemaRef {
    let fields = COLUMNS.map(|name| Field::new(name, DataType::UInt64, name == "stream"));
    let number = Field::new_list_field(DataType::UInt64, true);
    let picks = Field::new_list(PICKS, number, true);
    Arc::new(Schema::new([&fields[..], &[picks]].concat()))
}

/// A unit whose recording has a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) recording: usize,
    stream: Option<u64>,
    range: (u64, u64),
    rows: (u64, u64),
    parts: u64,
    picks: Option<Vec<[u64; 4]>>,
}

impl Split {
    pub(crate) fn new(recording: usize, unit: &Unit) -> Self {
        Self {
            recording,
            stream: unit.stream.map(|stream| stream as u64),
            range: (unit.range.start.0, unit.range.end.0),
            rows: (unit.rows.start.0, unit.rows.end.0),
            parts: unit.parts as u64,
            picks: unit.picks.as_deref().map(|picks| {
                let numbers = |Pick { range, rows }: &Pick| {
                    [range.start, range.end, rows.start, rows.end].map(|offset| offset.0)
                };
                picks.iter().map(numbers).collect()
            }),
        }
    }

    /// The unit, of a recording that was opened here.
    pub(crate) fn unit(&self, recording: Arc<Recording>) -> Unit {
        let range = |(begin, end)| StreamOffset(begin)..StreamOffset(end);
        Unit {
            recording,
            stream: self.stream.map(|stream| stream as usize),
            range: range(self.range),
            rows: range(self.rows),
            parts: self.parts as usize,
            picks: self.picks.as_ref().map(|picks| {
                let pick = |[start, end, first, last]: &[u64; 4]| Pick {
                    range: range((*start, *end)),
                    rows: range((*first, *last)),
                };
                picks.iter().map(pick).collect()
            }),
        }
    }
}

/// A leaf with the splits of each partition.
pub(crate) fn leaf(partitions: &[Vec<Split>]) -> Result<Arc<dyn ExecutionPlan>> {
    let batches = partitions.iter().map(|splits| {
        let of = |value: fn(&Split) -> u64| -> ArrayRef {
            Arc::new(splits.iter().map(value).collect::<UInt64Array>())
        };
        let streams: UInt64Array = splits.iter().map(|split| split.stream).collect();
        let columns: Vec<ArrayRef> = vec![
            of(|split| split.recording as u64),
            Arc::new(streams),
            of(|split| split.range.0),
            of(|split| split.range.1),
            of(|split| split.rows.0),
            of(|split| split.rows.1),
            of(|split| split.parts),
            Arc::new(ListArray::from_iter_primitive::<UInt64Type, _, _>(
                splits.iter().map(|split| {
                    let numbers = split.picks.as_ref()?.iter().flatten();
                    Some(numbers.copied().map(Some).collect::<Vec<_>>())
                }),
            )),
        ];
        Ok(vec![RecordBatch::try_new(schema(), columns)?])
    });
    let batches = batches.collect::<Result<Vec<_>>>()?;
    Ok(MemorySourceConfig::try_new_exec(&batches, schema(), None)?)
}

/// The splits of a leaf's rows.
pub(crate) fn splits_of(batch: &RecordBatch) -> Result<Vec<Split>> {
    if batch.schema() != schema() {
        return exec_err!("these are no splits: {}", batch.schema());
    }
    let column = |at: usize| batch.column(at).as_primitive::<UInt64Type>();
    let picks = batch.column(COLUMNS.len()).as_list::<i32>();
    let splits = (0..batch.num_rows()).map(|row| {
        let value = |at: usize| column(at).value(row);
        Split {
            recording: value(0) as usize,
            stream: column(1).is_valid(row).then(|| value(1)),
            range: (value(2), value(3)),
            rows: (value(4), value(5)),
            parts: value(6),
            picks: picks.is_valid(row).then(|| {
                let numbers = picks.value(row);
                let numbers = numbers.as_primitive::<UInt64Type>().values();
                numbers.as_chunks::<4>().0.to_vec()
            }),
        }
    });
    Ok(splits.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::execution::TaskContext;
    use futures::TryStreamExt;

    #[tokio::test]
    async fn splits_are_rows_and_splits_again() {
        let split = |recording, stream| Split {
            recording,
            stream,
            range: (7, u64::MAX),
            rows: (9, 11),
            parts: 3,
            picks: match recording {
                1 => Some(vec![[1, 2, 3, 4], [5, 6, 7, u64::MAX]]),
                2 => Some(vec![]),
                _ => None,
            },
        };
        let partitions = [
            vec![split(0, None), split(1, Some(4))],
            vec![],
            vec![split(2, Some(0))],
        ];
        let leaf = leaf(&partitions).expect("a leaf");
        for (partition, wanted) in partitions.iter().enumerate() {
            let context = Arc::new(TaskContext::default());
            let rows = leaf.execute(partition, context).expect("rows");
            let batches: Vec<RecordBatch> = rows.try_collect().await.expect("batches");
            let told = batches
                .iter()
                .flat_map(|batch| splits_of(batch).expect("splits"));
            assert_eq!(told.collect::<Vec<_>>(), *wanted);
        }
    }
}
