//! Flows made by hand, set side by side.

use std::sync::mpsc::sync_channel;

use cofi_flow::FlowErrorKind;
use cofi_image::{AddressSpace, CodeFile, ImageView, Place, Version};
use cofi_packet::{ExecMode, Ip, StreamOffset};
use proptest::prelude::*;

use super::align::Differ;
use super::feed::{Batch, BlockAt, FunctionName, GapAt, Missing, RunAt};
use super::marks::{Mark, MarkWriter, What};
use super::tokens::Tokens;
use super::{DiffOptions, FileMatches, Level, PartingCause, ThreadDiff};
use crate::calls::CallKind;
use crate::gap::GapCause;

/// A piece of a flow.
#[derive(Clone, Debug)]
enum Piece {
    /// Instructions, at these addresses.
    Run(std::ops::Range<u64>),
    /// The next is of a function that was called now.
    Call(u32),
    Signal(u32),
    Return,
    Gap,
}
use Piece::{Call, Gap, Return, Run, Signal};

fn hidden(at: u64) -> Place {
    let file = CodeFile::from_bytes("left out", vec![0x90; 64]);
    let mut space = AddressSpace::new();
    space.map(HIDDEN, 64, &file, 0, Version(0));
    ImageView::new(&space, Version(0))
        .place(Ip(at))
        .expect("it is mapped")
}

/// From here on instructions are of a file that is not compared.
const HIDDEN: u64 = 1 << 40;

/// A flow that is being put into batches.
#[derive(Default)]
struct Batches {
    list: Vec<Batch>,
    next: Batch,
    ran: Vec<u32>,
    marks: MarkWriter,
    blocks: u32,
    paths: u32,
    /// The blocks of the path that is open.
    open: Vec<u32>,
}

impl Batches {
    fn block(&mut self, first: u64, len: u64) {
        self.open.push(self.blocks);
        self.blocks += 1;
        self.next.defined.push(BlockAt {
            runs: vec![RunAt {
                ip: Ip(first),
                mode: ExecMode::Bits64,
                place: (first >= HIDDEN).then(|| hidden(first)),
                first: 0,
            }],
            lens: vec![1; len as usize],
        });
    }

    fn end_path(&mut self) {
        if !self.open.is_empty() {
            let path = std::mem::take(&mut self.open);
            self.next.paths.push(path.into());
            self.ran.push(self.paths);
            self.paths += 1;
        }
    }

    fn send(&mut self) {
        self.end_path();
        let mut batch = std::mem::take(&mut self.next);
        batch.ran = std::mem::take(&mut self.ran).into();
        batch.marks = self.marks.take();
        self.list.push(batch);
    }
}

/// The flow in batches, of blocks of at most so many instructions, and paths of at most so many blocks.
fn batches(pieces: &[Piece], (most, path): (u64, usize)) -> Vec<Batch> {
    let (mut batches, mut at, mut depth) = (Batches::default(), 0, -1);
    let mut has_run = false;
    for piece in pieces {
        let enter = |function, depth, kind| What::Enter {
            function,
            depth,
            kind,
            tsc: None,
        };
        let what = match piece {
            Run(range) => {
                // What is told of an instruction comes no later than the one behind it.
                if std::mem::replace(&mut has_run, true) && path == 1 {
                    batches.send();
                }
                let mut first = range.start;
                while first < range.end {
                    let len = most.min(range.end - first);
                    batches.block(first, len);
                    if batches.open.len() >= path {
                        batches.end_path();
                    }
                    first += len;
                    at += len;
                }
                continue;
            }
            Call(function) => {
                depth += 1;
                enter(*function, depth, CallKind::Call)
            }
            Signal(function) => {
                depth += 1;
                enter(*function, depth, CallKind::Signal)
            }
            Return => {
                depth -= 1;
                What::Leave { depth: depth + 1 }
            }
            Gap => {
                // Paths do not go on over it.
                batches.end_path();
                batches.next.gaps.push(GapAt {
                    at,
                    missing: Missing {
                        cause: GapCause::Error(FlowErrorKind::UnknownEnd),
                        offset: StreamOffset(at),
                    },
                });
                What::Gap
            }
        };
        if let What::Enter { function, .. } = what {
            let name = FunctionName {
                name: match function {
                    98 => "__lll_lock_wait".into(),
                    99 => "strlen".into(),
                    _ => format!("f{function}"),
                },
                is_named: true,
                file: (function >= 98).then(|| "/lib/libc.so.6".into()),
            };
            batches.next.functions.push((function, name));
        }
        batches.marks.push(Mark { at, what });
    }
    batches.send();
    batches.list
}

