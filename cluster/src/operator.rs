//! The decoder as an operator of DataFusion's: from splits of recordings to rows of a table.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use cofi_sql::scan::{Counts, RowsOf};
use cofi_sql::table::Unit;
use cofi_sql::{functions, tables};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures::TryStreamExt;
use serde::{Deserialize, Serialize};

use crate::recordings::{Known, Opened};
use crate::splits::splits_of;

/// What a decoder is to do, as it goes over the wire.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Order {
    /// The table or table function.
    pub(crate) table: String,
    /// The indices of its columns.
    pub(crate) columns: Vec<usize>,
    /// So many rows of each partition are enough.
    pub(crate) limit: Option<usize>,
    /// The recordings, in the order of their numbers in splits.
    pub(crate) recordings: Vec<Known>,
}

impl Order {
    fn rows(&self) -> Result<RowsOf> {
        let mut all = tables::all().into_iter().chain(functions::all());
        let table = all
            .find(|table| table.name() == self.table)
            .ok_or_else(|| exec_datafusion_err!("there is no table {}", self.table))?;
        RowsOf::new(table, self.columns.clone(), self.limit)
    }
}

/// Decodes what the splits of its input say.
#[derive(Debug)]
pub(crate) struct Decoder {
    order: Arc<Order>,
    rows: RowsOf,
    splits: Arc<dyn ExecutionPlan>,
    opened: Arc<Opened>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl Decoder {
    /// # Errors
    /// When there is no such table, or it has no such columns.
    pub(crate) fn new(
        order: Arc<Order>,
        splits: Arc<dyn ExecutionPlan>,
        opened: Arc<Opened>,
    ) -> Result<Self> {
        let rows = order.rows()?;
        let partitions = splits.output_partitioning().partition_count();
        Ok(Self {
            properties: rows.properties(partitions),
            order,
            rows,
            splits,
            opened,
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    pub(crate) fn order(&self) -> &Order {
        &self.order
    }
}

impl DisplayAs for Decoder {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CofiDecoder: {}", self.rows)
    }
}

impl ExecutionPlan for Decoder {
    fn name(&self) -> &'static str {
        "CofiDecoder"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.splits]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([splits]) => {
                let (order, opened) = (self.order.clone(), self.opened.clone());
                Ok(Arc::new(Self::new(order, splits, opened)?))
            }
            Err(_) => internal_err!("a decoder has one input"),
        }
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let splits = self.splits.execute(partition, context.clone())?;
        let (order, opened) = (self.order.clone(), self.opened.clone());
        let rows = self.rows.clone();
        let counts = Counts::new(&self.metrics, partition);
        let size = context.session_config().batch_size();
        // Partitions of a task are decoded at the same time.
        let share = opened.threads.get() / self.properties.partitioning.partition_count().max(1);
        let threads = NonZeroUsize::new(share).unwrap_or(NonZeroUsize::MIN);
        let stream = futures::stream::once(async move {
            let batches: Vec<_> = splits.try_collect().await?;
            let units = open(order, opened, batches).await?;
            Ok::<_, DataFusionError>(rows.decode(units, threads, size, counts))
        });
        let schema = self.rows.schema().clone();
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            schema,
            stream.try_flatten(),
        )))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// The units of splits, with their recordings open. Opening reads files, which is not for the threads that compute.
async fn open(
    order: Arc<Order>,
    opened: Arc<Opened>,
    batches: Vec<arrow::array::RecordBatch>,
) -> Result<Vec<Unit>> {
    let opening = tokio::task::spawn_blocking(move || {
        let mut units = Vec::new();
        for batch in &batches {
            for split in splits_of(batch)? {
                let known = order.recordings.get(split.recording).ok_or_else(|| {
                    exec_datafusion_err!("there is no recording {}", split.recording)
                })?;
                let recording = opened
                    .get(known)
                    .map_err(|error| DataFusionError::External(Box::new(error)))?;
                units.push(split.unit(recording));
            }
        }
        Ok(units)
    });
    opening
        .await
        .map_err(|error| DataFusionError::External(Box::new(error)))?
}
