//! The decoder: the layers together, and the ways to ask them, which are shells over the walk.

use cofi_insn::CodeSource;
use cofi_packet::{ExecMode, StreamOffset};

use crate::bind::Binder;
use crate::family::{IntelPt, Rtit};
use crate::time::{Time, TimeJump};
use crate::walk::Walker;
use crate::walk::paths::{Called, Visited};
use crate::walk::step::{Piece, Step};
use crate::{Block, CodeCache, CodeKey, FlowConfig, Item, Part, Path, Run, TraceFormat, Visitor};

/// The binder of a stream of either family.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each decoder, and both are large"
)]
pub(crate) enum AnyBinder<'t> {
    IntelPt(Binder<'t, IntelPt>),
    Rtit(Binder<'t, Rtit>),
}

impl<'t> AnyBinder<'t> {
    pub(crate) fn new(trace: &'t [u8], config: FlowConfig) -> Self {
        match config.format {
            TraceFormat::IntelPt => Self::IntelPt(Binder::new(trace, config, &())),
            TraceFormat::Rtit(own) => Self::Rtit(Binder::new(trace, config, &own)),
        }
    }
}

/// Does the same with the binder of any family.
macro_rules! on {
    ($any:expr, $bind:ident => $then:expr) => {
        match $any {
            $crate::decoder::AnyBinder::IntelPt($bind) => $then,
            $crate::decoder::AnyBinder::Rtit($bind) => $then,
        }
    };
}
pub(crate) use on;

/// Decodes a packet stream and the code that ran into the flow of instructions and events.
///
/// An iterator over [`Item`]s. See the [crate's documentation](crate) for an example.
#[derive(Debug)]
pub struct FlowDecoder<'t, C> {
    pub(crate) bind: AnyBinder<'t>,
    pub(crate) walk: Walker<C>,
}

impl<'t, C: CodeSource> FlowDecoder<'t, C> {
    /// A decoder of `trace`, the bytes of one packet stream, whose code is in `code`.
    pub fn new(trace: &'t [u8], code: C, config: FlowConfig) -> Self {
        Self {
            walk: Walker::new(code, &config),
            bind: AnyBinder::new(trace, config),
        }
    }

    /// Decodes only the part from the first PSB at or after `range.start` up to the first PSB at or after `range.end`.
    ///
    /// Nothing needs to be known across a PSB (33.3.7). So a stream may be cut into ranges that are decoded apart, on
    /// several threads for example: their instructions, one range after the other, are those of the whole stream. A
    /// range that begins in running code begins with an [`Event::Enabled`](crate::Event::Enabled) (and events that tell its mode and paging)
    /// that the whole stream does not have there. Offsets still count from the stream's start.
    ///
    /// A PSB of RTIT tells no address, and results that are older may stand behind it. There a range begins with the first packet behind its PSB
    /// that tells where control is without need of an address before it, and the range before goes on up to that. What remains is that a
    /// compressed return of a call from before is an error, up to the next packet that tells an address.
    #[must_use]
    pub fn within(mut self, range: core::ops::Range<StreamOffset>) -> Self {
        let usize = |offset: StreamOffset| usize::try_from(offset.0).unwrap_or(usize::MAX);
        on!(&mut self.bind, bind => bind.cut(usize(range.start)..usize(range.end)));
        self
    }

    /// Tells the time as a decoder does that begins at `from`, before the range. To be called behind [`Self::within`], before anything is decoded.
    ///
    /// Estimates depend, within their bounds, on all timing packets before: how fast the core's clock runs is measured all along (33.8.3.4), and
    /// the time never goes back. So those of a range differ a little from those of the whole stream. With this they are the same where
    /// nothing between was damaged. The packets from `from` on are read for it as soon as somebody asks for the time, but no code is.
    ///
    /// Only of Intel PT. RTIT's PSB does not tell what stands before it for certain, so there a range is on its own.
    #[must_use]
    pub fn with_time_from(mut self, from: StreamOffset) -> Self {
        let from = usize::try_from(from.0).unwrap_or(usize::MAX);
        on!(&mut self.bind, bind => bind.follow_time_from(from));
        self
    }

    /// Where in the stream the last packet begins that was used for the items returned so far.
    #[must_use]
    pub fn offset(&self) -> StreamOffset {
        StreamOffset(self.place() as u64)
    }

    /// The time of the last item, as far as timing packets tell; none before the first of them.
    ///
    /// Most instructions have no packet of their own: they ran some time between two timing packets, and the
    /// uncertainty says how far apart those are. To know, this looks ahead in the stream to the next timing packet.
    pub fn time(&mut self) -> Option<Time> {
        on!(&mut self.bind, bind => bind.reader.time_of_items())
    }

    /// Whether a TSC packet has set the time back since this was asked last; of several, the last. It is told as soon as the packet has been
    /// read.
    pub fn time_jump(&mut self) -> Option<TimeJump> {
        on!(&mut self.bind, bind => bind.reader.take_jump())
    }

    /// The core cycles that CYC packets have told of up to the packet used last (33.3.6).
    pub fn cycles(&mut self) -> u64 {
        on!(&mut self.bind, bind => bind.reader.cycles_of_items())
    }

    /// The mode in which code runs now.
    #[must_use]
    pub fn mode(&self) -> ExecMode {
        on!(&self.bind, bind => bind.mode)
    }

