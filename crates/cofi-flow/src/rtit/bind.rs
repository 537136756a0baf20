//! From RTIT's packets to what the walk has to reach next.

use cofi_packet::rtit::Kind;
use cofi_packet::{DecodeError, Ip};

use super::code::Ranges;
use super::reader::Since;
use super::{AtIp, Binding, Ends, Flow, Own, Sign};
use crate::bind::control::{Control, NoCode};
use crate::bind::{Binder, Pending, State};
use crate::family::{BindFamily, Rtit};
use crate::reader::Reader;
use crate::{AnyKind, Event, Expected, FlowConfig, FlowErrorKind, RtitFlowConfig};

/// What stands behind a TraceStop.
enum Behind {
    /// The results that were not sent before, as far as there are any.
    Results(Option<(u64, u8)>),
    /// An overflow.
    Overflow,
    /// The end.
    Nothing,
}

impl BindFamily for Rtit {
    type Rules = Ranges;
    type Pending = Own;
    type AtIp = AtIp;
    type Binding = Binding;

    const TIP: AnyKind = AnyKind::Rtit(Kind::Tip);

    fn binding(config: &FlowConfig, own: &RtitFlowConfig) -> Binding {
        Binding::new(config, own)
    }

    fn rules(binding: &Binding) -> &Ranges {
        &binding.ranges
    }

    fn fetch<W: Control>(bind: &mut Binder<'_, Self>, walk: &mut W) {
        if bind.own.is_last {
            bind.pending = Pending::Own(Own::Ends(Ends::default()));
            return;
        }
        let flow = match bind.next_flow() {
            Ok(Some(flow)) => flow,
            Ok(None) => {
                bind.pending = Pending::Own(Own::Ends(bind.end_of_trace()));
                return;
            }
            Err(error) => {
                bind.pending = Pending::Bad(error.into());
                return;
            }
        };
        if bind.is_cut::<W>() {
            bind.pending = Pending::Own(Own::Ends(Ends::default()));
            return;
        }
        bind.pending = match flow {
            Flow::Tnt { bits, len } => return bind.branches(walk, bits, len),
            Flow::Tip(ip) => Pending::Tip(ip),
            Flow::Pge(ip) => Pending::Own(Own::Pge(ip)),
            // A decoder that begins at the end of what is to be decoded tells of it.
            Flow::Ovf(_) if bind.own.is_last => Pending::Own(Own::Ends(Ends::default())),
            Flow::Ovf(ip) => Pending::Own(Own::OverflowAt(ip)),
            Flow::Far(None) | Flow::Pgd(None) => {
                Pending::Bad(FlowErrorKind::suppressed(flow.kind()))
            }
            Flow::Far(Some(ip)) => match bind.far_target() {
                Ok(to) => Pending::At {
                    ip,
                    what: AtIp::Far { to },
                },
                Err(kind) => Pending::Bad(kind),
            },
            Flow::Pgd(Some(ip)) => {
                let (was_taken, is_in_doubt) = (bind.reader.own.was_taken, bind.is_end_in_doubt());
                let (to, stops) = bind.behind_end();
                if is_in_doubt && to.is_none() {
                    bind.pending = Pending::Own(Own::Ends(Ends::by_pgd()));
                    return;
                }
                let what = AtIp::Pgd { to, stops };
                bind.pending = Pending::At { ip, what };
                let is_unclear = stops && bind.own.ranges.stop.is_empty();
                // (Where control has left the traced ranges, that is why.)
                if is_unclear && walk.at().is_some_and(|ip| bind.config.filter.contains(ip)) {
                    bind.end_unclear(walk, ip, was_taken);
                }
                return;
            }
            Flow::Pip { cr3, paging } => {
                bind.own.told_unpaged = !paging;
                if bind.is_traced_until_here() {
                    Pending::Own(Own::Pip(cr3))
                } else {
                    // Nothing tells that the code here went on to a MOV to CR3.
                    bind.note_used();
                    return bind.push_paging(cr3);
                }
            }
            Flow::TraceStop => match bind.stop() {
                Some(ends) if W::FOLLOWS_CODE => {
                    // What has walked the graph of decisions has not kept it.
                    walk.set_taken(bind.reader.own.was_taken);
                    Pending::Own(Own::Ends(ends))
                }
                Some(ends) => Pending::Own(Own::Ends(ends)),
                None => return,
            },
            // `next_flow` keeps it to itself.
            Flow::Psb => return,
        };
    }

    #[inline]
    fn reads_decision(bind: &mut Binder<'_, Self>) -> bool {
        let Some((bits, len)) = bind.reader.next_tnt() else {
            return false;
        };
        bind.read_at = bind.reader.offset();
        bind.load_tnt(bits, len);
        true
    }

