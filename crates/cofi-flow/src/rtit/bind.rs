//! From RTIT's packets to what the walk has to reach next.

use cofi_packet::rtit::Kind;
use cofi_packet::{DecodeError, Ip};

use super::reader::Since;
use super::{Ends, Flow, Sign};
use crate::bind::State;
use crate::bind::control::Control;
use crate::bind::{AtIp, Binder, Pending};
use crate::reader::Reader;
use crate::{Event, Expected, FlowErrorKind, PacketKind};

/// What a packet found means for one that was expected.
pub(super) fn unexpected(found: Flow, expected: Expected) -> FlowErrorKind {
    FlowErrorKind::Unexpected {
        found: found.kind().into(),
        expected,
    }
}

/// What stands behind a TraceStop.
enum Behind {
    /// The results that were not sent before, as far as there are any.
    Results(Option<(u64, u8)>),
    /// An overflow.
    Overflow,
    /// The end.
    Nothing,
}

impl<'t> Binder<'t> {
    /// Reads packets until something is pending, TNT bits are there, or an event is due at once.
    pub(crate) fn fetch_rtit<W: Control>(&mut self, walk: &mut W) {
        if self.rtit.is_last {
            self.pending = Pending::Ends(Ends::default());
            return;
        }
        let flow = match self.next_flow_rtit() {
            Ok(Some(flow)) => flow,
            Ok(None) => {
                self.pending = Pending::Ends(self.end_of_trace());
                return;
            }
            Err(error) => {
                self.pending = Pending::Bad(error.into());
                return;
            }
        };
        if self.is_cut::<W>() {
            self.pending = Pending::Ends(Ends::default());
            return;
        }
        self.pending = match flow {
            Flow::Tnt { bits, len } => return self.branches(walk, bits, len),
            Flow::Tip(ip) => Pending::Tip(ip),
            Flow::Pge(ip) => Pending::Pge(ip),
            // A decoder that begins at the end of what is to be decoded tells of it.
            Flow::Ovf(_) if self.rtit.is_last => Pending::Ends(Ends::default()),
            Flow::Ovf(ip) => Pending::OverflowAt(ip),
            Flow::Far(None) | Flow::Pgd(None) => Pending::Bad(FlowErrorKind::SuppressedIp {
                packet: flow.kind().into(),
            }),
            Flow::Far(Some(ip)) => match self.far_target() {
                Ok(to) => Pending::At {
                    ip,
                    what: AtIp::Far { to },
                },
                Err(kind) => Pending::Bad(kind),
            },
            Flow::Pgd(Some(ip)) => {
                let (was_taken, is_in_doubt) = (self.was_taken(), self.is_end_in_doubt());
                let (to, stops) = self.behind_end();
                if is_in_doubt && to.is_none() {
                    self.pending = Pending::Ends(Ends::by_pgd());
                    return;
                }
                let what = AtIp::Pgd { to, stops };
                self.pending = Pending::At { ip, what };
                let is_unclear = stops && self.rtit.stop.is_empty();
                // (Where control has left the traced ranges, that is why.)
                if is_unclear && walk.at().is_some_and(|ip| self.config.filter.contains(ip)) {
                    self.end_unclear(walk, ip, was_taken);
                }
                return;
            }
            Flow::Pip { cr3, paging } => {
                self.rtit.told_unpaged = !paging;
                if self.is_traced_until_here() {
                    Pending::Pip(cr3)
                } else {
                    // Nothing tells that the code here went on to a MOV to CR3.
                    self.note_used();
                    return self.push_paging(cr3);
                }
            }
            Flow::TraceStop => match self.stop() {
                Some(ends) if W::FOLLOWS_CODE => {
                    // What has walked the graph of decisions has not kept it.
                    walk.set_taken(self.was_taken());
                    Pending::Ends(ends)
                }
                Some(ends) => Pending::Ends(ends),
                None => return,
            },
            // `next_flow_rtit` keeps it to itself.
            Flow::Psb => return,
        };
    }

