//! What a processor did, from hand-made records.

use super::super::log::Log;
use super::*;
use cofi_qemu_plugin::layout::state;

const MACHINE: Pid = 7;
const CPU: Pid = 1;
const KERNEL: u32 = state::BITS_64;
const USER: u32 = state::BITS_64 | 3 << state::CPL_SHIFT;
const MARKED: u32 = state::MARKED;

/// One processor, and the blocks that there are.
#[derive(Debug)]
struct Bench {
    blocks: Blocks,
    pages: Pages,
    processor: Processor,
    log: Log,
}

impl Bench {
    /// A processor that has entered the block 0, which is this one.
    fn in_block(start: u64, bits: u32, code: &[u8]) -> Self {
        let mut bench = Self {
            blocks: Blocks::default(),
            pages: Pages::default(),
            processor: Processor::new(MACHINE, CPU),
            log: Log::default(),
        };
        bench.go(start, bits, code);
        bench.log.take();
        bench
    }

    fn block(&mut self, start: u64, bits: u32, code: &[u8]) -> u32 {
        self.blocks.add(start, bits, code);
        self.blocks.len() as u32 - 1
    }

    /// What entering a block makes known.
    fn enter(&mut self, number: u32) -> Vec<String> {
        let Self {
            blocks,
            pages,
            processor,
            log,
        } = self;
        processor.enter(log, blocks, pages, number);
        log.take()
    }

    /// What entering a new block makes known.
    fn go(&mut self, start: u64, bits: u32, code: &[u8]) -> Vec<String> {
        let number = self.block(start, bits, code);
        self.enter(number)
    }

    /// What coming to a handler at 0x9000 makes known, by an interrupt before `from`.
    fn interrupt(&mut self, from: u64, bits: u32) -> Vec<String> {
        self.processor.interrupt(place(from, bits));
        self.go(0x9000, KERNEL, &NOP)
    }

    fn idle(&mut self) -> Vec<String> {
        self.processor
            .idle(&mut self.log, &mut self.blocks, &mut self.pages);
        self.log.take()
    }

    fn unexplained(&self) -> u64 {
        self.processor.unexplained
    }
}

fn place(ip: u64, bits: u32) -> Interrupted {
    Interrupted {
        ip: Ip(ip),
        mode: super::super::blocks::mode_of(bits),
        cpl: super::super::blocks::cpl_of(bits),
    }
}

const NOP: [u8; 1] = [0x90];
/// nop; jne to 0x1010 from 0x1000
const JNE: [u8; 3] = [0x90, 0x75, 0x0d];
/// nop; ret
const RET: [u8; 2] = [0x90, 0xc3];
/// nop; jne to itself's block
const LOOP: [u8; 3] = [0x90, 0x75, 0xfd];

#[test]
fn the_first_block_begins_a_processor() {
    let mut bench = Bench::in_block(0x1000, KERNEL, &NOP);
    bench.processor = Processor::new(MACHINE, CPU);
    bench.processor.cr3(0x5000);
    assert_eq!(bench.enter(0)[0], "cpu 1 begins 1000 at 0 in 5000");
}

#[test]
fn plain_blocks_follow_each_other() {
    let mut bench = Bench::in_block(0x1000, KERNEL, &[0x90, 0x90]);
    assert_eq!(
        bench.go(0x1002, KERNEL, &NOP),
        ["1000 to 1001", "1001 to 1002"]
    );
    assert_eq!(bench.go(0x1003, KERNEL, &NOP), ["1002 to 1003"]);
    assert_eq!(bench.unexplained(), 0);
}

#[test]
fn branches_go_either_way() {
    let mut bench = Bench::in_block(0x1000, USER, &JNE);
    assert_eq!(
        bench.go(0x1003, USER, &JNE),
        ["1000 to 1001", "1001 to 1003"]
    );
    assert_eq!(
        bench.go(0x1013, USER, &RET),
        ["1003 to 1004", "1004 to 1013"]
    );
    assert_eq!(
        bench.go(0x7000, USER, &NOP),
        ["1013 to 1014", "1014 to 7000"]
    );
    assert_eq!(bench.unexplained(), 0);
}

