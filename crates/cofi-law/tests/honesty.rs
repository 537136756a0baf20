//! Damaged streams: what the decoder reports after a loss that it has noticed is what ran.
//!
//! A stream of a random machine is cut at any byte at both ends, loses the code of a page, or has a bit flipped. The flow of the
//! whole stream, which `machine.rs` compares with the truth, is the measure. An instruction counts as right if the whole
//! stream's flow has it at the same packet, and the instructions before it, back to where the flow was found again, too.

use cofi_flow::{Event, FlowConfig, FlowDecoder, Item};
use cofi_insn::CodeSource;
use cofi_law::Rng;
use cofi_law::machine::{Code, Features, Record, Setup, run};
use cofi_packet::intel::{Kind, Packets, sync_forward};
use cofi_packet::{ExecMode, Ip};
use std::ops::Range;

/// The programs, without those at some addresses.
struct Source<'c> {
    codes: &'c [Code],
    without: Range<u64>,
}

impl CodeSource for Source<'_> {
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        let room = match ip.0 {
            ip if self.without.contains(&ip) => 0,
            ip if ip < self.without.start => (self.without.start - ip).min(buf.len() as u64),
            _ => buf.len() as u64,
        };
        for code in self.codes {
            let from = code.bytes_at(ip);
            if !from.is_empty() {
                let len = from.len().min(room as usize);
                buf[..len].copy_from_slice(&from[..len]);
                return len;
            }
        }
        0
    }
}

/// An instruction, and the packet used last for it.
type Step = (u64, Ip, ExecMode);

/// Instructions that were reported without a break.
#[derive(Debug, Default)]
struct Piece {
    /// Whether an error came before.
    after_error: bool,
    /// Whether one came before that says that the packets may be wrong: not just that code is missing.
    in_doubt: bool,
    steps: Vec<Step>,
}

/// A flow in pieces.
#[derive(Debug, Default)]
struct Flow {
    pieces: Vec<Piece>,
    errors: Vec<String>,
    /// How many bytes were lost, each time that the flow was found again.
    lost: Vec<u64>,
}

impl Flow {
    fn begin(&mut self, in_doubt: bool) {
        let in_doubt = in_doubt || self.pieces.last().is_some_and(|piece| piece.in_doubt);
        self.pieces.push(Piece {
            after_error: !self.errors.is_empty(),
            in_doubt,
            steps: Vec::new(),
        });
    }

    fn steps(&self) -> Vec<Step> {
        let pieces = self.pieces.iter();
        pieces
            .flat_map(|piece| piece.steps.iter().copied())
            .collect()
    }
}

fn decode(trace: &[u8], setup: &Setup, source: Source<'_>) -> Flow {
    let mut config = FlowConfig::default();
    config.tsc_art_ratio = (80, 1);
    config.mtc_freq = setup.ctl.mtc_freq() as u8;
    config.max_nonturbo_ratio = 20;
    // Enough for the machines' programs.
    config.max_packetless_run = 1 << 16;
    let mut decoder = FlowDecoder::new(trace, source, config);
    let mut flow = Flow::default();
    flow.begin(false);
    while let Some(item) = decoder.next() {
        let offset = decoder.offset().0;
        match item {
            Item::Insn(insn) => {
                let piece = flow.pieces.last_mut().expect("there is always one");
                piece.steps.push((offset, insn.ip, insn.mode));
            }
            Item::Error(error) => {
                flow.errors.push(error.to_string());
                let kind = error.kind.name();
                flow.begin(!matches!(kind, "no-code" | "empty-return-stack"));
            }
            Item::Event(Event::Resync { lost, .. }) => flow.lost.push(lost),
            // Where control is found anew.
            Item::Event(Event::Enabled { .. } | Event::Overflow { .. }) => flow.begin(false),
            Item::Event(_) => {}
        }
    }
    flow
}

/// How far, in bytes, the packet may be to which the whole stream's flow attributes the first step of a piece.
const NEAR: u64 = 512;

