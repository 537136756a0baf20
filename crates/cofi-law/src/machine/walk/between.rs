//! What happens between instructions: power states, PEBS records, SMM, INIT.

use super::Walk;
use cofi_packet::Ip;
use cofi_packet::intel::{BlockType, CState, ItemSize, WakeReason};
use cofi_unit::{Block, Event, Mwait, Rsm, Sleep, msr};

impl Walk<'_> {
    pub(super) fn power(&mut self, here: Ip) {
        match self.rng.index(3) {
            0 => self.event(Event::ClocksResumed),
            1 => {
                let stopped_at = self.rng.one_in(2).then_some(here);
                let status = self.status();
                if stopped_at.is_some() && status.trigger_en() && self.ctl.pwr_evt_en() {
                    let ip = status.context_en().then_some(here);
                    self.tells("power", format!("exstop {ip:?}"));
                }
                let ratio = 10 + self.rng.index(30) as u8;
                self.event(Event::Frequency { stopped_at, ratio });
                self.world.ratio = ratio;
            }
            _ => self.sleep(here, None, true),
        }
    }

    pub(super) fn sleep(&mut self, ip: Ip, mwait: Option<Mwait>, hardware: bool) {
        let status = self.status();
        let (state, sub_state) = (CState::C3, self.rng.index(16) as u8);
        if status.trigger_en() && self.ctl.pwr_evt_en() {
            if let (Some(mwait), true) = (mwait, status.context_en()) {
                self.tells("power", format!("mwait {} {}", mwait.hints, mwait.ext));
            }
            self.tells(
                "power",
                format!("pwre {hardware} {} {sub_state}", state.get()),
            );
            let ip = status.context_en().then_some(ip);
            self.tells("power", format!("exstop {ip:?}"));
        }
        self.event(Event::Sleep(Sleep {
            ip,
            mwait,
            hardware,
            state,
            sub_state,
        }));
        self.world.sleep(self.rng.next_u64() % 100_000);
        if self.rng.one_in(2) {
            self.act(|unit, world| unit.clock(world));
        }
        if status.trigger_en() && self.ctl.pwr_evt_en() {
            self.tells("power", format!("pwrx {} {} 1", 2, 2));
        }
        self.event(Event::Wake {
            last: state,
            deepest: state,
            reason: WakeReason::INTERRUPT,
        });
    }

    pub(super) fn pebs(&mut self, ip: Ip) {
        let items: Vec<(u8, u64)> = (0..self.rng.index(18))
            .map(|id| (id as u8, self.rng.next_u64()))
            .collect();
        let sizes = [ItemSize::Four, ItemSize::Eight];
        let blocks = [
            Block {
                kind: BlockType::GPR,
                size: sizes[self.rng.index(2)],
                items: &items,
            },
            Block {
                kind: BlockType::PEBS_BASIC,
                size: sizes[self.rng.index(2)],
                items: &items[..items.len().min(3)],
            },
        ];
        let blocks = &blocks[..1 + self.rng.index(2)];
        self.event(Event::Pebs { ip, blocks });
    }

    pub(super) fn smi(&mut self) {
        if self.context.in_tx {
            self.abort();
        }
        let from = self.ip();
        let place = self.anywhere(Some(0));
        let to = self.destination(place);
        let trace_en = self.unit.rdmsr(msr::IA32_RTIT_CTL).expect("it exists") & 1 == 1;
        let status = self.status();
        let before = status.trigger_en() && status.context_en();
        self.smm = Some(trace_en);
        if self.ctl.event_en() && before {
            self.tells("event", "Smi None".into());
        }
        self.event(Event::Smi { from, to });
        self.arrive(place, to.context);
    }

    pub(super) fn leave_smm(&mut self) {
        if self.context.in_tx {
            self.abort();
        }
        let place = self.anywhere(None);
        let to = self.destination(place);
        let trace_en = self.smm.take().unwrap_or(false);
        let rsm = Rsm {
            to,
            trace_en,
            lbr: false,
        };
        self.act(|unit, world| unit.rsm(world, rsm))
            .expect("TraceEn is clear in SMM");
        // RSM gives no PIP (33.2.9.3).
        self.context = to.context;
        self.follow_space(false);
        self.go(place.0, place.1);
        if trace_en && self.ctl.event_en() && self.status().context_en() {
            self.tells("event", "Rsm None".into());
        }
    }

    pub(super) fn init(&mut self) {
        if self.context.in_tx {
            self.abort();
        }
        let from = self.ip();
        let place = self.anywhere(Some(0));
        let to = self.destination(place);
        let before = self.status().context_en();
        let live = self.status().trigger_en();
        if self.rng.one_in(2) {
            self.event(Event::Init { from, to });
            self.arrive(place, to.context);
            if live {
                self.tell_event(before, "Init", None);
            }
            return;
        }
        let context = to.context;
        self.event(Event::InitToWait { from, context });
        self.arrive(place, context);
        if live {
            self.tell_event(before, "Init", None);
        }
        for _ in 0..self.rng.index(3) {
            self.pass_time();
            self.act(|unit, world| unit.clock(world));
        }
        let before = self.status().context_en();
        let place = self.anywhere(Some(0));
        let to = self.destination(place);
        self.event(Event::Sipi { vector: 8, to });
        self.arrive(place, to.context);
        if live {
            self.tell_event(before, "Sipi", Some(8));
        }
    }
}
