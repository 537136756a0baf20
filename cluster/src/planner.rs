//! Statements as they are answered by a cluster: planned here, as on one machine, and decoded elsewhere.
//!
//! The plan is that of `cofi-sql`, with streams in more pieces. Each [`Scan`] in it becomes a [`Decoder`] over the splits of its partitions. The
//! scheduler divides such a plan into stages and tasks. So the scheduler needs no recordings, and which rows there are does not depend on it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use ballista_core::execution_plans::execute_physical_plan;
use ballista_core::extension::SessionConfigExt;
use cofi_sql::scan::Scan;
use datafusion::catalog::Session;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, internal_err, plan_err};
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
};
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion_proto::protobuf::PhysicalPlanNode;
use futures::{StreamExt, TryStreamExt};

use crate::codec::Codec;
use crate::operator::{Decoder, Order};
use crate::recordings::{Known, Opened};
use crate::splits::{Split, leaf};

/// A statement is asked again so often when its rows cannot be fetched.
const TRIES: usize = 3;
/// So many bytes of rows are waited for before the first is handed on: up to here a statement may be asked again.
const HELD: usize = 64 << 20;

/// The cluster that answers.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// The scheduler's address, `http://HOST:PORT`.
    pub(crate) scheduler: String,
    /// What is told of the recordings, by their names.
    pub(crate) known: HashMap<String, Known>,
    pub(crate) opened: Arc<Opened>,
}

/// Plans statements for a cluster.
#[derive(Debug)]
pub(crate) struct Planner(pub(crate) Arc<Cluster>);

#[async_trait]
impl QueryPlanner for Planner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let planned = DefaultPhysicalPlanner::default();
        let planned = planned.create_physical_plan(plan, session).await?;
        let replaced = planned.transform_up(|node| self.0.replace(node))?;
        // What reads no recording, as `SHOW TABLES`, is answered here, and so is `EXPLAIN`, which shows the plan.
        if !replaced.transformed {
            return Ok(replaced.data);
        }
        if matches!(plan, LogicalPlan::Analyze(_)) {
            return plan_err!("EXPLAIN ANALYZE is not for a cluster; cofi-sql answers it");
        }
        Ok(Arc::new(Remote::new(self.0.clone(), replaced.data)))
    }
}

impl Cluster {
    /// A decoder in the place of a scan.
    fn replace(&self, node: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
        let Some(scan) = node.downcast_ref::<Scan>() else {
            return Ok(Transformed::no(node));
        };
        let mut order = Order {
            table: scan.rows().table().name().to_owned(),
            columns: scan.rows().wanted().to_vec(),
            limit: scan.rows().limit(),
            recordings: Vec::new(),
        };
        let mut numbers: HashMap<String, usize> = HashMap::new();
        let mut partitions = Vec::new();
        for partition in 0..scan.partitions() {
            let mut splits = Vec::new();
            for unit in scan.units(partition) {
                let name = unit.recording.name();
                let number = match numbers.get(name) {
                    Some(number) => *number,
                    None => {
                        let known = self.known.get(name);
                        let missing = || exec_datafusion_err!("there is no recording {name}");
                        order.recordings.push(known.ok_or_else(missing)?.clone());
                        let number = numbers.len();
                        numbers.insert(name.to_owned(), number);
                        number
                    }
                };
                splits.push(Split::new(number, &unit));
            }
            partitions.push(splits);
        }
        let decoder = Decoder::new(Arc::new(order), leaf(&partitions)?, self.opened.clone())?;
        Ok(Transformed::yes(Arc::new(decoder)))
    }

    /// Has a plan answered. The rows that come first are waited for.
    async fn ask(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        context: &TaskContext,
    ) -> Result<(Vec<RecordBatch>, SendableRecordBatchStream)> {
        let config = context.session_config().clone();
        let codec = Codec::new(self.opened.clone());
        let mut rows = execute_physical_plan::<PhysicalPlanNode>(
            self.scheduler.clone(),
            &config.ballista_config(),
            plan,
            &codec,
            context.session_id(),
            config,
        )
        .await?;
        let (mut held, mut bytes) = (Vec::new(), 0);
        while bytes < HELD {
            let Some(batch) = rows.try_next().await? else {
                break;
            };
            bytes += batch.get_array_memory_size();
            held.push(batch);
        }
        Ok((held, rows))
    }

    /// Has a plan answered. An executor that is lost while its rows are fetched is no reason to give up.
    async fn answer(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        context: &TaskContext,
    ) -> Result<SendableRecordBatchStream> {
        let schema = plan.schema();
        let mut tries = 1;
        let (held, rest) = loop {
            match self.ask(plan.clone(), context).await {
                Ok(rows) => break rows,
                Err(error) if tries < TRIES && is_of_transport(&error) => tries += 1,
                Err(error) => return Err(error),
            }
        };
        let rows = futures::stream::iter(held.into_iter().map(Ok)).chain(rest);
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}

/// Whether rows could not be fetched, and not: a statement could not be answered.
fn is_of_transport(error: &DataFusionError) -> bool {
    match error.find_root() {
        DataFusionError::Execution(what) => !what.starts_with("Job "),
        DataFusionError::External(_) | DataFusionError::ArrowError(..) => true,
        _ => false,
    }
}

/// A plan that a cluster answers.
struct Remote {
    cluster: Arc<Cluster>,
    plan: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl Remote {
    fn new(cluster: Arc<Cluster>, plan: Arc<dyn ExecutionPlan>) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(plan.schema()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self {
            cluster,
            plan,
            properties: Arc::new(properties),
        }
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("plan", &self.plan).finish()
    }
}

impl DisplayAs for Remote {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CofiCluster: scheduler={}", self.cluster.scheduler)
    }
}

impl ExecutionPlan for Remote {
    fn name(&self) -> &'static str {
        "CofiCluster"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    /// The plan is the cluster's: nobody here changes it any more.
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
            false => internal_err!("a plan that a cluster answers has no children here"),
        }
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let (cluster, plan) = (self.cluster.clone(), self.plan.clone());
        let answer = futures::stream::once(async move { cluster.answer(plan, &context).await });
        let schema = self.plan.schema();
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            schema,
            answer.try_flatten(),
        )))
    }
}
