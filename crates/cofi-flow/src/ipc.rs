//! Instructions and core cycles, between the places where CYC packets tell both (33.3.6).

use crate::{Event, Item};

/// A stretch of the flow between two instructions of which CYC packets tell the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stretch {
    /// The instructions that retired behind the first of the two, the second included.
    pub instructions: u64,
    /// The core cycles from the one to the other, at least one.
    pub cycles: u64,
}

impl Stretch {
    /// Instructions per cycle.
    #[must_use]
    pub fn ipc(&self) -> f64 {
        self.instructions as f64 / self.cycles.max(1) as f64
    }
}

/// Divides a flow into stretches of which instructions and cycles are known: to be fed with every item.
///
/// A CYC packet tells when the instruction of the packet behind it retired, and of a TNT its first branch (33.3.6.2). With a threshold for CYC
/// packets a packet may have none of its own; then the CYC of a packet before it (an MTC, for example) counts, and a stretch may be up to
/// the threshold shorter or longer than it is told. A stretch never reaches over a gap: cycles are counted there, but not instructions.
///
/// ```
/// # use cofi_flow::{FlowDecoder, Ipc, Stretch};
/// # fn sum<C: cofi_insn::CodeSource>(mut decoder: FlowDecoder<'_, C>) -> Stretch {
/// let mut ipc = Ipc::new();
/// while let Some(item) = decoder.next() {
///     if let Some(stretch) = ipc.take(&item, decoder.cycles()) {
///         println!("{} instructions in {} cycles", stretch.instructions, stretch.cycles);
///     }
/// }
/// ipc.total()
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Ipc {
    /// The cycles at which the present stretch began; none if its beginning is not known yet.
    from: Option<u64>,
    instructions: u64,
    total: Stretch,
}

impl Ipc {
    /// Nothing counted yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// All stretches together.
    #[must_use]
    pub fn total(&self) -> Stretch {
        self.total
    }

    /// Whether it is not known yet where the present stretch begins.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.from.is_none()
    }

    /// The next item, and [`FlowDecoder::cycles`](crate::FlowDecoder::cycles) after it; the stretch that ends with it.
    #[inline]
    pub fn take(&mut self, item: &Item, cycles: u64) -> Option<Stretch> {
        match item {
            Item::Insn(insn) => {
                self.instructions += 1;
                let ends = insn.class.needs_packet() && self.from != Some(cycles);
                if ends { self.end(cycles) } else { None }
            }
            Item::Event(
                Event::Enabled { .. }
                | Event::Disabled { .. }
                | Event::AsyncDisabled { .. }
                | Event::Overflow { .. }
                | Event::ExStop { .. }
                | Event::Stop,
            )
            | Item::Error(_) => {
                self.from = None;
                None
            }
            Item::Event(_) => None,
        }
    }

    fn end(&mut self, cycles: u64) -> Option<Stretch> {
        let from = self.from.replace(cycles);
        let instructions = core::mem::take(&mut self.instructions);
        let cycles = cycles.checked_sub(from?)?;
        self.total.instructions += instructions;
        self.total.cycles = self.total.cycles.saturating_add(cycles);
        Some(Stretch {
            instructions,
            cycles,
        })
    }
}