#[test]
fn a_direct_branch_leads_nowhere_else() {
    let mut bench = Bench::in_block(0x1000, USER, &JNE);
    assert_eq!(bench.go(0x1004, USER, &NOP), ["gap 1004 at 3 in 0"]);
    assert_eq!(bench.unexplained(), 1);
}

#[test]
fn only_a_far_transfer_leads_to_another_privilege_level_or_mode() {
    // The address may be next, but nothing led to that state: a return, as little as a plain instruction.
    for code in [&NOP[..], &RET] {
        let after = 0x1000 + code.len() as u64;
        for bits in [USER, state::BITS_32] {
            let mut bench = Bench::in_block(0x1000, KERNEL, code);
            let told = bench.go(after, bits, &NOP);
            assert!(told[0].starts_with("gap"), "{told:?}");
            assert_eq!(bench.unexplained(), 1);
        }
    }
}

#[test]
fn an_interrupt_comes_after_a_block() {
    let mut bench = Bench::in_block(0x1000, USER, &JNE);
    assert_eq!(
        bench.interrupt(0x1010, USER),
        [
            "1000 to 1001",
            "1001 to 1010",
            "event 1010 to 9000 at 0 in 0"
        ]
    );
    assert_eq!(bench.unexplained(), 0);
}

#[test]
fn an_interrupt_comes_within_a_block() {
    let mut bench = Bench::in_block(0x1000, USER, &[0x90, 0x90, 0x90]);
    assert_eq!(
        bench.interrupt(0x1002, USER),
        [
            "1000 to 1001",
            "1001 to 1002",
            "event 1002 to 9000 at 0 in 0"
        ]
    );
    let mut bench = Bench::in_block(0x1000, USER, &[0x90, 0x90, 0x90]);
    assert_eq!(
        bench.interrupt(0x1000, USER),
        ["event 1000 to 9000 at 0 in 0"]
    );
    assert_eq!(bench.unexplained(), 0);
}

#[test]
fn an_interrupt_at_the_beginning_of_a_loop_has_two_meanings_that_the_mark_tells_apart() {
    let mut bench = Bench::in_block(0x1000, USER | MARKED, &LOOP);
    assert_eq!(
        bench.interrupt(0x1000, USER),
        [
            "1000 to 1001",
            "1001 to 1000",
            "event 1000 to 9000 at 0 in 0"
        ]
    );
    let mut bench = Bench::in_block(0x1000, USER | MARKED, &LOOP);
    bench.processor.unfinished();
    assert_eq!(
        bench.interrupt(0x1000, USER),
        ["event 1000 to 9000 at 0 in 0"]
    );
    // A block of the branch alone: where it comes before itself, it has run if it began.
    let mut bench = Bench::in_block(0x1000, USER | MARKED, &[0x75, 0xfe]);
    assert_eq!(
        bench.interrupt(0x1000, USER),
        ["1000 to 1000", "event 1000 to 9000 at 0 in 0"]
    );
    let mut bench = Bench::in_block(0x1000, USER | MARKED, &[0x75, 0xfe]);
    bench.processor.unfinished();
    assert_eq!(
        bench.interrupt(0x1000, USER),
        ["event 1000 to 9000 at 0 in 0"]
    );
    assert_eq!(bench.unexplained(), 0);
}

#[test]
fn what_a_mark_says_counts_for_one_block() {
    let mut bench = Bench::in_block(0x1000, USER | MARKED, &LOOP);
    bench.processor.unfinished();
    bench.interrupt(0x1000, USER);
    // The handler's block ran to its end.
    assert_eq!(bench.go(0x9001, KERNEL, &NOP), ["9000 to 9001"]);
    assert_eq!(bench.unexplained(), 0);
}

#[test]
fn a_return_that_faults_has_not_run() {
    let mut bench = Bench::in_block(0x1000, USER | MARKED, &RET);
    assert_eq!(
        bench.interrupt(0x1001, USER),
        ["1000 to 1001", "event 1001 to 9000 at 0 in 0"]
    );
    // One that led to the beginning of its own block, and an interrupt there.
    let mut bench = Bench::in_block(0x1000, USER | MARKED, &RET);
    assert_eq!(
        bench.interrupt(0x1000, USER),
        [
            "1000 to 1001",
            "1001 to 1000",
            "event 1000 to 9000 at 0 in 0"
        ]
    );
    assert_eq!(bench.unexplained(), 0);
}

