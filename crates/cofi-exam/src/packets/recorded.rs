//! Traces of real processors: what they hold is what processors write, and no generator has thought of it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::judge::Tally;
use super::quirks::Who;
use super::readers::Readers;

/// Lets everybody read every `trace.pt` in the folders below `traces`. Differences go into `tally`, counts do not: they would
/// hide how often the generated streams hold a packet.
pub(super) fn compare(
    readers: &Readers,
    folder: &Path,
    traces: &Path,
    tally: &mut Tally,
) -> Result<()> {
    let mut names: Vec<PathBuf> = fs::read_dir(traces)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("trace.pt").is_file())
        .collect();
    names.sort();
    if names.is_empty() {
        println!(
            "recorded: no traces of real processors in {}: NOT COMPARED (--traces FOLDER or COFI_TRACES says where they are)",
            traces.display()
        );
    }
    for path in names {
        let label = path
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        // A copy: beside it comes perf's file.
        let file = folder.join(&label).with_extension("pt");
        let bytes = fs::read(path.join("trace.pt"))
            .with_context(|| format!("reading {}", path.display()))?;
        fs::write(&file, &bytes).with_context(|| format!("writing {}", file.display()))?;
        let cofi = readers.cofi(&file).with_context(|| label.clone())?;
        let mut words = format!("recorded: {label}: {} packets", cofi.len());
        for who in [Who::Libipt, Who::Perf] {
            let mut own = Tally::default();
            let theirs = readers
                .peer(who, &file, &bytes)
                .with_context(|| format!("{label}, {}", who.name()))?;
            let Some(mut theirs) = theirs else {
                words += &format!("; {}: skipped", who.name());
                continue;
            };
            // perf.data is filled up to whole words of eight bytes.
            theirs.retain(|entry| entry.offset < bytes.len() as u64);
            own.compare(who, &label, &bytes, &cofi, &theirs);
            let total = own.total(who);
            words += &match own.differences() {
                0 => format!(
                    "; {}: the same, {} fields, {} excused",
                    who.name(),
                    total.fields,
                    total.excused
                ),
                n => format!("; {}: {n} DIFFERENCES", who.name()),
            };
            tally.take_differences(own);
        }
        println!("{words}");
    }
    Ok(())
}
