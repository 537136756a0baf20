//! Everything that can be done to a unit.

use super::{Dice, Machine};
use cofi_packet::intel::{BlockType, CState, ItemSize, Payload, WakeReason};
use cofi_packet::{ExecMode, Ip};
use cofi_unit::*;
use std::convert::Infallible;

fn ip(dice: &mut Dice<'_>) -> Ip {
    Ip(match dice.below(16) {
        0 => dice.number(),
        _ => 0x40_0000 + u64::from(dice.byte()) * 4,
    })
}

fn at(dice: &mut Dice<'_>) -> At {
    let ip = ip(dice);
    let next = Ip(ip.0.wrapping_add(dice.below(16).into()));
    At { ip, next }
}

fn destination(dice: &mut Dice<'_>) -> Destination {
    Destination {
        ip: ip(dice),
        context: Machine::context(dice),
    }
}

fn retired(dice: &mut Dice<'_>) -> Retired {
    let at = at(dice);
    let to = ip(dice);
    let branch = match dice.below(12) {
        0 => Branch::None,
        1 => Branch::DirectJump(to),
        2 => Branch::DirectCall(to),
        3 => Branch::IndirectJump(to),
        4 => Branch::IndirectCall(to),
        5 | 6 => Branch::Return(to),
        7..9 => Branch::Conditional(Some(to)),
        _ => Branch::Conditional(None),
    };
    Retired { at, branch }
}

impl Machine {
    pub(crate) fn context(dice: &mut Dice<'_>) -> Context {
        Context {
            cpl: dice.pick(&[0, 3, 3, 1, 255]),
            cr3: dice.pick(&[0x1000, 0x1000, 0x2020, u64::MAX]),
            pae: dice.once_in(8),
            mode: dice.pick(&[
                ExecMode::Bits64,
                ExecMode::Bits64,
                ExecMode::Bits32,
                ExecMode::Bits16,
            ]),
            cs_base: dice.pick(&[0, 0, 0x1000, u64::MAX]),
            interrupt_flag: dice.coin(),
            in_tx: dice.once_in(8),
            enclave: dice.pick(&[
                Enclave::None,
                Enclave::None,
                Enclave::None,
                Enclave::Debug,
                Enclave::Production,
            ]),
        }
    }

    /// An MSR near those of 33.2.8, and a value that it may hold.
    fn register(&self, dice: &mut Dice<'_>) -> (u32, u64) {
        let address = match dice.below(8) {
            0 => 0x560 + u32::from(dice.below(0x30)),
            1..4 => msr::IA32_RTIT_CTL,
            n => [
                msr::IA32_RTIT_STATUS,
                msr::IA32_RTIT_OUTPUT_BASE,
                msr::IA32_RTIT_OUTPUT_MASK_PTRS,
                msr::IA32_RTIT_CR3_MATCH,
            ][usize::from(n) - 4],
        };
        let now = self.unit.rdmsr(address).unwrap_or(0);
        let value = match (dice.below(8), address) {
            (0, _) => dice.number(),
            (1, _) => 0,
            (2 | 3, _) => now ^ 1 << dice.below(64),
            (_, msr::IA32_RTIT_CTL) => self.legal_ctl(dice).0,
            (_, msr::IA32_RTIT_STATUS) => u64::from(dice.word() as u16) << 32,
            (_, msr::IA32_RTIT_OUTPUT_BASE) => (dice.word() & 0xffff) << 12,
            (_, msr::IA32_RTIT_OUTPUT_MASK_PTRS) => {
                let offset = u64::from(dice.byte()) & 0x7f;
                offset << 32 | dice.pick(&[0x7f, 0xff, 0xfff, 0xffff, u64::from(u32::MAX)])
            }
            (_, msr::IA32_RTIT_CR3_MATCH) => dice.pick(&[0x1000, 0x2020]),
            (_, 0x580..0x588) => ip(dice).0,
            _ => dice.number(),
        };
        (address, value)
    }

    /// A value of IA32_RTIT_CTL that is probably legal: random bits of those which the processor has.
    fn legal_ctl(&self, dice: &mut Dice<'_>) -> Ctl {
        let caps = self.unit.capabilities();
        let noise = dice.word() & dice.word() | dice.word() & 0b10_0000_0000_1100;
        let value = Ctl::SPEC
            .fields
            .iter()
            .filter(|field| (field.present)(caps))
            .fold(0, |value, field| {
                let value = value | noise & field.mask();
                if field.is_legal(caps, value) {
                    value
                } else {
                    value & !field.mask()
                }
            });
        let ctl = Ctl(value).with_trace_en(true);
        if !ctl.topa() && !ctl.fabric_en() && !caps.single_range {
            return ctl.with_topa(caps.topa).with_fabric_en(!caps.topa);
        }
        ctl
    }

