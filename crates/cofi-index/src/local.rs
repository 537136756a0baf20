//! What calls of a part come to, counted while it is not known which calls are open around them.

use cofi_analysis::{CallKind, FunctionId, LocalCall, LocalSum, LocalVisitor};
use cofi_packet::StreamOffset;

use crate::calls::KeptCalls;
use crate::row::{FunctionNumber, NO_FUNCTION};

/// What a function did in a stretch of a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StretchSum {
    pub(crate) function: FunctionNumber,
    pub(crate) own: u64,
    /// The instructions that ran while it was open, as far as its calls began and ended in the stretch.
    pub(crate) total: u64,
    pub(crate) calls: u64,
    pub(crate) is_inlined: bool,
}

/// What ran most up to a place; where it is not known, in the call around.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalPiece {
    pub(crate) at: u64,
    /// The packet there, of which the time is wanted.
    pub(crate) offset: Option<StreamOffset>,
    pub(crate) function: FunctionNumber,
}

/// What is noted of a stretch.
#[derive(Debug, Default)]
pub(crate) struct Stretch {
    /// Where it begins and ends, in instructions of the part.
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) sums: Vec<StretchSum>,
    /// What ran in the call around.
    pub(crate) around: u64,
    /// How many calls began, without those of inlined functions.
    pub(crate) calls: u64,
    pub(crate) pieces: Vec<LocalPiece>,
    /// The long ones of those that were left, and where.
    pub(crate) kept: Vec<(LocalCall, u64, StreamOffset)>,
}

/// What is counted of a function in the stretch at hand.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    own: u64,
    total: u64,
    calls: u64,
    /// The instructions in the piece at hand.
    in_piece: u64,
    since: u64,
    open: u32,
    is_noted: bool,
    is_inlined: bool,
}

/// Counts what calls of parts come to.
#[derive(Debug)]
pub(crate) struct LocalCounter {
    functions: Vec<Counted>,
    noted: Vec<FunctionNumber>,
    /// The function of the innermost call, if that began in the stretch.
    innermost: FunctionNumber,
    /// The place up to which what ran was counted.
    at: u64,
    /// The size of pieces; where the piece at hand begins, and in which functions it ran.
    piece: u64,
    piece_begin: u64,
    of_piece: Vec<FunctionNumber>,
    stretch: Stretch,
}

impl LocalCounter {
    pub(crate) fn new(piece: u64) -> Self {
        Self {
            functions: Vec::new(),
            noted: Vec::new(),
            innermost: NO_FUNCTION,
            at: 0,
            piece,
            piece_begin: 0,
            of_piece: Vec::new(),
            stretch: Stretch::default(),
        }
    }

    #[inline]
    fn counted(&mut self, function: FunctionNumber) -> &mut Counted {
        let index = function as usize;
        let is_noted = |counted: &Counted| counted.is_noted;
        if !self.functions.get(index).is_some_and(is_noted) {
            self.note(function);
        }
        &mut self.functions[index]
    }

    #[cold]
    fn note(&mut self, function: FunctionNumber) {
        let index = function as usize;
        if index >= self.functions.len() {
            self.functions.resize(index + 1, Counted::default());
        }
        self.functions[index].is_noted = true;
        self.noted.push(function);
    }

    /// What ran up to a place ran in the innermost call.
    #[inline]
    fn count_to(&mut self, at: u64) {
        let ran = at - self.at;
        if ran == 0 {
            return;
        }
        self.at = at;
        let function = self.innermost;
        if function == NO_FUNCTION {
            self.stretch.around += ran;
            return;
        }
        let counted = self.counted(function);
        counted.own += ran;
        let is_first = counted.in_piece == 0;
        counted.in_piece += ran;
        if is_first {
            self.of_piece.push(function);
        }
    }

