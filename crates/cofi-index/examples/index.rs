//! Builds the index of a recording and asks it, with times: `index FILE [--no-inlined] [--only-build]`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use cofi_index::{Axis, Explorer, Index, IndexOptions};
use cofi_session::{Fingerprint, Session, SessionOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().ok_or("which file?")?);
    let bytes = std::fs::read(&path)?;
    let session = Session::new(&bytes, &SessionOptions::beside(&path))?;
    let mut options = IndexOptions::default();
    let words: Vec<String> = args.collect();
    let has = |word: &str| words.iter().any(|given| given == word);
    options.inlined = !has("--no-inlined");
    let print = Fingerprint::of(&session, &bytes);
    let begun = Instant::now();
    let first = std::sync::Mutex::new(None);
    let index = Index::build(&session, &options, &AtomicBool::new(false), &|partial| {
        let rows = partial.rows.iter().map(|row| row.insns).sum::<u64>();
        if rows > 0 {
            first
                .lock()
                .expect("no panics")
                .get_or_insert(begun.elapsed());
        }
    })
    .ok_or("cancelled")?;
    let first = first.into_inner()?;
    let insns: u64 = index.rows().iter().map(|row| row.insns).sum();
    let calls: u64 = index.rows().iter().map(|row| row.calls).sum();
    let inlined = index.functions().iter().filter(|info| info.is_inlined);
    let inlined: u64 = inlined.map(|info| info.calls).sum();
    println!(
        "built in {:?} (first places known after {first:?}): {insns} instructions, {calls} calls, {inlined} of inlined functions, {} functions",
        begun.elapsed(),
        index.functions().len()
    );
    if has("--only-build") {
        return Ok(());
    }
    let kept = Index::path_beside(&path);
    let begun = Instant::now();
    index.save(&kept, &print)?;
    let size = std::fs::metadata(&kept)?.len();
    println!("saved in {:?}: {size} bytes", begun.elapsed());
    let begun = Instant::now();
    let index = Arc::new(Index::load(&kept, &print)?);
    println!("loaded in {:?}", begun.elapsed());
    let mut explorer = Explorer::new(&session, index.clone());
    for (number, row) in index.rows().iter().enumerate().take(3) {
        let begun = Instant::now();
        let range = row.range(Axis::Instructions).unwrap_or(0..0);
        let strip = row.strip(Axis::Time, &row.range(Axis::Time).unwrap_or(0..0), 1000);
        let shown = strip.iter().filter(|bin| bin.insns > 0).count();
        println!("row {number}: strip {shown} bins in {:?}", begun.elapsed());
        for width in [range.end, range.end / 100, 1_000_000, 10_000] {
            let mut slowest = 0.0_f64;
            let (mut calls, mut total) = (0, 0.0);
            for part in 0..20 {
                let from = range.end.saturating_sub(width) / 20 * part;
                let begun = Instant::now();
                let flame = explorer.flame(number, &(from..from + width), width / 1500);
                let took = begun.elapsed().as_secs_f64();
                calls += flame.calls.len();
                (slowest, total) = (slowest.max(took), total + took);
            }
            println!(
                "row {number}: flame of {width}: {} calls, {:.1} ms, at most {:.1} ms",
                calls / 20,
                total * 50.0,
                slowest * 1000.0
            );
        }
        let begun = Instant::now();
        let table =
            explorer.functions(&[(number, 1000..range.end.saturating_sub(1000))], &|| false);
        println!(
            "row {number}: {} functions in {:?}",
            table.rows.len(),
            begun.elapsed()
        );
        let begun = Instant::now();
        let merged = explorer.merged(&[(number, range.clone())], &|| false);
        println!(
            "row {number}: {} nodes in {:?}",
            merged.nodes.len(),
            begun.elapsed()
        );
        for sum in table.rows.iter().take(2) {
            let begun = Instant::now();
            let code = explorer.code(sum.function, &[(number, range.clone())], &|| false);
            println!(
                "row {number}: {} instructions counted for one function, {} listed, in {:?}",
                code.counted,
                code.insns.len(),
                begun.elapsed()
            );
        }
        for sum in table.rows.iter().take(5) {
            println!(
                "    {sum:?} {}",
                index.functions()[sum.function as usize].name
            );
        }
    }
    Ok(())
}
