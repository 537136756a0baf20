//! ptcov's map of edges. Its counts wrap at 256, as a fuzzer's do.
//!
//! A first pass, whose time does not count, fills a map of wide counts. `count` is their sum, so the edges that ran; the checksum is of that
//! map. The maps of the passes that count must be the same modulo 256.

use std::error::Error;
use std::process::ExitCode;

use cofi_peers::{Found, Images, Task, mix, passes};
use ptcov::{PtCoverageDecoder, PtCoverageDecoderBuilder, PtImage};

/// Entries of a map.
const SIZE: usize = 1 << 16;

fn decoder<'i>(images: &'i [PtImage<'i>]) -> PtCoverageDecoder<'i> {
    PtCoverageDecoderBuilder::default().images(images).build()
}

/// Sections that continue each other become one: the decoder wants an instruction whole within an image.
fn joined(images: &Images) -> Images {
    let mut joined = Images::new();
    for (address, bytes) in images {
        match joined.last_mut() {
            Some((start, all)) if *start + all.len() as u64 == *address => all.extend(bytes),
            _ => joined.push((*address, bytes.clone())),
        }
    }
    joined
}

fn run(task: &Task) -> Result<String, Box<dyn Error>> {
    let images = joined(&task.images);
    let images: Vec<PtImage<'_>> = images
        .iter()
        .map(|(address, bytes)| PtImage::new(bytes, *address))
        .collect();
    let mut wide = vec![0_u64; SIZE];
    decoder(&images)
        .coverage(&task.stream, &mut wide)
        .map_err(|error| format!("{error:?}"))?;
    let found = Found {
        count: wide.iter().sum(),
        sum: wide.iter().zip(0_u64..).fold(0, |sum, (count, at)| {
            sum.wrapping_add(count.wrapping_mul(mix(at + 1)))
        }),
    };
    let mut map = vec![0_u8; SIZE];
    passes(
        task,
        || decoder(&images),
        |decoder| {
            map.fill(0);
            decoder
                .coverage(&task.stream, &mut map)
                .map_err(|error| format!("{error:?}"))?;
            if map
                .iter()
                .zip(&wide)
                .any(|(a, b)| u64::from(*a) != b & 0xff)
            {
                return Err("a pass finds another map".into());
            }
            Ok(found)
        },
    )
}

fn main() -> ExitCode {
    cofi_peers::main(run)
}
