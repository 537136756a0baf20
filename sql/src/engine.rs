//! DataFusion with the tables of recordings, and with bounds to its memory.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringBuilder, UInt64Builder};
use arrow::datatypes::{DataType, UInt64Type};
use datafusion::common::{DataFusionError, Result, exec_err, plan_err};
use datafusion::dataframe::DataFrame;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{
    DiskManager, SendableRecordBatchStream, SessionState, SessionStateBuilder,
};
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use datafusion::physical_plan::joins::{HashJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::{SQLOptions, SessionConfig, SessionContext};
use datafusion::sql::parser::{DFParser, Statement};
use futures::{StreamExt, stream};

use crate::divide;
use crate::functions::{self, Function};
use crate::pool::SharedPool;
use crate::recording::Recording;
use crate::scan::{Pieces, Provider};
use crate::spill::SpillFolder;
use crate::table::Table;
use crate::tables;

/// What bounds a query.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// So many bytes may sorting, joining and grouping hold; beyond that they write to files.
    pub memory: usize,
    /// The folder for these files; the system's if it is not given.
    pub spill_folder: Option<PathBuf>,
    /// By how many threads; as many as there are processors if it is not given.
    pub threads: Option<usize>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            memory: 1 << 30,
            spill_folder: None,
            threads: None,
        }
    }
}

/// So many rows a batch has where memory did not suffice.
const ROWS_IN_LITTLE_MEMORY: usize = 1024;

/// Answers statements about recordings.
#[derive(Clone)]
pub struct Engine {
    context: SessionContext,
    recordings: Arc<[Arc<Recording>]>,
}

impl Engine {
    /// With the tables of these recordings.
    ///
    /// # Errors
    /// When the folder for files cannot be had.
    pub fn new(recordings: &[Arc<Recording>], options: &EngineOptions) -> Result<Self> {
        let files = match &options.spill_folder {
            Some(folder) => SpillFolder::new(folder)?,
            None => SpillFolder::default(),
        };
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(SharedPool::new(options.memory)))
            .with_disk_manager_builder(
                DiskManager::builder().with_temp_file_factory(Arc::new(files)),
            );
        let mut config = SessionConfig::new().with_information_schema(true);
        if let Some(threads) = options.threads {
            config = config.with_target_partitions(threads.max(1));
        }
        // What each sort keeps for merging what it has written must fit, however little memory there is.
        let share = options.memory / (16 * config.target_partitions());
        let reserved = share.min(config.options().execution.sort_spill_reservation_bytes);
        let config = config.with_sort_spill_reservation_bytes(reserved);
        let state = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(runtime.build_arc()?)
            .with_default_features()
            .with_physical_optimizer_rules(divide::rules())
            .build();
        let context = SessionContext::new_with_state(state);
        Self::within(context, recordings, Pieces::One)
    }

    /// With the tables of these recordings, in a context of somebody else's.
    ///
    /// # Errors
    /// When the context has tables with their names.
    pub fn within(
        context: SessionContext,
        recordings: &[Arc<Recording>],
        pieces: Pieces,
    ) -> Result<Self> {
        let recordings: Arc<[Arc<Recording>]> = recordings.into();
        for table in tables::all() {
            let name = table.name();
            let provider = Provider::new(table, recordings.clone(), pieces);
            context.register_table(name, Arc::new(provider))?;
        }
        for table in functions::all() {
            let name = table.name();
            let function = Function::new(table, recordings.clone(), pieces);
            context.register_udtf(name, Arc::new(function));
        }
        for function in scalar_functions() {
            context.register_udf(function);
        }
        Ok(Self {
            context,
            recordings,
        })
    }

    /// What the tables are of.
    #[must_use]
    pub fn recordings(&self) -> &[Arc<Recording>] {
        &self.recordings
    }

    /// DataFusion's own view of it.
    #[must_use]
    pub const fn context(&self) -> &SessionContext {
        &self.context
    }

    /// Plans a statement. Only such are taken as read: what would write a file or change a table is an error.
    ///
    /// # Errors
    /// When the statement is wrong.
    pub async fn run(&self, statement: Statement) -> Result<DataFrame> {
        let plan = self.context.state().statement_to_plan(statement).await?;
        let reads = SQLOptions::new()
            .with_allow_ddl(false)
            .with_allow_dml(false)
            .with_allow_statements(false);
        reads.verify_plan(&plan)?;
        self.context.execute_logical_plan(plan).await
    }

    /// Runs a statement: the same as executing what [`run`](Self::run) plans, but that a join by equal values may succeed of which no side fits in memory.
    ///
    /// A join is by a table of one side, as that is fastest. Where it has no room, and the statement has given no rows yet, that is run anew with joins by
    /// sorting, which can write to files.
    ///
    /// # Errors
    /// When the statement is wrong, or fails before its first rows.
    pub async fn rows(&self, statement: Statement) -> Result<SendableRecordBatchStream> {
        let frame = self.run(statement).await?;
        let (logical, task) = (frame.logical_plan().clone(), frame.task_ctx());
        let plan = frame.create_physical_plan().await?;
        let error = match begin(execute_stream(plan.clone(), Arc::new(task))?).await {
            Err(error) if is_exhausted(&error) && has::<HashJoinExec>(&plan) => error,
            rows => return rows,
        };
        // It may hold the table of a join that had room.
        drop(plan);
        let state = self.joining_by_sorting();
        let plan = state.create_physical_plan(&logical).await?;
        match has::<SortMergeJoinExec>(&plan) {
            true => begin(execute_stream(plan, state.task_ctx())?).await,
            false => Err(error),
        }
    }

    /// How joins are planned and run in little memory.
    fn joining_by_sorting(&self) -> SessionState {
        let mut state = self.context.state();
        let config = state.config_mut();
        config.options_mut().optimizer.prefer_hash_join = false;
        // DataFusion joins by sorting only where it may divide the work. All sides merge what they have sorted at the same time, and hold a batch of
        // each file.
        let before = config.target_partitions();
        let partitions = before.max(2);
        let rows = config.batch_size().min(ROWS_IN_LITTLE_MEMORY);
        let reserved = config.options().execution.sort_spill_reservation_bytes;
        *config = std::mem::take(config)
            .with_target_partitions(partitions)
            .with_batch_size(rows)
            .with_sort_spill_reservation_bytes(reserved / partitions * before);
        state
    }

    /// Plans a text that is one statement, as [`run`](Self::run) does.
    ///
    /// # Errors
    /// When it is wrong, or not one.
    pub async fn query(&self, text: &str) -> Result<DataFrame> {
        let mut statements = parse(text)?;
        match (statements.pop(), statements.is_empty()) {
            (Some(statement), true) => self.run(statement).await,
            _ => plan_err!("expected one statement"),
        }
    }

    /// The rows of a table, all of them.
    ///
    /// # Errors
    /// When there is no such table.
    pub async fn table(&self, table: &dyn Table) -> Result<DataFrame> {
        self.context.table(table.name()).await
    }
}

