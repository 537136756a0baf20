//! `cargo xtask libipt DIR`: the library with libipt's interface, under the name by which programs find it; and how fast it is beside libipt.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::capi;
use cofi_exam::build::ptinsn;

/// What programs that were linked with libipt 2 look for.
const SONAME: &str = "libipt.so.2";
/// Rounds of the race, in which both take turns.
const ROUNDS: usize = 7;

/// Builds it into a folder.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let (into, race_on) = match arguments {
        [into] => (into, None),
        [into, option, folder] if option == "--race" => (into, Some(folder)),
        _ => bail!("libipt wants a folder into which it installs, and --race FOLDER"),
    };
    fs::create_dir_all(into).with_context(|| format!("making {into}"))?;
    let into = Path::new(into).canonicalize()?;
    // (Debian's libipt has no symbol versions, so this one has none.)
    let soname = format!("-Clink-arg=-Wl,-soname,{SONAME}");
    capi::build(
        root,
        "cofi-libipt",
        &["--crate-type", "cdylib", "--", &soname],
    )?;
    let library = into.join(SONAME);
    capi::strip(root, "libcofi_libipt.so", "--strip-unneeded", &library)?;
    println!(
        "{}: {} bytes",
        library.display(),
        fs::metadata(&library)?.len()
    );
    match race_on {
        Some(folder) => race(root, &into, Path::new(folder)).map(|()| true),
        None => Ok(true),
    }
}

/// A trace's stream and sections, for `ptinsn`.
fn arguments(folder: &Path) -> Result<Option<Vec<String>>> {
    let stream = folder.join("trace.pt");
    let mut words = vec![stream.display().to_string()];
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(base) = name.and_then(|name| name.strip_suffix(".bin")) else {
            continue;
        };
        let len = fs::metadata(&path)?.len();
        words.push(format!("{}:0:{len}:0x{base}", path.display()));
    }
    Ok((stream.is_file() && words.len() > 1).then_some(words))
}

/// Both libraries by turns on each trace, the same program; the median of their times.
fn race(root: &Path, library: &Path, traces: &Path) -> Result<()> {
    let program = ptinsn(root, library).map_err(anyhow::Error::msg)?;
    let mut names: Vec<PathBuf> = fs::read_dir(traces)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    names.sort();
    println!("| trace | level | libipt, s | this library, s | factor |\n|---|---|---|---|---|");
    for trace in names.iter().filter(|trace| trace.is_dir()) {
        let Some(words) = arguments(trace)? else {
            continue;
        };
        for (level, options) in [("instructions", &[][..]), ("blocks", &["--blocks"][..])] {
            let mut times = [Vec::new(), Vec::new()];
            let mut found = [0, 0];
            for _ in 0..ROUNDS {
                for (index, path) in [Path::new(""), library].into_iter().enumerate() {
                    let output = Command::new(&program)
                        .args(["--cpu", "6/79/1", "--warm"])
                        .args(options)
                        .args(["--count", "8"])
                        .args(&words)
                        .env("LD_LIBRARY_PATH", path)
                        .output()?;
                    let text = String::from_utf8(output.stdout)?;
                    let mut fields = text.split_whitespace();
                    let count = fields.next().context("it printed nothing")?;
                    found[index] = count.parse::<u64>()?;
                    let seconds = fields.nth(1).context("it printed no time")?;
                    times[index].push(seconds.parse::<f64>()?);
                }
            }
            let name = trace.file_name().unwrap_or_default().to_string_lossy();
            ensure!(found[0] == found[1], "{name}: {found:?} instructions");
            let [theirs, ours] = times.map(|mut times| {
                times.sort_by(f64::total_cmp);
                times[ROUNDS / 2]
            });
            println!(
                "| {name} | {level} | {theirs:.4} | {ours:.4} | {:.2} |",
                theirs / ours
            );
        }
    }
    Ok(())
}
