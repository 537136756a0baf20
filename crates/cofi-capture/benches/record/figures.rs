//! What was measured of a program, as lines of tables and as JSON.

use super::measure::{Took, median};
use serde_json::{Value, json};

/// The ways in which a program is run, in the order of the columns.
pub(crate) const WAYS: [&str; 6] = ["native", "QEMU", "called", "told", "counted", "recorded"];
pub(crate) const NATIVE: usize = 0;
pub(crate) const ALONE: usize = 1;
pub(crate) const CALLED: usize = 2;
pub(crate) const TOLD: usize = 3;
pub(crate) const COUNTED: usize = 4;
pub(crate) const RECORDED: usize = 5;

/// The width of a program's name.
const NAME: usize = 10;

/// All figures of a program.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) name: &'static str,
    /// Of each way, each round's; of a machine some are not made.
    pub(crate) runs: [Vec<Took>; 6],
    /// Recorded with one thread only, of a program with several.
    pub(crate) single: Vec<Took>,
    pub(crate) blocks: u64,
    pub(crate) instructions: u64,
    pub(crate) trace_bytes: u64,
    /// The recorder's memory in KiB, of each round.
    pub(crate) peaks: Vec<u64>,
}

impl Figures {
    /// The median of one way's runs, if it was run.
    fn of(&self, way: usize, what: fn(&Took) -> f64) -> Option<f64> {
        let runs = &self.runs[way];
        (!runs.is_empty()).then(|| median(runs.iter().map(what).collect()))
    }

    fn wall(&self, way: usize) -> Option<f64> {
        self.of(way, |took| took.wall)
    }

    /// QEMU alone by recorded: the median of each round's.
    fn ratio(&self) -> f64 {
        let pairs = self.runs[ALONE].iter().zip(&self.runs[RECORDED]);
        median(
            pairs
                .map(|(alone, recorded)| alone.wall / recorded.wall)
                .collect(),
        )
    }

    fn peak(&self) -> Option<f64> {
        let all = self.peaks.iter().map(|kib| *kib as f64 / 1024.0).collect();
        (!self.peaks.is_empty()).then(|| median(all))
    }

    /// What one thread takes, times as many as there are, and what recording all of them took of that.
    fn singles(&self, threads: usize) -> Option<(f64, f64)> {
        let walls: Vec<f64> = self.single.iter().map(|took| took.wall).collect();
        let sum = |wall: f64| wall * threads as f64;
        let pairs = walls.iter().zip(&self.runs[RECORDED]);
        let ratios = pairs.map(|(wall, all)| all.wall / sum(*wall)).collect();
        (!walls.is_empty()).then(|| (sum(median(walls)), median(ratios)))
    }

    /// The heading of the first table.
    pub(crate) fn heading() -> String {
        let ways = WAYS.map(|way| format!(" {way:>8}")).concat();
        format!(
            "{:NAME$}{ways} {:>7} {:>11} {:>7}",
            "", "ratio", "trace bytes", "MiB"
        )
    }

    /// Its line in the first table, and another one if it has threads.
    pub(crate) fn line(&self, threads: usize) -> String {
        let none = || format!(" {:>8}", "-");
        let mut line = format!("{:NAME$}", self.name);
        for way in 0..WAYS.len() {
            line += &self
                .wall(way)
                .map_or_else(none, |wall| format!(" {wall:>8.2}"));
        }
        line += &format!(" {:>7.2} {:>11}", self.ratio(), self.trace_bytes);
        line += &self
            .peak()
            .map_or_else(none, |peak| format!(" {peak:>7.1}"));
        if let Some((sum, ratio)) = self.singles(threads) {
            line += &format!(
                "\n{:NAME$} one thread recorded, times {threads}: {sum:.2}; together by that: {ratio:.2}",
                ""
            );
        }
        line
    }

    /// The heading of the second table.
    pub(crate) fn heading_by_block() -> String {
        format!(
            "{:NAME$} {:>8} {:>6} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9}",
            "", "M blocks", "insns", "QEMU", "call", "write", "read", "look-up", "unit"
        )
    }

    /// Its line in the second table, if its blocks were counted.
    pub(crate) fn line_by_block(&self) -> Option<String> {
        let ns = |seconds: f64| seconds * 1e9 / self.blocks as f64;
        let program = |way| self.of(way, |took| took.program).map(ns);
        let thread = |way| self.of(way, |took| took.thread).map(ns);
        Some(format!(
            "{:NAME$} {:>8.1} {:>6.2} {:>8.2} {:>8.2} {:>8.2} {:>8.2} {:>9.2} {:>9.2}",
            self.name,
            self.blocks as f64 / 1e6,
            self.instructions as f64 / self.blocks as f64,
            program(ALONE)?,
            program(CALLED)? - program(ALONE)?,
            program(TOLD)? - program(CALLED)?,
            program(RECORDED)? - program(TOLD)?,
            thread(COUNTED)?,
            thread(RECORDED)? - thread(COUNTED)?,
        ))
    }

    /// All of it: seconds of each round, and the medians that are printed.
    pub(crate) fn json(&self, threads: usize) -> Value {
        let all = |runs: &[Took]| runs.iter().map(Took::json).collect::<Value>();
        let ways = || WAYS.iter().enumerate();
        let runs: serde_json::Map<_, _> = ways()
            .map(|(at, way)| ((*way).to_owned(), all(&self.runs[at])))
            .collect();
        let medians: serde_json::Map<_, _> = ways()
            .map(|(at, way)| ((*way).to_owned(), json!(self.wall(at))))
            .collect();
        let counted = |count: u64| (count > 0).then_some(count);
        let singles = self.singles(threads);
        json!({
            "name": self.name,
            "wall": medians,
            "ratio": self.ratio(),
            "blocks": counted(self.blocks),
            "instructions": counted(self.instructions),
            "trace_bytes": self.trace_bytes,
            "peak_mib": self.peak(),
            "singles": singles.map(|(sum, ratio)| json!({ "threads": threads, "wall": sum, "together": ratio })),
            "runs": runs,
            "single_runs": all(&self.single),
            "peaks_kib": self.peaks,
        })
    }
}