#[test]
fn an_interrupt_before_what_cannot_come_next_is_a_gap() {
    let mut bench = Bench::in_block(0x1000, USER, &JNE);
    assert_eq!(bench.interrupt(0x1002, USER), ["gap 9000 at 0 in 0"]);
    assert_eq!(bench.unexplained(), 1);
    // A return leads anywhere, but not before it has begun.
    let mut bench = Bench::in_block(0x1000, USER | MARKED, &RET);
    bench.processor.unfinished();
    assert_eq!(bench.interrupt(0x7000, USER), ["gap 9000 at 0 in 0"]);
    assert_eq!(bench.unexplained(), 1);
}

#[test]
fn a_repeated_string_instruction_retires_once() {
    // nop; rep movsb, then its rounds in a block of its own
    let mut bench = Bench::in_block(0x1000, USER, &[0x90, 0xf3, 0xa4]);
    let round = bench.block(0x1001, USER, &[0xf3, 0xa4]);
    assert_eq!(bench.enter(round), ["1000 to 1001"]);
    assert_eq!(bench.enter(round), [""; 0]);
    // An interrupt between two rounds.
    assert_eq!(
        bench.interrupt(0x1001, USER),
        ["event 1001 to 9000 at 0 in 0"]
    );
    bench.go(0x9001, KERNEL, &[0x48, 0xcf]);
    let back = bench.enter(round);
    assert_eq!(back.last().unwrap(), "far 9001 to 1001 at 3 in 0");
    assert_eq!(bench.go(0x1003, USER, &NOP), ["1001 to 1003"]);
    assert_eq!(bench.unexplained(), 0);
}

#[test]
fn qemu_begins_anew_in_the_middle() {
    let mut bench = Bench::in_block(0x1000, USER, &[0x90, 0x90, 0x90]);
    assert_eq!(
        bench.go(0x1002, USER, &NOP),
        ["1000 to 1001", "1001 to 1002"]
    );
    assert_eq!(bench.go(0x1003, USER, &NOP), ["1002 to 1003"]);
    // The same with a mark, for a block whose end leads anywhere.
    let mut bench = Bench::in_block(0x1000, USER | MARKED, &[0x90, 0x90, 0xc3]);
    bench.processor.unfinished();
    assert_eq!(bench.go(0x1001, USER, &[0x90]), ["1000 to 1001"]);
    assert_eq!(bench.unexplained(), 0);
}

#[test]
fn interrupts_come_before_handlers_begin() {
    let mut bench = Bench::in_block(0x1000, USER, &JNE);
    bench
        .processor
        .interrupt_to(place(0x1003, USER), Ip(0x8000));
    bench
        .processor
        .interrupt_to(place(0x8000, KERNEL), Ip(0x8100));
    assert_eq!(
        bench.interrupt(0x8100, KERNEL),
        [
            "1000 to 1001",
            "1001 to 1003",
            "event 1003 to 8000 at 0 in 0",
            "event 8000 to 8100 at 0 in 0",
            "event 8100 to 9000 at 0 in 0",
        ]
    );
    assert_eq!(bench.unexplained(), 0);
    // They count once.
    assert_eq!(bench.go(0x9001, KERNEL, &NOP), ["9000 to 9001"]);
}

#[test]
fn a_return_to_user_space_is_interrupted_at_once() {
    // iretq to user space at 0x1000, which runs nothing.
    let mut bench = Bench::in_block(0x8000, KERNEL | MARKED, &[0x48, 0xcf]);
    assert_eq!(
        bench.interrupt(0x1000, USER),
        ["far 8000 to 1000 at 3 in 0", "event 1000 to 9000 at 0 in 0"]
    );
    assert_eq!(bench.unexplained(), 0);
}

