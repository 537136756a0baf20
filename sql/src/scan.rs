//! Tables as DataFusion reads them: rows come from the decoder as it goes, a few batches ahead of who takes them.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err, project_schema};
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions, SchedulingType,
};
use datafusion::physical_plan::metrics::{
    Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet,
};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
};

use crate::columns::{Rows, schema_of};
use crate::limits::Limits;
use crate::recording::Recording;
use crate::table::{Outlet, Table, Unit, Units};

/// So many batches of a partition wait for who takes them.
const AHEAD: usize = 2;

/// In how many pieces a stream may be decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pieces {
    /// In one: rows come in the order of the stream.
    #[default]
    One,
    /// In so many together with others, where the rows are the same: for who has several machines.
    Several(NonZeroUsize),
}

/// A table over recordings.
#[derive(Debug)]
pub struct Provider {
    table: Arc<dyn Table>,
    recordings: Arc<[Arc<Recording>]>,
    pieces: Pieces,
    schema: SchemaRef,
}

impl Provider {
    /// A table over these recordings.
    #[must_use]
    pub fn new(table: Arc<dyn Table>, recordings: Arc<[Arc<Recording>]>, pieces: Pieces) -> Self {
        let schema = schema_of(table.columns());
        Self {
            table,
            recordings,
            pieces,
            schema,
        }
    }

    /// The parts that may hold rows within the limits.
    fn units(&self, limits: &Limits) -> Units {
        let mut units = Units::default();
        for recording in self.recordings.iter() {
            if limits.allows_text("recording", recording.name()) {
                units.add(self.table.units(recording, limits));
            } else {
                let others = self.table.units(recording, &Limits::default());
                units.skipped += others.list.iter().map(|unit| unit.parts).sum::<usize>();
            }
        }
        units
    }
}

#[async_trait]
impl TableProvider for Provider {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        let of = |filter: &&Expr| match Limits::understands(filter) {
            // Parts are left out, not rows.
            true => TableProviderFilterPushDown::Inexact,
            false => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(of).collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut units = self.units(&Limits::of(filters));
        let mut processors = state.config().target_partitions();
        if let Pieces::Several(pieces) = self.pieces {
            processors = pieces.get();
            let table = self.table.as_ref();
            units.list = cut(units.list, processors, |unit, share| table.cut(unit, share));
        }
        let partitions = processors.min(units.list.len()).max(1);
        let wanted = match projection {
            Some(columns) => columns.clone(),
            None => (0..self.schema.fields().len()).collect(),
        };
        let threads = NonZeroUsize::new(processors / partitions);
        let rows = RowsOf {
            table: self.table.clone(),
            wanted,
            schema: project_schema(&self.schema, projection)?,
            limit,
        };
        Ok(Arc::new(Scan::new(
            rows,
            units,
            partitions,
            threads.unwrap_or(NonZeroUsize::MIN),
        )))
    }
}

/// Cuts units into about so many pieces, as far as they can be cut: each into as many as it has of all that is decoded.
fn cut(units: Vec<Unit>, pieces: usize, cut: impl Fn(Unit, usize) -> Vec<Unit>) -> Vec<Unit> {
    let all: usize = units.iter().map(|unit| unit.parts).sum();
    let pieces = units.into_iter().flat_map(|unit| {
        let share = (pieces * unit.parts).div_ceil(all.max(1));
        cut(unit, share)
    });
    pieces.collect()
}

/// What is put out of units: rows of a table, with some of its columns.
#[derive(Clone, Debug)]
pub struct RowsOf {
    table: Arc<dyn Table>,
    /// Which columns, in which order.
    wanted: Vec<usize>,
    /// That of these columns.
    schema: SchemaRef,
    /// So many rows of each partition are enough.
    limit: Option<usize>,
}

/// What counts what a scan does.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Rows that were put out.
    pub rows: Count,
    /// Parts that were decoded.
    pub parts: Count,
}

impl Counts {
    /// Those of a partition.
    #[must_use]
    pub fn new(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        Self {
            rows: MetricBuilder::new(metrics).output_rows(partition),
            parts: MetricBuilder::new(metrics).counter("parts_decoded", partition),
        }
    }
}

