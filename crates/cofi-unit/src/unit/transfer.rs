//! Far transfers, with the packets of everything that they change: CFE and EVD, FUP, PIP, MODE.Exec, TIP* (33.4.1, 33.7).

use super::Unit;
use crate::client::Client;
use crate::event::{Context, Destination};
use cofi_packet::Ip;
use cofi_packet::intel::{CfeType, EvdType, Hex64, Packet};

/// What Event Trace tells of an event (33.4.2.29, 33.4.2.30).
#[derive(Clone, Copy, Debug)]
pub(super) struct ControlEvent {
    pub(super) kind: CfeType,
    pub(super) vector: u8,
    /// What a FUP of its own would tell; some kinds never have one (Table 33-50).
    pub(super) ip: Option<Ip>,
    /// Event data that come before it.
    pub(super) data: [Option<(EvdType, u64)>; 2],
}

impl ControlEvent {
    pub(super) const fn new(kind: CfeType, ip: Option<Ip>) -> Self {
        Self {
            kind,
            vector: 0,
            ip,
            data: [None; 2],
        }
    }

    pub(super) const fn with_vector(self, vector: u8) -> Self {
        Self { vector, ..self }
    }
}

/// Whether a far transfer gives a PIP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pip {
    /// If CR3 is another than before.
    IfChanged,
    /// With this NR bit.
    Always {
        nr: bool,
    },
    Never,
}

/// A far transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    /// The instruction that did it or was to run when it came.
    pub(super) at: Ip,
    /// The source, where the binary does not show it.
    pub(super) fup: Option<Ip>,
    pub(super) event: Option<ControlEvent>,
    pub(super) pip: Pip,
    /// It loads a VMCS pointer.
    pub(super) vmcs: bool,
    /// It clears TraceEn.
    pub(super) ends: bool,
    pub(super) to: Destination,
}

impl Transfer {
    /// By an instruction in the binary.
    pub(super) const fn shown(at: Ip, to: Destination) -> Self {
        Self {
            at,
            fup: None,
            event: None,
            pip: Pip::IfChanged,
            vmcs: false,
            ends: false,
            to,
        }
    }

    /// By an event at `from`.
    pub(super) const fn hidden(from: Ip, to: Destination) -> Self {
        Self {
            fup: Some(from),
            ..Self::shown(from, to)
        }
    }

    pub(super) const fn telling(self, event: ControlEvent) -> Self {
        Self {
            event: Some(event),
            ..self
        }
    }
}

impl Unit {
    pub(super) fn transfer(&mut self, client: &mut impl Client, transfer: Transfer) {
        if !self.begin(client, transfer.at) {
            self.enter(transfer.to.context);
            return;
        }
        self.announce(client, &transfer);
        self.carry_out(client, transfer);
    }

    /// A transfer that has begun and been announced.
    pub(super) fn carry_out(&mut self, client: &mut impl Client, transfer: Transfer) {
        let Destination { ip, context } = transfer.to;
        let before = self.packet_en();
        self.enter_telling(client, context, transfer.pip);
        if transfer.vmcs {
            self.vmcs_packet(client);
        }
        self.land(client, before, ip);
        self.end(client, ip);
    }

    /// Takes over a context, with the PIP that belongs to that.
    pub(super) fn enter_telling(&mut self, client: &mut impl Client, context: Context, pip: Pip) {
        let old = self.context;
        let changes = old.cr3 != context.cr3;
        self.enter(context);
        if old.interrupt_flag != context.interrupt_flag {
            self.flag_changed();
        }
        match pip {
            Pip::IfChanged if changes => self.pip(client, self.context_is_non_root()),
            Pip::Always { nr } => self.pip(client, nr),
            Pip::IfChanged | Pip::Never => {}
        }
    }

    /// RFLAGS.IF has changed. Without BranchEn the stream may not have told what it was before.
    pub(super) fn flag_changed(&mut self) {
        if let (None, false) = (self.told_mode, self.regs.ctl.branch_en()) {
            self.told_mode = Some((self.context.mode, !self.context.interrupt_flag));
        }
    }