    fn arrive<W: Control>(bind: &mut Binder<'_, Self>, walk: &mut W, at: Ip, what: AtIp) {
        bind.pending = Pending::None;
        // A MOV to CR0 that leaves paging as it is has no PIP: code behind this one may be older than the PIP.
        match what {
            AtIp::Paging { .. } => bind.doubt_pip(),
            _ => bind.consumed(),
        }
        match what {
            AtIp::Far { to: Some(to) } => {
                bind.push(Event::AsyncBranch { from: at, to });
                walk.go_to(to, true);
            }
            AtIp::Pgd { to: None, .. }
                if bind.own.is_confined && bind.config.filter.ends_before(at) =>
            {
                // Control walked out of the range.
                bind.turn_off(walk, Some(at));
                bind.push(Event::Disabled { ip: Some(at) });
            }
            AtIp::Pgd { to, .. } => {
                bind.turn_off(walk, Some(at));
                bind.push(Event::AsyncDisabled { at, ip: to });
            }
            AtIp::Paging { cr3 } => bind.push_paging(cr3),
            // What came of it is lost; what is told next is an overflow, or nothing.
            _ => {}
        }
    }

    fn follow(bind: &mut Binder<'_, Self>, own: Own) {
        match own {
            Own::Pip(cr3) => {
                bind.consumed();
                bind.push_paging(cr3);
            }
            Own::OverflowAt(ip) => {
                bind.note_used();
                bind.overflow(&mut NoCode, ip);
            }
            Own::Ends(ends) => bind.end_unknown(&mut NoCode, ends),
            Own::Pge(Some(ip)) => {
                // Tracing was off without a word.
                bind.turn_off(&mut NoCode, None);
                bind.turn_on(&mut NoCode, ip);
            }
            Own::Pge(None) => {
                bind.fail(&mut NoCode, FlowErrorKind::suppressed(Kind::FupPge));
            }
        }
    }

    fn pending_kind(bind: &Binder<'_, Self>) -> AnyKind {
        match &bind.pending {
            _ if bind.tnt_len != 0 => Kind::Tnt,
            Pending::Tip(_) => Kind::Tip,
            Pending::Own(Own::Pge(_)) => Kind::FupPge,
            Pending::Own(Own::Pip(_)) => Kind::Pip,
            Pending::Own(Own::OverflowAt(_)) => Kind::FupOvf,
            Pending::Own(Own::Ends(ends)) if ends.len != 0 => Kind::TntPartial,
            Pending::Own(Own::Ends(_)) => Kind::TraceStop,
            Pending::At { what, .. } => return (*what).into(),
            _ => Kind::FupFar,
        }
        .into()
    }
}

impl<'t> Binder<'t, Rtit> {
    /// The same behind a branch out of the traced ranges, of which a FUP.PGD tells.
    pub(super) fn fetch_leaving<W: Control>(&mut self, walk: &mut W) {
        self.own.is_leaving = true;
        Rtit::fetch(self, walk);
        self.own.is_leaving = false;
    }

