//! What the peers' programs share: their command line, their images of code, their clock, and the line that they print.
//!
//! ```text
//! PROGRAM [--warm] [--passes N] STREAM [FILE:OFFSET:SIZE:ADDRESS]...
//! ```
//!
//! SECTION is SIZE bytes of FILE from OFFSET on, which stand at ADDRESS. Options that concern the processor and its clocks are read
//! and ignored: none of these decoders asks for them. Each pass begins with nothing decoded, unless `--warm` keeps what
//! the decoder keeps; then one more pass comes before, whose time does not count. One line of JSON is printed: what a pass
//! counts, a checksum of it, and the processor time of each pass in seconds. Whatever goes wrong is said on standard error with status 1;
//! wrong usage has status 2.

#[path = "../../../crates/cofi-flow/examples/words/mod.rs"]
mod words;

use std::error::Error;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use words::{number, section};

/// The code: pieces with their addresses, the lowest first.
pub type Images = Vec<(u64, Vec<u8>)>;

/// What the command line says.
#[derive(Debug)]
pub struct Task {
    /// Keep between passes what the decoder can keep.
    pub warm: bool,
    /// The passes whose time counts.
    pub passes: usize,
    /// The packets.
    pub stream: Vec<u8>,
    /// The code.
    pub images: Images,
}

/// What a pass finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// How many packets or branches.
    pub count: u64,
    /// A checksum over them.
    pub sum: u64,
}

/// The finalizer of MurmurHash3: what spreads addresses over maps and checksums. ptcov has the same.
#[must_use]
pub const fn mix(mut key: u64) -> u64 {
    key ^= key >> 33;
    key = key.wrapping_mul(0xff51_afd7_ed55_8ccd);
    key ^= key >> 33;
    key = key.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ key >> 33
}

fn task(mut words: impl Iterator<Item = String>) -> Result<Task, Box<dyn Error>> {
    let (mut stream, mut images) = (None, Images::new());
    let (mut warm, mut passes) = (false, 1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--warm" => warm = true,
            "--passes" => {
                let value = words.next().ok_or("--passes wants a number")?;
                passes = usize::try_from(number(&value)?)?.max(1);
            }
            "--cpu" | "--cpuid-15" | "--mtc-freq" | "--nom-freq" => drop(words.next()),
            _ if word.starts_with("--") => return Err(format!("{word}: unknown").into()),
            _ if stream.is_none() => {
                stream = Some(fs::read(&word).map_err(|error| format!("{word}: {error}"))?);
            }
            _ => images.push(section(&word)?),
        }
    }
    images.sort_by_key(|(address, _)| *address);
    Ok(Task {
        warm,
        passes,
        stream: stream.ok_or("which stream?")?,
        images,
    })
}

/// The processor time that this process has used.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .map(Duration::from)
        .expect("every process has such a clock")
}

/// Makes the passes: `fresh` makes a decoder, and `pass` decodes with it. Gives the line to print.
///
/// # Errors
///
/// What `pass` fails with, and two passes that find different things.
pub fn passes<D>(
    task: &Task,
    mut fresh: impl FnMut() -> D,
    mut pass: impl FnMut(&mut D) -> Result<Found, Box<dyn Error>>,
) -> Result<String, Box<dyn Error>> {
    let mut kept = None;
    let mut first = None;
    if task.warm {
        let mut decoder = fresh();
        first = Some(pass(&mut decoder)?);
        kept = Some(decoder);
    }
    let mut seconds = Vec::new();
    for _ in 0..task.passes {
        let before = processor_time();
        let found = match &mut kept {
            Some(decoder) => pass(decoder)?,
            None => {
                // To drop what was decoded is part of a pass that begins with nothing.
                let mut decoder = fresh();
                pass(&mut decoder)?
            }
        };
        seconds.push(format!("{:.6}", (processor_time() - before).as_secs_f64()));
        let expected = *first.get_or_insert(found);
        if found != expected {
            return Err(format!("one pass finds {expected:?}, another {found:?}").into());
        }
    }
    let Found { count, sum } = first.unwrap_or_default();
    Ok(format!(
        "{{\"count\":{count},\"sum\":\"{sum:#x}\",\"seconds\":[{}]}}",
        seconds.join(",")
    ))
}

/// Runs a peer's program: reads the command line, and prints the line that `run` gives.
pub fn main(run: impl FnOnce(&Task) -> Result<String, Box<dyn Error>>) -> ExitCode {
    let task = match task(std::env::args().skip(1)) {
        Ok(task) => task,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    match run(&task) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(1)
        }
    }
}