fn diff_of(a: &[Piece], b: &[Piece], cuts: [u64; 2], strict: bool) -> ThreadDiff {
    let options = DiffOptions {
        partings: usize::MAX,
        strict,
        has_calls: true,
    };
    diff_with(a, b, cuts, &options)
}

fn diff_with(a: &[Piece], b: &[Piece], cuts: [u64; 2], options: &DiffOptions) -> ThreadDiff {
    let mut files = FileMatches::new(&[], &[], Level::Instructions, Some("no path"));
    // The two are cut into paths of different lengths.
    let receive = |pieces: &[Piece], most: u64, path| {
        let batches = batches(pieces, (most, path));
        let (send, receive) = sync_channel(batches.len());
        for batch in batches {
            send.send(batch).expect("room for all");
        }
        receive
    };
    let paths = [cuts[0] as usize % 3, cuts[1] as usize % 4].map(|blocks| blocks + 1);
    let receivers = [receive(a, cuts[0], paths[0]), receive(b, cuts[1], paths[1])];
    Differ::new(receivers, Tokens::new(&mut files), options).run()
}

fn diff(a: &[Piece], b: &[Piece]) -> ThreadDiff {
    diff_of(a, b, [5, 3], false)
}

/// The places where they part: how many are equal before, how many are skipped on each side, and why.
fn places(diff: &ThreadDiff) -> Vec<(u64, [u64; 2], PartingCause)> {
    let place = |parting: &super::Parting| {
        let skipped = parting.turns.each_ref().map(|turn| turn.skipped);
        (parting.index, skipped, parting.cause)
    };
    diff.partings.iter().map(place).collect()
}

#[test]
fn the_same_however_blocks_are_cut() {
    let flow = [
        Call(1),
        Run(0..1000),
        Call(2),
        Run(5000..5100),
        Return,
        Run(1000..2000),
    ];
    for cuts in [[5, 3], [1, 7], [1000, 999]] {
        let diff = diff_of(&flow, &flow, cuts, false);
        assert!(diff.is_same());
        assert_eq!((diff.insns, diff.equal), ([2100, 2100], [2100, 2100]));
    }
}

#[test]
fn two_ways_that_join() {
    let flow = |way| [Call(1), Run(0..20), Run(way), Run(500..600)];
    let diff = diff(&flow(100..106), &flow(200..209));
    assert_eq!(places(&diff), [(20, [6, 9], PartingCause::Other)]);
    let parting = &diff.partings[0];
    let [together, other] = parting.together.as_ref().expect("they come together");
    assert_eq!((together.ip, other.ip), (Ip(500), Ip(500)));
    assert_eq!(parting.turns[0].coming[0].ip, Ip(100));
    assert_eq!(parting.turns[1].coming[0].ip, Ip(200));
    assert_eq!(parting.last.as_ref().expect("equal ones")[0].ip, Ip(19));
    assert_eq!(parting.turns[0].frames[0].name, "f1");
    assert_eq!(diff.equal, [120, 120]);
}