#[test]
fn a_halted_processor_waits_for_an_interrupt() {
    // sti; hlt
    let mut bench = Bench::in_block(0x1000, KERNEL, &[0xfb, 0xf4]);
    assert_eq!(bench.idle(), ["1000 to 1001", "1001 to 1002"]);
    assert!(bench.processor.is_told());
    assert_eq!(bench.idle(), [""; 0], "told twice");
    assert_eq!(
        bench.interrupt(0x1002, KERNEL),
        ["event 1002 to 9000 at 0 in 0"]
    );
    assert!(!bench.processor.is_told());
    assert_eq!(bench.unexplained(), 0);
    // An interrupt of another place than where it waits.
    let mut bench = Bench::in_block(0x1000, KERNEL, &[0xfb, 0xf4]);
    bench.idle();
    assert_eq!(bench.interrupt(0x1001, KERNEL), ["gap 9000 at 0 in 0"]);
    assert_eq!(bench.unexplained(), 1);
}

/// A machine that is switched off has its processors wait wherever they are.
#[test]
fn who_waits_behind_a_branch_tells_nothing_of_it() {
    // call 0x1100
    let mut bench = Bench::in_block(0x1000, KERNEL, &[0xe8, 0xfb, 0, 0, 0]);
    assert_eq!(bench.idle(), [""; 0]);
    assert!(!bench.processor.is_told());
    // It runs on after all.
    assert_eq!(bench.go(0x1100, KERNEL, &NOP), ["1000 to 1100"]);
    let mut bench = Bench::in_block(0x1000, KERNEL, &JNE);
    assert_eq!(bench.idle(), [""; 0]);
    assert_eq!(
        bench.go(0x1010, KERNEL, &NOP),
        ["1000 to 1001", "1001 to 1010"]
    );
    assert_eq!(bench.unexplained(), 0);
}

#[test]
fn a_start_up_interrupt_begins_a_page_in_real_mode() {
    // cli; hlt; then at 0x9a000
    let mut bench = Bench::in_block(0x1000, 0, &[0xfa, 0xf4]);
    bench.idle();
    assert_eq!(
        bench.go(0x9_a000, 0, &NOP),
        ["event 1002 to 9a000 at 0 in 0, 16 bits"]
    );
    assert_eq!(bench.unexplained(), 0);
    // Anywhere else it is none.
    let mut bench = Bench::in_block(0x1000, 0, &[0xfa, 0xf4]);
    bench.idle();
    assert_eq!(
        bench.go(0x9_a010, 0, &NOP),
        ["gap 9a010 at 0 in 0, 16 bits"]
    );
    assert_eq!(bench.unexplained(), 1);
}

#[test]
fn mov_to_cr3_is_told_with_its_value() {
    let mut bench = Bench::in_block(0x1000, KERNEL, &[0x90, 0x0f, 0x22, 0xd8]);
    bench.processor.cr3(0x6000);
    assert_eq!(
        bench.go(0x1004, KERNEL, &NOP),
        ["1000 to 1001", "cr3 6000 1001 to 1004"]
    );
    // The same value again.
    bench.go(0x1005, KERNEL, &[0x0f, 0x22, 0xd8]);
    assert_eq!(bench.go(0x1008, KERNEL, &NOP), ["cr3 6000 1005 to 1008"]);
    assert_eq!(bench.unexplained(), 0);
}

#[test]
fn far_transfers_and_software_interrupts_are_told_as_such() {
    // int 0x80
    let mut bench = Bench::in_block(0x1000, USER | MARKED, &[0x90, 0xcd, 0x80]);
    assert_eq!(
        bench.go(0x9000, KERNEL, &[0x48, 0xcf]),
        ["1000 to 1001", "event 1001 to 9000 at 0 in 0"]
    );
    assert_eq!(
        bench.go(0x1003, USER, &[0x0f, 0x05]),
        ["far 9000 to 1003 at 3 in 0"]
    );
    assert_eq!(
        bench.go(0x8000, KERNEL, &NOP),
        ["far 1003 to 8000 at 0 in 0"]
    );
    assert_eq!(bench.unexplained(), 0);
    // INTO, which is one only if it leads away.
    let bits = state::BITS_32;
    let mut bench = Bench::in_block(0x1000, bits, &[0xce]);
    assert_eq!(bench.go(0x1001, bits, &[0xce]), ["1000 to 1001"]);
    let told = bench.go(0x9000, bits, &NOP);
    assert_eq!(told, ["event 1001 to 9000 at 0 in 0, 32 bits"]);
    assert_eq!(bench.unexplained(), 0);
}

