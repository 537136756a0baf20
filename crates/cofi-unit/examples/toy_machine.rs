//! A machine that has Processor Trace: what an emulator does to get it from `cofi_unit`.
//!
//! ```text
//! cargo run -p cofi-unit --example toy_machine
//! ```
//!
//! The machine is a toy, with an instruction set of its own, but the trace unit in it is whole, and so is what software
//! does with it. To read from top to bottom:
//!
//! 1. [`Bus`]: clock, memory and interrupt controller. The unit sees them through [`Client`].
//! 2. [`Machine`]: the processor. It tells the unit of each instruction that retires and of each interrupt, and hands it
//!    RDMSR and WRMSR of its registers.
//! 3. [`Driver`]: software of the machine. It sets up a Table of Physical Addresses (ToPA), and handles the interrupt which
//!    says that a region of it is filled, after Table 33-4 of the manual.
//! 4. `main`: runs a program and looks at the trace.
//!
//! Sections and tables are those of chapter 33 of Intel's Software Developer's Manual, volume 3.

use cofi_packet::intel::{PSB, Packets};
use cofi_packet::{ExecMode, Ip};
use cofi_unit::spec::topa::{ENTRY_BYTES, Entry};
use cofi_unit::{
    At, Branch, Capabilities, Client, Clock, Context, Ctl, Destination, Event, Fault,
    OutputMaskPtrs, PhysAddr, Retired, Status, Unit, msr,
};
use std::collections::BTreeMap;

// ---------------------------------------------------------------------------------------------------------------------
// 1. What is around the processor.

const IA32_PERF_GLOBAL_STATUS: u32 = 0x38e;
const IA32_PERF_GLOBAL_STATUS_RESET: u32 = 0x390;
/// IA32_PERF_GLOBAL_STATUS.Trace_ToPA_PMI.
const TRACE_TOPA_PMI: u64 = 1 << 55;

struct Bus {
    /// Core clock cycles since power-on; the TSC counts as fast.
    cycles: u64,
    memory: Vec<u8>,
    /// Bytes of trace output that came, to check in the end that the driver lost none.
    traced: usize,
    perf_global_status: u64,
    /// The LVT performance monitor register's mask bit, which the processor sets when it delivers a PMI.
    pmi_masked: bool,
    /// A PMI waits for the end of the present instruction.
    pmi_pending: bool,
}

/// This is all that the trace unit asks of an emulator. A processor without ToPA needs no more than `now` and `store`.
impl Client for Bus {
    fn now(&mut self) -> Clock {
        Clock {
            tsc: self.cycles,
            cycles: self.cycles,
        }
    }

    fn store(&mut self, PhysAddr(address): PhysAddr, bytes: &[u8]) {
        let start = address as usize;
        self.memory[start..start + bytes.len()].copy_from_slice(bytes);
        self.traced += bytes.len();
    }

    fn load(&mut self, PhysAddr(address): PhysAddr) -> u64 {
        // Software may point the table anywhere. Where there is no memory, reads return all ones.
        let start = address as usize;
        let bytes = self.memory.get(start..start + 8);
        bytes.map_or(u64::MAX, |bytes| {
            u64::from_le_bytes(bytes.try_into().unwrap())
        })
    }

    fn topa_pmi(&mut self) {
        self.perf_global_status |= TRACE_TOPA_PMI;
        // This is the middle of an instruction; the interrupt is taken after it.
        self.pmi_pending |= !self.pmi_masked;
    }
}

