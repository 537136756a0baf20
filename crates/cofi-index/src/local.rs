//! What calls of a part come to, counted while it is not known which calls are open around them.

use cofi_analysis::{CallKind, FunctionId, LocalCall, LocalSum, LocalVisitor};
use cofi_packet::StreamOffset;

use crate::calls::KeptCalls;
use crate::counts::{Counted, Counts, most};
use crate::row::{FunctionNumber, NO_FUNCTION};

/// A piece of a part, or what of it lies in a stretch: where it ends, and what ran in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalPiece {
    pub(crate) at: u64,
    pub(crate) ran: PieceRan,
}

/// What ran in a piece.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PieceRan {
    /// This function most, whichever the call around is of.
    Most(FunctionNumber),
    /// So many of the stretch's [shares](Stretch::shares), the next ones: which function ran most depends on the call around, or on what else is of the piece.
    Shares(u32),
}

/// What is noted of a stretch. Where no function is known, it is that of the call around.
#[derive(Debug, Default)]
pub(crate) struct Stretch {
    /// Where it begins and ends, in instructions of the part.
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) sums: Vec<(FunctionNumber, Counted)>,
    /// What ran in the call around.
    pub(crate) around: u64,
    /// How many calls began, without those of inlined functions.
    pub(crate) calls: u64,
    pub(crate) pieces: Vec<LocalPiece>,
    pub(crate) shares: Vec<(FunctionNumber, u64)>,
    /// The long ones of those that were left, and where.
    pub(crate) kept: Vec<(LocalCall, u64, StreamOffset)>,
}

/// Counts what calls of parts come to.
#[derive(Debug)]
pub(crate) struct LocalCounter {
    counts: Counts,
    /// The function of the innermost call, if that began in the stretch.
    innermost: FunctionNumber,
    /// The place up to which what ran was counted.
    at: u64,
    /// The size of pieces, and where the piece at hand ends. The stretch has all of it.
    piece: u64,
    piece_end: u64,
    has_all: bool,
    /// Room for what ran in a piece.
    ran: Vec<(FunctionNumber, u64)>,
    stretch: Stretch,
}

impl LocalCounter {
    /// One that cuts parts into pieces of so many instructions.
    pub(crate) fn new(piece: u64) -> Self {
        Self {
            counts: Counts::default(),
            innermost: NO_FUNCTION,
            at: 0,
            piece,
            piece_end: piece,
            has_all: true,
            ran: Vec::new(),
            stretch: Stretch::default(),
        }
    }

    /// What ran up to a place ran in the innermost call.
    #[inline]
    fn count_to(&mut self, at: u64) {
        if at >= self.piece_end {
            self.count_pieces_to(at);
        }
        self.count(at - self.at);
        self.at = at;
    }

    #[cold]
    #[inline(never)]
    fn count_pieces_to(&mut self, at: u64) {
        while at >= self.piece_end {
            self.count(self.piece_end - self.at);
            self.at = self.piece_end;
            self.end_piece();
        }
    }

    #[inline(always)]
    fn count(&mut self, ran: u64) {
        if ran > 0 {
            if self.innermost == NO_FUNCTION {
                self.stretch.around += ran;
            }
            self.counts.ran(self.innermost, ran);
        }
    }

    fn end_piece(&mut self) {
        let has_all = std::mem::replace(&mut self.has_all, true);
        self.piece_end += self.piece;
        self.cut(has_all);
    }

