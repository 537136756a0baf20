//! What is true of a flow at a place of its stream.

use cofi_flow::{Event, Part};
use cofi_image::Version;
use cofi_packet::StreamOffset;
use cofi_packet::intel::TsxState;
use cofi_session::ThreadFlow;

/// What is true of a flow between two of its items, as far as what comes next depends on it, and the PSB there does not say all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowState {
    /// Tracing is on.
    is_on: bool,
    /// What events told last of the mode, of the page tables and of the virtual machine.
    mode: Option<Event>,
    paging: Option<Event>,
    vmcs: Option<Event>,
    in_transaction: bool,
    /// The code in place: the address space, by where it is in memory, and its version.
    code: Option<(usize, Version)>,
}

impl FlowState {
    /// Whether tracing is on.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.is_on
    }

    /// Takes note of an event.
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::Enabled { .. } | Event::AsyncBranch { .. } => self.is_on = true,
            Event::Disabled { .. } | Event::AsyncDisabled { .. } | Event::Stop => {
                self.is_on = false;
            }
            Event::Overflow { ip } | Event::Resync { ip, .. } => self.is_on = ip.is_some(),
            Event::ExecMode { .. } => self.mode = Some(*event),
            Event::Paging { .. } => self.paging = Some(*event),
            Event::Vmcs { .. } => self.vmcs = Some(*event),
            Event::Tsx { state, .. } => self.in_transaction = *state == TsxState::InTx,
            _ => {}
        }
    }

    /// Takes note of the code that is in place.
    pub fn note_code(&mut self, flow: &mut ThreadFlow<'_>) {
        let view = flow.view();
        self.code = Some((std::ptr::from_ref(view.space()).addr(), view.version()));
    }

    /// What a flow that begins at a PSB tells of it: that tracing begins there, and the state. Whoever has read what stands before the PSB
    /// is not told. What comes next is given to `next`.
    pub fn at_beginning<T>(
        flow: &mut ThreadFlow<'_>,
        next: impl FnOnce(Option<Part<'_>>) -> T,
    ) -> (Self, T) {
        let mut state = Self::default();
        let mut beginning = Beginning::default();
        loop {
            state.note_code(flow);
            let event = match flow.next_part() {
                Some(Part::Event(event)) => event,
                other => return (state, next(other)),
            };
            if !beginning.holds(&event, flow.offset()) {
                return (state, next(Some(Part::Event(event))));
            }
            state.note(&event);
        }
    }
}

/// What a flow tells first that begins at a PSB.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beginning {
    begin: Option<StreamOffset>,
}

impl Beginning {
    /// Whether the next event, of the packet there, is of the PSB.
    pub(crate) fn holds(&mut self, event: &Event, offset: StreamOffset) -> bool {
        let is_of_psb = match (event, self.begin) {
            (Event::Enabled { .. }, None) => true,
            (
                Event::ExecMode { .. }
                | Event::Paging { .. }
                | Event::Vmcs { .. }
                | Event::Tsx { .. },
                Some(begin),
            ) => begin == offset,
            _ => false,
        };
        if is_of_psb {
            self.begin = Some(offset);
        }
        is_of_psb
    }
}
