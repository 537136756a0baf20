//! Tables as DataFusion reads them: rows come from the decoder as it goes, a few batches ahead of who takes them.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
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
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
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

/// A table over recordings.
#[derive(Debug)]
pub struct Provider {
    table: Arc<dyn Table>,
    recordings: Arc<[Arc<Recording>]>,
    schema: SchemaRef,
}

impl Provider {
    /// A table over these recordings.
    #[must_use]
    pub fn new(table: Arc<dyn Table>, recordings: Arc<[Arc<Recording>]>) -> Self {
        let schema = schema_of(table.columns());
        Self {
            table,
            recordings,
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
        let units = self.units(&Limits::of(filters));
        let partitions = state.config().target_partitions().min(units.list.len());
        let wanted = match projection {
            Some(columns) => columns.clone(),
            None => (0..self.schema.fields().len()).collect(),
        };
        Ok(Arc::new(Scan::new(
            self.table.clone(),
            units,
            (partitions.max(1), state.config().target_partitions()),
            wanted,
            project_schema(&self.schema, projection)?,
            limit,
        )))
    }
}

/// Decodes parts of recordings into rows of a table.
#[derive(Debug)]
struct Scan {
    table: Arc<dyn Table>,
    units: Arc<[Unit]>,
    skipped: usize,
    /// By how many threads a unit may be gone through.
    threads: NonZeroUsize,
    wanted: Vec<usize>,
    schema: SchemaRef,
    limit: Option<usize>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl Scan {
    fn new(
        table: Arc<dyn Table>,
        units: Units,
        (partitions, processors): (usize, usize),
        wanted: Vec<usize>,
        schema: SchemaRef,
        limit: Option<usize>,
    ) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema.clone()),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        // The channel makes who reads it wait.
        .with_scheduling_type(SchedulingType::Cooperative);
        Self {
            table,
            units: units.list.into(),
            skipped: units.skipped,
            threads: NonZeroUsize::new(processors / partitions).unwrap_or(NonZeroUsize::MIN),
            wanted,
            schema,
            limit,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    fn partitions(&self) -> usize {
        self.properties.partitioning.partition_count()
    }
}

impl DisplayAs for Scan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.schema.fields().iter();
        let columns: Vec<&str> = fields.map(|field| field.name().as_str()).collect();
        write!(
            f,
            "CofiScan: table={}, columns=[{}], parts={}, skipped={}",
            self.table.name(),
            columns.join(", "),
            self.units.iter().map(|unit| unit.parts).sum::<usize>(),
            self.skipped,
        )?;
        match self.limit {
            Some(limit) => write!(f, ", limit={limit}"),
            None => Ok(()),
        }
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
        let (table, units, limit) = (self.table.clone(), self.units.clone(), self.limit);
        let (step, threads) = (self.partitions(), self.threads);
        let rows = Rows::new(table.columns(), self.wanted.clone(), self.schema.clone());
        let size = context.session_config().batch_size();
        let output = MetricBuilder::new(&self.metrics).output_rows(partition);
        let decoded = MetricBuilder::new(&self.metrics).counter("parts_decoded", partition);
        if partition == 0 {
            let skipped = MetricBuilder::new(&self.metrics).counter("parts_skipped", partition);
            skipped.add(self.skipped);
        }
        let mut builder = RecordBatchReceiverStream::builder(self.schema.clone(), AHEAD);
        let to = builder.tx();
        builder.spawn_blocking(move || {
            let mut count = 0;
            let send = Box::new(move |batch: Result<_, _>| {
                count += batch
                    .as_ref()
                    .map_or(0, arrow::array::RecordBatch::num_rows);
                output.add(
                    batch
                        .as_ref()
                        .map_or(0, arrow::array::RecordBatch::num_rows),
                );
                let batch = batch.map_err(DataFusionError::from);
                // Nobody takes it if the query is over.
                to.blocking_send(batch).is_ok() && limit.is_none_or(|limit| count < limit)
            });
            let mut out = Outlet::new(rows, size, threads, send);
            for unit in units.iter().skip(partition).step_by(step) {
                if out.is_closed() {
                    break;
                }
                table.fill(unit, &mut out);
                decoded.add(unit.parts);
            }
            out.flush();
            Ok(())
        });
        Ok(builder.build())
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