/// Waits for the first rows.
async fn begin(mut rows: SendableRecordBatchStream) -> Result<SendableRecordBatchStream> {
    let first = rows.next().await.transpose()?;
    let schema = rows.schema();
    let all = stream::iter(first.map(Ok)).chain(rows);
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, all)))
}

fn is_exhausted(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

/// Whether an operator is part of a plan.
fn has<T: ExecutionPlan>(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<T>() || plan.children().into_iter().any(has::<T>)
}

/// The functions of single values.
#[must_use]
pub fn scalar_functions() -> Vec<ScalarUDF> {
    let of =
        |name, takes, gives, run| create_udf(name, vec![takes], gives, Volatility::Immutable, run);
    vec![
        of(
            "address",
            DataType::Utf8,
            DataType::UInt64,
            Arc::new(address),
        ),
        of("hex", DataType::UInt64, DataType::Utf8, Arc::new(hex)),
    ]
}

/// The statements of a text, which stand apart by semicolons.
///
/// # Errors
/// When the text is no SQL.
pub fn parse(text: &str) -> Result<Vec<Statement>> {
    Ok(DFParser::parse_sql(text)?.into())
}

/// `address('0x401000')`: the number that a text in hexadecimal (with `0x`) or decimal is.
fn address(arguments: &[ColumnarValue]) -> Result<ColumnarValue> {
    let array = first(arguments)?;
    let mut numbers = UInt64Builder::with_capacity(array.len());
    for text in array.as_string::<i32>() {
        let Some(text) = text else {
            numbers.append_null();
            continue;
        };
        let number = match text.trim().strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.trim().parse(),
        };
        match number {
            Ok(number) => numbers.append_value(number),
            Err(error) => return exec_err!("address('{text}'): {error}"),
        }
    }
    same_shape(arguments, Arc::new(numbers.finish()))
}

/// `hex(ip)`: an address as `cofi` writes it.
fn hex(arguments: &[ColumnarValue]) -> Result<ColumnarValue> {
    let array = first(arguments)?;
    let mut texts = StringBuilder::new();
    for number in array.as_primitive::<UInt64Type>() {
        texts.append_option(number.map(|number| format!("{number:#x}")));
    }
    same_shape(arguments, Arc::new(texts.finish()))
}

fn first(arguments: &[ColumnarValue]) -> Result<ArrayRef> {
    match arguments.first() {
        Some(ColumnarValue::Array(array)) => Ok(array.clone()),
        Some(ColumnarValue::Scalar(value)) => value.to_array(),
        None => exec_err!("an argument is missing"),
    }
}

/// A constant of a constant, so that it is worked out once.
fn same_shape(arguments: &[ColumnarValue], array: ArrayRef) -> Result<ColumnarValue> {
    match arguments.first() {
        Some(ColumnarValue::Scalar(_)) => {
            let value = datafusion::common::ScalarValue::try_from_array(&array, 0)?;
            Ok(ColumnarValue::Scalar(value))
        }
        _ => Ok(ColumnarValue::Array(array)),
    }
}
