//! What QEMU calls.
#![allow(
    unsafe_code,
    reason = "callbacks of a C program, and the state of its processors; each use has its justification"
)]

use crate::clock::Source;
use crate::code::{Code, Special};
use crate::count::{self, CALL};
use crate::list::List;
use crate::options::Options;
use crate::processor::{Processor, Totals};
use crate::qemu::{Id, Info, Numbers, Qemu, Tb};
use crate::state::State;
use crate::sync::Once;
use crate::tell::tell;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

/// Processors that can be traced.
const PROCESSORS: usize = 256;

/// The plugin.
struct Plugin {
    qemu: Qemu,
    options: Options,
}

static PLUGIN: Once<Plugin> = Once::new();
/// This QEMU keeps its processors' state in a way that is not known.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// A processor's own: only its thread uses it.
struct Own(UnsafeCell<Option<Box<Processor>>>);

// SAFETY: each is used by one processor's callbacks only, which QEMU calls one after the other.
unsafe impl Sync for Own {}

static ALL: [Own; PROCESSORS] = [const { Own(UnsafeCell::new(None)) }; PROCESSORS];

/// An instruction that the plugin has a part in: which, and where in its block.
struct Part {
    what: Special,
    index: usize,
}

fn own(vcpu: c_uint) -> Option<&'static mut Processor> {
    let own = ALL.get(vcpu as usize)?;
    // SAFETY: only this processor's callbacks use it, one at a time.
    unsafe { (*own.0.get()).as_deref_mut() }
}

/// QEMU loads the plugin.
///
/// # Safety
/// `words` are `count` terminated strings, and `info` is QEMU's.
#[unsafe(no_mangle)]
unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    info: *const Info,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    let words = (0..usize::try_from(count).unwrap_or(0)).map(|index| {
        // SAFETY: as the caller says.
        unsafe { CStr::from_ptr(words.add(index).read()) }
            .to_str()
            .unwrap_or("?")
    });
    // SAFETY: as the caller says.
    if let Some(info) = unsafe { info.as_ref() } {
        Qemu::notes(info);
    }
    match install(id, words) {
        Ok(()) => 0,
        Err(error) => {
            tell!("cofi: {error}");
            1
        }
    }
}

fn install<'a>(id: Id, words: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let options = Options::parse(words)?;
    let qemu = Qemu::find().map_err(|name| format!("this QEMU has no function {name}"))?;
    if !PLUGIN.set(Plugin { qemu, options }) {
        return Err("the plugin is there already".into());
    }
    qemu.on_init(id, on_init);
    qemu.on_translation(id, on_translation);
    qemu.on_discontinuity(id, on_discontinuity);
    qemu.on_idle_and_resume(id, on_idle, on_resume);
    qemu.on_exit(id, on_exit);
    Ok(())
}

/// A processor is there.
extern "C" fn on_init(vcpu: c_uint, _: *mut c_void) {
    let (Some(plugin), Some(own)) = (PLUGIN.get(), ALL.get(vcpu as usize)) else {
        tell!("cofi: processor {vcpu} is not traced: {PROCESSORS} can be");
        return;
    };
    plugin.qemu.knows(vcpu);
    let mut processor = Processor::new(plugin.qemu, &plugin.options);
    if let Some(folder) = &plugin.options.list {
        match List::create(folder, vcpu) {
            Ok(list) => processor.list = Some(list),
            Err(error) => {
                tell!("cofi: there is no list of what processor {vcpu} runs: {folder}: {error}")
            }
        }
    }
    // SAFETY: its thread runs nothing yet.
    unsafe { *own.0.get() = Some(Box::new(processor)) };
    // Until the first block has told where its state is.
    plugin.qemu.set_count(vcpu, CALL);
}

