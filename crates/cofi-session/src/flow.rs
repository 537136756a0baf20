//! The flow of one stream.

use cofi_flow::{Block, Event, FlowConfig, FlowDecoder, Item, Part};
use cofi_image::{ImageView, Place};
use cofi_insn::CodeSource;
use cofi_packet::{Ip, StreamOffset};
use cofi_perf::{PerfTime, TimeConv};

use crate::timeline::{Cursor, Task};

/// Decodes one stream, with the code that stood where it ran at that time.
///
/// An iterator over [`Item`]s; [`next_part`](Self::next_part) is the faster way to the same.
#[derive(Debug)]
pub struct ThreadFlow<'s> {
    decoder: FlowDecoder<'s, ImageView<'s>>,
    cursor: Cursor<'s>,
    time: Option<TimeConv>,
    /// An event was returned after which other code may be in place.
    unsettled: bool,
    /// The trace is of a machine, where CR3 says in which address space it runs.
    is_guest: bool,
    /// CR3 has got this value.
    paging: Option<u64>,
}

impl<'s> ThreadFlow<'s> {
    pub(crate) fn new(
        bytes: &'s [u8],
        config: FlowConfig,
        cursor: Cursor<'s>,
        time: Option<TimeConv>,
        is_guest: bool,
    ) -> Self {
        let view = ImageView::new(cursor.image(), cursor.version());
        Self {
            decoder: FlowDecoder::new(bytes, view, config),
            cursor,
            time,
            unsettled: false,
            is_guest,
            paging: None,
        }
    }

    /// Decodes only a part of the stream: see [`FlowDecoder::within`]. To be called before anything is decoded.
    #[must_use]
    pub fn within(mut self, range: core::ops::Range<StreamOffset>) -> Self {
        self.decoder = self.decoder.within(range);
        self
    }

    /// The next piece of the flow: an event, an error, or as many instructions as stand and ran one after the other.
    pub fn next_part(&mut self) -> Option<Part<'_>> {
        self.settle();
        let part = self.decoder.next_part();
        self.unsettled = !matches!(part, Some(Part::Run(_)));
        if let Some(Part::Event(Event::Paging { cr3, .. })) = part {
            self.paging = Some(cr3);
        }
        part
    }

    /// Calls `visit` for each block that ran, up to the next event or error, which is returned: the fastest way through the flow.
    /// See [`FlowDecoder::blocks`].
    pub fn blocks(&mut self, visit: impl FnMut(&Block<'_>)) -> Option<Item> {
        self.settle();
        let item = self.decoder.blocks(visit);
        self.unsettled = true;
        if let Some(Item::Event(Event::Paging { cr3, .. })) = item {
            self.paging = Some(cr3);
        }
        item
    }

    /// Which thread the last item was about. Of a processor's stream, what is known of that at this place of it.
    pub fn task(&mut self) -> Task {
        self.settle();
        self.cursor.task()
    }

    /// The code that is in place now. Its [`ImageView::space`] and [`ImageView::version`] together tell whether two
    /// addresses mean the same code.
    pub fn view(&mut self) -> &ImageView<'s> {
        self.settle();
        self.decoder.code_mut()
    }

    /// Where in which file an instruction stands, now.
    pub fn place(&mut self, ip: Ip) -> Option<Place> {
        self.view().place(ip)
    }

    /// Reads code as it is now, as much of `buf` as there is at `ip`.
    pub fn read_code(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        self.settle();
        self.decoder.code_mut().read(ip, buf)
    }

    /// Where in the stream the last packet begins that was used for the items returned so far.
    #[must_use]
    pub fn offset(&self) -> StreamOffset {
        self.decoder.offset()
    }

    /// The time stamp counter at the last item, as far as packets tell: see [`FlowDecoder::time`].
    pub fn time(&mut self) -> Option<cofi_flow::Time> {
        self.decoder.time()
    }

    /// The time of the last item on perf's clock, where the file says how to convert.
    pub fn perf_time(&mut self) -> Option<PerfTime> {
        now(&mut self.decoder, self.time)
    }

    /// Puts the code in place that stood when the last event happened.
    fn settle(&mut self) {
        if !std::mem::take(&mut self.unsettled) {
            return;
        }
        let cr3 = self.paging.take().filter(|_| self.is_guest);
        let switched = cr3.is_some_and(|cr3| self.cursor.switch_to(cr3));
        if self.cursor.is_done() && !switched {
            return;
        }
        let (decoder, time) = (&mut self.decoder, self.time);
        let offset = decoder.offset();
        let mut now = || now(decoder, time);
        let timed: Option<&mut dyn FnMut() -> Option<PerfTime>> =
            if time.is_some() { Some(&mut now) } else { None };
        if !self.cursor.advance(offset, timed) && !switched {
            return;
        }
        let (image, version) = (self.cursor.image(), self.cursor.version());
        let view = self.decoder.code_mut();
        let changed = if std::ptr::eq(view.space(), image) {
            view.set_version(version)
        } else {
            *view = ImageView::new(image, version);
            true
        };
        if changed {
            self.decoder.code_changed();
        }
    }
}

fn now(
    decoder: &mut FlowDecoder<'_, ImageView<'_>>,
    conversion: Option<TimeConv>,
) -> Option<PerfTime> {
    conversion?.time_of(decoder.time()?.tsc)
}

impl Iterator for ThreadFlow<'_> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        self.settle();
        let item = self.decoder.next();
        self.unsettled = !matches!(item, Some(Item::Insn(_)));
        if let Some(Item::Event(Event::Paging { cr3, .. })) = item {
            self.paging = Some(cr3);
        }
        item
    }
}
