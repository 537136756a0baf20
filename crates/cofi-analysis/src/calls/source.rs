//! Where a tracer gets a flow from: from the decoder, or from a thread that has decoded ahead.

use cofi_flow::{Block, Item, Path, PathNumber, Time};
use cofi_image::ImageView;
use cofi_packet::{ExecMode, Ip, StreamOffset};
use cofi_session::{Task, ThreadFlow};

use super::ahead::KeptBlock;
use super::inlines::Inlines;
use super::names::CallNames;
use super::shapes::Shapes;

/// A flow that a [`CallTracer`](super::CallTracer) can follow: a [`ThreadFlow`], or a [`FlowAhead`](super::FlowAhead).
pub trait CallSource<'s> {
    /// Blocks that ran one after the other.
    type Path<'p>: SourcePath;

    /// The code that is in place now; none if nothing comes any more.
    fn view(&mut self) -> Option<&ImageView<'s>>;

    /// Calls `visit` for what ran up to the next event or error, which is returned; none at the end.
    fn paths(&mut self, visit: impl FnMut(&Self::Path<'_>)) -> Option<Item>;

    /// Where the flow stands behind the item that came last. The thread is found if it is `wanted`.
    fn stand(&mut self, wants_task: bool) -> Stand;

    /// The time at the end of the flow, as far as packets tell.
    fn end_time(&mut self) -> Option<Time>;
}

/// Where a flow stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stand {
    /// The packet used last.
    pub(super) offset: StreamOffset,
    /// The thread that runs next, if it was asked for.
    pub(super) task: Option<Task>,
    /// The packet used last, once that was known.
    pub(super) settled: StreamOffset,
}

/// Blocks that ran one after the other.
pub trait SourcePath {
    /// The mode in which they ran.
    fn mode(&self) -> ExecMode;

    /// Which blocks these are, if they are remembered.
    fn number(&self) -> Option<PathNumber>;

    /// The last packet that was used for them.
    fn offset(&self) -> StreamOffset;

    /// Calls `visit` for each block.
    fn for_each(&self, visit: impl FnMut(&SourceBlock<'_>));
}

/// A block, as it was decoded or as it was kept.
#[derive(Debug)]
pub enum SourceBlock<'a> {
    /// Of the decoder.
    Decoded(&'a Block<'a>),
    /// Of a thread that has decoded ahead.
    Kept(KeptBlock<'a>),
}

impl SourceBlock<'_> {
    pub(super) fn ip(&self) -> Ip {
        match self {
            Self::Decoded(block) => block.ip(),
            Self::Kept(block) => block.ip(),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Decoded(block) => block.len(),
            Self::Kept(block) => block.len(),
        }
    }

    pub(super) fn offset(&self) -> StreamOffset {
        match self {
            Self::Decoded(block) => block.offset(),
            Self::Kept(block) => block.offset(),
        }
    }

    /// Adds its shape. The address behind it.
    pub(super) fn push_shape(
        &self,
        shapes: &mut Shapes,
        names: &mut CallNames,
        view: &ImageView<'_>,
        inlines: Option<&mut Inlines>,
    ) -> Ip {
        match self {
            Self::Decoded(block) => {
                let runs = block.runs();
                let runs = runs.map(|run| (run.ip(), run.len(), run.last()));
                let ips = block.iter().map(|insn| insn.ip);
                shapes.push(names, view, inlines, runs, ips)
            }
            Self::Kept(block) => shapes.push(names, view, inlines, block.runs(), block.ips()),
        }
    }
}

impl SourcePath for Path<'_> {
    #[inline]
    fn mode(&self) -> ExecMode {
        Path::mode(self)
    }

    #[inline]
    fn number(&self) -> Option<PathNumber> {
        Path::number(self)
    }

    #[inline]
    fn offset(&self) -> StreamOffset {
        Path::offset(self)
    }

    #[inline]
    fn for_each(&self, mut visit: impl FnMut(&SourceBlock<'_>)) {
        Path::for_each(self, |block| visit(&SourceBlock::Decoded(block)));
    }
}

impl<'s> CallSource<'s> for ThreadFlow<'s> {
    type Path<'p> = Path<'p>;

    fn view(&mut self) -> Option<&ImageView<'s>> {
        Some(ThreadFlow::view(self))
    }

    #[inline]
    fn paths(&mut self, visit: impl FnMut(&Path<'_>)) -> Option<Item> {
        ThreadFlow::paths(self, visit)
    }

    fn stand(&mut self, wants_task: bool) -> Stand {
        let offset = self.offset();
        let task = wants_task.then(|| self.task());
        Stand {
            offset,
            task,
            settled: self.offset(),
        }
    }

    fn end_time(&mut self) -> Option<Time> {
        self.time()
    }
}
