//! The calls of a thread, reconstructed from its flow.
//!
//! [`CallTracer`] takes the blocks and events of one stream and calls a [`CallVisitor`] where a call begins and where it is left. It keeps the
//! open calls and nothing else, so its memory grows with the depth of the calls and not with their number.
//!
//! A trace has no stack pointer. What the stack is follows from the addresses alone:
//!
//! - A *return* to where the innermost call came from leaves that call. A return to elsewhere is looked up: in the stacks that were switched
//!   away from (coroutines), then deeper in this one (`longjmp`, an exception, a return address that the program changed).
//! - A *jump* to the first instruction of another function is a tail call: the function that jumps is left, and the other one takes its place.
//! - A *call* to the next instruction (`call; pop`) only reads the instruction pointer and is no call.
//! - A *stub* without a symbol, as in a PLT, is no call of its own: the function to which it jumps is called from where the stub was.
//! - A *signal handler* is called by nobody; it is left when it returns, and its restorer when the thread goes on where it was interrupted.
//! - A frame that was open before the trace is *assumed*, once control returns into it.
//!
//! [`CallsInOrder`] puts finished calls back in the order in which they began.

mod brief;
mod by_task;
mod clock;
mod ends;
mod goroutines;
mod in_order;
mod inlines;
mod local;
mod local_calls;
mod marks;
mod names;
mod net;
mod packed;
mod parts;
mod ran;
mod rules;
mod saved;
mod shapes;
mod source;
mod stack;
mod switch;
mod thread;
mod tracer;
mod tracks;
mod undecided;

use cofi_flow::Event;
use cofi_image::{CodeChange, ImageView};
use cofi_insn::Class;
use cofi_packet::{Ip, StreamOffset, Tsc};
use cofi_session::Task;

use crate::gap::GapCause;

pub use brief::BriefCall;
pub use by_task::ByTask;
pub use clock::{SavedClock, StreamClock};
pub use in_order::{CallPart, CallParts, CallsInOrder, FinishedCall};
pub use local::{LocalCall, LocalSum, LocalVisitor, TracedPart};
pub(crate) use local::{PartRun, PartTracer};
pub use marks::{PieceMark, PiecePlaces};
pub use names::CallNames;
pub use parts::{PartMark, PartVisitor, StretchPlace, Unfit};
pub use ran::{RanBlock, RanPath};
pub use saved::{CallDictionary, CallStates};
pub use tracer::CallTracer;

/// A file without a name, for what waits in such numbers that memory is not to hold it.
fn temporary_file() -> std::io::Result<std::fs::File> {
    tempfile::tempfile().map_err(|error| {
        let folder = std::env::temp_dir();
        let folder = folder.display();
        std::io::Error::new(
            error.kind(),
            format!("no temporary file in {folder}: {error}"),
        )
    })
}

/// A function of [`CallNames`]; by default the first.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct FunctionId(pub(crate) u32);

impl FunctionId {
    /// A small number, from 0 on.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How a call began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum CallKind {
    /// By a call instruction.
    Call,
    /// By a jump from another function, which is left by that.
    Tail,
    /// By a signal.
    Signal,
    /// From outside of what was traced, or of a program: a thread or program begins, the kernel is entered.
    Entry,
    /// It was open before the trace.
    Assumed,
    /// By nothing: the function was inlined, and what runs is a part of it.
    Inline,
}

impl CallKind {
    /// Its name in the output of the command.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Tail => "tail",
            Self::Signal => "signal",
            Self::Entry => "entry",
            Self::Assumed => "assumed",
            Self::Inline => "inline",
        }
    }
}

/// How a call was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Left {
    /// It returned.
    Return,
    /// It jumped to another function, which took its place.
    Tail,
    /// A `longjmp`, an exception or the like went past it.
    Unwound,
    /// It was open when the trace ended.
    End,
    /// It was open where trace is missing.
    Gap,
}

impl Left {
    const ALL: [Self; 5] = [
        Self::Return,
        Self::Tail,
        Self::Unwound,
        Self::End,
        Self::Gap,
    ];

    /// Its name in the output of the command.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Return => "return",
            Self::Tail => "tail",
            Self::Unwound => "unwound",
            Self::End => "end",
            Self::Gap => "gap",
        }
    }
}

/// A place in the flow of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CallMoment {
    /// The estimated time, if timing packets tell one: see [`ThreadFlow::time`](cofi_session::ThreadFlow::time).
    pub tsc: Option<Tsc>,
    /// The core cycles that CYC packets have told of.
    pub cycles: u64,
    /// The instructions of the thread before it.
    pub insns: u64,
}

/// A call that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Call {
    /// The thread.
    pub task: Task,
    /// In the order in which the calls of the thread begin. Calls that were open before the trace have negative numbers, the outermost the
    /// lowest. After a gap, numbers begin anew.
    pub number: i64,
    /// The function.
    pub function: FunctionId,
    /// The address at which control entered it; of an assumed call the function's first.
    pub ip: Ip,
    /// The call around it; of a coroutine's function, the call that switched to it.
    pub parent: Option<i64>,
    /// The stack on which it runs: 0 is the one on which the thread began, others are those of coroutines.
    pub stack: u32,
    /// How many calls are around it. What was open before the trace lies at negative depths.
    pub depth: i32,
    /// How it began.
    pub kind: CallKind,
    /// The instruction that called it, or that was to run next when it was interrupted.
    pub from: Option<Ip>,
    /// When.
    pub begin: CallMoment,
}

