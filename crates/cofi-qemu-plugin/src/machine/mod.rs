//! Whole machines: what each processor of QEMU's system emulation runs.
//!
//! QEMU says which block runs; the processor's state says where, and how. That control came there by an interrupt is found out
//! where it can have been one: the handler's stack tells what was interrupted.
#![allow(
    unsafe_code,
    reason = "callbacks of a C program, and the state of its processors; each use has its justification"
)]

mod code;
mod frames;
mod state;

use crate::layout::{record, state as bits};
use crate::plugin::{self, PLUGIN};
use crate::qemu::{Id, Machine, Tb, callback};
use crate::rings;
use crate::sync::Once;
use crate::tell::tell;
use alloc::vec::Vec;
use code::{Code, End, Recent, Variant};
use core::cell::UnsafeCell;
use core::ffi::{c_uint, c_void};
use frames::{Before, Handlers, Look, Place};
use state::{Mode, State};

/// Processors that can be traced.
const PROCESSORS: usize = 256;

static MACHINE: Once<Machine> = Once::new();

/// What a processor did last. What is read for every block comes first, most of it in one line of the cache. Each is written and read by itself:
/// what was written singly the processor cannot read as one at once.
#[repr(C)]
struct Processor {
    /// What it ran last.
    variant: Option<&'static Variant>,
    /// Its slot, null if there is none: then it runs no variant.
    slot: *mut u8,
    cr3: u64,
    /// The kind of state of 64-bit code that ran last; of other code, [`NOT_WIDE`].
    kind: u32,
    /// How its code segment was. The base counts of code that is not 64-bit code alone, and may be older of other code.
    cs: u16,
    cs_base: u64,
    handlers: Handlers,
    has_begun: bool,
    recent: Recent,
    /// How code ran when CS had these selectors.
    modes: Vec<(u16, u32)>,
}

/// No kind of state.
const NOT_WIDE: u32 = u32::MAX;

/// A processor's own: only its thread uses it. Its size is a power of two, as it is looked for whenever a block runs.
#[repr(align(256))]
struct Own(UnsafeCell<Processor>);

// SAFETY: each is used by one processor's callbacks only, which QEMU calls one after the other.
unsafe impl Sync for Own {}

static ALL: [Own; PROCESSORS] = [const { Own(UnsafeCell::new(Processor::NEW)) }; PROCESSORS];

/// Sets up tracing of a machine.
///
/// # Errors
/// The name of a function that this QEMU does not have.
pub(crate) fn install(id: Id) -> Result<(), &'static str> {
    let machine = Machine::find()?;
    if let Some(plugin) = PLUGIN.get() {
        plugin.qemu.on_translation(id, on_translation);
        plugin.qemu.on_vcpu_exit(id, on_vcpu_exit);
        machine.on_idle(id, on_idle);
    }
    if MACHINE.set(machine) {
        Ok(())
    } else {
        Err("second machine")
    }
}

callback! {
/// QEMU translates a block.
fn on_translation(tb: Tb) {
    let (Some(plugin), Some(machine)) = (PLUGIN.get(), MACHINE.get()) else {
        return;
    };
    let qemu = &plugin.qemu;
    let count = qemu.len(tb);
    let (mut bytes, mut lens) = (Vec::new(), Vec::new());
    for index in 0..count {
        let before = bytes.len();
        qemu.append_code(tb, index, &mut bytes);
        lens.push((bytes.len() - before) as u8);
    }
    machine.find_marks();
    let code = Code::of(qemu.address(tb), bytes, lens);
    qemu.on_execution(tb, on_block, (&raw const *code).expose_provenance());
    if code.wants_mark() && count > 0 {
        machine.mark_at(qemu, tb, count - 1);
    }
}
}

/// A block is about to run. QEMU's generated code has the address of the processor's state in rbp; that is handed on.
#[unsafe(naked)]
unsafe extern "C" fn on_block(vcpu: c_uint, code: *mut c_void) {
    core::arch::naked_asm!(
        "mov rdx, rbp",
        "jmp {next}",
        next = sym on_block_with_state,
    )
}

extern "C" fn on_block_with_state(vcpu: c_uint, code: *mut c_void, at: *const u8) {
    // SAFETY: only this processor's callbacks use what is its own, one at a time; the code's address is what the block was registered with, and
    // lives for ever; QEMU's generated code, which calls this, has the state's address there.
    let is_told = ALL.get(vcpu as usize).is_some_and(|own| unsafe {
        let code: &'static Code = &*core::ptr::with_exposed_provenance::<Code>(code.addr());
        (*own.0.get()).runs_plainly(vcpu, code, State::new(at))
    });
    if !is_told {
        on_block_otherwise(vcpu, code, at);
    }
}