impl Bus {
    fn write_entry(&mut self, address: u64, entry: Entry) {
        let start = address as usize;
        self.memory[start..start + 8].copy_from_slice(&entry.0.to_le_bytes());
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// 2. The processor.

/// The instructions. Each takes [`INSN_BYTES`], and addresses are given as the number of an instruction.
#[derive(Clone, Copy)]
enum Insn {
    /// Sets the accumulator.
    Set(u64),
    /// Steps the accumulator to its next pseudo-random value.
    Random,
    /// Jumps if this bit of the accumulator is set.
    JumpIf(u32, usize),
    Jump(usize),
    Call(usize),
    /// Calls the function that a table holds for the accumulator.
    CallTable,
    Return,
    /// Counts down, and jumps while not zero.
    Loop(usize),
    /// Stands for the code of the interrupt handler.
    HandlePmi,
    InterruptReturn,
    Halt,
}

const INSN_BYTES: u64 = 4;
const PROGRAM_BASE: u64 = 0x40_0000;
const PMI_VECTOR: u8 = 0xf0;

const USER: Context = Context {
    cpl: 3,
    cr3: 0x1000,
    pae: false,
    mode: ExecMode::Bits64,
    cs_base: 0,
    interrupt_flag: true,
    in_tx: false,
    enclave: cofi_unit::Enclave::None,
};
const KERNEL: Context = Context {
    cpl: 0,
    interrupt_flag: false,
    ..USER
};

struct Machine {
    bus: Bus,
    /// The trace unit: one for each logical processor.
    unit: Unit,
    driver: Driver,
    program: &'static [Insn],
    /// The number of the instruction that comes next.
    pc: usize,
    context: Context,
    accumulator: u64,
    counter: u64,
    stack: Vec<usize>,
    /// Where the interrupt came and what held there.
    interrupted: (usize, Context),
}

/// The instruction pointer at an instruction.
fn ip(number: usize) -> Ip {
    Ip(PROGRAM_BASE + number as u64 * INSN_BYTES)
}

impl Machine {
    fn new(program: &'static [Insn], rounds: u64) -> Self {
        Self {
            bus: Bus {
                cycles: 0,
                memory: vec![0; 0x2_0000],
                traced: 0,
                perf_global_status: 0,
                pmi_masked: false,
                pmi_pending: false,
            },
            // Which features the processor enumerates in CPUID is the emulator's choice.
            unit: Unit::new(Capabilities::default(), USER),
            driver: Driver::default(),
            program,
            pc: 0,
            context: USER,
            accumulator: 1,
            counter: rounds,
            stack: Vec::new(),
            interrupted: (0, USER),
        }
    }

    /// Executes an instruction and takes an interrupt if one waits. `false`: HLT.
    fn step(&mut self) -> bool {
        let insn = self.program[self.pc];
        let next = self.pc + 1;
        let at = At {
            ip: ip(self.pc),
            next: ip(next),
        };
        self.bus.cycles += 1;

        // An emulator does this anyway. What it adds for the unit is the `branch`: of which kind it is, and where it went.
        let mut to = next;
        let branch = match insn {
            Insn::Set(value) => {
                self.accumulator = value;
                Branch::None
            }
            Insn::Random => {
                let value = self.accumulator.wrapping_mul(0x5851_f42d_4c95_7f2d);
                self.accumulator = value.wrapping_add(0x1405_7b7e_f767_814f).rotate_left(21);
                Branch::None
            }
            Insn::JumpIf(bit, target) => {
                let is_taken = self.accumulator >> bit & 1 != 0;
                to = if is_taken { target } else { next };
                Branch::Conditional(is_taken.then(|| ip(target)))
            }
            Insn::Loop(target) => {
                self.counter -= 1;
                let is_taken = self.counter != 0;
                to = if is_taken { target } else { next };
                Branch::Conditional(is_taken.then(|| ip(target)))
            }
            Insn::Jump(target) => {
                to = target;
                Branch::DirectJump(ip(target))
            }
            Insn::Call(target) => {
                self.stack.push(next);
                to = target;
                Branch::DirectCall(ip(target))
            }
            Insn::CallTable => {
                self.stack.push(next);
                to = FUNCTIONS[self.accumulator as usize % FUNCTIONS.len()];
                Branch::IndirectCall(ip(to))
            }
            Insn::Return => {
                to = self.stack.pop().expect("a call was before");
                Branch::Return(ip(to))
            }
            Insn::HandlePmi => {
                Driver::handle_pmi(self, at);
                Branch::None
            }
            // A far transfer is an event, with the context that holds after it, and not a retired near branch.
            Insn::InterruptReturn => {
                let (pc, context) = self.interrupted;
                (self.pc, self.context) = (pc, context);
                let to = Destination {
                    ip: ip(pc),
                    context,
                };
                self.unit.event(&mut self.bus, Event::Iret { at, to });
                self.take_interrupt();
                return true;
            }
            Insn::Halt => return false,
        };
        self.pc = to;

        // The unit hears of every instruction when it retires, in program order.
        self.unit.retire(&mut self.bus, Retired { at, branch });
        self.take_interrupt();
        true
    }

    /// Between two instructions.
    fn take_interrupt(&mut self) {
        if !self.bus.pmi_pending || !self.context.interrupt_flag {
            return;
        }
        self.bus.pmi_pending = false;
        self.bus.pmi_masked = true;
        self.interrupted = (self.pc, self.context);
        let from = ip(self.pc);
        (self.pc, self.context) = (PMI_HANDLER, KERNEL);
        let event = Event::Interrupt {
            from,
            vector: PMI_VECTOR,
            page_fault: None,
            to: Destination {
                ip: ip(PMI_HANDLER),
                context: KERNEL,
            },
        };
        self.unit.event(&mut self.bus, event);
    }

    fn rdmsr(&mut self, address: u32) -> Result<u64, Fault> {
        match address {
            IA32_PERF_GLOBAL_STATUS => Ok(self.bus.perf_global_status),
            // All others are the unit's in this machine. The fault is #GP: an emulator delivers it.
            _ => self.unit.rdmsr(address),
        }
    }

    fn wrmsr(&mut self, at: At, address: u32, value: u64) -> Result<(), Fault> {
        match address {
            IA32_PERF_GLOBAL_STATUS_RESET => self.bus.perf_global_status &= !value,
            _ => self.unit.wrmsr(&mut self.bus, at, address, value)?,
        }
        Ok(())
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. Software that traces.

const REGION_BYTES: u64 = 4096;
const TABLE: u64 = 0x1_0000;
/// The table starts with so many regions, and grows...
const FIRST_REGIONS: usize = 2;
/// ...to so many. From then on the regions are used over and over.
const MOST_REGIONS: usize = 4;

/// The tracing driver. It works like one for a real processor: it knows nothing but MSRs and memory.
#[derive(Default)]
struct Driver {
    /// How many regions the table has; an END entry that leads back to the first follows them.
    regions: usize,
    /// Where the driver will go on to read: a region, and an offset in it.
    drained: (usize, u64),
    /// The trace, out of harm's way.
    file: Vec<u8>,
    pmis: usize,
}

impl Driver {
    const fn region(index: usize) -> u64 {
        index as u64 * REGION_BYTES
    }

    /// Adds a region behind the last one, with an interrupt when it is filled.
    fn add_region(machine: &mut Machine) {
        let index = machine.driver.regions;
        machine.driver.regions += 1;
        let region =
            Entry::region(Self::region(index), REGION_BYTES).expect("entries know this size");
        let slot = TABLE + index as u64 * ENTRY_BYTES;
        // The END entry first: the table is never without.
        machine
            .bus
            .write_entry(slot + ENTRY_BYTES, Entry::table(TABLE));
        machine.bus.write_entry(slot, region.with_int());
    }

    /// Sets everything up and enables tracing (33.3.2.1): IA32_RTIT_CTL comes last.
    fn start(machine: &mut Machine, at: At) -> Result<(), Fault> {
        for _ in 0..FIRST_REGIONS {
            Self::add_region(machine);
        }
        machine.wrmsr(at, msr::IA32_RTIT_STATUS, 0)?;
        machine.wrmsr(at, msr::IA32_RTIT_OUTPUT_BASE, TABLE)?;
        machine.wrmsr(at, msr::IA32_RTIT_OUTPUT_MASK_PTRS, 0)?;
        let ctl = Ctl(0)
            .with_trace_en(true)
            .with_os(true)
            .with_user(true)
            .with_branch_en(true)
            .with_tsc_en(true)
            .with_topa(true);
        machine.wrmsr(at, msr::IA32_RTIT_CTL, ctl.0)
    }

    /// Ends tracing and gets the rest.
    fn stop(machine: &mut Machine, at: At) -> Result<(), Fault> {
        machine.wrmsr(at, msr::IA32_RTIT_CTL, 0)?;
        Self::drain(machine)
    }

    /// The interrupt handler: Table 33-4.
    fn handle_pmi(machine: &mut Machine, at: At) {
        let mut handle = || {
            // A PMI may be one of the performance counters' too.
            if machine.rdmsr(IA32_PERF_GLOBAL_STATUS)? & TRACE_TOPA_PMI == 0 {
                return Ok(());
            }
            machine.driver.pmis += 1;
            // Disable tracing. That flushes all packets to memory, and the output registers are reliable.
            let ctl = machine.rdmsr(msr::IA32_RTIT_CTL)?;
            machine.wrmsr(at, msr::IA32_RTIT_CTL, Ctl(ctl).with_trace_en(false).0)?;
            Self::drain(machine)?;
            // What is in the file can be overwritten: the table is circular already, and its filled regions are free again.
            // The table grows nevertheless while it has room, to show how; the processor reads the change when TraceEn is set.
            if machine.driver.regions < MOST_REGIONS {
                Self::add_region(machine);
            }
            machine.wrmsr(at, IA32_PERF_GLOBAL_STATUS_RESET, TRACE_TOPA_PMI)?;
            // The LVT entry, through the local APIC.
            machine.bus.pmi_masked = false;
            // Tracing goes on where it was: the output registers have not been touched.
            machine.wrmsr(at, msr::IA32_RTIT_CTL, ctl)
        };
        let done: Result<(), Fault> = handle();
        done.expect("the driver breaks no rule");
    }

    /// Copies what is between the place read so far and the processor's write pointer to the file. Tracing is disabled.
    fn drain(machine: &mut Machine) -> Result<(), Fault> {
        let status = Status(machine.rdmsr(msr::IA32_RTIT_STATUS)?);
        assert!(!status.error(), "the table is malformed (ToPA Errors)");
        let pointers = OutputMaskPtrs(machine.rdmsr(msr::IA32_RTIT_OUTPUT_MASK_PTRS)?);
        let write = (pointers.mask() as usize, pointers.offset());
        let driver = &mut machine.driver;
        loop {
            let (region, from) = driver.drained;
            // Up to the write pointer in its region, and up to the end in the others. Where the driver stands in the region of
            // the write pointer but behind it, all other regions come first. The pointer never gets round unseen, as there is an
            // interrupt after each region; a driver whose interrupts may be late sets STOP in the last region that is free.
            let is_last = region == write.0 && from <= write.1;
            let to = if is_last { write.1 } else { REGION_BYTES };
            let start = Self::region(region);
            let range = (start + from) as usize..(start + to) as usize;
            driver.file.extend_from_slice(&machine.bus.memory[range]);
            driver.drained = if is_last {
                write
            } else {
                ((region + 1) % driver.regions, 0)
            };
            if is_last {
                return Ok(());
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. A program, and its trace.

/// Calls one function by its address, and another one if a bit says so; again and again.
const PROGRAM: &[Insn] = &[
    Insn::Set(1),
    // 1: the loop.
    Insn::Random,
    Insn::CallTable,
    Insn::JumpIf(40, 5),
    Insn::Call(8),
    Insn::Loop(1),
    Insn::Halt,
    // Nobody comes here.
    Insn::Halt,
    // 8, 11, 13: functions.
    Insn::JumpIf(41, 10),
    Insn::Call(13),
    Insn::Return,
    Insn::Random,
    Insn::Jump(8),
    Insn::JumpIf(42, 11),
    Insn::Return,
    // 15: the interrupt handler.
    Insn::HandlePmi,
    Insn::InterruptReturn,
];
const FUNCTIONS: [usize; 3] = [8, 11, 13];
const PMI_HANDLER: usize = 15;

fn main() {
    let mut machine = Machine::new(PROGRAM, 10_000);
    // The instruction before the program, in the kernel of this machine, is the WRMSR that enables tracing.
    let before = At {
        ip: Ip(PROGRAM_BASE - INSN_BYTES),
        next: ip(0),
    };
    Driver::start(&mut machine, before).expect("the processor has ToPA");
    while machine.step() {}
    let after = At {
        ip: ip(machine.pc),
        next: ip(machine.pc + 1),
    };
    Driver::stop(&mut machine, after).expect("TraceEn may always be cleared");

    let Machine { bus, driver, .. } = machine;
    let trace = &driver.file;
    assert_eq!(trace.len(), bus.traced, "every byte was drained, once");
    assert!(trace.starts_with(&PSB));
    let mut kinds = BTreeMap::new();
    let mut packets = 0;
    for item in Packets::new(trace) {
        let item = item.expect("the joined regions are one stream of packets");
        *kinds.entry(item.packet().kind().name()).or_insert(0) += 1;
        packets += 1;
    }
    assert!(!kinds.contains_key("OVF"));
    println!(
        "{} cycles, {} interrupts, {} regions; drained {} bytes, {packets} packets:",
        bus.cycles,
        driver.pmis,
        driver.regions,
        trace.len()
    );
    for (kind, count) in kinds {
        println!("{kind:>10} {count}");
    }
}

#[test]
fn the_trace_is_whole() {
    main();
}