/// How many steps of a piece stand in the whole flow one after the other, at the best place.
fn agree(whole: &[Step], piece: &[Step]) -> usize {
    let Some(first) = piece.first() else {
        return 0;
    };
    let right_from = |i: usize| {
        let both = whole[i..].iter().zip(piece).enumerate();
        // What was found by another packet may, in its first steps, be attributed to that. So may the last step where the stream is
        // cut: that of a MOV CR3 to its PIP, if the TIP.PGD behind it is cut off.
        let is_free = |n: usize| n < 8 || n + 1 == piece.len();
        both.take_while(|(n, (a, b))| (a.1, a.2) == (b.1, b.2) && (is_free(*n) || a.0 == b.0))
            .count()
    };
    let from = whole.partition_point(|step| step.0 + NEAR < first.0);
    let to = whole.partition_point(|step| step.0 <= first.0 + NEAR);
    let places = (from..to).filter(|i| (whole[*i].1, whole[*i].2) == (first.1, first.2));
    places.map(right_from).max().unwrap_or(0)
}

/// A machine, its trace, and the flow of the whole trace.
fn case(seed: u64) -> (Setup, Record, Vec<Step>) {
    let mut rng = Rng::new(seed);
    let features = if rng.one_in(2) {
        Features::ALL
    } else {
        Features(rng.next_u64() as u32 & Features::ALL.0)
    };
    let setup = Setup::random(seed, 1500, features);
    let record = run(&setup);
    let flow = decode(&record.trace, &setup, all(&record));
    assert_eq!(flow.errors, [""; 0], "the whole stream is read");
    let steps = flow.steps();
    (setup, record, steps)
}

fn all(record: &Record) -> Source<'_> {
    Source {
        codes: &record.codes,
        without: 0..0,
    }
}

/// Sums over damaged streams.
#[derive(Default, Debug)]
struct Account {
    streams: u64,
    with_errors: u64,
    errors: u64,
    lost: Vec<u64>,
    /// Instructions after errors.
    after: u64,
    wrong: u64,
    wrong_pieces: Vec<String>,
}

impl Account {
    /// Counts the pieces that `counts` chooses.
    fn take(
        &mut self,
        flow: &Flow,
        whole: &[Step],
        counts: impl Fn(&Piece) -> bool,
        label: impl Fn() -> String,
    ) {
        self.streams += 1;
        self.with_errors += u64::from(!flow.errors.is_empty());
        self.errors += flow.errors.len() as u64;
        self.lost.extend(&flow.lost);
        for piece in flow.pieces.iter().filter(|piece| counts(piece)) {
            let right = agree(whole, &piece.steps);
            let wrong = piece.steps.len() - right;
            self.after += piece.steps.len() as u64;
            self.wrong += wrong as u64;
            if wrong > 0 {
                let at = &piece.steps[right.saturating_sub(2)..(right + 3).min(piece.steps.len())];
                let first = flow.errors.first();
                self.wrong_pieces.push(format!(
                    "{}: {right} right, {wrong} wrong: {at:?}; {first:?}",
                    label()
                ));
            }
        }
    }

    /// Prints the sums, which `cargo test -- --nocapture` shows.
    fn print(&mut self, name: &str) {
        self.lost.sort_unstable();
        let lost = &self.lost;
        let part = |percent: usize| {
            let at = (lost.len() * percent / 100).min(lost.len().saturating_sub(1));
            lost.get(at).copied().unwrap_or(0)
        };
        println!(
            "{name}: {} streams, {} of them with {} errors; found again {} times, after {} bytes (median), {} (90 %), {} (99 %), {} (most); \
             {} instructions after errors, {} of them wrong, in {} pieces",
            self.streams,
            self.with_errors,
            self.errors,
            lost.len(),
            part(50),
            part(90),
            part(99),
            part(100),
            self.after,
            self.wrong,
            self.wrong_pieces.len()
        );
        for line in self.wrong_pieces.iter().take(12) {
            println!("  {line}");
        }
    }
}

/// So many machines; as many as COFI_CASES says, if it says.
fn machines(default: u64) -> Range<u64> {
    let given = std::env::var("COFI_CASES").ok();
    0..given
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(default)
}

/// The bytes of PSB+s.
fn statuses(trace: &[u8]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut from = None;
    for located in Packets::new(trace).filter_map(Result::ok) {
        let at = located.offset.0 as usize;
        match located.raw.kind() {
            Kind::Psb => from = Some(at),
            Kind::PsbEnd | Kind::Ovf => ranges.extend(from.take().map(|from| from..at + 2)),
            _ => {}
        }
    }
    ranges
}