/// As [`on_block_with_state`], of any block. It is handed the same, so that what is called for every block need keep nothing for it.
#[cold]
#[inline(never)]
extern "C" fn on_block_otherwise(vcpu: c_uint, code: *mut c_void, at: *const u8) {
    let Some(own) = ALL.get(vcpu as usize) else {
        return plugin::refuse(vcpu);
    };
    // SAFETY: only this processor's callbacks use it, one at a time.
    let own = unsafe { &mut *own.0.get() };
    // SAFETY: the address is what the block was registered with: code lives for ever.
    let code: &'static Code = unsafe { &*core::ptr::with_exposed_provenance::<Code>(code.addr()) };
    // SAFETY: QEMU's generated code, which calls this, has the state's address there.
    let state = unsafe { State::new(at) };
    own.runs(vcpu, code, state);
}

impl Processor {
    /// One that has not run.
    const NEW: Self = Self {
        variant: None,
        slot: core::ptr::null_mut(),
        cr3: 0,
        kind: NOT_WIDE,
        cs: 0,
        cs_base: 0,
        handlers: Handlers::new(),
        has_begun: false,
        recent: Recent::new(),
        modes: Vec::new(),
    };

    #[cold]
    fn begin(&mut self, vcpu: c_uint, state: State) {
        self.has_begun = true;
        let Some(machine) = MACHINE.get() else {
            return plugin::refuse(vcpu);
        };
        if !(state.is_as_known(machine) && machine.has_mark(vcpu)) {
            tell!("cofi: this QEMU keeps its processors' state in a way that Cofi does not know");
            return plugin::refuse(vcpu);
        }
        self.cr3 = !state.cr3();
        // What a processor of this number has left.
        Machine::take_mark(vcpu);
        if let Some(slot) = plugin::begin_slot(vcpu, vcpu + 1) {
            self.slot = rings::slot_memory(slot);
        }
    }

    /// Tells that a block of 64-bit code runs, if there is nothing else to tell; whether it did. So it is with nearly every block, and the
    /// time that a recording takes is these few instructions: all that takes more is [`Self::runs`]'s, which tells the same of these, too.
    #[inline(always)]
    fn runs_plainly(&mut self, vcpu: c_uint, code: &'static Code, state: State) -> bool {
        let (Some(before), Some(here)) = (self.variant, code.first()) else {
            return false;
        };
        let kind = state.kind();
        let is_same = here.is_at(kind, state.ip()) && kind == self.kind && self.cr3 == state.cr3();
        if !is_same {
            return false;
        }
        if !before.is_marked {
            // No end that can lead anywhere is without a mark. What changes CS leads somewhere else.
            return before.leads_by_itself_to(here) && self.put_quickly(here);
        }
        let comes_by_itself = if before.end.is_anywhere() {
            // Most come by a branch to where no interrupt leads.
            self.cs == state.cs_selector() && self.handlers.is_elsewhere(Mode::Long, state)
        } else {
            before.leads_by_itself_to(here)
        };
        // The mark stays until it is known that this is all.
        let is_told = comes_by_itself && Machine::is_marked(vcpu) && self.put_quickly(here);
        if is_told {
            Machine::take_mark(vcpu);
        }
        is_told
    }

    /// Puts a block's number into the ring, if that is not at its limit; whether it did.
    #[inline(always)]
    fn put_quickly(&mut self, here: &'static Variant) -> bool {
        // SAFETY: a variant runs, so there is a slot.
        let is_put = unsafe { rings::put_quickly(self.slot, here.number) };
        if is_put {
            self.variant = Some(here);
        }
        is_put
    }

    /// Tells that a block runs, and all that is to be told before.
    #[inline(never)]
    fn runs(&mut self, vcpu: c_uint, code: &'static Code, state: State) {
        if !self.has_begun {
            self.begin(vcpu, state);
        }
        // Without a slot there may be no shared memory at all.
        if self.slot.is_null() {
            return;
        }
        let slot = rings::slot_base(self.slot);
        let (variant, is_new) = code.variant(state, &mut self.recent);
        if let Some(before) = self.variant {
            self.arrive(state, vcpu, before, variant, is_new);
        }
        if self.cr3 != state.cr3() {
            self.cr3 = state.cr3();
            rings::put(
                slot,
                &[record::CR3, self.cr3 as u32, (self.cr3 >> 32) as u32],
            );
        }
        let cs = state.cs_selector();
        if self.cs != cs
            || self
                .variant
                .is_none_or(|before| before.bits != variant.bits)
        {
            self.note_mode(cs, variant.bits);
        }
        self.variant = Some(variant);
        (self.cs, self.cs_base) = (cs, state.cs_base());
        let is_wide = variant.bits & bits::BITS_64 != 0;
        self.kind = if is_wide { variant.kind() } else { NOT_WIDE };
        plugin::put_number(slot, variant.number);
    }

