//! How wide the intervals of time are that the decoder states for instructions, by what timing packets there are: a table in Markdown.
//!
//! ```text
//! cargo run --release -p cofi-law --example widths [MACHINES]
//! ```
//!
//! Two tables. Programs: an instruction takes two core cycles on average, the clock is steady. Machines: random ones that do everything of
//! which chapter 33 knows but lose no packets; an instruction takes 500 TSC ticks on average, sleep states take up to 100,000, and core clocks
//! run at half to twice the TSC's frequency and change. The crystal clock ticks every 80 TSC ticks.

use cofi_flow::{FlowConfig, FlowDecoder, Item};
use cofi_insn::CodeSource;
use cofi_law::Config;
use cofi_law::machine::{Code, Features, Setup, run};
use cofi_packet::Ip;
use cofi_unit::{Capabilities, Ctl};

struct Source<'c>(&'c [Code]);

impl CodeSource for Source<'_> {
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        for code in self.0 {
            let from = code.bytes_at(ip);
            if !from.is_empty() {
                let len = from.len().min(buf.len());
                buf[..len].copy_from_slice(&from[..len]);
                return len;
            }
        }
        0
    }
}

/// What is traced: MTCFreq and CycThresh, if these packets are on.
#[derive(Clone, Copy)]
struct Timing {
    mtc: Option<u64>,
    cyc: Option<u64>,
    /// The decoder knows the TSC's ratio to the bus clock, so that it can use CBR packets.
    told: bool,
}

/// The widths of all intervals that have an end, and how many have none.
#[derive(Default)]
struct Widths {
    widths: Vec<u64>,
    open: usize,
    bytes: usize,
    insns: usize,
}

/// Code that a function reads.
struct Both<F>(F);

impl<F: FnMut(Ip, &mut [u8]) -> usize> CodeSource for Both<F> {
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        self.0(ip, buf)
    }
}

/// Adds what one trace gives.
fn add<C: CodeSource>(found: &mut Widths, timing: Timing, ratio: u8, trace: &[u8], code: C) {
    let mut config = FlowConfig::default();
    config.tsc_art_ratio = (80, 1);
    config.mtc_freq = timing.mtc.unwrap_or(0) as u8;
    config.max_nonturbo_ratio = if timing.told { ratio } else { 0 };
    let mut decoder = FlowDecoder::new(trace, code, config);
    found.bytes += trace.len();
    while let Some(item) = decoder.next() {
        let Item::Insn(_) = item else { continue };
        found.insns += 1;
        match decoder.time().and_then(|time| time.width()) {
            Some(width) => found.widths.push(width),
            None => found.open += 1,
        }
    }
}

/// The registers for it.
fn configure(ctl: Ctl, timing: Timing) -> Ctl {
    ctl.with_os(true)
        .with_user(true)
        .with_branch_en(true)
        .with_cr3_filter(false)
        .with_psb_freq(0)
        .with_tsc_en(true)
        .with_mtc_en(timing.mtc.is_some())
        .with_mtc_freq(timing.mtc.unwrap_or(0))
        .with_cyc_en(timing.cyc.is_some())
        .with_cyc_thresh(timing.cyc.unwrap_or(0))
}

fn programs(timing: Timing, count: u64) -> Widths {
    let mut found = Widths::default();
    for seed in 0..count {
        let execution = cofi_law::run(&Config {
            seed,
            steps: 20_000,
            blocks: 40,
            ctl: configure(Ctl(0), timing),
            long_tnt: false,
            deep: false,
            slowest: 3,
        });
        let [mut a, mut b] = [&execution.programs[0], &execution.programs[1]];
        let code = Both(move |ip, buf: &mut [u8]| match a.read(ip, buf) {
            0 => b.read(ip, buf),
            len => len,
        });
        add(&mut found, timing, 20, &execution.trace, code);
    }
    found
}

fn machines(timing: Timing, count: u64) -> Widths {
    let mut found = Widths::default();
    for seed in 0..count {
        let features = Features(Features::ALL.0 & !Features::OVERFLOW.0);
        let mut setup = Setup::random(seed, 4000, features);
        setup.caps = Capabilities::default();
        setup.ctl = configure(setup.ctl, timing);
        let record = run(&setup);
        add(&mut found, timing, 20, &record.trace, Source(&record.codes));
    }
    found
}

fn table(title: &str, measure: fn(Timing, u64) -> Widths, count: u64) {
    println!("### {title}\n");
    println!("| packets | median | 99 % | most | without an end | bytes an instruction |");
    println!("|---|---|---|---|---|---|");
    let mut rows = vec![(None, None)];
    rows.extend([0, 3, 6, 9].map(|mtc| (Some(mtc), None)));
    rows.extend([0, 4, 8, 12].map(|cyc| (None, Some(cyc))));
    rows.extend([0, 4, 8, 12].map(|cyc| (Some(3), Some(cyc))));
    for (mtc, cyc) in rows {
        for told in [true, false] {
            if !told && cyc.is_none() {
                continue;
            }
            let mut found = measure(Timing { mtc, cyc, told }, count);
            found.widths.sort_unstable();
            let mut name = String::from("TSC");
            if let Some(freq) = mtc {
                name += &format!(", MTC every {} ticks", 80 << freq);
            }
            if let Some(threshold) = cyc {
                let cycles = (1 << threshold) / 2;
                let cbr = if told { "" } else { ", CBR not used" };
                name += &format!(", CYC from {cycles} cycles on{cbr}");
            }
            let known = found.widths.len();
            let [median, most_of, most] = [0.5, 0.99, 1.0].map(|part| {
                let index = (known as f64 * part) as usize;
                found
                    .widths
                    .get(index.min(known.saturating_sub(1)))
                    .copied()
                    .unwrap_or(0)
            });
            let open = 100.0 * found.open as f64 / found.insns as f64;
            let bytes = found.bytes as f64 / found.insns as f64;
            println!("| {name} | {median} | {most_of} | {most} | {open:.2} % | {bytes:.2} |");
        }
    }
    println!();
}

fn main() {
    let count = std::env::args()
        .nth(1)
        .and_then(|count| count.parse().ok())
        .unwrap_or(100);
    table("Programs", programs, count);
    table("Machines", machines, count);
}
