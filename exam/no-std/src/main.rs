//! The four cores at work without a standard library and without a C library: the trace unit is told of a few branches, and the decoder must
//! find the same instructions in its packets. That this links is the proof; the status says whether they agree, too.
#![no_std]
#![no_main]

extern crate alloc;

mod machine;

use alloc::vec;
use alloc::vec::Vec;

use cofi_flow::{FlowConfig, FlowDecoder, Item};
use cofi_insn::Segment;
use cofi_packet::intel::Packets;
use cofi_packet::{ExecMode, Ip};
use cofi_unit::{
    At, Branch, Capabilities, Client, Clock, Context, Ctl, Fault, PhysAddr, Retired, Unit, msr,
};

/// nop; jne to the nop; wrmsr
const CODE: Segment<'_> = Segment {
    base: Ip(0x1000),
    bytes: &[0x90, 0x75, 0xfd, 0x0f, 0x30],
};

/// What ran: the jump is taken twice. The WRMSR ends tracing, and is not in the trace.
const RAN: [u64; 6] = [0x1000, 0x1001, 0x1000, 0x1001, 0x1000, 0x1001];

/// Time, and memory from 0 on.
struct Machine {
    cycles: u64,
    memory: Vec<u8>,
}

impl Client for Machine {
    fn now(&mut self) -> Clock {
        Clock {
            tsc: self.cycles,
            cycles: self.cycles,
        }
    }

    fn store(&mut self, address: PhysAddr, bytes: &[u8]) {
        let start = address.0 as usize;
        if let Some(place) = self.memory.get_mut(start..start + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }
}

/// The packets of [`RAN`].
fn traced() -> Result<Vec<u8>, Fault> {
    let mut machine = Machine {
        cycles: 0,
        memory: vec![0; 0x2000],
    };
    let context = Context {
        cpl: 3,
        mode: ExecMode::Bits64,
        ..Context::default()
    };
    let mut unit = Unit::new(Capabilities::default(), context);
    let ctl = Ctl(0)
        .with_trace_en(true)
        .with_user(true)
        .with_branch_en(true);
    let before = At {
        ip: Ip(0xffe),
        next: Ip(0x1000),
    };
    for (address, value) in [
        (msr::IA32_RTIT_OUTPUT_BASE, 0x1000),
        (msr::IA32_RTIT_OUTPUT_MASK_PTRS, 0xfff),
        (msr::IA32_RTIT_CTL, ctl.0),
    ] {
        unit.wrmsr(&mut machine, before, address, value)?;
    }
    let to = [Some(Ip(0x1000)), Some(Ip(0x1000)), None];
    for target in to {
        machine.cycles += 1;
        let at = At {
            ip: Ip(0x1001),
            next: Ip(0x1003),
        };
        let branch = Branch::Conditional(target);
        unit.retire(&mut machine, Retired { at, branch });
    }
    let wrmsr = At {
        ip: Ip(0x1003),
        next: Ip(0x1005),
    };
    unit.wrmsr(&mut machine, wrmsr, msr::IA32_RTIT_CTL, 0)?;
    let end = unit.rdmsr(msr::IA32_RTIT_OUTPUT_MASK_PTRS)? >> 32;
    machine.memory.truncate(0x1000 + end as usize);
    Ok(machine.memory.split_off(0x1000))
}

/// What is wrong, as the status of the program.
fn run() -> u8 {
    let Ok(trace) = traced() else { return 2 };
    if trace.is_empty() || Packets::new(&trace).any(|item| item.is_err()) {
        return 3;
    }
    let mut ips = Vec::new();
    for item in FlowDecoder::new(&trace, CODE, FlowConfig::default()) {
        match item {
            Item::Insn(insn) => ips.push(insn.ip.0),
            Item::Error(_) => return 4,
            _ => {}
        }
    }
    u8::from(ips != RAN)
}
