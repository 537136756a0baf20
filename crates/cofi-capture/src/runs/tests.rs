//! The quick way through runs against the one by one: the same runs.

use super::*;

/// What is told of a run: its checksum, and whether its last instruction is a conditional branch, and was taken.
type Told = (Checksum, bool, bool);

/// Takes everything, or now and then nothing.
struct All {
    told: Vec<Told>,
    until: usize,
}

impl All {
    fn takes(&mut self, told: Told) -> bool {
        let takes = self.told.len() < self.until;
        if takes {
            self.told.push(told);
        }
        takes
    }
}

impl Taker for All {
    fn direct(&mut self, checksum: &Checksum, conditional: bool, taken: bool) -> bool {
        self.takes((*checksum, conditional, conditional & taken))
    }

    fn near(&mut self, run: &Run<'_>) -> bool {
        self.takes(told(run))
    }
}

fn told(run: &Run<'_>) -> Told {
    let conditional = run.class() == Class::Conditional;
    (
        run.checksum(),
        conditional,
        conditional && run.next != run.after(),
    )
}

fn insn(class: Class, target: Option<u64>, digest: u32) -> Insn {
    Insn {
        class,
        len: 2,
        target: target.map(Ip),
        repeats: false,
        digest,
    }
}

/// Blocks of all kinds, at four addresses that lead to each other.
fn list() -> BlockList {
    let mut list = BlockList::default();
    let mut add = |start: u64, class, target, is_resumed| {
        let steps = [0, 1].map(|i| {
            let insn = match i {
                0 => insn(Class::Other, None, start as u32),
                _ => insn(class, target, start as u32 + 1),
            };
            let ip = Ip(start + 2 * i);
            Step { ip, insn }
        });
        let from = usize::from(is_resumed);
        list.push(steps[from].ip, &steps[from..], is_resumed);
    };
    add(0x10, Class::Conditional, Some(0x30), false);
    // The same address once more.
    add(0x10, Class::Conditional, Some(0x30), false);
    add(0x14, Class::Other, None, false);
    add(0x18, Class::DirectJump, Some(0x10), false);
    add(0x30, Class::Conditional, Some(0x34), false);
    add(0x34, Class::DirectCall, Some(0x18), false);
    add(0x34, Class::Return, None, false);
    add(0x30, Class::IndirectJump, None, false);
    add(0x14, Class::Other, None, true);
    add(0x18, Class::Syscall, None, false);
    list
}

#[test]
fn the_quick_way_takes_the_same_runs() {
    let mut list = list();
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut quick, mut ended) = (0, 0);
    for _ in 0..20_000 {
        // Mostly as programs go, so that runs are long.
        let mut numbers = vec![random(10) as u32];
        for _ in 0..random(30) {
            let last = &list.blocks[numbers[numbers.len() - 1] as usize];
            let next = random(10) as u32;
            let fits = (0..10)
                .map(|i| (next + i) % 10)
                .find(|number| last.simply_leads_to(&list.blocks[*number as usize]));
            numbers.push(fits.filter(|_| random(20) > 0).unwrap_or(next));
        }
        let runs = || list.runs(numbers[0], &numbers[1..]).expect("a block");
        let until = [usize::MAX, random(20) as usize][random(2) as usize];
        let mut all = All {
            told: Vec::new(),
            until,
        };
        let mut one = runs();
        one.take_quickly(&mut all);
        let mut other = runs();
        let expected: Vec<Told> = other
            .by_ref()
            .take(all.told.len())
            .map(|run| told(&run))
            .collect();
        assert_eq!(all.told, expected, "{numbers:?}");
        assert_eq!(
            (one.ip(), one.left(), one.number),
            (other.ip(), other.left(), other.number)
        );
        // What it leaves is nothing that it could have taken.
        let is_over = one.next().is_none();
        assert!(is_over || all.told.len() == until, "{numbers:?}");
        quick += all.told.len();
        ended += usize::from(is_over && one.left() > 0);
        let number = random(10) as u32;
        list.set_fresh(number, random(4) > 0);
    }
    assert!(quick > 20_000 && ended > 2_000, "{quick} {ended}");
}

#[test]
fn a_number_that_is_given_anew_is_not_known() {
    let mut list = list();
    let direct = |list: &BlockList, numbers: [u32; 2]| {
        let mut all = All {
            told: Vec::new(),
            until: usize::MAX,
        };
        let mut runs = list.runs(numbers[0], &numbers[1..]).expect("a block");
        runs.take_quickly(&mut all);
        all.told
            .iter()
            .map(|(_, _, taken)| *taken)
            .collect::<Vec<_>>()
    };
    assert_eq!(direct(&list, [0, 4]), [true]);
    // As in a child after fork, whose next block gets the number.
    list.truncate(4);
    list.push_again(2);
    assert_eq!(direct(&list, [0, 4]), [false], "a block where it may go");
    list.truncate(4);
    list.push_again(3);
    assert_eq!(direct(&list, [0, 4]), [], "a block where it may not");
}

#[test]
fn instructions_come_back_as_they_were_kept() {
    let mut list = StepList::default();
    let mut kept = Vec::new();
    let lens = (1..=15).cycle();
    for (number, (class, len)) in Class::ALL.into_iter().zip(lens).enumerate() {
        let start = Ip(0xffff_ffff_ffff_ffe0 + number as u64);
        let targets = [None, Some(Ip(u64::MAX - number as u64)), Some(Ip(0))];
        let mut ip = start;
        let steps = targets.map(|target| {
            let step = Step {
                ip,
                insn: Insn {
                    len,
                    class,
                    target,
                    repeats: number % 2 == 0,
                    digest: u32::MAX - number as u32,
                },
            };
            // The last of them wrap.
            ip = Ip(ip.0.wrapping_add(len.into()));
            step
        });
        kept.push((start, list.push(&steps), steps.to_vec()));
        kept.push((start, list.push(&[]), Vec::new()));
    }
    let wraps = |(start, _, steps): &(Ip, Place, Vec<Step>)| {
        steps.last().is_some_and(|step| step.ip < *start)
    };
    assert!(kept.iter().any(wraps));
    for (start, place, steps) in kept {
        assert_eq!(list.get(start, place).collect::<Vec<_>>(), steps);
    }
}