    /// The same behind a branch out of the traced ranges, of which a FUP.PGD tells.
    pub(super) fn fetch_leaving<W: Control>(&mut self, walk: &mut W) {
        self.rtit.is_leaving = true;
        self.fetch_rtit(walk);
        self.rtit.is_leaving = false;
    }

    /// The next packet that matters to the flow, its place and time noted. PSBs tell nothing of it.
    pub(super) fn next_flow_rtit(&mut self) -> Result<Option<Flow>, DecodeError> {
        loop {
            self.make_room();
            let next = self.reader.next_rtit();
            self.read_at = self.reader.offset();
            if self.emit.keeps_origins {
                let flow = next.as_ref().and_then(|next| next.as_ref().ok());
                // A packet that concerns the flow may have a cycle count of its own.
                let end = match &next {
                    None => usize::MAX,
                    Some(next) => self.read_at + usize::from(next.is_ok()),
                };
                self.note_packet(flow.map(|flow| flow.kind().into()), end);
            }
            match next {
                Some(Ok(Flow::Psb)) => {
                    self.rtit.may_resume = true;
                    if self.at_end() {
                        self.rtit.is_over = true;
                        if let Some(reading) = &mut self.reader.rtit {
                            reading.begin_fresh();
                        }
                    }
                }
                Some(Ok(flow)) => {
                    self.rtit.is_last |= self.rtit.is_over && self.is_known_to_fresh(flow);
                    return Ok(Some(flow));
                }
                next => return next.transpose(),
            }
        }
    }

    /// Whether a decoder that begins at the PSB at which decoding is to end knows by this packet where control is, or that tracing is off.
    ///
    /// Results that are older than the PSB may stand behind it, so up to there what ran is for this decoder to tell.
    fn is_known_to_fresh(&self, flow: Flow) -> bool {
        let is_known = self
            .reader
            .rtit
            .as_ref()
            .is_some_and(|reading| reading.is_fresh_known());
        is_known
            && match flow {
                Flow::Tip(Some(ip)) => self.config.filter.contains(ip),
                Flow::Pge(_) | Flow::Pgd(_) | Flow::Ovf(_) | Flow::TraceStop => true,
                _ => false,
            }
    }

    /// Whether the packet just read is none of what is to be decoded: who tells events alone ends just at the PSB.
    pub(super) fn is_cut<W: Control>(&self) -> bool {
        self.rtit.is_over && !W::FOLLOWS_CODE
    }

    /// How the trace ends while tracing is on: with results that were read from the processor, perhaps.
    fn end_of_trace(&self) -> Ends {
        let (bits, len) = self.rtit.buffered.unwrap_or((0, 0));
        Ends {
            bits,
            len,
            ..Ends::default()
        }
    }

    /// After a FUP.FAR: where control went; none if that is lost.
    pub(super) fn far_target(&mut self) -> Result<Option<Ip>, FlowErrorKind> {
        let first = self.emit.now;
        let Some(flow) = self.next_flow_rtit()? else {
            return Ok(None);
        };
        match flow {
            Flow::Tip(Some(to)) => {
                self.emit.now = first.and(Kind::Tip);
                Ok(Some(to))
            }
            Flow::Tip(None) => Err(FlowErrorKind::SuppressedIp {
                packet: Kind::Tip.into(),
            }),
            Flow::Ovf(_) => {
                self.reader.put_back_rtit(flow);
                Ok(None)
            }
            Flow::TraceStop
                if self.config.errata.rtit_e4 && matches!(self.behind_stop(), Behind::Overflow) =>
            {
                self.reader.put_back_rtit(flow);
                Ok(None)
            }
            _ => {
                self.reader.put_back_rtit(flow);
                Err(unexpected(flow, Expected::FarTarget))
            }
        }
    }