/// A flipped bit may make packets of which nobody can tell that they are wrong. But once the decoder says that something is, it reports
/// nothing wrong any more. Two things it takes at their word: a PSB+, even a damaged one; and the packets, if all that
/// is wrong is that there is no code.
#[test]
fn a_flipped_bit() {
    let mut account = Account::default();
    let mut without_code = Account::default();
    for seed in machines(250) {
        let (setup, record, whole) = case(seed);
        let statuses = statuses(&record.trace);
        let mut rng = Rng::new(seed ^ 0xf11b);
        for _ in 0..8.min(record.trace.len()) {
            let (at, bit) = (rng.index(record.trace.len()), rng.index(8));
            if statuses.iter().any(|range| range.contains(&at)) {
                continue;
            }
            let mut trace = record.trace.clone();
            trace[at] ^= 1 << bit;
            let flow = decode(&trace, &setup, all(&record));
            let label = || format!("seed {seed}, byte {at}, bit {bit}");
            account.take(&flow, &whole, |piece| piece.in_doubt, label);
            let only = |piece: &Piece| piece.after_error && !piece.in_doubt;
            without_code.take(&flow, &whole, only, label);
        }
    }
    account.print("flipped bits");
    without_code.print("flipped bits, after addresses without code only");
    assert!(
        account.with_errors * 4 > account.streams,
        "flips are noticed"
    );
    assert!(
        account.after > 50 * account.streams,
        "flows are found again"
    );
    assert_eq!(account.wrong_pieces, [""; 0]);
    assert!(without_code.wrong * 1000 < without_code.after);
}

/// Where code is missing, nothing wrong is reported ever: the packets are good.
#[test]
fn missing_code() {
    let mut account = Account::default();
    for seed in machines(250) {
        let (setup, record, whole) = case(seed);
        let mut rng = Rng::new(seed ^ 0xc0de);
        for _ in 0..4.min(whole.len()) {
            // Around an instruction that ran.
            let from = whole[rng.index(whole.len())].1.0;
            let source = Source {
                codes: &record.codes,
                without: from..from + 1 + rng.index(64) as u64,
            };
            let flow = decode(&record.trace, &setup, source);
            let label = || format!("seed {seed}, without {from:#x}");
            account.take(&flow, &whole, |piece| piece.after_error, label);
        }
    }
    account.print("missing code");
    assert!(account.with_errors * 10 > account.streams * 9);
    assert!(
        account.after > 100 * account.streams,
        "flows are found again"
    );
    assert_eq!(account.wrong_pieces, [""; 0]);
}

/// A stream that is cut anywhere, at both ends, is read from its first PSB to its last packet, and tells what ran there, and nothing behind
/// its last packet: of that nothing proves that it ran.
#[test]
fn cut_at_both_ends() {
    let mut account = Account::default();
    for seed in machines(250) {
        let (setup, record, whole) = case(seed);
        let mut rng = Rng::new(seed ^ 0xc07);
        for _ in 0..8.min(record.trace.len()) {
            let from = rng.index(record.trace.len());
            let to = from + rng.index(record.trace.len() - from + 1);
            let mut flow = decode(&record.trace[from..to], &setup, all(&record));
            let last = flow.pieces.iter().flat_map(|piece| &piece.steps).last();
            let last = last.map_or(0, |step| step.0);
            for piece in &mut flow.pieces {
                piece
                    .steps
                    .iter_mut()
                    .for_each(|step| step.0 += from as u64);
            }
            let label = || format!("seed {seed}, {from}..{to}");
            account.take(&flow, &whole, |_| true, label);
            // The only error is at the cut: the rest of a packet, a block or PSB+, or a stream without PSB.
            let psb = sync_forward(&record.trace[from..to], 0);
            assert!(flow.errors.len() <= 1, "{}: {:?}", label(), flow.errors);
            // From the first PSB on, nothing is missing.
            if let Some(psb) = psb {
                let steps = flow.steps();
                let (start, end) = ((from + psb) as u64, from as u64 + last);
                let begin = whole.partition_point(|step| step.0 < start);
                let missing = whole[begin..].iter().take_while(|step| step.0 < end);
                let missing = missing.count() as i64 - steps.len() as i64;
                assert!(missing.abs() < 400, "{}: {missing} are missing", label());
            }
        }
    }
    account.print("cut streams");
    assert!(account.after > 50 * account.streams);
    assert_eq!(account.wrong_pieces, [""; 0]);
}
