//! Where tracing of Intel PT goes on behind an overflow.

use cofi_packet::Ip;
use cofi_packet::intel::Kind;

use crate::bind::control::Control;
use crate::bind::intel::PsbPlus;
use crate::bind::state::{Bound, Status};
use crate::bind::{Binder, State};

use crate::events::origin::Origin;
use crate::family::IntelPt;
use crate::reader::intel::Flow;
use crate::resync::loss::Run;
use crate::{Event, Expected, FlowErrorKind};

impl Binder<'_, IntelPt> {
    /// After an OVF: where tracing goes on (33.3.8).
    pub(crate) fn overflow<W: Control>(&mut self, walk: &mut W) {
        self.tnt_len = 0;
        self.own.loss.is_mode_certain = false;
        walk.forget_callers();
        // While tracing is off a MODE packet tells the state that holds when it goes on, and waits for no packet that may be lost (33.2.9.2).
        let off = self.state == State::Off;
        self.own.bound = Bound {
            tsx: self.own.bound.tsx.filter(|_| off),
            mode: self.own.bound.mode.filter(|_| off),
            ..Bound::default()
        };
        self.release_held(None);
        let mut status = None;
        let mut first = self.emit.now;
        loop {
            let flow = match self.next_flow() {
                Ok(Some(flow)) => flow,
                Ok(None) => {
                    self.note_used();
                    self.push_from(Event::Overflow { ip: None }, first);
                    self.state = State::Done;
                    return;
                }
                Err(error) => {
                    self.push_from(Event::Overflow { ip: None }, first);
                    self.lose(walk, error.into());
                    return;
                }
            };
            // Each OVF has lost something of its own.
            let mut is_another = flow == Flow::Ovf;
            match flow {
                Flow::Ovf => {}
                Flow::Psb if self.at_end() => {
                    self.push_from(Event::Overflow { ip: None }, first);
                    self.state = State::Done;
                    return;
                }
                Flow::Psb => match self.read_psb_plus() {
                    PsbPlus::Complete(found) if found.ip.is_some() => {
                        self.after_overflow(walk, found.ip, Some(found.over(status)), first);
                        return;
                    }
                    PsbPlus::Complete(found) => status = Some(found.over(status)),
                    PsbPlus::Overflow => is_another = true,
                    PsbPlus::End => {}
                    PsbPlus::Bad(kind) => {
                        self.push_from(Event::Overflow { ip: None }, first);
                        self.lose(walk, kind);
                        return;
                    }
                },
                flow => return self.end_overflow(walk, flow, status, first),
            }
            if is_another {
                self.note_used();
                self.push_from(Event::Overflow { ip: None }, first);
                first = self.emit.now;
            }
        }
    }

    /// The first packet behind OVFs and PSB+s without an address says where tracing goes on, or does not.
    fn end_overflow<W: Control>(
        &mut self,
        walk: &mut W,
        flow: Flow,
        status: Option<Status>,
        first: Origin,
    ) {
        let errata = self.config.errata;
        match flow {
            Flow::Fup(Some(ip)) => {
                let off = errata.apl12 && self.pge_is_next_over_psbs();
                self.after_overflow(walk, Some(ip).filter(|_| !off), status, first);
            }
            Flow::Pgd(_) if errata.apl11 => self.after_overflow(walk, None, status, first),
            Flow::Fup(None) if self.reader.own.doubt => {
                self.lose_behind_overflow(first, Run::Unknown);
            }
            Flow::Tnt { .. } | Flow::Tip(_) | Flow::Pgd(_) | Flow::Fup(None) | Flow::PsbEnd => {
                if errata.skd010 {
                    // The bits of branches behind the overflow stand behind the OVF.
                    let run = match flow {
                        Flow::Tip(_) => Run::Clear,
                        _ => Run::Unknown,
                    };
                    self.lose_behind_overflow(first, run);
                } else {
                    self.push_from(Event::Overflow { ip: None }, first);
                    self.lose(walk, FlowErrorKind::unexpected(flow, Expected::FupOrTipPge));
                }
                self.reader.put_back(flow);
            }
            _ => {
                self.reader.put_back(flow);
                if errata.skd010 && status.is_none() && self.is_on_behind_overflow() {
                    self.lose_behind_overflow(first, Run::Unknown);
                    // A MODE.TSX comes with a FUP only while PacketEn is set (33.4.2.8).
                    self.own.loss.was_on =
                        matches!(flow, Flow::ModeTsx(_)) && self.is_fup_behind(flow);
                } else {
                    self.after_overflow(walk, None, status, first);
                }
            }
        }
    }

    /// Tracing goes on at `ip`, if it does; a PSB+ may have told the state.
    fn after_overflow<W: Control>(
        &mut self,
        walk: &mut W,
        ip: Option<Ip>,
        status: Option<Status>,
        first: Origin,
    ) {
        let gives = self.emit.last.unwrap_or(Kind::Fup.into());
        self.report_overflow(walk, ip, first.at(ip, gives));
        let Bound { mode, tsx, .. } = core::mem::take(&mut self.own.bound);
        let kept = Bound {
            mode,
            tsx: tsx.filter(|_| status.is_none_or(|status| status.state.tsx.is_none())),
            ..Bound::default()
        };
        match ip {
            Some(_) if self.own.loss.is_mode_doubtful && status.is_none() => {
                self.state = State::Lost;
                self.own.loss.run = Run::Unknown;
                self.own.loss.was_on = false;
            }
            Some(ip) => {
                self.apply(kept, Some(ip));
                self.go_on_at(walk, ip);
            }
            None => {
                self.turn_off(walk, None);
                self.own.bound = kept;
            }
        }
        if let Some(status) = status {
            self.apply_status(status);
        }
    }

    /// Where tracing goes on behind the overflow is not told.
    fn lose_behind_overflow(&mut self, first: Origin, run: Run) {
        self.push_from(Event::Overflow { ip: None }, first);
        self.state = State::Lost;
        self.own.loss.run = run;
        self.own.loss.was_on = false;
    }
}