#[test]
fn a_block_that_cannot_be_decoded_is_left_where_it_begins() {
    // ud in 64-bit mode: push es
    let mut bench = Bench::in_block(0x1000, USER, &[0x06]);
    assert_eq!(
        bench.interrupt(0x1000, USER),
        ["event 1000 to 9000 at 0 in 0"]
    );
    let mut bench = Bench::in_block(0x1000, USER, &[0x06]);
    assert_eq!(bench.go(0x1001, USER, &NOP), ["gap 1001 at 3 in 0"]);
    assert_eq!(bench.unexplained(), 1);
}

#[test]
fn an_unknown_block_is_counted() {
    let mut bench = Bench::in_block(0x1000, USER, &NOP);
    bench.enter(55);
    assert_eq!(bench.unexplained(), 1);
    // What comes next begins from nothing known.
    let told = bench.go(0x1001, USER, &NOP);
    assert!(!told.iter().any(|line| line.contains(" to ")), "{told:?}");
}

#[test]
fn code_is_placed_in_the_space_in_which_it_runs() {
    let mut bench = Bench::in_block(0x1000, USER, &NOP);
    bench.processor.cr3(0x5000);
    bench.go(0x2000, USER, &NOP);
    bench.go(0xffff_ffff_8000_0000, KERNEL, &NOP);
    // The next block is in another one. Whether it will run is not known.
    bench.processor.cr3(0x6000);
    bench.go(0x3000, USER, &NOP);
    bench.log.take();
    bench.pages.flush(&mut bench.log);
    assert_eq!(
        bench.log.take(),
        [
            "page 1000 of 0 since 0 0:90",
            "page 2000 of 5 since 0 0:90",
            "page ffffffff80000000 of ffffffff since 0 0:90",
        ]
    );
}

/// Two processors, of which each has entered a block: the first 91 at 0x1005, the second two NOPs at 0x1000.
fn two_processors() -> [Bench; 2] {
    let mut first = Bench::in_block(0x1005, USER, &[0x91]);
    let mut second = Bench::in_block(0x1000, USER, &[0x90, 0x90]);
    // What both see of each other.
    second.processor.cpu = CPU + 1;
    first.log.take();
    second.log.take();
    [first, second]
}

/// The one that has told what is known goes on to the other one.
fn hand_over(from: &mut Bench, to: &mut Bench) {
    std::mem::swap(&mut from.pages, &mut to.pages);
    std::mem::swap(&mut from.log, &mut to.log);
}

#[test]
fn a_processor_in_a_block_that_another_one_changes_has_run_what_stood_there() {
    let [mut first, mut second] = two_processors();
    first.go(0x1006, USER, &[0x92]);
    // Other code where the second one is, and elsewhere on its page.
    first.go(0x1000, USER, &[0x93, 0x94]);
    first.go(0x1002, USER, &NOP);
    hand_over(&mut first, &mut second);
    assert_eq!(
        second.go(0x1002, USER, &NOP),
        [
            "page 1000 of 0 since 0 0:93 1:94 5:91 6:92",
            "change 1",
            "1000 to 1001",
            "1001 to 1002",
        ]
    );
    // Who runs the new code has it again.
    hand_over(&mut second, &mut first);
    let again = first.block(0x1000, USER, &[0x93, 0x94]);
    first.enter(again);
    assert_eq!(
        first.go(0x1002, USER, &NOP),
        [
            "page 1000 of 0 since 1 0:90 1:90 2:90",
            "change 2",
            "1000 to 1001",
            "1001 to 1002",
        ]
    );
}

