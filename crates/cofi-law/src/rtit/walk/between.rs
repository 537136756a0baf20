//! What happens between instructions: interrupts, power, SMM, VMX, INIT, bus locks.

use super::{Features, Kind, Walk};
use cofi_packet::Ip;
use cofi_unit::At;
use cofi_unit::rtit::Event;

impl Walk<'_> {
    /// `true`: something happened, and control may be elsewhere.
    pub(super) fn between(&mut self) -> bool {
        let here = self.ip();
        let is_off = !self.enables.trigger_en();
        if is_off && self.has(Features::TOGGLES) && self.rng.one_in(20) {
            self.toggle();
            return true;
        }
        match self.rng.index(600) {
            0..=9 if self.has(Features::INTERRUPTS) => self.interrupt(here),
            10..=14 if self.has(Features::TOGGLES) => self.toggle(),
            15..=17 if self.has(Features::POWER) => self.frequency(),
            18 if self.has(Features::POWER) => self.sleep(),
            19..=21 if self.has(Features::SMM) && !self.enables.smm => self.smi(),
            22..=40 if self.enables.smm => self.rsm(),
            41..=50 | 61..=70 if self.enables.root && !self.enables.smm => self.vm_entry(),
            51..=53 if self.enables.root && self.insn().kind == Kind::Plain => self.vmxoff(),
            54 if self.is_guest() => self.vm_exit(),
            55 if self.has(Features::INIT) && !self.enables.smm && !self.has_vmx => self.init(),
            56..=60 if self.has(Features::LOCKS) => {
                self.act(|unit, world| unit.fence(world), |_| false);
            }
            _ => return false,
        }
        true
    }
}

impl Walk<'_> {
    fn frequency(&mut self) {
        let actual = 5 + self.rng.index(30) as u8;
        let effective = match self.rng.one_in(3) {
            true => 1 + self.rng.index(actual.into()) as u8,
            false => actual,
        };
        let event = Event::Frequency { actual, effective };
        self.act(|unit, world| unit.event(world, event), |_| false);
        // Whether cycles are counted that the modulation leaves out, the reference does not say.
        self.world.ratio = match self.rng.one_in(2) {
            true => actual,
            false => effective,
        };
    }

    /// Something takes control from where it stands, and tracing with it.
    fn leave(&mut self, event: Event, from: Ip, smm: bool) {
        self.act(
            |unit, world| unit.event(world, event),
            |enables| {
                if smm {
                    enables.smm = true;
                } else {
                    enables.root = true;
                }
                enables.come_to(from, false)
            },
        );
    }

    fn enter(&mut self, place: (usize, usize), smm: bool) {
        let to = self.destination(place);
        let event = match smm {
            true => Event::Rsm { to },
            false => Event::VmEntry { to },
        };
        self.context = to.context;
        self.act(
            |unit, world| unit.event(world, event),
            |enables| {
                if smm {
                    enables.smm = false;
                } else {
                    enables.root = false;
                }
                enables.context = to.context;
                enables.come_to(to.ip, true)
            },
        );
        self.at = place;
    }

    /// Where SMM or a VMM is left: mostly where it was entered.
    fn back(&mut self) -> (usize, usize) {
        match self.rng.one_in(3) {
            true => self.anywhere(None),
            false => self.at,
        }
    }

    fn smi(&mut self) {
        let from = self.ip();
        self.leave(Event::Smi { from }, from, true);
    }

    fn rsm(&mut self) {
        let place = self.back();
        self.enter(place, true);
    }

    pub(super) fn is_guest(&self) -> bool {
        self.has_vmx && !self.enables.root && !self.enables.smm
    }

    pub(super) fn may_vmxon(&self) -> bool {
        self.has(Features::VMX) && !self.has_vmx && !self.enables.smm
    }

    /// VMXON is executed where VMCALL stands, in this world.
    pub(super) fn vmxon(&mut self, at: At) {
        self.has_vmx = true;
        self.shown(false);
        self.root_changes(Event::Vmxon { at }, at.next, true);
        self.at.1 += 1;
    }

    fn vmxoff(&mut self) {
        self.has_vmx = false;
        let at = self.place();
        self.root_changes(Event::Vmxoff { at }, at.next, false);
        self.at.1 += 1;
    }

    fn root_changes(&mut self, event: Event, next: Ip, root: bool) {
        self.act(
            |unit, world| unit.event(world, event),
            |enables| {
                enables.root = root;
                enables.come_to(next, false)
            },
        );
    }

    pub(super) fn vm_exit(&mut self) {
        let from = self.ip();
        self.leave(Event::VmExit { from }, from, false);
    }

    fn vm_entry(&mut self) {
        let place = self.back();
        self.enter(place, false);
    }

    fn init(&mut self) {
        let from = self.ip();
        let place = self.anywhere(Some(0));
        self.go_far(place, |to| Event::Init { from, to });
        if self.rng.one_in(2) {
            self.pass_time();
            let place = self.anywhere(Some(0));
            self.go_far(place, |to| Event::Sipi { to });
        }
    }
}