    fn wrmsr(&mut self, dice: &mut Dice<'_>, address: u32, value: u64) {
        let at = at(dice);
        self.act(("wrmsr", address, value), |unit, world| {
            unit.wrmsr(world, at, address, value)
        });
    }

    /// What a driver does.
    fn configure(&mut self, dice: &mut Dice<'_>) {
        let base = (dice.word() & 0xffff) << 12;
        let ptrs = dice.pick(&[0x7f, 0xfff, 0xffff]);
        let from = 0x40_0000 + u64::from(dice.byte());
        let everything = Ctl(0).with_os(true).with_user(true).with_branch_en(true);
        let ctl = self.legal_ctl(dice).0 | dice.pick(&[0, everything.0, everything.0]);
        for (address, value) in [
            (msr::IA32_RTIT_CTL, 0),
            (msr::IA32_RTIT_STATUS, 0),
            (msr::IA32_RTIT_OUTPUT_BASE, base & !ptrs),
            (msr::IA32_RTIT_OUTPUT_MASK_PTRS, ptrs),
            (msr::IA32_RTIT_CR3_MATCH, 0x1000),
            (msr::IA32_RTIT_ADDR0_A, from),
            (msr::IA32_RTIT_ADDR0_B, from + 0x200),
            (msr::IA32_RTIT_CTL, ctl),
        ] {
            self.wrmsr(dice, address, value);
        }
    }

    pub(crate) fn event(&mut self, event: Event<'_>) {
        self.act(event, |unit, world| {
            unit.event(world, event);
            Ok::<_, Infallible>(())
        });
    }

    /// Does something, and lets time pass.
    pub(crate) fn step(&mut self, dice: &mut Dice<'_>) {
        if dice.coin() {
            self.world.time(dice);
        }
        if !self.status().trigger_en() && dice.once_in(4) {
            return self.configure(dice);
        }
        match dice.below(32) {
            0 => self.configure(dice),
            1 => self.gather(dice),
            2 => {
                let (address, value) = self.register(dice);
                self.wrmsr(dice, address, value);
            }
            3 => {
                let address = 0x550 + u32::from(dice.below(0x40));
                let known = msr::ALL.iter().any(|spec| spec.address == address);
                let value = self.unit.rdmsr(address);
                assert!(known || value.is_err(), "{address:#x} is no register");
            }
            4..12 => {
                let insn = retired(dice);
                self.act(insn, |unit, world| {
                    unit.retire(world, insn);
                    Ok::<_, Infallible>(())
                });
            }
            12 => self.run(dice),
            13 => self.gather(dice),
            14 => {
                let at = at(dice);
                let operand = match dice.coin() {
                    true => Payload::Four(dice.word() as u32),
                    false => Payload::Eight(dice.word()),
                };
                self.act("ptwrite", |unit, world| {
                    unit.ptwrite(world, Ptwrite { at, operand })
                });
            }
            15 => self.vm_entry(dice),
            16 => self.vm_exit(dice),
            17 => self.state_component(dice),
            18 => self.rare(dice),
            19 => {
                let bytes = dice.pick(&[0, 1, 7, 64, usize::MAX]);
                self.act(("drain", bytes), |unit, world| {
                    unit.drain(world, bytes);
                    Ok::<_, Infallible>(())
                });
            }
            20 => self.act("clock", |unit, world| {
                unit.clock(world);
                Ok::<_, Infallible>(())
            }),
            21 => self.world.change(dice),
            22..26 => self.transfer(dice),
            26 | 27 => self.power(dice),
            28 | 29 => self.small(dice),
            _ => self.mode(dice),
        }
    }

    /// Many conditional branches, so that there are PSBs.
    fn run(&mut self, dice: &mut Dice<'_>) {
        let (bits, insn) = (dice.word(), retired(dice));
        let step = dice.below(4);
        self.act(("run", insn), |unit, world| {
            for n in 0..u64::from(u16::MAX >> (4 + step)) {
                world.clock.tsc = world.clock.tsc.wrapping_add(step.into());
                world.clock.cycles = world.clock.cycles.wrapping_add(step.into());
                let taken = bits >> (n % 61) & 1 != 0;
                let branch = match n % 7 {
                    0 => insn.branch,
                    _ => Branch::Conditional(taken.then_some(insn.at.ip)),
                };
                unit.retire(world, Retired { branch, ..insn });
            }
            Ok::<_, Infallible>(())
        });
    }