#[test]
fn a_processor_in_a_block_on_a_page_that_changes_elsewhere_has_it_in_the_new_version() {
    for waits in [false, true] {
        let [mut first, mut second] = two_processors();
        first.go(0x1006, USER, &[0x92]);
        first.go(0x1006, USER, &[0x95]);
        first.go(0x1007, USER, &NOP);
        hand_over(&mut first, &mut second);
        if waits {
            second.idle();
        } else {
            second.go(0x1002, USER, &NOP);
        }
        second.log.take();
        second.pages.flush(&mut second.log);
        assert_eq!(
            second.log.take(),
            ["page 1000 of 0 since 1 0:90 1:90 6:95"],
            "{waits}"
        );
    }
}

const UPPER: u64 = 0xffff_ffff_8100_0000;

impl Bench {
    /// What is left of these records, and what they make known, where only runs are handed on.
    fn run(&mut self, records: &[u32]) -> (Vec<u32>, Vec<String>) {
        let rest = self
            .processor
            .run(&mut self.log, &self.blocks, records)
            .to_vec();
        (rest, self.log.take())
    }

    /// A processor that has run two blocks of a kernel's, the numbers 0 and 1, which call each other and return; and entered the first.
    fn in_kernel() -> Self {
        // call to the second, and ret
        let mut bench = Self::in_block(UPPER, KERNEL, &[0xe8, 0x0b, 0, 0, 0]);
        bench.go(UPPER + 0x10, KERNEL | MARKED, &RET);
        bench.enter(0);
        bench
    }
}

#[test]
fn a_kernel_that_is_in_place_runs_as_a_whole() {
    let mut bench = Bench::in_kernel();
    let round = [
        "ffffffff81000000 to ffffffff81000010",
        "ffffffff81000010 to ffffffff81000011",
        "ffffffff81000011 to ffffffff81000000",
    ];
    let rounds: Vec<String> = round
        .iter()
        .chain(&round)
        .map(|it| (*it).to_owned())
        .collect();
    assert_eq!(bench.run(&[1, 0, 1, 0]), (vec![], rounds));
    // A record that is no block's, and a block that is not known yet.
    let (rest, told) = bench.run(&[1, 0, 99, 1]);
    assert_eq!((rest, told.len()), (vec![99, 1], 3));
    assert_eq!(bench.unexplained(), 0);
    // One by one it is the same.
    assert_eq!(bench.enter(1), round[..1]);
    assert_eq!(bench.enter(0), round[1..]);
}

#[test]
fn what_is_not_plain_is_no_part_of_a_run() {
    let nothing = |bench: &mut Bench, records: &[u32]| {
        assert_eq!(bench.run(records), (records.to_vec(), vec![]));
    };
    // Something is known of how the last block ended.
    let mut bench = Bench::in_kernel();
    bench.processor.unfinished();
    nothing(&mut bench, &[1, 0]);
    let mut bench = Bench::in_kernel();
    bench.processor.interrupt(place(UPPER, KERNEL));
    nothing(&mut bench, &[1, 0]);
    let mut bench = Bench::in_kernel();
    bench.processor.cr3(0x7000);
    nothing(&mut bench, &[1, 0]);
    // A return that leads to a state to which none can lead, and within a program.
    let mut bench = Bench::in_kernel();
    bench.enter(1);
    let reset = bench.block(0xffff_fff0, 0, &NOP);
    nothing(&mut bench, &[reset]);
    assert_eq!(bench.enter(reset), ["gap fffffff0 at 0 in 0, 16 bits"]);
    let mut bench = Bench::in_block(0x1000, USER, &JNE);
    bench.go(0x1003, USER, &NOP);
    let again = bench.block(0x1004, USER, &NOP);
    nothing(&mut bench, &[again]);
}

#[test]
fn code_that_may_not_be_in_place_is_asked_for() {
    let mut bench = Bench::in_kernel();
    let (rest, _) = bench.run(&[1, 0]);
    assert!(rest.is_empty());
    // Other bytes where the second block stands: each is told of where it runs.
    let other = bench.block(UPPER + 0x10, KERNEL | MARKED, &[0xc3, 0x90]);
    bench.enter(other);
    bench.enter(0);
    let (rest, told) = bench.run(&[1, 0]);
    assert_eq!((rest, told), (vec![1, 0], vec![]));
}