    /// The next packet that matters to the flow. PSBs tell nothing of it.
    pub(super) fn next_flow(&mut self) -> Result<Option<Flow>, DecodeError> {
        loop {
            self.make_room();
            let next = self.reader.next();
            self.note_read(&next);
            match next {
                Some(Ok(Flow::Psb)) => {
                    self.own.may_resume = true;
                    if self.at_end() {
                        self.own.is_over = true;
                        self.reader.own.begin_fresh();
                    }
                }
                Some(Ok(flow)) => {
                    self.own.is_last |= self.own.is_over && self.is_known_to_fresh(flow);
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
        self.reader.own.is_fresh_known()
            && match flow {
                Flow::Tip(Some(ip)) => self.config.filter.contains(ip),
                Flow::Pge(_) | Flow::Pgd(_) | Flow::Ovf(_) | Flow::TraceStop => true,
                _ => false,
            }
    }

    /// Whether the packet just read is none of what is to be decoded: who tells events alone ends just at the PSB.
    pub(super) fn is_cut<W: Control>(&self) -> bool {
        self.own.is_over && !W::FOLLOWS_CODE
    }

    /// How the trace ends while tracing is on: with results that were read from the processor, perhaps.
    fn end_of_trace(&self) -> Ends {
        let (bits, len) = self.own.buffered.unwrap_or((0, 0));
        Ends {
            bits,
            len,
            ..Ends::default()
        }
    }

    /// After a FUP.FAR: where control went; none if that is lost.
    pub(super) fn far_target(&mut self) -> Result<Option<Ip>, FlowErrorKind> {
        let first = self.emit.now;
        let Some(flow) = self.next_flow()? else {
            return Ok(None);
        };
        match flow {
            Flow::Tip(Some(to)) => {
                self.emit.now = first.and(Kind::Tip);
                Ok(Some(to))
            }
            Flow::Tip(None) => Err(FlowErrorKind::suppressed(Kind::Tip)),
            Flow::Ovf(_) => {
                self.reader.put_back(flow);
                Ok(None)
            }
            Flow::TraceStop
                if self.config.errata.rtit_e4 && matches!(self.behind_stop(), Behind::Overflow) =>
            {
                self.reader.put_back(flow);
                Ok(None)
            }
            _ => {
                self.reader.put_back(flow);
                Err(FlowErrorKind::unexpected(flow, Expected::FarTarget))
            }
        }
    }

    /// After a FUP.PGD: where control went, if a TIP tells (Table 19, 30 and 31), and whether a TraceStop is the reason.
    pub(super) fn behind_end(&mut self) -> (Option<Ip>, bool) {
        let mut ahead = self.ahead();
        let next = loop {
            match ahead.next() {
                Some(Ok(Flow::Psb)) => {}
                Some(Ok(flow)) => break flow,
                None | Some(Err(_)) => return (None, false),
            }
        };
        let first = self.emit.now;
        let is_tip = matches!(next, Flow::Tip(Some(_)));
        match is_tip.then(|| self.next_flow()) {
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
            match ahead.next()?.ok()? {
                Flow::Psb => {}
                flow => return Some(flow),
            }
        };
        matches!(next(), Some(Flow::Pgd(_))) && next() == Some(Flow::TraceStop)
    }

    /// A reader of what comes next, for which nobody keeps timing packets.
    fn ahead(&mut self) -> Reader<'t, Rtit> {
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
        if self.reader.own.since == Since::Traced || !self.own.is_confined {
            return true;
        }
        if self.own.looked.0 <= self.read_at {
            let mut ahead = self.ahead();
            self.own.looked = loop {
                match ahead.next() {
                    Some(Ok(Flow::Psb | Flow::Pip { .. })) => {}
                    Some(Ok(flow)) => break (ahead.offset(), flow.is_of_traced_code()),
                    None | Some(Err(_)) => break (usize::MAX, false),
                }
            };
        }
        self.own.looked.1
    }

    /// Erratum E2: whether the FUP.PGD just read may be one too many, tracing having been switched off before without a word, and on in
    /// code that is not traced.
    pub(super) fn is_end_in_doubt(&self) -> bool {
        let is_used = self.own.is_confined || !self.own.ranges.stop.is_empty();
        self.config.errata.rtit_e2
            && is_used
            && !self.own.is_leaving
            && match self.reader.own.since_before {
                Since::Traced => false,
                Since::Psb => true,
                // Without an IP filter, tracing is on behind it.
                Since::Overflow => self.own.is_confined,
            }
    }

    /// Whether code is traced behind the overflow just read, as far as the next packets tell.
    pub(super) fn is_traced_behind_overflow(&mut self) -> Option<bool> {
        let mut ahead = self.ahead();
        let mut is_stopped = false;
        loop {
            match ahead.next()? {
                Ok(Flow::Psb | Flow::Pip { .. }) => {}
                Ok(Flow::TraceStop) => is_stopped = true,
                // Results that waited when tracing was stopped are of code behind the overflow.
                Ok(Flow::Tnt { len: ..=5, .. }) if is_stopped => return Some(true),
                _ if is_stopped => return None,
                Ok(Flow::Pge(_)) => return Some(false),
                // Erratum E2: it may be one too many; but not in front of a TIP.
                Ok(Flow::Pgd(_)) if self.config.errata.rtit_e2 => {
                    let is_far = matches!(ahead.next(), Some(Ok(Flow::Tip(_))));
                    return is_far.then_some(true);
                }
                Ok(flow) if flow.is_of_traced_code() => return Some(true),
                _ => return None,
            }
        }
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
            Behind::Nothing => self.own.buffered,
        };
        let (bits, len) = results.unwrap_or((0, 0));
        Some(Ends {
            bits,
            len,
            sign: Sign::TraceStop,
            exact: !self.own.ranges.stop.is_empty()
                && match self.reader.own.since {
                    Since::Traced => true,
                    // With results, it is no TraceStop that was held back.
                    Since::Overflow => len != 0,
                    Since::Psb => false,
                },
        })
    }

    fn behind_stop(&mut self) -> Behind {
        if self.read_at < self.own.overflow_at {
            // What stands between another one and the overflow was nothing that matters.
            return Behind::Overflow;
        }
        let mut ahead = self.ahead();
        let mut results = None;
        loop {
            match ahead.next() {
                // It may have been switched on and stopped again.
                Some(Ok(Flow::Psb | Flow::TraceStop)) => {}
                Some(Ok(Flow::Tnt {
                    bits,
                    len: len @ ..=6,
                })) if results.is_none() => {
                    results = Some((bits, len));
                }
                Some(Ok(Flow::Ovf(_))) => {
                    self.own.overflow_at = ahead.offset();
                    return Behind::Overflow;
                }
                None if results.is_none() => return Behind::Nothing,
                _ => return Behind::Results(results),
            }
        }
    }

    /// New page tables, and whether paging is on, as a PIP has told.
    pub(crate) fn push_paging(&mut self, cr3: u64) {
        if self.own.switches_paging() {
            self.own.is_unpaged = self.own.told_unpaged;
            let on = !self.own.is_unpaged;
            self.push(Event::PagingEnabled { on });
        }
        // While CR3En is set there are no PIPs.
        self.own.knows_paging = self.state == State::On && !self.config.cr3_filter;
        self.own.cr3 = Some(cr3);
        self.push(Event::Paging { cr3, nr: false });
    }
}