    /// After a FUP.PGD: where control went, if a TIP tells (Table 19, 30 and 31), and whether a TraceStop is the reason.
    pub(super) fn behind_end(&mut self) -> (Option<Ip>, bool) {
        let mut ahead = self.ahead();
        let next = loop {
            match ahead.next_rtit() {
                Some(Ok(Flow::Psb)) => {}
                Some(Ok(flow)) => break flow,
                None | Some(Err(_)) => return (None, false),
            }
        };
        let first = self.emit.now;
        let is_tip = matches!(next, Flow::Tip(Some(_)));
        match is_tip.then(|| self.next_flow_rtit()) {
            Some(Ok(Some(Flow::Tip(to)))) => {
                self.emit.now = first.and(Kind::Tip);
                (to, false)
            }
            _ => (None, next == Flow::TraceStop),
        }
    }

    /// Whether a FUP.PGD comes next, with a TraceStop behind it.
    pub(super) fn is_stopped_by_pgd(&mut self) -> bool {
        let mut ahead = self.ahead();
        let mut next = || loop {
            match ahead.next_rtit()?.ok()? {
                Flow::Psb => {}
                flow => return Some(flow),
            }
        };
        matches!(next(), Some(Flow::Pgd(_))) && next() == Some(Flow::TraceStop)
    }