    /// What comes before a transfer: its CFE, and its FUP where PacketEn is set.
    pub(super) fn announce(&mut self, client: &mut impl Client, transfer: &Transfer) {
        let shares_fup = self.packet_en() && transfer.fup.is_some();
        if let Some(event) = transfer.event {
            let after = !transfer.ends && self.context_enabled(&transfer.to.context);
            self.control_event(client, event, shares_fup, after);
        }
        if let (true, Some(from)) = (shares_fup, transfer.fup) {
            self.fup(client, from);
        }
    }

    /// CFE, with the EVDs before it and the FUP behind it that belong to it. `shares_fup`: another packet's FUP follows.
    /// `after`: ContextEn after the event.
    pub(super) fn control_event(
        &mut self,
        client: &mut impl Client,
        event: ControlEvent,
        shares_fup: bool,
        after: bool,
    ) {
        let before = self.regs.status.context_en();
        if !self.regs.ctl.event_en() || !(before || after) {
            return;
        }
        for (kind, payload) in event.data.into_iter().flatten().filter(|_| before) {
            let payload = Hex64(payload);
            self.emit(client, Packet::Evd { kind, payload });
        }
        let fup = event.ip.filter(|_| before && !shares_fup);
        let packet = Packet::Cfe {
            ip: fup.is_some(),
            kind: event.kind,
            vector: event.vector,
        };
        self.emit(client, packet);
        if let Some(ip) = fup {
            self.fup(client, ip);
        }
    }

    /// Control has come to `ip`, by a far transfer or an event; `before` is PacketEn before it.
    pub(super) fn land(&mut self, client: &mut impl Client, before: bool, ip: Ip) {
        let stops = self.arrive(ip);
        let status = self.regs.status;
        match (before, self.packet_en()) {
            (true, true) => {
                let told = self.mode_exec(client);
                if !self.tip(client, ip) && told {
                    self.mode_is_lost();
                }
            }
            (true, false) => self.pgd(client, status.context_en().then_some(ip)),
            (false, true) => self.pge(client, ip),
            (false, false) => self.resume_events(client, ip),
        }
        if stops {
            self.trace_stop(client);
        }
    }

    /// Control has come to `ip`, perhaps back into traced code, and PacketEn is 0. Without BranchEn no TIP.PGE tells that
    /// tracing resumes; but a change of RFLAGS.IF that was not told yet is told there, with a FUP (33.4.2.8, Table 33-26).
    pub(super) fn resume_events(&mut self, client: &mut impl Client, ip: Ip) {
        let status = self.regs.status;
        let follows = status.context_en() && status.filter_en() && !self.waiting;
        let tells = self.regs.ctl.event_en() && self.told_mode.is_some();
        if follows && tells && self.mode_exec(client) && !self.fup(client, ip) {
            self.mode_is_lost();
        }
    }

    /// ContextEn may have changed with an instruction that is no branch: MOV to CR3.
    pub(super) fn change_space(
        &mut self,
        client: &mut impl Client,
        at: crate::event::At,
        context: Context,
    ) {
        if !self.begin(client, at.ip) {
            self.enter(context);
            return;
        }
        let (before, traced) = (self.packet_en(), self.regs.status.context_en());
        self.enter(context);
        self.pip(client, self.context_is_non_root());
        let traces = self.regs.status.context_en();
        let stops = if !traced && traces {
            self.arrive(at.next)
        } else {
            traces && self.cached.has_ranges && self.in_stop_range(at.next)
        };
        match (before, self.packet_en() && !stops) {
            (true, false) => self.pgd(client, traces.then_some(at.next)),
            (false, true) => self.pge(client, at.next),
            (false, false) if !stops => self.resume_events(client, at.next),
            _ => {}
        }
        if stops {
            self.trace_stop(client);
        }
        self.end(client, at.next);
    }
}