/// What a function runs that only one side calls is not taken for what the other side runs of it elsewhere.
#[test]
fn what_was_called_is_gone_past() {
    let called = [Call(2), Run(5000..5060), Return];
    let a = [
        &[Call(1), Run(0..20), Run(100..103)],
        &called[..],
        &[Run(103..104), Run(500..600)],
    ]
    .concat();
    let b = [
        &[Call(1), Run(0..20), Run(200..201), Call(3), Run(7000..7010)],
        &called[..],
        &[Run(7010..7020), Return, Run(500..600)],
    ]
    .concat();
    let diff = diff(&a, &b);
    assert_eq!(places(&diff), [(20, [64, 81], PartingCause::Other)]);
    let entered = |side: usize| {
        diff.partings[0].turns[side]
            .entered
            .iter()
            .map(|frame| frame.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (entered(0), entered(1)),
        (vec!["f2".to_owned()], vec!["f3".to_owned()])
    );
}

/// A call that takes long on one side costs no more than going past it.
#[test]
fn a_long_call_on_one_side() {
    let a = [
        Call(1),
        Run(0..20),
        Call(2),
        Run(100_000..400_000),
        Return,
        Run(20..80),
    ];
    let b = [Call(1), Run(0..80)];
    assert_eq!(
        places(&diff(&a, &b)),
        [(20, [300_000, 0], PartingCause::Other)]
    );
}

#[test]
fn a_signal_on_one_side() {
    let a = [
        Call(1),
        Run(0..30),
        Signal(7),
        Run(900..950),
        Return,
        Run(30..90),
    ];
    let b = [Call(1), Run(0..90)];
    assert_eq!(
        places(&diff(&a, &b)),
        [(30, [50, 0], PartingCause::Signal(0))]
    );
    assert_eq!(
        places(&diff(&b, &a)),
        [(30, [0, 50], PartingCause::Signal(1))]
    );
}

#[test]
fn one_round_more_of_a_loop() {
    let rounds = |count| {
        let mut flow = vec![Call(1), Run(0..10)];
        flow.extend((0..count).map(|_| Run(10..25)));
        flow.push(Run(30..100));
        flow
    };
    assert_eq!(
        places(&diff(&rounds(10), &rounds(12))),
        [(160, [0, 30], PartingCause::Other)]
    );
}

/// Where nothing of the innermost call is the same any more, its callers may be.
#[test]
fn out_of_the_call() {
    let flow = |inner| {
        [
            Call(1),
            Run(0..10),
            Call(2),
            Run(50..60),
            Run(inner),
            Return,
            Run(10..100),
        ]
    };
    let diff = diff(&flow(1000..1900), &flow(3000..3100));
    assert_eq!(places(&diff), [(20, [900, 100], PartingCause::Other)]);
    assert_eq!(diff.equal, [110, 110]);
}

#[test]
fn one_ends_earlier() {
    let diff = diff(&[Call(1), Run(0..50)], &[Call(1), Run(0..70)]);
    assert_eq!(places(&diff), [(50, [0, 20], PartingCause::End(0))]);
    assert!(diff.partings[0].together.is_none());
}

#[test]
fn ways_through_string_functions_are_set_aside() {
    let flow = |way| {
        [
            Call(1),
            Run(0..10),
            Call(99),
            Run(50..60),
            Run(way),
            Return,
            Run(10..100),
        ]
    };
    let (a, b) = (flow(1000..1009), flow(3000..3031));
    let diff = diff(&a, &b);
    assert!(diff.is_same());
    assert_eq!((diff.aside, diff.aside_insns), (1, [9, 31]));
    let strict = diff_of(&a, &b, [5, 3], true);
    assert_eq!(places(&strict), [(20, [9, 31], PartingCause::Strings)]);
}

#[test]
fn waiting_for_a_lock_is_named() {
    let flow = |way| {
        [
            Call(1),
            Run(0..10),
            Call(98),
            Run(50..60),
            Run(way),
            Return,
            Run(10..100),
        ]
    };
    let diff = diff(&flow(1000..1009), &flow(3000..3031));
    assert_eq!(places(&diff), [(20, [9, 31], PartingCause::Lock)]);
}

/// Code that is not compared may be gone past on one side alone: the calls that are open are those of the last instruction that was the same.
#[test]
fn code_that_is_not_compared_has_calls_too() {
    let a = [
        Call(1),
        Run(0..10),
        Run(HIDDEN..HIDDEN + 3),
        Call(2),
        Run(HIDDEN + 10..HIDDEN + 20),
        Run(400..420),
        Return,
        Run(10..60),
    ];
    let b = [Call(1), Run(0..10), Run(300..305), Run(10..60)];
    let diff = diff(&a, &b);
    let parting = &diff.partings[0];
    assert_eq!(parting.turns[0].frames.len(), 1);
    assert_eq!(parting.last.as_ref().map(|[last, _]| last.ip), Some(Ip(9)));
    assert_eq!(places(&diff), [(10, [20, 5], PartingCause::Other)]);
    assert_eq!((diff.equal, diff.left_out), ([60, 60], [13, 0]));
}

/// The stream of a processor: what is the same is found without calls, if enough of it is.
#[test]
fn without_calls() {
    let flow = |way| [Run(0..20), Run(way), Run(500..600)];
    let options = DiffOptions {
        partings: 9,
        strict: false,
        has_calls: false,
    };
    let diff = diff_with(&flow(100..106), &flow(200..209), [5, 3], &options);
    assert_eq!(places(&diff), [(20, [6, 9], PartingCause::Other)]);
    assert_eq!(diff.equal, [120, 120]);
}

/// Behind a gap the comparison goes on where many instructions are the same; that it is the same place nobody proves.
#[test]
fn gaps_are_named() {
    let a = [Call(1), Run(0..50), Gap, Run(80..200)];
    let b = [Call(1), Run(0..200)];
    let diff = diff(&a, &b);
    assert_eq!(places(&diff), [(50, [0, 30], PartingCause::Gap)]);
    assert_eq!((diff.gaps, diff.equal), ([1, 0], [170, 170]));
    assert!(!diff.is_same());
}

/// Recordings that end with the same gap do not differ, but nothing is said of what is missing.
#[test]
fn the_same_gap_at_the_end() {
    let flow = [Call(1), Run(0..50), Gap];
    let diff = diff(&flow, &flow);
    assert_eq!((diff.count, diff.gaps), (0, [1, 1]));
    assert!(!diff.is_same());
}

/// A flow of pieces that are of some function, and return in the end.
fn flows() -> impl Strategy<Value = Vec<Piece>> {
    let piece = prop_oneof![
        6 => (0_u64..40, 1_u64..40).prop_map(|(start, len)| vec![Run(10 * start..10 * start + len)]),
        2 => (1_u32..5, 1_u64..60).prop_map(|(function, len)| {
            let start = 1000 * u64::from(function);
            vec![Call(function), Run(start..start + len), Return]
        }),
        1 => (1_u64..20).prop_map(|len| vec![Signal(9), Run(9000..9000 + len), Return]),
    ];
    proptest::collection::vec(piece, 0..30).prop_map(|pieces| {
        let mut flow = vec![Call(1), Run(0..1)];
        flow.extend(pieces.into_iter().flatten());
        flow
    })
}

proptest! {
    /// Every instruction is either equal or gone past at a place where the flows part, and as many are equal on both sides.
    #[test]
    fn every_instruction_is_accounted_for(a in flows(), b in flows(), cuts in [1_u64..9, 1_u64..9]) {
        let diff = diff_of(&a, &b, cuts, true);
        let len = |flow: &[Piece]| flow.iter().map(|piece| match piece {
            Run(range) => range.end - range.start,
            _ => 0,
        }).sum::<u64>();
        prop_assert_eq!(diff.insns, [len(&a), len(&b)]);
        prop_assert_eq!(diff.equal[0], diff.equal[1]);
        for side in 0..2 {
            let skipped: u64 = diff.partings.iter().map(|parting| parting.turns[side].skipped).sum();
            prop_assert_eq!(diff.equal[side] + skipped, diff.insns[side]);
        }
        // How blocks are cut says nothing.
        let other = diff_of(&a, &b, [3, 4], true);
        prop_assert_eq!(places(&diff), places(&other));
        let mirrored = diff_of(&b, &a, cuts, true);
        prop_assert_eq!(mirrored.partings.first().map(|parting| parting.index), diff.partings.first().map(|parting| parting.index));
        prop_assert!(diff_of(&a, &a, cuts, true).is_same());
    }
}
