//! Far transfers, paging, SMM, VMX and sleep states.

use super::Unit;
use crate::rtit::event::{Client, Destination, Event, SleepState};
use cofi_packet::rtit::{Kind, Packet};
use cofi_packet::{Hex, Ip};

/// A far transfer.
#[derive(Clone, Copy)]
struct Far {
    /// What is behind it, if it is an instruction.
    next: Option<Ip>,
    /// The address of FUP.FAR.
    far: Ip,
    /// The address of FUP.PGD.
    pgd: Ip,
    to: Destination,
}

impl Unit {
    /// Something happened.
    pub fn event(&mut self, client: &mut impl Client, event: Event) {
        match event {
            Event::FarBranch { at, to, prefixes } => {
                let far = Far {
                    next: Some(at.next),
                    far: self.far_nlip(at, prefixes),
                    pgd: at.next,
                    to,
                };
                self.far(client, far);
            }
            Event::Interrupt { from, to } => self.interrupt(client, from, to),
            Event::Init { from, to } => {
                self.interrupt(client, from, to);
                self.init_ip = to.ip;
            }
            Event::Sipi { to } => self.interrupt(client, self.init_ip, to),
            Event::MovCr3 { at, cr3 } => {
                let before = self.begin(client, Some(at.next));
                self.context.cr3 = cr3;
                self.refresh();
                let stops = self.arrive(at.next, false);
                let leaves = before.packet_en && (stops || !self.cached.packet_en);
                if leaves && self.sends_pgd(stops) {
                    // For the FUP.PGD; but ahead of all packets of the instruction (row 44).
                    self.flush_tnt(client);
                }
                self.pip(client);
                if self.regs.ctl.sts_on_cr3() {
                    self.sts(client);
                }
                self.turn(client, before, at.next, at.next, stops);
                self.extra_pgd(client, before, at.next, stops);
                self.end(client, before, at.next, stops, false);
            }
            Event::MovCr0 { at, paging } => {
                let before = self.begin(client, Some(at.next));
                let changes = self.context.paging != paging;
                self.context.paging = paging;
                if changes {
                    self.pip(client);
                }
                self.walk(client, before, at);
            }
            Event::Smi { from } => self.leave(client, from, |unit| unit.smm = true),
            Event::VmExit { from } => self.leave(client, from, |unit| unit.vmx_root = true),
            Event::Rsm { to } => self.enter(client, to, |unit| unit.smm = false),
            Event::VmEntry { to } => self.enter(client, to, |unit| unit.vmx_root = false),
            Event::Vmxon { at } => {
                let before = self.begin(client, Some(at.next));
                self.vmx_root = true;
                self.refresh();
                self.walk(client, before, at);
            }
            Event::Vmxoff { at } => {
                let before = self.begin(client, Some(at.next));
                self.vmx_root = false;
                self.refresh();
                self.walk(client, before, at);
            }
            Event::Sleep(state) => self.sleep(client, state),
            Event::Wake => self.wake(client),
            Event::Frequency { actual, effective } => {
                self.look_at_time(client);
                self.ratios = (actual & 0x3f, effective & 0x3f);
                self.sts(client);
            }
        }
    }

    fn interrupt(&mut self, client: &mut impl Client, from: Ip, to: Destination) {
        let far = Far {
            next: None,
            far: from,
            pgd: from,
            to,
        };
        self.far(client, far);
    }

    /// Rows 27 to 35 of Table 19.
    fn far(&mut self, client: &mut impl Client, far: Far) {
        let before = self.begin(client, far.next);
        let to = far.to.ip;
        self.context = far.to.context;
        self.refresh();
        let stops = self.arrive(to, true);
        let stays = self.cached.packet_en && !stops;
        if before.packet_en {
            if !stays && self.sends_pgd(stops) {
                self.pgd(client, far.pgd);
            } else {
                self.lip(client, Kind::FupFar, far.far);
            }
            if self.regs.status.context_en() {
                self.tip(client, to);
            }
        } else if stays {
            self.pge(client, to);
        }
        self.extra_pgd(client, before, far.pgd, stops);
        self.end(client, before, to, stops, before.packet_en);
    }

    /// SMI and VM exit: ContextEn is 0 after it, so where control goes is nobody's concern (rows 36 and 37).
    fn leave(&mut self, client: &mut impl Client, from: Ip, switch: impl FnOnce(&mut Self)) {
        let before = self.begin(client, None);
        switch(self);
        self.refresh();
        let stops = self.arrive(from, false);
        self.turn(client, before, from, from, stops);
        self.end(client, before, from, stops, false);
    }

    /// RSM and VM entry (row 38).
    fn enter(&mut self, client: &mut impl Client, to: Destination, switch: impl FnOnce(&mut Self)) {
        let before = self.begin(client, None);
        switch(self);
        self.context = to.context;
        self.refresh();
        let stops = self.arrive(to.ip, true);
        self.turn(client, before, to.ip, to.ip, stops);
        self.extra_pgd(client, before, to.ip, stops);
        self.end(client, before, to.ip, stops, false);
    }

    /// PIP, where it is sent (4.2.10).
    fn pip(&mut self, client: &mut impl Client) {
        let status = self.regs.status;
        let is_sent = status.trigger_en() && status.context_en() && !self.regs.ctl.cr3_en();
        if !is_sent || status.buffer_overflow() || !self.flush_tnt(client) {
            return;
        }
        let packet = Packet::Pip {
            cr3: Hex::truncate(self.context.cr3),
            pg: self.context.paging,
            cycles: self.cycle_count(),
        };
        self.emit(client, &packet);
    }

    fn sleep(&mut self, client: &mut impl Client, state: SleepState) {
        self.look_at_time(client);
        match state {
            SleepState::C1 | SleepState::C2 => {}
            SleepState::C4 | SleepState::C6 | SleepState::S0i => self.drain_all(client),
        }
        self.asleep = true;
        self.refresh();
    }

    pub(super) fn wake(&mut self, client: &mut impl Client) {
        self.look_at_time(client);
        if self.asleep {
            self.asleep = false;
            self.restart_drain();
            self.note_tsc();
            self.refresh();
        }
        self.sts(client);
    }
}