    fn gather(&mut self, dice: &mut Dice<'_>) {
        let insns: Vec<_> = (0..dice.byte()).map(|_| retired(dice)).collect();
        let steps: Vec<_> = insns.iter().map(|_| dice.below(4)).collect();
        self.act(("gather", insns.len()), |unit, world| {
            let mut unit = unit.gather(world.clock.tsc);
            for (insn, step) in insns.into_iter().zip(steps) {
                world.clock.tsc = world.clock.tsc.wrapping_add(step.into());
                world.clock.cycles = world.clock.cycles.wrapping_add(step.into());
                let is_done = match insn.branch {
                    Branch::Conditional(taken) => {
                        unit.direct(world.clock.tsc, true, taken.is_some())
                    }
                    _ if world.clock.tsc >= unit.until() => false,
                    Branch::DirectCall(target) if target != insn.at.next => {
                        unit.call(insn.at.next);
                        true
                    }
                    Branch::Return(target) => unit.compressed_return(target),
                    _ => false,
                };
                if !is_done {
                    unit.retire(world, insn);
                }
            }
            Ok::<_, Infallible>(())
        });
    }

    fn loads(&self, dice: &mut Dice<'_>) -> Vec<(u32, u64)> {
        (0..dice.below(5).saturating_sub(2))
            .map(|_| self.register(dice))
            .collect()
    }

    fn vm_entry(&mut self, dice: &mut Dice<'_>) {
        let loads = self.loads(dice);
        let mut entry = VmEntry::new(at(dice), destination(dice));
        entry.conceal = dice.once_in(4);
        entry.conceal_guest = dice.once_in(4);
        entry.tsc = GuestTsc {
            multiplier: dice.number(),
            offset: dice.number(),
        };
        entry.load_ctl = dice.once_in(4).then(|| self.legal_ctl(dice).0);
        entry.loads = &loads;
        entry.from_smm = dice.once_in(4).then(|| SmmReturn {
            vmcs: dice.number(),
            to_root: dice.coin(),
        });
        entry.outcome = match dice.below(8) {
            0 => EntryOutcome::EarlyFailure,
            1 => EntryOutcome::LateFailure {
                host: destination(dice),
            },
            _ => EntryOutcome::Success,
        };
        self.is_loading = !loads.is_empty() || entry.load_ctl.is_some();
        self.world.is_cut |= self.is_loading;
        self.act(entry, |unit, world| unit.vm_entry(world, &entry));
    }

    fn vm_exit(&mut self, dice: &mut Dice<'_>) {
        let loads = self.loads(dice);
        let mut exit = VmExit::new(ip(dice), destination(dice));
        exit.conceal = dice.once_in(4);
        exit.reason = dice.number();
        exit.qualification = dice.number();
        exit.vector = dice.maybe(Dice::byte);
        exit.clear_ctl = dice.once_in(4);
        exit.loads = &loads;
        exit.to_smm = dice.once_in(4).then(|| SmmExit {
            vmcs: dice.number(),
            smi: dice.coin(),
        });
        exit.abort = dice.once_in(16);
        self.is_loading = !loads.is_empty();
        self.world.is_cut |= self.is_loading;
        self.act(exit, |unit, world| unit.vm_exit(world, &exit));
    }

    fn state_component(&mut self, dice: &mut Dice<'_>) {
        let at = at(dice);
        if dice.coin() {
            self.act("xsaves", |unit, world| {
                let area = unit.xsaves(world, at);
                // It is what XRSTORS accepts, unless VMX operation forbids the write.
                assert_eq!(XsaveArea::from_bytes(&area.to_bytes()), area);
                Ok::<_, Infallible>(())
            });
        }
        let mut area = XsaveArea {
            ctl: self.legal_ctl(dice).0,
            output_base: (dice.word() & 0xffff) << 12,
            output_mask_ptrs: dice.pick(&[0x7f, 0xfff, 0xffff]),
            status: 0,
            cr3_match: dice.pick(&[0, 0x1000]),
            ranges: [[0; 2]; 2],
        };
        if dice.once_in(4) {
            area.status = dice.number();
        }
        let area = dice.maybe(|_| area);
        self.act(("xrstors", area), |unit, world| {
            unit.xrstors(world, at, area.as_ref())
        });
    }