    /// Code runs in `mode` from here on, until a packet tells otherwise: of RTIT, none does. To be called before anything is decoded,
    /// or after an event.
    pub fn assume_mode(&mut self, mode: ExecMode) {
        if self.mode() != mode {
            on!(&mut self.bind, bind => bind.mode = mode);
            self.walk.restart();
        }
    }

    /// Forgets decoded code. To be called when the code source answers otherwise than before.
    pub fn code_changed(&mut self) {
        on!(&mut self.bind, bind => self.walk.code_changed(bind));
    }

    /// The code source answers as it does for `key` from here on. What was decoded for other keys is kept, as far as there is room
    /// (`FlowConfig::cache_limit`), and found again when they come back.
    pub fn code_changed_to(&mut self, key: CodeKey) {
        on!(&mut self.bind, bind => self.walk.code_changed_to(bind, key));
    }

    /// Begins with what another decoder has decoded, as far as that was told the same `FlowConfig`. Keys must mean the same code to both:
    /// nothing is used before [`code_changed_to`](Self::code_changed_to) has told one. To be called before anything is decoded.
    #[must_use]
    pub fn with_code_cache(mut self, cache: CodeCache) -> Self {
        self.walk.lend(cache, on!(&self.bind, bind => &bind.config));
        self
    }

    /// Gives away what was decoded, for another decoder to begin with. This one goes on with nothing decoded, and without a key.
    pub fn take_code_cache(&mut self) -> CodeCache {
        self.walk
            .take_code_cache(on!(&self.bind, bind => &bind.config))
    }

    /// The next item where no plain instruction is due: apart, so that the way to those stays short.
    #[inline(never)]
    fn advance(&mut self) -> Option<Item> {
        loop {
            match on!(&mut self.bind, bind => self.walk.step(bind))? {
                Step::Item(item) => return Some(item),
                Step::Plain => return self.walk.next_plain(),
                Step::End(block) => {
                    let insn = on!(&mut self.bind, bind => self.walk.finish(bind, block));
                    if let Some(insn) = insn {
                        return Some(Item::Insn(insn));
                    }
                }
            }
        }
    }

    /// Where the last packet begins that was used.
    fn place(&self) -> usize {
        on!(&self.bind, bind => bind.offset)
    }

    /// The code source.
    pub fn code_mut(&mut self) -> &mut C {
        &mut self.walk.code
    }

    /// The next piece of the flow: the same as iterating over items, but with as many instructions at a time as stand
    /// and ran one after the other, which is much faster. Both ways may be mixed.
    pub fn next_part(&mut self) -> Option<Part<'_>> {
        Some(
            match on!(&mut self.bind, bind => self.walk.next_piece(bind))? {
                Piece::Item(Item::Insn(insn)) => Part::Run(Run::single(insn, self.place())),
                Piece::Item(Item::Event(event)) => Part::Event(event),
                Piece::Item(Item::Error(error)) => Part::Error(error),
                Piece::Run {
                    ip,
                    mode,
                    plain,
                    last,
                    offset,
                } => Part::Run(Run {
                    ip,
                    mode,
                    plain: self.walk.cache.lens(plain.clone()),
                    digests: self.walk.cache.digests(plain),
                    last,
                    offset,
                }),
            },
        )
    }

    /// Calls `visit` for each block that ran, up to the next event or error, which is returned; `None` at the end of the stream.
    ///
    /// This is the fastest way through a flow, and may be mixed with the others. An [`Item::Insn`] is never returned.
    pub fn blocks(&mut self, mut visit: impl FnMut(&Block<'_>)) -> Option<Item> {
        self.paths(|path| path.for_each(&mut visit))
    }

    /// The same, by as many blocks at a time as are known to belong together: for those who count, this is faster still.
    pub fn paths(&mut self, mut visit: impl FnMut(&Path<'_>)) -> Option<Item> {
        self.paths_by(&mut visit)
    }

    /// The same, called through a pointer: the walk is large, and so it is not compiled for each function, but once for each source of code in
    /// each crate that calls this.
    pub fn paths_by(&mut self, visit: &mut dyn FnMut(&Path<'_>)) -> Option<Item> {
        let mut shown = Called(visit);
        on!(&mut self.bind, bind => self.walk.paths(bind, &mut shown))
    }

    /// Goes through the whole flow, block by block.
    pub fn visit(&mut self, visitor: &mut impl Visitor) {
        loop {
            let mut shown = Visited(&mut *visitor);
            let Some(item) = on!(&mut self.bind, bind => self.walk.paths(bind, &mut shown)) else {
                break;
            };
            match item {
                Item::Insn(insn) => visitor.instruction(&insn),
                Item::Event(event) => visitor.event(&event, self.offset()),
                Item::Error(error) => visitor.error(&error),
            }
        }
    }
}

impl<C: CodeSource> Iterator for FlowDecoder<'_, C> {
    type Item = Item;

    #[inline]
    fn next(&mut self) -> Option<Item> {
        match self.walk.next_plain() {
            Some(item) => Some(item),
            None => self.advance(),
        }
    }

    /// Goes through the rest, which is much faster than a loop.
    fn fold<B, F: FnMut(B, Item) -> B>(mut self, init: B, mut f: F) -> B {
        let mut state = Some(init);
        let mut give = |item| state = state.take().map(|state| f(state, item));
        while let Some(item) = self.blocks(|block| block.for_each(|insn| give(Item::Insn(insn)))) {
            give(item);
        }
        match state {
            Some(state) => state,
            None => unreachable!("it is put back after each item"),
        }
    }
}

impl<C: CodeSource> core::iter::FusedIterator for FlowDecoder<'_, C> {}
