//! The tables as Parquet files: `DIR/TABLE/RECORDING.parquet`, one for each table and recording.
//!
//! The column `recording` is in each file, and its statistics say that it has one value: who reads a folder of them skips the files of other
//! recordings, and who reads one file alone knows what it is of. (Folders named `recording=…` would have readers guess its type from its name.)

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::StreamExt;
use thiserror::Error;

use crate::engine::{Engine, EngineOptions};
use crate::output::OutputError;
use crate::parquet_file::ParquetFile;
use crate::recording::Recording;
use crate::table::Table;
use crate::tables;

/// Why tables cannot be exported.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExportError {
    /// There is no such table.
    #[error("there is no table {name}; there are {known}")]
    NoTable {
        /// The name that was asked for.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {error}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        error: OutputError,
    },
}

/// The tables of these names; all without any.
///
/// # Errors
/// When there is none of a name.
pub fn tables_named(names: &[String]) -> Result<Vec<Arc<dyn Table>>, ExportError> {
    let all = tables::all();
    if let Some(name) = names
        .iter()
        .find(|name| all.iter().all(|table| table.name() != name.as_str()))
    {
        let known: Vec<&str> = all.iter().map(|table| table.name()).collect();
        return Err(ExportError::NoTable {
            name: name.clone(),
            known: known.join(", "),
        });
    }
    let is_wanted =
        |table: &Arc<dyn Table>| names.is_empty() || names.iter().any(|name| name == table.name());
    Ok(all.into_iter().filter(is_wanted).collect())
}

/// The name of a recording's files: what is neither a letter, a digit, `-`, `_` nor a dot behind these is in hexadecimal, as in addresses
/// of the web, so that different recordings have different files.
fn file_name(recording: &str) -> String {
    let mut name = String::new();
    for byte in recording.bytes() {
        match byte {
            b'.' if !name.is_empty() => name.push('.'),
            b'-' | b'_' => name.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => name.push(byte.into()),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    name + ".parquet"
}

/// Writes tables of recordings into a folder; how many files that are.
///
/// # Errors
/// When a file cannot be written, or a table cannot be read.
pub async fn export(
    recordings: &[Arc<Recording>],
    tables: &[Arc<dyn Table>],
    folder: &Path,
    options: &EngineOptions,
) -> Result<usize, ExportError> {
    let mut count = 0;
    for recording in recordings {
        // What is worked out of it once serves all tables.
        let recordings = std::slice::from_ref(recording);
        for table in tables {
            let folder = folder.join(table.name());
            let path = folder.join(file_name(recording.name()));
            let written = write(recordings, table.as_ref(), &folder, &path, options).await;
            written.map_err(|error| ExportError::Write { path, error })?;
            count += 1;
        }
    }
    Ok(count)
}

/// Writes a file beside where it is to be, and puts it there when it is whole.
async fn write(
    recordings: &[Arc<Recording>],
    table: &dyn Table,
    folder: &Path,
    path: &Path,
    options: &EngineOptions,
) -> Result<(), OutputError> {
    std::fs::create_dir_all(folder)?;
    let part = path.with_extension("parquet.part");
    let written = write_rows(recordings, table, &part, options).await;
    match written {
        Ok(()) => Ok(std::fs::rename(&part, path)?),
        Err(error) => {
            // It is of no use to anybody.
            let _ = std::fs::remove_file(&part);
            Err(error)
        }
    }
}

async fn write_rows(
    recordings: &[Arc<Recording>],
    table: &dyn Table,
    path: &Path,
    options: &EngineOptions,
) -> Result<(), OutputError> {
    let engine = Engine::new(recordings, options)?;
    let mut rows = engine.table(table).await?.execute_stream().await?;
    let out = BufWriter::with_capacity(1 << 16, File::create(path)?);
    let mut file = ParquetFile::new(out, rows.schema())?;
    while let Some(batch) = rows.next().await {
        file.write(&batch?)?;
    }
    file.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_have_files_of_their_own() {
        let names = ["a.data", "runs/a.data", "runs%2fa.data", "../a.data", "ä"];
        let files: Vec<String> = names.iter().map(|name| file_name(name)).collect();
        assert_eq!(
            files,
            [
                "a.data.parquet",
                "runs%2fa.data.parquet",
                "runs%252fa.data.parquet",
                "%2e.%2fa.data.parquet",
                "%c3%a4.parquet"
            ]
        );
    }

    #[test]
    fn tables_are_found_by_name() {
        let all = tables_named(&[]).expect("all");
        assert_eq!(all.len(), tables::all().len());
        let one = tables_named(&["calls".into()]).expect("one");
        assert_eq!(
            one.iter().map(|table| table.name()).collect::<Vec<_>>(),
            ["calls"]
        );
        let error = tables_named(&["call".into()]).expect_err("none");
        assert!(
            error
                .to_string()
                .starts_with("there is no table call; there are recordings, ")
        );
    }
}