    /// A reader of what comes next, for which nobody keeps timing packets.
    fn ahead(&mut self) -> Reader<'t> {
        let ticks = self.reader.ticks.take();
        let ahead = self.reader.clone();
        self.reader.ticks = ticks;
        ahead
    }

    /// Whether tracing was on all the time up to the packet just read, which itself does not tell.
    ///
    /// It may have been switched off without a word. Then it was switched on again behind a PSB, and a FUP.PGE comes before the next packet of
    /// traced code; without a PSB it was not. Behind an overflow it may be off, too. Without an IP filter, a PIP itself comes only of traced code.
    fn is_traced_until_here(&mut self) -> bool {
        if self.since() == Since::Traced || !self.rtit.is_confined {
            return true;
        }
        if self.rtit.looked.0 <= self.read_at {
            let mut ahead = self.ahead();
            self.rtit.looked = loop {
                match ahead.next_rtit() {
                    Some(Ok(Flow::Psb | Flow::Pip { .. })) => {}
                    Some(Ok(flow)) => break (ahead.offset(), flow.is_of_traced_code()),
                    None | Some(Err(_)) => break (usize::MAX, false),
                }
            };
        }
        self.rtit.looked.1
    }

    /// Erratum E2: whether the FUP.PGD just read may be one too many, tracing having been switched off before without a word, and on in
    /// code that is not traced.
    pub(super) fn is_end_in_doubt(&self) -> bool {
        let reading = self.reader.rtit.as_ref();
        let is_used = self.rtit.is_confined || !self.rtit.stop.is_empty();
        self.config.errata.rtit_e2
            && is_used
            && !self.rtit.is_leaving
            && reading.is_some_and(|reading| match reading.since_before {
                Since::Traced => false,
                Since::Psb => true,
                // Without an IP filter, tracing is on behind it.
                Since::Overflow => self.rtit.is_confined,
            })
    }

    /// Whether code is traced behind the overflow just read, as far as the next packets tell.
    pub(super) fn is_traced_behind_overflow(&mut self) -> Option<bool> {
        let mut ahead = self.ahead();
        let mut is_stopped = false;
        loop {
            match ahead.next_rtit()? {
                Ok(Flow::Psb | Flow::Pip { .. }) => {}
                Ok(Flow::TraceStop) => is_stopped = true,
                // Results that waited when tracing was stopped are of code behind the overflow.
                Ok(Flow::Tnt { len: ..=5, .. }) if is_stopped => return Some(true),
                _ if is_stopped => return None,
                Ok(Flow::Pge(_)) => return Some(false),
                // Erratum E2: it may be one too many; but not in front of a TIP.
                Ok(Flow::Pgd(_)) if self.config.errata.rtit_e2 => {
                    let is_far = matches!(ahead.next_rtit(), Some(Ok(Flow::Tip(_))));
                    return is_far.then_some(true);
                }
                Ok(flow) if flow.is_of_traced_code() => return Some(true),
                _ => return None,
            }
        }
    }

    fn was_taken(&self) -> bool {
        let reading = self.reader.rtit.as_ref();
        reading.is_some_and(|reading| reading.was_taken)
    }

    fn since(&self) -> Since {
        let reading = self.reader.rtit.as_ref();
        reading.map_or(Since::Traced, |reading| reading.since)
    }

    /// After a TraceStop, tracing being on: how far what ran is known; none if it does not end tracing.
    ///
    /// The results that wait when tracing is stopped come out before the next packet that needs them out, or are still in the processor.
    fn stop(&mut self) -> Option<Ends> {
        let results = match self.behind_stop() {
            Behind::Overflow if self.config.errata.rtit_e4 => {
                // Results that stand behind it are older.
                self.push(Event::Stop);
                return None;
            }
            Behind::Overflow => None,
            Behind::Results(results) => results.map(|(bits, len)| (bits as u8, len)),
            Behind::Nothing => self.rtit.buffered,
        };
        let (bits, len) = results.unwrap_or((0, 0));
        Some(Ends {
            bits,
            len,
            sign: Sign::TraceStop,
            exact: !self.rtit.stop.is_empty()
                && match self.since() {
                    Since::Traced => true,
                    // With results, it is no TraceStop that was held back.
                    Since::Overflow => len != 0,
                    Since::Psb => false,
                },
        })
    }

    fn behind_stop(&mut self) -> Behind {
        if self.read_at < self.rtit.overflow_at {
            // What stands between another one and the overflow was nothing that matters.
            return Behind::Overflow;
        }
        let mut ahead = self.ahead();
        let mut results = None;
        loop {
            match ahead.next_rtit() {
                // It may have been switched on and stopped again.
                Some(Ok(Flow::Psb | Flow::TraceStop)) => {}
                Some(Ok(Flow::Tnt {
                    bits,
                    len: len @ ..=6,
                })) if results.is_none() => {
                    results = Some((bits, len));
                }
                Some(Ok(Flow::Ovf(_))) => {
                    self.rtit.overflow_at = ahead.offset();
                    return Behind::Overflow;
                }
                None if results.is_none() => return Behind::Nothing,
                _ => return Behind::Results(results),
            }
        }
    }

    /// New page tables, and whether paging is on, as a PIP has told.
    pub(crate) fn push_paging(&mut self, cr3: u64) {
        if self.rtit.switches_paging() {
            self.rtit.is_unpaged = self.rtit.told_unpaged;
            let on = !self.rtit.is_unpaged;
            self.push(Event::PagingEnabled { on });
        }
        // While CR3En is set there are no PIPs.
        self.rtit.knows_paging = self.state == State::On && !self.config.cr3_filter;
        self.known.paging = Some((cr3, false));
        self.push(Event::Paging { cr3, nr: false });
    }

    /// The kind of the TIPs of the stream.
    pub(crate) fn tip_kind(&self) -> PacketKind {
        if self.reader.is_rtit() {
            Kind::Tip.into()
        } else {
            cofi_packet::intel::Kind::Tip.into()
        }
    }

    /// The kind of what is pending.
    pub(crate) fn pending_kind_rtit(&self) -> PacketKind {
        match &self.pending {
            _ if self.tnt_len != 0 => Kind::Tnt,
            Pending::Tip(_) => Kind::Tip,
            Pending::Pge(_) => Kind::FupPge,
            Pending::Pip(_) => Kind::Pip,
            Pending::OverflowAt(_) => Kind::FupOvf,
            Pending::Ends(ends) if ends.len != 0 => Kind::TntPartial,
            Pending::Ends(_) => Kind::TraceStop,
            Pending::At { what, .. } => return what.kind(),
            _ => Kind::FupFar,
        }
        .into()
    }
}
