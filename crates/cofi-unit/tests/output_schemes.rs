//! The stream does not depend on where it goes (33.2.7): one program, traced through every output scheme.

use cofi_packet::{ExecMode, Ip};
use cofi_unit::spec::topa::Entry;
use cofi_unit::{
    At, Branch, Capabilities, Client, Clock, Context, Ctl, Destination, Event, Implementation,
    InternalBuffer, OutputError, OutputMaskPtrs, PhysAddr, Retired, Status, Unit, msr,
};
use std::collections::HashMap;

const TABLE: u64 = 0x1000;
const PAGE: u64 = 4096;
/// Where the regions of a page are.
const PAGES: u64 = 0x10_0000;

#[derive(Default)]
struct World {
    cycles: u64,
    table: HashMap<u64, u64>,
    stream: Vec<u8>,
    transported: usize,
    pmis: u64,
}

impl Client for World {
    fn now(&mut self) -> Clock {
        Clock {
            tsc: self.cycles,
            cycles: self.cycles,
        }
    }
    fn store(&mut self, _: PhysAddr, bytes: &[u8]) {
        self.stream.extend_from_slice(bytes);
    }
    fn load(&mut self, address: PhysAddr) -> u64 {
        self.table.get(&address.0).copied().unwrap_or(u64::MAX)
    }
    fn transport(&mut self, bytes: &[u8]) {
        self.transported += bytes.len();
        self.stream.extend_from_slice(bytes);
    }
    fn topa_pmi(&mut self) {
        self.pmis += 1;
    }
}

const AT: At = At {
    ip: Ip(0x8000),
    next: Ip(0x8004),
};
const USER: Context = Context {
    cpl: 3,
    cr3: 0x2000,
    pae: false,
    mode: ExecMode::Bits64,
    cs_base: 0,
    interrupt_flag: true,
    in_tx: false,
    enclave: cofi_unit::Enclave::None,
};

struct Run {
    unit: Unit,
    world: World,
}

impl Run {
    /// Traces a program with these registers and this table.
    fn new(caps: Capabilities, ctl: Ctl, base: u64, mask_ptrs: u64, table: &[Entry]) -> Self {
        let mut run = Self {
            unit: Unit::new(caps, USER),
            world: World::default(),
        };
        let slots = (TABLE..).step_by(8);
        run.world.table.extend(slots.zip(table.iter().map(|e| e.0)));
        run.write(msr::IA32_RTIT_OUTPUT_BASE, base);
        run.write(msr::IA32_RTIT_OUTPUT_MASK_PTRS, mask_ptrs);
        run.write(msr::IA32_RTIT_CTL, ctl.with_trace_en(true).0);
        run.program();
        run.write(msr::IA32_RTIT_CTL, ctl.0);
        run
    }

    fn write(&mut self, address: u32, value: u64) {
        self.unit
            .wrmsr(&mut self.world, AT, address, value)
            .expect("no rule is broken");
    }

    fn read(&self, address: u32) -> u64 {
        self.unit.rdmsr(address).expect("it is there")
    }

    fn status(&self) -> Status {
        Status(self.read(msr::IA32_RTIT_STATUS))
    }

    fn pointers(&self) -> (u64, u64) {
        let ptrs = OutputMaskPtrs(self.read(msr::IA32_RTIT_OUTPUT_MASK_PTRS));
        (ptrs.mask(), ptrs.offset())
    }

    fn program(&mut self) {
        let mut random = 1u64;
        let mut at = AT;
        for _ in 0..40_000 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            self.world.cycles += 1 + (random >> 60);
            let target = Ip(0x8000 + ((random >> 40) & 0xff_fff8));
            let branch = match (random >> 56) & 15 {
                0..4 => Branch::Conditional(Some(target)),
                4..9 => Branch::Conditional(None),
                9 => Branch::IndirectJump(target),
                10 => Branch::DirectCall(target),
                11 => Branch::Return(target),
                12 if (random >> 50) & 7 == 0 => {
                    let to = Destination {
                        ip: target,
                        context: USER,
                    };
                    let event = Event::Interrupt {
                        from: at.ip,
                        vector: 32,
                        page_fault: None,
                        to,
                    };
                    self.unit.event(&mut self.world, event);
                    at = step(target);
                    continue;
                }
                _ => Branch::None,
            };
            let insn = Retired { at, branch };
            self.unit.retire(&mut self.world, insn);
            at = step(insn.destination());
        }
    }
}

fn step(ip: Ip) -> At {
    At {
        ip,
        next: Ip(ip.0 + 4),
    }
}

fn ctl() -> Ctl {
    Ctl(0)
        .with_user(true)
        .with_branch_en(true)
        .with_tsc_en(true)
        .with_cyc_en(true)
        .with_mtc_en(true)
}

fn range(base: u64, mask: u64, offset: u64) -> Run {
    let mask_ptrs = OutputMaskPtrs(mask).with_offset(offset).0;
    Run::new(Capabilities::default(), ctl(), base, mask_ptrs, &[])
}

fn topa(table: &[Entry]) -> Run {
    let ctl = ctl().with_topa(true);
    Run::new(Capabilities::default(), ctl, TABLE, 0, table)
}

fn page(number: u64) -> Entry {
    region(PAGES + number * PAGE, PAGE)
}

fn region(base: u64, size: u64) -> Entry {
    Entry::region(base, size).expect("a size that entries have")
}

