//! Streams in as many pieces as there are threads, where it is of no use that rows come in the order of their stream.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};

use crate::scan::Scan;

/// Divides scans whose rows are grouped or sorted.
#[derive(Debug)]
struct DivideStreams;

impl PhysicalOptimizerRule for DivideStreams {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        divided(plan, config.execution.target_partitions, false)
    }

    fn name(&self) -> &'static str {
        "divide_streams"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn divided(
    plan: Arc<dyn ExecutionPlan>,
    threads: usize,
    is_of_use: bool,
) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(scan) = plan.downcast_ref::<Scan>() {
        let divided = is_of_use.then(|| scan.divided(threads)).flatten();
        return Ok(divided.map_or(plan.clone(), |scan| Arc::new(scan)));
    }
    let is_of_use = if plan.is::<AggregateExec>() || plan.is::<SortExec>() {
        true
    } else if plan.is::<GlobalLimitExec>() || plan.is::<LocalLimitExec>() {
        // The first rows are those of the stream's beginning.
        false
    } else if plan.is::<WindowAggExec>() || plan.is::<BoundedWindowAggExec>() {
        // Without an order of its own a window has that of the stream.
        plan.required_input_ordering().iter().all(Option::is_some)
    } else {
        is_of_use
    };
    let children = plan.children().into_iter().cloned();
    let children = children.map(|child| divided(child, threads, is_of_use));
    let children = children.collect::<Result<Vec<_>>>()?;
    replace_children_if_necessary(plan, children)
}

/// DataFusion's rules, and before them that one: what else has to be divided follows from it.
pub(crate) fn rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let mut rules = PhysicalOptimizer::new().rules;
    rules.insert(0, Arc::new(DivideStreams));
    rules
}