    fn rare(&mut self, dice: &mut Dice<'_>) {
        match dice.below(6) {
            0 => {
                let (warm, context) = (dice.coin(), Self::context(dice));
                self.world.is_cut = true;
                self.act(("reset", warm), |unit, _| {
                    unit.reset(warm, context);
                    Ok::<_, Infallible>(())
                });
            }
            1 | 2 => {
                let rsm = Rsm {
                    to: destination(dice),
                    trace_en: dice.coin(),
                    lbr: dice.once_in(4),
                };
                self.act(rsm, |unit, world| unit.rsm(world, rsm));
            }
            3 => self.event(Event::Senter { at: at(dice) }),
            4 => self.event(Event::AcmBegin),
            _ => self.event(Event::AcmEnd),
        }
    }

    fn transfer(&mut self, dice: &mut Dice<'_>) {
        let (at, to) = (at(dice), destination(dice));
        let from = at.ip;
        let vector = dice.byte();
        let page_fault = dice.maybe(Dice::number);
        self.event(match dice.below(16) {
            0 => Event::FarBranch { at, to },
            1 => Event::Iret { at, to },
            2 => Event::Uiret { at, to },
            3..6 => Event::Interrupt {
                from,
                vector: dice.pick(&[vector, 14]),
                page_fault,
                to,
            },
            6 => Event::UserInterrupt { from, vector, to },
            7 => Event::MovCr3 {
                at,
                cr3: to.context.cr3,
            },
            8 => Event::Init { from, to },
            9 => Event::InitToWait {
                from,
                context: to.context,
            },
            10 => Event::Sipi { vector, to },
            11 => Event::Smi { from, to },
            12 => Event::EnclaveEntry { at, to },
            13 => Event::EnclaveExit { at, to },
            14 => Event::AsyncEnclaveExit {
                from,
                aep: at.next,
                vector,
                to,
            },
            _ => Event::TransactionAbort { from, to: to.ip },
        });
    }

    fn power(&mut self, dice: &mut Dice<'_>) {
        let state = dice.pick(&[CState::C0, CState::C1, CState::C6]);
        match dice.below(5) {
            0 => self.event(Event::Sleep(Sleep {
                ip: ip(dice),
                mwait: dice.maybe(|dice| Mwait {
                    hints: dice.byte(),
                    ext: dice.byte(),
                }),
                hardware: dice.coin(),
                state,
                sub_state: dice.byte(),
            })),
            1 => self.event(Event::Wake {
                last: state,
                deepest: CState::C6,
                reason: WakeReason::STORE,
            }),
            2 => self.event(Event::ClocksResumed),
            3 => self.event(Event::Frequency {
                stopped_at: dice.maybe(ip),
                ratio: dice.byte(),
            }),
            _ => self.event(Event::CycleCounterReset),
        }
    }

    fn small(&mut self, dice: &mut Dice<'_>) {
        let at = at(dice);
        match dice.below(6) {
            0 => self.event(Event::Vmxon { at }),
            1 => self.event(Event::Vmxoff { at }),
            2 => self.event(Event::Vmptrld {
                at,
                vmcs: dice.number(),
            }),
            3 => self.event(Event::Vmclear { at }),
            4 => self.event(Event::Shutdown { at: at.ip }),
            _ => {
                let items = [(dice.byte(), dice.number()), (dice.byte(), dice.number())];
                let mut block = || Block {
                    kind: dice.pick(&[BlockType::GPR, BlockType::LBR_1]),
                    size: dice.pick(&[ItemSize::Four, ItemSize::Eight]),
                    items: &items[..dice.below(3).into()],
                };
                let blocks = [block(), block()];
                let count = usize::from(dice.below(3));
                self.event(Event::Pebs {
                    ip: at.ip,
                    blocks: &blocks[..count],
                });
            }
        }
    }

    fn mode(&mut self, dice: &mut Dice<'_>) {
        let at = at(dice);
        self.event(match dice.below(3) {
            0 => Event::Flags {
                at,
                interrupt_flag: dice.coin(),
            },
            1 => Event::TransactionBegin { at },
            _ => Event::TransactionCommit { at },
        });
    }
}
