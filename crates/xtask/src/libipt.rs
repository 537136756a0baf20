//! `cargo xtask libipt DIR`: the library with libipt's interface, under the name by which programs find it; and how fast it is beside libipt.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::capi;
use cofi_exam::build::ptinsn;

/// What programs that were linked with libipt 2 look for.
const SONAME: &str = "libipt.so.2";
/// As whatever is handed to others.
const PROFILE: &str = "dist";
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
        PROFILE,
        &["--crate-type", "cdylib", "--", &soname],
    )?;
    let library = into.join(SONAME);
    let built = format!("{PROFILE}/libcofi_libipt.so");
    capi::strip(root, &built, "--strip-unneeded", &library)?;
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

/// How often a trace is decoded in a round: small ones more often, so that a round is long enough to be measured.
fn passes(instructions: u64) -> u64 {
    (10_000_000 / instructions.max(1)).clamp(4, 10_000)
}

/// Both libraries by turns on each trace, the same program; the least of their times, as others may use the machine.
fn race(root: &Path, library: &Path, traces: &Path) -> Result<()> {
    let program = ptinsn(root, library).map_err(anyhow::Error::msg)?;
    let mut names: Vec<PathBuf> = fs::read_dir(traces)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    names.sort();
    println!(
        "| trace | level | instructions | libipt, ns each | this library, ns each | factor |\n|---|---|---|---|---|---|"
    );
    for trace in names.iter().filter(|trace| trace.is_dir()) {
        let Some(words) = arguments(trace)? else {
            continue;
        };
        for (level, options) in [("instructions", &[][..]), ("blocks", &["--blocks"][..])] {
            let (mut least, mut found, mut count) = ([f64::INFINITY; 2], [0, 0], 1);
            // (The first round says how many instructions there are.)
            for round in 0..=ROUNDS {
                for (index, path) in [Path::new(""), library].into_iter().enumerate() {
                    let output = Command::new(&program)
                        .args(["--cpu", "6/79/1", "--warm"])
                        .args(options)
                        .args(["--count", &count.to_string()])
                        .args(&words)
                        .env("LD_LIBRARY_PATH", path)
                        .output()?;
                    let text = String::from_utf8(output.stdout)?;
                    let mut fields = text.split_whitespace();
                    found[index] = fields
                        .next()
                        .context("it printed nothing")?
                        .parse::<u64>()?;
                    let seconds: f64 = fields.nth(1).context("it printed no time")?.parse()?;
                    if round > 0 {
                        let each = seconds * 1e9 / (count * found[index]) as f64;
                        least[index] = least[index].min(each);
                    }
                }
                count = passes(found[0]);
            }
            let name = trace.file_name().unwrap_or_default().to_string_lossy();
            ensure!(found[0] == found[1], "{name}: {found:?} instructions");
            let [theirs, ours] = least;
            println!(
                "| {name} | {level} | {} | {theirs:.2} | {ours:.2} | {:.2} |",
                found[0],
                theirs / ours
            );
        }
    }
    Ok(())
}