    #[cold]
    fn note_mode(&mut self, cs: u16, bits: u32) {
        const MOST: usize = 64;
        match self.modes.iter_mut().find(|(selector, _)| *selector == cs) {
            Some((_, known)) => *known = bits,
            None => {
                self.modes.truncate(MOST - 1);
                self.modes.insert(0, (cs, bits));
            }
        }
    }

    /// Whether control came from the block `before` to `here` by itself, and not by an interrupt, if both run in the same kind of state.
    #[inline(always)]
    fn is_plain(&self, before: &Variant, here: &Variant, state: State) -> bool {
        match before.end {
            End::Plain | End::Direct(..) | End::Repeat => before.leads_by_itself_to(here),
            // Most come by a branch to where no interrupt leads.
            End::Near | End::Far | End::FarCall => self.handlers.is_elsewhere(state.mode(), state),
        }
    }

    /// Control came from the block `before` to `here`: tells whatever is not plain from that.
    fn arrive(
        &mut self,
        state: State,
        vcpu: c_uint,
        before: &'static Variant,
        here: &Variant,
        is_new: bool,
    ) {
        if before.is_marked && !Machine::take_mark(vcpu) {
            rings::put(rings::slot_base(self.slot), &[record::UNFINISHED]);
        }
        let is_anywhere = before.end.is_anywhere();
        let in_smm = here.bits & !before.bits & bits::SMM != 0;
        let is_simple = self.is_plain(before, here, state) && !(is_anywhere && (is_new || in_smm));
        if !is_simple && let Some(machine) = MACHINE.get() {
            let natural = before.leads_by_itself_to(here);
            let before = Before {
                variant: before,
                cs: self.cs,
                cs_base: self.cs_base,
            };
            self.arrive_otherwise(machine, state, &before, is_new, natural);
        }
    }

    #[inline(never)]
    fn arrive_otherwise(
        &mut self,
        machine: &Machine,
        state: State,
        before: &Before,
        is_new: bool,
        natural: bool,
    ) {
        let slot = rings::slot_base(self.slot);
        let modes = &self.modes;
        let bits_of = |cs: u16| {
            let known = modes.iter().find(|(selector, _)| *selector == cs);
            known.map_or(before.variant.bits, |(_, bits)| *bits)
        };
        let tell = |from: Place| {
            let ip = from.linear;
            let halves = [ip as u32, (ip >> 32) as u32];
            rings::put(
                slot,
                &[record::INTERRUPT, halves[0], halves[1], bits_of(from.cs)],
            );
        };
        if state.bits() & !before.variant.bits & bits::SMM != 0 {
            if let Some(from) = frames::before_smi(machine, state) {
                tell(from);
            }
            return;
        }
        let is_anywhere = before.variant.end.is_anywhere();
        let is_real = state.mode() == Mode::Real;
        let changed = is_new || is_real || !(is_anywhere || natural);
        self.handlers.refresh(machine, state, changed);
        let look = Look {
            machine,
            state,
            handlers: &self.handlers,
        };
        let Some(hops) = look.interrupts(before) else {
            return;
        };
        for pair in hops.windows(2) {
            if let [from, to] = *pair {
                let (a, b) = (from.linear as u32, (from.linear >> 32) as u32);
                let (c, d) = (to.linear as u32, (to.linear >> 32) as u32);
                let bits = bits_of(from.cs);
                rings::put(slot, &[record::INTERRUPT_TO, a, b, bits, c, d]);
            }
        }
        if let Some(from) = hops.last() {
            tell(*from);
        }
    }
}

callback! {
/// A processor has been unplugged; another one may get its number.
fn on_vcpu_exit(vcpu: c_uint) {
    if let Some(own) = ALL.get(vcpu as usize) {
        // SAFETY: the processor's thread has ended, and nobody else uses this.
        unsafe { *own.0.get() = Processor::NEW };
    }
    plugin::end_vcpu(vcpu);
}
}

callback! {
/// A processor waits for an interrupt.
fn on_idle(vcpu: c_uint) {
    let Some(own) = ALL.get(vcpu as usize) else {
        return;
    };
    // SAFETY: QEMU calls this in the processor's own thread, while it runs nothing.
    let own = unsafe { &*own.0.get() };
    if own.variant.is_some() {
        rings::put(rings::slot_base(own.slot), &[record::IDLE]);
    }
}
}