/// A call that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenCall {
    /// The call.
    pub call: Call,
    /// Where control goes on when it returns, if that is known.
    pub returns_to: Option<Ip>,
    /// How many instructions of the stream, whichever thread's, ran before it began.
    pub at: u64,
    /// Visitors were told of it. Of a call that may be a stub's they are told once it is known: until then it has no number, and its function may turn out to be the one to
    /// which it jumps.
    pub is_told: bool,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallEnd {
    /// When.
    pub end: CallMoment,
    /// The instructions that ran in it, with those of its callees. While its stack was switched away from, none did.
    pub insns: u64,
    /// Those of itself alone.
    pub self_insns: u64,
    /// How it was left.
    pub left: Left,
}

/// What to do with each call: the views of calls are visitors.
pub trait CallVisitor {
    /// A call begins.
    fn enter(&mut self, call: &Call, names: &CallNames);

    /// The same, with the code as it was then, if that is known: for those who want to know where in which file [`Call::from`] stands.
    fn enter_with_code(&mut self, call: &Call, names: &CallNames, code: Option<&ImageView<'_>>) {
        let _ = code;
        self.enter(call, names);
    }

    /// A call is left. Calls of one stack are left innermost first.
    fn leave(&mut self, call: &Call, end: &CallEnd, names: &CallNames);

    /// Whether calls that begin by a call instruction and return to behind it, and the inlined functions that run in them, may be told
    /// [in brief](Self::enter_briefly), which takes less time. Blocks must not be [wanted](Self::wants_blocks) then.
    #[inline(always)]
    fn takes_brief(&self) -> bool {
        false
    }

    /// A call begins, by a call instruction that leads to its function: mostly to its first instruction; or, as its kind tells, an inlined function. It is left
    /// [in brief](Self::leave_briefly), unless it is [settled](Self::settled) before. What is returned is given back then.
    fn enter_briefly(&mut self, function: FunctionId, kind: CallKind, begin: &CallMoment) -> u64 {
        let _ = (function, kind, begin);
        0
    }

    /// A call that was told of in brief is left: it returns. The one around it is of this function if it was told of in brief, too.
    fn leave_briefly(&mut self, call: &BriefCall, end: &CallMoment, outer: Option<FunctionId>) {
        let _ = (call, end, outer);
    }

    /// An open call was told of in brief, the innermost but for those that this is called for next. It is [left](Self::leave) as others are.
    fn settled(&mut self, call: &Call, noted: u64) {
        let _ = (call, noted);
    }

    /// The thread runs on another stack from here on, whose innermost call this is. On one of which none is known, or not yet, there is none; it may be told
    /// later than it was.
    fn switched(&mut self, innermost: Option<i64>, at: &CallMoment) {
        let _ = (innermost, at);
    }

    /// All calls of the thread were left: trace is missing, another program begins, or the stream ends. Numbers begin anew.
    fn all_left(&mut self, task: Task, names: &CallNames) {
        let _ = (task, names);
    }

    /// Whether [`ran`](Self::ran) is to be called. It takes time to look at each block: without that, calls are known from several at a time.
    #[inline(always)]
    fn wants_blocks(&self) -> bool {
        false
    }

    /// Instructions run, if that is [wanted](Self::wants_blocks). Those calls were told before that are known to have begun by then.
    #[inline(always)]
    fn ran(&mut self, block: &RanBlock<'_>) {
        let _ = block;
    }

    /// Where blocks are [wanted](Self::wants_blocks): the blocks that [`ran`](Self::ran) since this was called last follow each other often. They have this number from now
    /// on, among those of the generation; or none.
    #[inline(always)]
    fn path_ended(&mut self, number: Option<usize>, generation: u64) {
        let _ = (number, generation);
    }

    /// The blocks run of which [`path_ended`](Self::path_ended) has told the number. Whoever does not know them says so with `false`: they are then told one by one.
    #[inline(always)]
    fn ran_path(&mut self, path: &RanPath) -> bool {
        let _ = path;
        false
    }

    /// Something happened between two instructions: when, which packet told last, and which instruction came before if it leads elsewhere.
    fn event(&mut self, event: &Event, at: &CallMoment, offset: StreamOffset, by: Option<Class>) {
        let _ = (event, at, offset, by);
    }

    /// Before what runs next, code took the place of other code, or went: a program changed what it had generated, or mapped something else there;
    /// the kernel changed its own code.
    fn code_changed(&mut self, change: &CodeChange, at: &CallMoment, offset: StreamOffset) {
        let _ = (change, at, offset);
    }

    /// A part of the flow is missing: what ran is not known, nor which calls are open. They are left after this.
    fn lost(&mut self, cause: GapCause, offset: StreamOffset) {
        let _ = (cause, offset);
    }
}
