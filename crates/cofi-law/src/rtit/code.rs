//! Random code: every kind of instruction that matters to RTIT.

use crate::Rng;
use crate::machine::Kind;
use crate::machine::code::Place;
use cofi_packet::ExecMode;

/// An instruction, and how many prefixes it has.
pub(super) fn choose(rng: &mut Rng, place: Place) -> (Kind, u8) {
    let kind = choose_kind(rng, place);
    let is_far = matches!(
        kind,
        Kind::FarReturn
            | Kind::Iret
            | Kind::Syscall
            | Kind::Sysexit
            | Kind::FarJump
            | Kind::FarCall
    );
    let prefixes = if is_far && rng.one_in(3) {
        rng.index(7) as u8
    } else {
        0
    };
    (kind, prefixes)
}

fn choose_kind(rng: &mut Rng, place: Place) -> Kind {
    let wide = place.mode == ExecMode::Bits64;
    let is_os = place.cpl == 0;
    // A third of it is loops, so that there are full TNTs, too.
    let third = place.count / 3;
    if place.index < third && rng.one_in(3) {
        return Kind::Conditional(rng.index(third));
    }
    match rng.index(48) {
        0..=8 => Kind::Conditional(rng.index(place.count)),
        9 | 10 => Kind::Return,
        11 => Kind::Jump(place.later(rng)),
        12..=14 => Kind::Call(place.later(rng)),
        15 => Kind::CallNext,
        16 => Kind::IndirectJump,
        17 => Kind::IndirectCall,
        18 if rng.one_in(2) => Kind::FarReturn,
        19 if rng.one_in(2) => Kind::Iret,
        20 if rng.one_in(2) => Kind::FarJump,
        21 if rng.one_in(2) => Kind::FarCall,
        22 if wide && rng.one_in(2) => Kind::Syscall,
        23 if is_os && rng.one_in(2) => Kind::Sysexit,
        24 if rng.one_in(2) => Kind::Breakpoint,
        25 if rng.one_in(2) => Kind::Interrupt,
        26 if !wide => Kind::Into,
        27 if is_os => Kind::MovCr3,
        28 if is_os => Kind::MovCr0,
        29 | 30 if is_os => Kind::Wrmsr,
        31 if is_os => Kind::Mwait,
        32 if is_os => Kind::Halt,
        33 if is_os => Kind::VmCall,
        _ => Kind::Plain,
    }
}