impl RowsOf {
    /// The columns of a table with these indices.
    ///
    /// # Errors
    /// When the table has no such column.
    pub fn new(table: Arc<dyn Table>, wanted: Vec<usize>, limit: Option<usize>) -> Result<Self> {
        let schema = project_schema(&schema_of(table.columns()), Some(&wanted))?;
        Ok(Self {
            table,
            wanted,
            schema,
            limit,
        })
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> &dyn Table {
        self.table.as_ref()
    }

    /// The indices of the columns.
    #[must_use]
    pub fn wanted(&self) -> &[usize] {
        &self.wanted
    }

    /// How many rows of each partition are enough.
    #[must_use]
    pub const fn limit(&self) -> Option<usize> {
        self.limit
    }

    /// The columns.
    #[must_use]
    pub const fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// What DataFusion knows of a plan that puts them out.
    #[must_use]
    pub fn properties(&self, partitions: usize) -> Arc<PlanProperties> {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(self.schema.clone()),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        // The channel makes who reads it wait.
        Arc::new(properties.with_scheduling_type(SchedulingType::Cooperative))
    }

    /// Puts out those of units, in batches of so many, a few batches ahead of who takes them; each unit by so many threads.
    #[must_use]
    pub fn decode(
        &self,
        units: impl IntoIterator<Item = Unit> + Send + 'static,
        threads: NonZeroUsize,
        size: usize,
        counts: Counts,
    ) -> SendableRecordBatchStream {
        let (table, limit) = (self.table.clone(), self.limit);
        let rows = Rows::new(table.columns(), self.wanted.clone(), self.schema.clone());
        let mut builder = RecordBatchReceiverStream::builder(self.schema.clone(), AHEAD);
        let to = builder.tx();
        builder.spawn_blocking(move || {
            let mut count = 0;
            let send = Box::new(move |batch: Result<RecordBatch, _>| {
                let rows = batch.as_ref().map_or(0, RecordBatch::num_rows);
                count += rows;
                counts.rows.add(rows);
                let batch = batch.map_err(DataFusionError::from);
                // Nobody takes it if the query is over.
                to.blocking_send(batch).is_ok() && limit.is_none_or(|limit| count < limit)
            });
            let mut out = Outlet::new(rows, size, threads, send);
            for unit in units {
                if out.is_closed() {
                    break;
                }
                table.fill(&unit, &mut out);
                counts.parts.add(unit.parts);
            }
            out.flush();
            Ok(())
        });
        builder.build()
    }
}

impl fmt::Display for RowsOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.schema.fields().iter();
        let columns: Vec<&str> = fields.map(|field| field.name().as_str()).collect();
        let columns = columns.join(", ");
        write!(f, "table={}, columns=[{columns}]", self.table.name())?;
        match self.limit {
            Some(limit) => write!(f, ", limit={limit}"),
            None => Ok(()),
        }
    }
}

/// Decodes parts of recordings into rows of a table.
#[derive(Debug)]
pub struct Scan {
    rows: RowsOf,
    units: Arc<[Unit]>,
    skipped: usize,
    /// By how many threads a unit may be gone through.
    threads: NonZeroUsize,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl Scan {
    fn new(rows: RowsOf, units: Units, partitions: usize, threads: NonZeroUsize) -> Self {
        Self {
            properties: rows.properties(partitions),
            rows,
            units: units.list.into(),
            skipped: units.skipped,
            threads,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// The same by so many threads, whose rows come in no order; none if it cannot be divided any more.
    pub(crate) fn divided(&self, threads: usize) -> Option<Self> {
        // Who wants only the first rows is not to wait for those of other pieces.
        if self.rows.limit.is_some() {
            return None;
        }
        let table = self.rows.table();
        // No more pieces than threads (of calls some more, as none of theirs has to go back): where something is missing, one may have to be decoded from the beginning of its stream.
        let list = cut(self.units.to_vec(), threads, |unit, share| {
            table.cut_here(unit, share)
        });
        if list.len() == self.units.len() {
            return None;
        }
        let partitions = threads.min(list.len());
        let skipped = self.skipped;
        let units = Units { list, skipped };
        let rows = self.rows.clone();
        Some(Self::new(rows, units, partitions, NonZeroUsize::MIN))
    }

    /// What it puts out.
    #[must_use]
    pub const fn rows(&self) -> &RowsOf {
        &self.rows
    }

    /// How many partitions it has.
    #[must_use]
    pub fn partitions(&self) -> usize {
        self.properties.partitioning.partition_count()
    }

    /// The units of a partition.
    pub fn units(&self, partition: usize) -> impl Iterator<Item = Unit> + Send + use<> {
        let (units, step) = (self.units.clone(), self.partitions());
        (partition..units.len())
            .step_by(step)
            .filter_map(move |number| units.get(number).cloned())
    }
}

impl DisplayAs for Scan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CofiScan: {}, pieces={}, parts={}, skipped={}",
            self.rows,
            self.units.len(),
            self.units.iter().map(|unit| unit.parts).sum::<usize>(),
            self.skipped,
        )
    }
}

impl ExecutionPlan for Scan {
    fn name(&self) -> &'static str {
        "CofiScan"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
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
        match children.is_empty() {
            true => Ok(self),
            false => internal_err!("a scan has no children"),
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
        let size = context.session_config().batch_size();
        if partition == 0 {
            let skipped = MetricBuilder::new(&self.metrics).counter("parts_skipped", partition);
            skipped.add(self.skipped);
        }
        let counts = Counts::new(&self.metrics, partition);
        let units = self.units(partition);
        Ok(self.rows.decode(units, self.threads, size, counts))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