    fn end_piece(&mut self, at: u64, offset: Option<StreamOffset>) {
        let mut others = at - self.piece_begin;
        let mut most = (NO_FUNCTION, 0);
        for function in self.of_piece.drain(..) {
            if let Some(counted) = self.functions.get_mut(function as usize) {
                let ran = std::mem::take(&mut counted.in_piece);
                others -= ran;
                if ran >= most.1 {
                    most = (function, ran);
                }
            }
        }
        let function = if others > most.1 { NO_FUNCTION } else { most.0 };
        self.piece_begin = at;
        self.stretch.pieces.push(LocalPiece {
            at,
            offset,
            function,
        });
    }
}

impl LocalVisitor for LocalCounter {
    type Stretch = Stretch;

    fn begin(&mut self) -> u64 {
        self.skip(0);
        self.piece
    }

    #[inline]
    fn enter(&mut self, function: FunctionId, kind: CallKind, begin: u64) {
        // A call that was a stub's at first began before.
        self.count_to(begin.max(self.at));
        let function = function.index() as FunctionNumber;
        let is_inlined = kind == CallKind::Inline;
        self.stretch.calls += u64::from(!is_inlined);
        let since = self.at;
        let counted = self.counted(function);
        counted.calls += 1;
        counted.is_inlined |= is_inlined;
        if counted.open == 0 {
            counted.since = since;
        }
        counted.open += 1;
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
        if let Some(counted) = self.functions.get_mut(call.function.index())
            && counted.open > 0
        {
            counted.open -= 1;
            if counted.open == 0 {
                counted.total += end - counted.since;
            }
        }
        self.innermost = outer.map_or(NO_FUNCTION, |outer| outer.index() as FunctionNumber);
        if end - call.begin >= KeptCalls::SHORTEST {
            self.stretch.kept.push((*call, end, offset));
        }
    }

    const LONG: u64 = KeptCalls::SHORTEST;

    #[inline]
    fn sum(&mut self, sum: &LocalSum) {
        let function = sum.function.index() as FunctionNumber;
        let (own, total) = (u64::from(sum.own), u64::from(sum.total));
        let calls = u64::from(sum.calls);
        // So much less ran in the innermost call.
        self.at += own;
        if !sum.is_inlined {
            self.stretch.calls += calls;
        }
        let counted = self.counted(function);
        counted.own += own;
        counted.calls += calls;
        counted.is_inlined |= sum.is_inlined;
        if counted.open == 0 {
            counted.total += total;
        }
        let is_first = counted.in_piece == 0 && own > 0;
        counted.in_piece += own;
        if is_first {
            self.of_piece.push(function);
        }
    }

    fn ran(&mut self, at: u64, offset: StreamOffset) -> u64 {
        self.count_to(at);
        self.end_piece(at, Some(offset));
        at + self.piece
    }

    fn take(&mut self, at: u64, open: &mut dyn Iterator<Item = FunctionId>) -> Stretch {
        self.count_to(at);
        self.end_piece(at, None);
        for function in open {
            if let Some(counted) = self.functions.get_mut(function.index()) {
                counted.open = 0;
            }
        }
        let mut sums = Vec::with_capacity(self.noted.len());
        for function in self.noted.drain(..) {
            if let Some(counted) = self.functions.get_mut(function as usize) {
                let counted = std::mem::take(counted);
                sums.push(StretchSum {
                    function,
                    own: counted.own,
                    total: counted.total,
                    calls: counted.calls,
                    is_inlined: counted.is_inlined,
                });
            }
        }
        self.innermost = NO_FUNCTION;
        let mut stretch = std::mem::take(&mut self.stretch);
        (stretch.end, stretch.sums) = (at, sums);
        self.stretch.begin = at;
        stretch
    }

    fn skip(&mut self, at: u64) {
        self.at = at;
        self.piece_begin = at;
        self.stretch.pieces.clear();
        (self.stretch.begin, self.stretch.around) = (at, 0);
        for function in self.of_piece.drain(..) {
            if let Some(counted) = self.functions.get_mut(function as usize) {
                counted.in_piece = 0;
            }
        }
    }
}
