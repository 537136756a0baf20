//! Events that wait for a FUP to tell their place (33.4.2.21 to 33.4.2.30).

use alloc::vec::Vec;

use cofi_packet::Ip;
use cofi_packet::intel::{CfeType, EvdType, Kind};

use crate::bind::{Binder, State};
use crate::events::origin::Origin;
use crate::family::IntelPt;
use crate::reader::intel::{Flow, Report};
use crate::{Event, Expected, FlowErrorKind};

/// More events than this are never held back for one FUP: a PEBS record has fewer.
const MAX_HELD: usize = 512;

/// The vector of #PF.
const PAGE_FAULT: u8 = 14;

/// An event that waits for a FUP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    event: Event,
    origin: Origin,
}

/// What waits for a FUP.
#[derive(Debug, Default)]
pub(crate) struct AwaitingFup {
    held: Vec<Held>,
    /// Whether one of them is certain to have a FUP of its own.
    pub(crate) claimed: bool,
    /// The value and size of a PTW packet whose FUP is to come, and where it stands.
    pub(crate) ptwrite: Option<(u64, u8)>,
    ptwrite_origin: Origin,
    /// Where the processor went to sleep, once that is known.
    pub(crate) asleep_at: Option<Ip>,
}

impl Binder<'_, IntelPt> {
    /// Takes packets whose events bind to a FUP that may follow; `false` for others.
    pub(crate) fn hold(&mut self, flow: Flow) -> bool {
        let report = match flow {
            Flow::ExStop { ip: true } => {
                self.own.awaiting.claimed = true;
                self.keep(Event::ExStop { ip: None });
                return true;
            }
            Flow::Ptw {
                payload,
                size,
                ip: true,
            } => {
                self.release_held(None);
                self.own.awaiting.claimed = true;
                self.own.awaiting.ptwrite = Some((payload, size));
                self.own.awaiting.ptwrite_origin = self.emit.now;
                return true;
            }
            Flow::Report(report) => report,
            _ => return false,
        };
        self.own.awaiting.claimed |= report.has_fup();
        let Some(event) = report.event() else {
            if !report.has_fup() {
                self.release_block();
            }
            return true;
        };
        match report {
            Report::Trig { ip: false, .. } => self.push(event),
            // It stands alone (33.4.2.29).
            Report::Cfe { ip: false, .. } if self.state == State::Off => {
                self.release_held(None);
                self.push(event);
            }
            // It binds to the address of its CFE (33.4.2.30), which is missing.
            Report::Evd { .. } if self.found_for_cfe().is_some() => {
                self.release_data();
                self.push(event);
            }
            _ => self.keep(event),
        }
        true
    }

    /// Holds an event back until a FUP tells its place, or none comes.
    fn keep(&mut self, event: Event) {
        if self.own.awaiting.held.len() >= MAX_HELD {
            self.release_held(None);
        }
        let origin = self.emit.now;
        self.own.awaiting.held.push(Held { event, origin });
    }

    /// What is wrong if this packet is an EVD without a CFE behind it, or a CFE to which the EVDs before it cannot belong (33.4.2.30,
    /// table 33-59).
    pub(crate) fn wrong_event(&self, flow: Flow) -> Option<FlowErrorKind> {
        let (kind, vector) = match flow {
            Flow::Report(Report::Cfe { kind, vector, .. }) => (kind, vector),
            Flow::Report(Report::Evd { .. }) => {
                let found = self.found_for_cfe()?;
                return Some(FlowErrorKind::unexpected(found, Expected::CfeBehindData));
            }
            _ => return None,
        };
        let before = self.own.awaiting.held.iter().rev().map(|held| held.event);
        let fits = before
            .take_while(|event| !matches!(event, Event::Control { .. }))
            .all(|event| match event {
                Event::EventData { kind: data, .. } => match EvdType::new(data) {
                    Some(EvdType::PFA) => kind == CfeType::INTR && vector == PAGE_FAULT,
                    Some(EvdType::VMXQ | EvdType::VMXR) => {
                        matches!(kind, CfeType::VMEXIT | CfeType::VMEXIT_INTR)
                    }
                    // What a reserved type belongs to is not known.
                    _ => true,
                },
                _ => true,
            });
        (!fits).then(|| FlowErrorKind::unexpected(flow, Expected::CfeOfData))
    }

    /// Behind an EVD that was read just now: the packet that proves that its CFE is missing.
    ///
    /// EVDs come right before their CFE (table 33-59). Whatever reports control or state cannot come between; a block, a power event or a
    /// PSB+ is not ruled out. An OVF may have lost the CFE, damaged bytes may have been one, and a stream may have been cut before it. The
    /// search ends at the next EVD, so each packet is looked at once.
    fn found_for_cfe(&self) -> Option<Flow> {
        let mut ahead = self.reader.clone();
        let mut is_status = false;
        loop {
            match ahead.next()?.ok()? {
                Flow::Report(Report::Cfe { .. } | Report::Evd { .. }) | Flow::Ovf => return None,
                Flow::Psb => is_status = true,
                Flow::PsbEnd if is_status => is_status = false,
                Flow::Fup(_)
                | Flow::Pip { .. }
                | Flow::Vmcs(_)
                | Flow::ModeExec { .. }
                | Flow::ModeTsx(_)
                    if is_status => {}
                Flow::Report(_) | Flow::Mnt(_) | Flow::ExStop { .. } | Flow::Pwrx { .. } => {}
                found => return Some(found),
            }
        }
    }

    /// Returns the blocks held back: they belong to no address. Other events still wait for a FUP.
    pub(crate) fn release_block(&mut self) {
        let mut held = core::mem::take(&mut self.own.awaiting.held);
        held.retain(|held| {
            let in_block = matches!(held.event, Event::Block { .. } | Event::BlockItem { .. });
            if in_block {
                self.push_from(held.event, held.origin);
            }
            !in_block
        });
        self.own.awaiting.held = held;
    }

    /// Returns the EVDs held back behind the last CFE: they belong to no event, and so to no address.
    fn release_data(&mut self) {
        let mut held = core::mem::take(&mut self.own.awaiting.held);
        let is_control = |held: &Held| matches!(held.event, Event::Control { .. });
        let mut others_first = held.iter().rposition(is_control).map_or(0, |at| at + 1);
        held.retain(|held| {
            let is_data = others_first == 0 && matches!(held.event, Event::EventData { .. });
            others_first = others_first.saturating_sub(1);
            if is_data {
                self.push_from(held.event, held.origin);
            }
            !is_data
        });
        self.own.awaiting.held = held;
    }

    /// Whether events wait for a FUP.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        self.own.awaiting.claimed || !self.own.awaiting.held.is_empty()
    }

    /// Returns the events held back, now that their place is known, or known to be unknown.
    pub(crate) fn release_held(&mut self, place: Option<Ip>) {
        if !self.holds() {
            return;
        }
        self.own.awaiting.claimed = false;
        let mut held = core::mem::take(&mut self.own.awaiting.held);
        for Held { mut event, origin } in held.drain(..) {
            match &mut event {
                Event::ExStop { ip }
                | Event::Control { ip, .. }
                | Event::Block { ip, .. }
                | Event::Trigger { ip, .. } => *ip = place,
                Event::Pwre { .. } => self.own.awaiting.asleep_at = place,
                _ => {}
            }
            self.push_from(event, origin.at(place, Kind::Fup));
        }
        self.own.awaiting.held = held;
        if let Some((payload, size)) = self.own.awaiting.ptwrite.take() {
            let event = Event::Ptwrite {
                ip: place,
                payload,
                size,
            };
            self.push_from(event, self.own.awaiting.ptwrite_origin.at(place, Kind::Fup));
        }
    }
}
