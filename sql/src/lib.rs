//! Recordings of Intel PT and RTIT as tables: SQL over them, and Parquet of them.
//!
//! An [`Engine`] answers statements about [recordings](Recording) with DataFusion, in this process. Its [tables] are documented in
//! `docs/sql.md`. Rows come from the decoder as it goes; what conditions exclude is not decoded, as far as [limits] tell; and what sorting, joining
//! and grouping hold is bounded: beyond that they write to files.
//!
//! ```no_run
//! use cofi_sql::{Engine, EngineOptions, Form, OpenOptions, Recording, write};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let recordings = Recording::open_all(&["cofi.data".into()], &OpenOptions::default())?;
//! let engine = Engine::new(&recordings, &EngineOptions::default())?;
//! let hottest = "SELECT function, instructions FROM functions ORDER BY instructions DESC LIMIT 10";
//! let rows = engine.query(hottest).await?.execute_stream().await?;
//! write(rows, Form::Text, &mut std::io::stdout()).await?;
//! # Ok(())
//! # }
//! ```

pub mod cli;
pub mod columns;
mod divide;
mod engine;
mod export;
pub mod functions;
mod kept;
pub mod limits;
mod output;
mod packets_of;
mod parquet_file;
mod pool;
mod recording;
pub mod scan;
mod spill;
pub mod table;
pub mod tables;

pub use engine::{Engine, EngineOptions, parse, scalar_functions};
pub use export::{ExportError, export, tables_named};
pub use kept::KeptError;
pub use output::{Form, OutputError, write};
pub use recording::{OpenError, OpenOptions, Recording};
pub use scan::Provider;