/// QEMU translates a block.
extern "C" fn on_translation(tb: Tb, _: *mut c_void) {
    let Some(Plugin { qemu, options }) = PLUGIN.get() else {
        return;
    };
    let count = qemu.len(tb);
    if options.clock != Source::Host {
        qemu.count(tb, count as u64);
    }
    let (mut bytes, mut lens, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..count {
        let before = bytes.len();
        qemu.append_code(tb, index, &mut bytes);
        lens.push((bytes.len() - before) as u8);
        if let Some(what) = Special::of(&bytes[before..]) {
            parts.push(Part { what, index });
        }
    }
    let code = Code::of(qemu.address(tb), &bytes, &lens);
    let data = (&raw const *code).expose_provenance();
    // What the plugin has a part in, it must find in its place; and where privilege may change, other counters count.
    if parts.is_empty() && !code.ends_far() {
        qemu.on_block_if_called(tb, on_block, data);
    } else {
        qemu.on_block(tb, on_block, data);
    }
    qemu.add(
        tb,
        count::of_block(count as u64, code.ends_with_branch().into()),
    );
    for part in parts {
        let behind = part.index + 1;
        let part: &'static Part = Box::leak(Box::new(part));
        qemu.on_insn(
            tb,
            part.index,
            on_part,
            (&raw const *part).expose_provenance(),
        );
        if behind < count {
            qemu.on_insn(tb, behind, on_behind, 0);
        }
    }
    if count > 0 {
        qemu.mark_at(tb, count - 1);
    }
}

/// A block is about to run. QEMU's generated code has the address of the processor's state in RBP; that is handed on.
#[unsafe(naked)]
unsafe extern "C" fn on_block(vcpu: c_uint, code: *mut c_void) {
    core::arch::naked_asm!("mov rdx, rbp", "jmp {next}", next = sym block_begins)
}

/// As [`on_block`], of an instruction that the plugin has a part in.
#[unsafe(naked)]
unsafe extern "C" fn on_part(vcpu: c_uint, part: *mut c_void) {
    core::arch::naked_asm!("mov rdx, rbp", "jmp {next}", next = sym part_begins)
}

/// As [`on_block`], of the instruction behind such a one.
#[unsafe(naked)]
unsafe extern "C" fn on_behind(vcpu: c_uint, _: *mut c_void) {
    core::arch::naked_asm!("mov rdx, rbp", "jmp {next}", next = sym part_has_ended)
}

// What most blocks take is done here; it calls nothing, so that no registers have to be saved for it.
extern "C" fn block_begins(vcpu: c_uint, code: *mut c_void, at: *mut u8) {
    let (Some(numbers), Some(own)) = (Numbers::of(vcpu), own(vcpu)) else {
        return block_begins_otherwise(vcpu, code, at);
    };
    // SAFETY: the address is what the block was registered with: code lives for ever.
    let begun: &'static Code = unsafe { &*core::ptr::with_exposed_provenance::<Code>(code.addr()) };
    // SAFETY: QEMU's generated code, which calls this, has the state's address there.
    let state = unsafe { State::new(at) };
    match own.goes_straight_on(numbers, state, begun) {
        Ok(None) => {}
        Ok(Some((code, start))) => tell_list(own, code, start),
        Err(()) => block_begins_otherwise(vcpu, code, at),
    }
}

#[inline(never)]
fn tell_list(own: &mut Processor, code: &'static Code, start: u64) {
    own.tell_list((code, start));
}

/// As [`block_begins`], whatever the block does.
#[inline(never)]
extern "C" fn block_begins_otherwise(vcpu: c_uint, code: *mut c_void, at: *mut u8) {
    let (Some(plugin), Some(own)) = (PLUGIN.get(), own(vcpu)) else {
        return;
    };
    // SAFETY: as above.
    let code: &'static Code = unsafe { &*core::ptr::with_exposed_provenance::<Code>(code.addr()) };
    // SAFETY: as above.
    let state = unsafe { State::new(at) };
    if !own.goes_on(plugin.qemu.numbers(vcpu), state, code) {
        block_begins_anyhow(plugin, own, (vcpu, code, state));
    }
}

/// The same, whatever has happened.
#[inline(never)]
fn block_begins_anyhow(
    plugin: &Plugin,
    own: &mut Processor,
    (vcpu, code, state): (c_uint, &'static Code, State),
) {
    if own.state().is_none() && !is_known(plugin, state) {
        return;
    }
    let (has_mark, count) = plugin.qemu.take_mark(vcpu);
    own.advance(count);
    own.enter(&plugin.options, state, code, has_mark);
    ask_for_calls(plugin, own, vcpu);
    own.plan(state);
}

/// Which of this processor's next blocks are to be told, if that has changed.
#[inline]
fn ask_for_calls(plugin: &Plugin, own: &mut Processor, vcpu: c_uint) {
    if let Some(count) = own.new_count() {
        plugin.qemu.set_count(vcpu, count);
    }
}

#[cold]
fn is_known(plugin: &Plugin, state: State) -> bool {
    let is_known = state.is_as_known(&plugin.qemu);
    if !is_known && !IS_REFUSED.swap(true, Ordering::Relaxed) {
        tell!(
            "cofi: this QEMU keeps its processors' state in a way that Cofi does not know; there is no Intel PT"
        );
    }
    is_known
}

extern "C" fn part_begins(vcpu: c_uint, part: *mut c_void, at: *mut u8) {
    let (Some(plugin), Some(own)) = (PLUGIN.get(), own(vcpu)) else {
        return;
    };
    // SAFETY: as above.
    let part: &'static Part = unsafe { &*core::ptr::with_exposed_provenance::<Part>(part.addr()) };
    // SAFETY: as above.
    let state = unsafe { State::new(at) };
    let was_traced = own.is_traced();
    own.advance(plugin.qemu.count_of(vcpu));
    let goes_to = own.before(&plugin.options, state, part.what, part.index);
    if own.is_traced() && !was_traced {
        // Nobody took it meanwhile. (If this instruction is the last, it is set behind this.)
        plugin.qemu.take_mark(vcpu);
    }
    ask_for_calls(plugin, own, vcpu);
    if let Some(ip) = goes_to {
        // SAFETY: this is such a callback, and nothing here is to be dropped.
        unsafe { plugin.qemu.go_to(ip) }
    }
}

extern "C" fn part_has_ended(vcpu: c_uint, _: *mut c_void, at: *mut u8) {
    let (Some(plugin), Some(own)) = (PLUGIN.get(), own(vcpu)) else {
        return;
    };
    // SAFETY: as above.
    let state = unsafe { State::new(at) };
    own.advance(plugin.qemu.count_of(vcpu));
    own.put_right(&plugin.options, state);
    ask_for_calls(plugin, own, vcpu);
}

/// Control was taken away from where it was.
extern "C" fn on_discontinuity(vcpu: c_uint, _: c_int, from: u64, to: u64, _: *mut c_void) {
    let (Some(plugin), Some(own)) = (PLUGIN.get(), own(vcpu)) else {
        return;
    };
    let (has_mark, count) = plugin.qemu.take_mark(vcpu);
    own.advance(count);
    own.interrupted(&plugin.options, from, to, has_mark);
    ask_for_calls(plugin, own, vcpu);
}

extern "C" fn on_idle(vcpu: c_uint, _: *mut c_void) {
    if let (Some(plugin), Some(own)) = (PLUGIN.get(), own(vcpu)) {
        // (Where the machine is halted, the processor may be anywhere, and goes on from there.)
        own.advance(plugin.qemu.count_of(vcpu));
        let has_mark = own.waits() && plugin.qemu.take_mark(vcpu).0;
        own.idle(has_mark);
        ask_for_calls(plugin, own, vcpu);
    }
}

extern "C" fn on_resume(vcpu: c_uint, _: *mut c_void) {
    if let Some(own) = own(vcpu) {
        if own.has_been_changed() {
            tell!(
                "cofi: processor {vcpu}: its registers were written while the machine stood still, as loadvm does; what its trace unit and its counters hold is not in a saved \
                 machine, and is as it was before"
            );
        }
        own.resume();
    }
}

/// QEMU ends.
extern "C" fn on_exit(_: *mut c_void) {
    for vcpu in 0..PROCESSORS {
        if let Some(list) = own(vcpu as c_uint).and_then(|own| own.list.as_mut()) {
            list.flush();
        }
    }
    if !PLUGIN.get().is_some_and(|plugin| plugin.options.says) {
        return;
    }
    for vcpu in 0..PROCESSORS {
        if let Some(own) = own(vcpu as c_uint) {
            let Totals {
                instructions,
                pmis,
                faults,
                unexplained,
                strange,
            } = own.totals;
            let strange = match strange {
                Some((from, to)) => format!(" (first from the block at {from:#x} to {to:#x})"),
                None => String::new(),
            };
            let (stored, lost) = (own.bus.stored, own.bus.lost);
            tell!(
                "cofi: processor {vcpu}: {instructions} instructions traced, {stored} bytes stored, {lost} lost, {pmis} PMIs, \
                 {faults} #GP of trace registers, {unexplained} unexplained{strange}"
            );
        }
    }
}
