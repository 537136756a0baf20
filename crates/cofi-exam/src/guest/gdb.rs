//! gdb in the guest: it records with Intel PT, decodes by libipt, and goes back in what ran.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::super::build::tool;
use super::linux::which;

/// What the guest does, if gdb is there and knows its processor.
pub(super) const SCRIPT: &str = "\
if [ -x /bin/gdb -a $more = no ]; then cat > gdb.commands << 'END'
set pagination off
break fibonacci
run 3
record btrace pt
break by_value
delete 1
continue
info record
reverse-step
reverse-continue
record stop
END
echo BEGIN gdb; LC_ALL=C.UTF-8 gdb -nx -batch -x gdb.commands /bin/work 2>&1 | sed 's/^/GDB /'; fi
";

/// Files that gdb wants beside its libraries: those of Python that it loads when it starts, and its own.
pub(super) fn files() -> Result<Vec<(String, PathBuf)>> {
    let gdb = which("gdb").context("there is no gdb on PATH")?;
    let needed = tool(Command::new("ldd").arg(gdb))?;
    let needed = String::from_utf8_lossy(&needed);
    let mut all = Vec::new();
    // (Its file is libpython3.11.so.1.0, its folder /usr/lib/python3.11.)
    let python = needed
        .split_whitespace()
        .find_map(|word| word.strip_prefix("libpython")?.split_once(".so"));
    if let Some((version, _)) = python {
        let folder = PathBuf::from(format!("/usr/lib/python{version}"));
        add(&folder, false, &mut all)?;
        for inner in ["encodings", "collections", "importlib", "re"] {
            add(&folder.join(inner), true, &mut all)?;
        }
    }
    add(Path::new("/usr/share/gdb"), true, &mut all)?;
    Ok(all)
}

/// The files of a folder that Python reads.
fn add(folder: &Path, is_deep: bool, all: &mut Vec<(String, PathBuf)>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() && is_deep && !path.ends_with("__pycache__") {
            add(&path, true, all)?;
        } else if path.extension().is_some_and(|ending| ending == "py") {
            let name = path.strip_prefix("/").unwrap_or(&path);
            all.push((name.to_string_lossy().into_owned(), path.clone()));
        }
    }
    Ok(())
}

/// Whether it recorded without a gap, and went back.
pub(super) fn judge(said: &str) -> Result<String> {
    let lines: Vec<&str> = said
        .lines()
        .filter_map(|line| line.trim().strip_prefix("GDB "))
        .collect();
    if lines.is_empty() {
        return Ok("SKIPPED: there is no gdb here".into());
    }
    let all = lines.join("\n");
    let recorded = lines
        .iter()
        .find(|line| line.starts_with("Recorded "))
        .with_context(|| format!("it recorded nothing:\n{all}"))?;
    let count: u64 = recorded
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .unwrap_or_default();
    ensure!(
        count > 100 && recorded.contains("(0 gaps)"),
        "{recorded}\n{all}"
    );
    ensure!(
        lines
            .iter()
            .any(|line| line.contains("No more reverse-execution history")),
        "it did not go back to where the recording begins:\n{all}"
    );
    Ok((*recorded).to_owned())
}