/// The stream, as a range that has room for it gets it.
fn whole() -> Vec<u8> {
    let run = range(0, 0xffff_ffff, 0);
    let stream = run.world.stream.clone();
    assert!(stream.len() > 40 << 10);
    assert_eq!(run.pointers().1, stream.len() as u64);
    stream
}

#[track_caller]
fn has_it_all(run: &Run) {
    assert!(run.world.stream == whole());
    assert!(!run.status().error() && !run.status().stopped());
    assert_eq!(run.unit.check_output(), Ok(()));
}

#[test]
fn single_ranges() {
    let len = whole().len() as u64;
    let smallest = range(0x1000, 0x7f, 0x7f);
    has_it_all(&smallest);
    assert_eq!(smallest.pointers().1, (len + 0x7f) % 128);
    has_it_all(&range(0x1_0000, 0xffff, 0));
}

#[test]
fn tables() {
    let len = whole().len() as u64;
    let back = Entry::table(TABLE);
    has_it_all(&topa(&[region(1 << 27, 128 << 20), back]));

    let pages = topa(&[page(0).with_int(), page(1).with_int(), back]);
    has_it_all(&pages);
    assert_eq!(pages.world.pmis, len / PAGE);
    assert_eq!(pages.pointers(), (len / PAGE % 2, len % PAGE));

    let sizes = [page(0), region(PAGES, 2 * PAGE), page(1).with_int(), back];
    let sizes = topa(&sizes);
    has_it_all(&sizes);
    assert_eq!(sizes.world.pmis, len / (4 * PAGE));

    let mut single = Capabilities::default();
    single.topa_multiple = false;
    let table = [page(0).with_int(), back];
    let single = Run::new(single, ctl().with_topa(true), TABLE, 0, &table);
    has_it_all(&single);
    assert_eq!(single.world.pmis, (len + 512) / PAGE);
}

#[test]
fn the_transport_subsystem() {
    let fabric = ctl().with_fabric_en(true).with_topa(true);
    let run = Run::new(Capabilities::default(), fabric, 0, 0, &[]);
    has_it_all(&run);
    assert_eq!(run.world.transported, run.world.stream.len());
}

/// A run that ended early has the beginning of the stream, and nothing that came later.
#[track_caller]
fn ends_after(run: &Run, bytes: u64) {
    assert_eq!(run.world.stream.len() as u64, bytes);
    assert!(whole().starts_with(&run.world.stream));
    assert!(!run.status().trigger_en());
}

#[test]
fn stop_ends_the_stream_with_the_region() {
    let mut run = topa(&[page(0).with_int(), page(1).with_int().with_stop(), page(2)]);
    ends_after(&run, 2 * PAGE);
    assert!(run.status().stopped() && !run.status().error());
    assert_eq!(run.unit.check_output(), Err(OutputError::Stopped));
    assert_eq!(run.world.pmis, 2);
    // Software clears the status, PacketByteCnt too, and points to the next region. A new stream begins.
    run.world.stream.clear();
    run.write(msr::IA32_RTIT_STATUS, 0);
    let next = OutputMaskPtrs(0).with_mask(2).0;
    run.write(msr::IA32_RTIT_OUTPUT_MASK_PTRS, next);
    let ctl = ctl().with_topa(true);
    run.write(msr::IA32_RTIT_CTL, ctl.with_trace_en(true).0);
    run.write(msr::IA32_RTIT_CTL, ctl.0);
    assert!(run.world.stream.starts_with(&cofi_packet::intel::PSB));
    let mut packets = cofi_packet::intel::Packets::new(&run.world.stream);
    assert!(packets.all(|item| item.is_ok()));
}

#[test]
fn an_error_ends_the_stream() {
    for wrong in [
        Entry(page(1).0 | 2),
        region(PAGES + PAGE, 2 * PAGE),
        Entry::table(TABLE).with_int(),
        // There, loads return all ones.
        Entry::table(2 * TABLE),
    ] {
        let run = topa(&[page(0), wrong]);
        ends_after(&run, PAGE);
        assert!(run.status().error() && !run.status().stopped());
        assert_eq!(run.unit.check_output(), Err(OutputError::Operational));
    }
    // At once.
    for run in [topa(&[Entry::table(TABLE)]), range(0x80, 0xff, 0)] {
        ends_after(&run, 0);
        assert!(run.status().error());
    }
}

#[test]
fn a_buffer_without_room_is_an_error_of_the_output() {
    let mut choices = Implementation::default();
    choices.buffer = Some(InternalBuffer {
        size: 64,
        drain_bytes: 0,
        drain_cycles: 0,
        resume_at: 32,
    });
    let mut run = Run {
        unit: Unit::with(Capabilities::default(), choices, USER),
        world: World::default(),
    };
    run.write(msr::IA32_RTIT_OUTPUT_BASE, 0);
    run.write(msr::IA32_RTIT_OUTPUT_MASK_PTRS, 0xffff);
    run.write(msr::IA32_RTIT_CTL, ctl().with_trace_en(true).0);
    assert_eq!(run.unit.check_output(), Ok(()));
    run.program();
    // It lasts, and it counts when it is over.
    let lost = Err(OutputError::Overflow { count: 1 });
    assert!(run.unit.is_overflowing());
    assert_eq!(run.unit.check_output(), lost);
    run.write(msr::IA32_RTIT_CTL, ctl().0);
    assert!(!run.unit.is_overflowing());
    assert_eq!(run.unit.check_output(), lost);
}
