//! Where a flow stands, and the shapes of its blocks.

use cofi_flow::Block;
use cofi_image::ImageView;
use cofi_packet::{Ip, StreamOffset};
use cofi_session::{Task, ThreadFlow};

use super::inlines::Inlines;
use super::names::CallNames;
use super::shapes::Shapes;

/// Where a flow stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stand {
    /// The packet used last.
    pub(super) offset: StreamOffset,
    /// The thread that runs next, if it was asked for.
    pub(super) task: Option<Task>,
    /// The packet used last, once that was known.
    pub(super) settled: StreamOffset,
}

impl Stand {
    /// Where a flow stands behind the item that came last. The thread is found if it is `wanted`.
    pub(super) fn of(flow: &mut ThreadFlow<'_>, wants_task: bool) -> Self {
        let offset = flow.offset();
        let task = wants_task.then(|| flow.task());
        Self {
            offset,
            task,
            settled: flow.offset(),
        }
    }
}

impl Shapes {
    /// Adds the shape of a block. The address behind it.
    pub(super) fn push_block(
        &mut self,
        block: &Block<'_>,
        names: &mut CallNames,
        view: &ImageView<'_>,
        inlines: Option<&mut Inlines>,
    ) -> Ip {
        let runs = block.runs();
        let runs = runs.map(|run| (run.ip(), run.len(), run.last()));
        let ips = block.iter().map(|insn| insn.ip);
        self.push(names, view, inlines, runs, ips)
    }
}