    /// What ran in the piece so far is noted.
    fn cut(&mut self, has_all: bool) {
        self.ran.clear();
        self.ran.extend(self.counts.end_piece());
        let of = |function: FunctionNumber| {
            let found = self.ran.iter().find(|(of, _)| *of == function);
            found.map_or(0, |(_, ran)| *ran)
        };
        let first = most(self.ran.iter().copied()).map_or(NO_FUNCTION, |(function, _)| function);
        let others = self.ran.iter().filter(|(function, _)| *function != first);
        let second = most(
            others
                .copied()
                .filter(|(function, _)| *function != NO_FUNCTION),
        );
        // The call around may be of any function.
        let against = match first {
            NO_FUNCTION => second.map_or(0, |_| u64::MAX),
            _ => second.map_or(0, |(_, ran)| ran) + of(NO_FUNCTION),
        };
        let ran = match has_all && of(first) > against {
            true => PieceRan::Most(first),
            false => {
                self.stretch.shares.extend_from_slice(&self.ran);
                PieceRan::Shares(self.ran.len() as u32)
            }
        };
        self.stretch.pieces.push(LocalPiece { at: self.at, ran });
    }

    /// The next stretch begins here.
    fn begin_at(&mut self, at: u64) {
        self.at = at;
        self.piece_end = (at / self.piece + 1) * self.piece;
        self.has_all = at.is_multiple_of(self.piece);
    }
}

impl LocalVisitor for LocalCounter {
    type Stretch = Stretch;

    fn begin(&mut self) -> u64 {
        self.skip(0);
        self.piece
    }

    fn size(stretch: &Stretch) -> usize {
        size_of::<Stretch>()
            + size_of_val(&stretch.sums[..])
            + size_of_val(&stretch.pieces[..])
            + size_of_val(&stretch.shares[..])
            + size_of_val(&stretch.kept[..])
    }

    #[inline]
    fn enter(&mut self, function: FunctionId, kind: CallKind, begin: u64) {
        // A call that was a stub's at first began before.
        self.count_to(begin.max(self.at));
        let function = function.index() as FunctionNumber;
        let is_inlined = kind == CallKind::Inline;
        self.stretch.calls += u64::from(!is_inlined);
        self.counts.call(function, is_inlined, self.at);
        self.innermost = function;
    }

    #[inline]
    fn leave(
        &mut self,
        call: &LocalCall,
        (end, offset): (u64, StreamOffset),
        outer: Option<FunctionId>,
    ) {
        self.count_to(end);
        self.counts
            .close(call.function.index() as FunctionNumber, end);
        self.innermost = outer.map_or(NO_FUNCTION, |outer| outer.index() as FunctionNumber);
        if end - call.begin >= KeptCalls::SHORTEST {
            self.stretch.kept.push((*call, end, offset));
        }
    }

    const LONG: u64 = KeptCalls::SHORTEST;

    #[inline]
    fn sum(&mut self, sum: &LocalSum) {
        let function = sum.function.index() as FunctionNumber;
        let (own, calls) = (u64::from(sum.own), u64::from(sum.calls));
        // So much less ran in the innermost call.
        self.at += own;
        if !sum.is_inlined {
            self.stretch.calls += calls;
        }
        let counted = Counted::of_sum(own, sum.total.into(), calls, sum.is_inlined);
        self.counts.add(function, &counted);
        self.counts.ran_in_piece(function, own);
    }

    fn ran(&mut self, at: u64) {
        self.count_to(at);
    }

    fn take(&mut self, at: u64, open: &mut dyn Iterator<Item = FunctionId>) -> Stretch {
        self.count_to(at);
        if !at.is_multiple_of(self.piece) {
            self.cut(false);
        }
        for function in open {
            self.counts.forget_open(function.index() as FunctionNumber);
        }
        self.innermost = NO_FUNCTION;
        let mut stretch = std::mem::take(&mut self.stretch);
        (stretch.end, stretch.sums) = (at, self.counts.take(at));
        self.stretch.begin = at;
        self.begin_at(at);
        stretch
    }

    fn skip(&mut self, at: u64) {
        self.counts.end_piece().for_each(drop);
        self.stretch.pieces.clear();
        self.stretch.shares.clear();
        (self.stretch.begin, self.stretch.around) = (at, 0);
        self.begin_at(at);
    }
}
