//! Table functions, which decode what a table would be too large for: `instructions(recording, thread, from, to)` and the like.
//!
//! All arguments may be left out from the right, or be NULL. They are conditions: the function is the table of all rows, of which DataFusion
//! pushes the conditions down to the parts of the streams.

mod flow;
mod packets;
mod parts;
mod places;

use std::sync::Arc;

use datafusion::catalog::view::ViewTable;
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder, col, lit};

use crate::recording::Recording;
use crate::scan::{Pieces, Provider};
use crate::table::Table;

pub(crate) use parts::{PartTimes, StreamParts, are_starts, grouped, part_size, picked};
pub(crate) use places::Places;

/// All table functions, in the order in which they are documented.
#[must_use]
pub fn all() -> Vec<Arc<dyn Table>> {
    vec![
        Arc::new(flow::Ran { by_blocks: false }),
        Arc::new(flow::Ran { by_blocks: true }),
        Arc::new(packets::Packets),
    ]
}

/// A table function over recordings.
#[derive(Debug)]
pub(crate) struct Function {
    table: Arc<dyn Table>,
    recordings: Arc<[Arc<Recording>]>,
    pieces: Pieces,
}

impl Function {
    pub(crate) fn new(
        table: Arc<dyn Table>,
        recordings: Arc<[Arc<Recording>]>,
        pieces: Pieces,
    ) -> Self {
        Self {
            table,
            recordings,
            pieces,
        }
    }
}

/// What an argument says, if it is not NULL.
fn value<'e>(arguments: &'e [Expr], number: usize, what: &str) -> Result<Option<&'e ScalarValue>> {
    match arguments.get(number) {
        None => Ok(None),
        Some(Expr::Literal(value, _)) => Ok(Some(value).filter(|value| !value.is_null())),
        Some(other) => plan_err!("{what} must be a constant, and is {other}"),
    }
}

impl TableFunctionImpl for Function {
    fn call_with_args(
        &self,
        arguments: TableFunctionArgs<'_, '_>,
    ) -> Result<Arc<dyn TableProvider>> {
        let (name, given) = (self.table.name(), arguments.exprs());
        if given.len() > 4 {
            return plan_err!(
                "{name}(recording, thread, from, to): there are {} arguments",
                given.len()
            );
        }
        let mut conditions = Vec::new();
        if let Some(recording) = value(given, 0, "recording")? {
            let Some(text) = recording.try_as_str().flatten() else {
                return plan_err!("{name}: recording must be a text, and is {recording}");
            };
            if self.recordings.iter().all(|known| known.name() != text) {
                return plan_err!("{name}: no recording is {text}");
            }
            conditions.push(col("recording").eq(lit(text)));
        }
        let number = |at: usize, what: &str| -> Result<Option<Expr>> {
            let Some(value) = value(given, at, what)? else {
                return Ok(None);
            };
            match value {
                ScalarValue::Int64(Some(number)) => Ok(Some(lit(*number))),
                other => plan_err!("{name}: {what} must be a whole number, and is {other}"),
            }
        };
        conditions.extend(number(1, "thread")?.map(|tid| col("tid").eq(tid)));
        conditions.extend(number(2, "from")?.map(|from| col("time_ns").gt_eq(from)));
        conditions.extend(number(3, "to")?.map(|to| col("time_ns").lt(to)));
        let (table, recordings) = (self.table.clone(), self.recordings.clone());
        let provider: Arc<dyn TableProvider> =
            Arc::new(Provider::new(table, recordings, self.pieces));
        let Some(all) = conditions.into_iter().reduce(Expr::and) else {
            return Ok(provider);
        };
        let plan = LogicalPlanBuilder::scan(name, provider_as_source(provider), None)?
            .filter(all)?
            .build()?;
        Ok(Arc::new(ViewTable::new(plan, None)))
    }
}
