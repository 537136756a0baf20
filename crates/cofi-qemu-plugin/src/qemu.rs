//! QEMU's plugin functions, as its documentation describes them, found by name when the plugin is installed.
#![allow(
    unsafe_code,
    reason = "QEMU's interface is one of C; each use has its justification"
)]

use crate::sys;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The plugin API version that this build is for: what QEMU looks at before it calls us.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is QEMU's")]
pub(crate) static qemu_plugin_version: c_int = VERSION;

/// The version of this build.
#[cfg(cofi_plugin_api_7)]
pub(crate) const VERSION: c_int = 7;
/// The version of this build.
#[cfg(cofi_plugin_api_4)]
pub(crate) const VERSION: c_int = 4;
/// The version of this build.
#[cfg(not(any(cofi_plugin_api_4, cofi_plugin_api_7)))]
pub(crate) const VERSION: c_int = 1;

/// The plugin's number, given by QEMU.
pub(crate) type Id = u64;
/// A block under translation.
pub(crate) type Tb = *mut c_void;
/// An instruction of one.
type Insn = *mut c_void;
/// Called before a block runs.
pub(crate) type ExecCallback = unsafe extern "C" fn(c_uint, *mut c_void);

/// A function that QEMU calls when something happens: up to version 6 with the plugin's number before the arguments, from version 7 on with a
/// pointer of ours behind them, which is null.
macro_rules! callback {
    ($(#[$about:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$about])*
        #[cfg(cofi_plugin_api_7)]
        $vis extern "C" fn $name($($arg: $type,)* _: *mut core::ffi::c_void) $body
        $(#[$about])*
        #[cfg(not(cofi_plugin_api_7))]
        $vis extern "C" fn $name(_: $crate::qemu::Id, $($arg: $type),*) $body
    };
    ($(#[$about:meta])* $vis:vis type $name:ident = fn($($type:ty),*);) => {
        $(#[$about])*
        #[cfg(cofi_plugin_api_7)]
        $vis type $name = extern "C" fn($($type,)* *mut c_void);
        $(#[$about])*
        #[cfg(not(cofi_plugin_api_7))]
        $vis type $name = extern "C" fn(Id, $($type),*);
    };
}
pub(crate) use callback;

callback! { pub(crate) type TranslateCallback = fn(Tb); }
callback! { pub(crate) type VcpuCallback = fn(c_uint); }
callback! { pub(crate) type SyscallCallback = fn(c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64); }
callback! { pub(crate) type SyscallReturnCallback = fn(c_uint, i64, i64); }

/// What registering such a function takes more from version 7 on; before, QEMU does not look at it.
const DATA: *mut c_void = core::ptr::null_mut();

/// What a block's callback does with registers: nothing; from version 7 on QEMU lets only those read them that say so. Where a block begins, all are
/// where they can be read: that costs nothing.
const REGISTERS_USED: c_uint = if VERSION == 7 { READS } else { NOTHING };
const NOTHING: c_uint = 0;
const READS: c_uint = 1;

macro_rules! functions {
    (
        $(#[$about:meta])* $set:ident from $prefix:literal;
        $( $(#[$doc:meta])* $name:ident: fn($($arg:ty),*) $(-> $ret:ty)?; )*
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $set {
            $( $(#[$doc])* $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?, )*
        }

        impl $set {
            /// Looks all of them up.
            ///
            /// # Errors
            /// The name of the first that QEMU does not have.
            pub(crate) fn find() -> Result<Self, &'static str> {
                $( let $name = lookup(concat!($prefix, stringify!($name), "\0"))?; )*
                Ok(Self { $(
                    // SAFETY: the function of this name has this type, says QEMU's documentation of its plugins.
                    $name: unsafe {
                        core::mem::transmute::<
                            NonNull<c_void>,
                            unsafe extern "C" fn($($arg),*) $(-> $ret)?,
                        >($name)
                    },
                )* })
            }
        }
    };
}

functions! {
    /// QEMU's functions.
    Functions from "qemu_plugin_";
    register_vcpu_tb_trans_cb: fn(Id, TranslateCallback, *mut c_void);
    register_vcpu_tb_exec_cb: fn(Tb, ExecCallback, c_uint, *mut c_void);
    register_vcpu_exit_cb: fn(Id, VcpuCallback, *mut c_void);
    register_vcpu_syscall_cb: fn(Id, SyscallCallback, *mut c_void);
    register_vcpu_syscall_ret_cb: fn(Id, SyscallReturnCallback, *mut c_void);
    tb_n_insns: fn(Tb) -> usize;
    tb_vaddr: fn(Tb) -> u64;
    tb_get_insn: fn(Tb, usize) -> Insn;
    /// In version 1 a function of the instruction alone that returns the bytes' address.
    insn_data: fn(Insn, *mut u8, usize) -> usize;
    insn_size: fn(Insn) -> usize;
}

/// A pointer and a place, as QEMU wants a 64-bit number of each virtual processor named.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    score: *mut c_void,
    offset: usize,
}

/// How QEMU's description of a register begins; how long it is depends on the version.
#[repr(C)]
struct Descriptor {
    handle: *mut c_void,
    name: *const c_char,
}

/// An array of GLib's, of bytes or of descriptors.
#[repr(C)]
struct Array<T> {
    data: *const T,
    len: c_uint,
}

/// What reading a register tells: from version 6 on whether it was read, before that the length of its value.
#[cfg(cofi_plugin_api_7)]
type Read = bool;
#[cfg(not(cofi_plugin_api_7))]
type Read = c_int;

#[cfg(cofi_plugin_api_7)]
const fn was_read(read: Read) -> bool {
    read
}
#[cfg(not(cofi_plugin_api_7))]
const fn was_read(read: Read) -> bool {
    read > 0
}

functions! {
    /// What whole machines need, from version 4 on.
    MachineFunctions from "qemu_plugin_";
    register_vcpu_idle_cb: fn(Id, VcpuCallback, *mut c_void);
    register_vcpu_insn_exec_inline_per_vcpu: fn(Insn, c_uint, Entry, u64);
    scoreboard_new: fn(usize) -> *mut c_void;
    scoreboard_find: fn(*mut c_void, c_uint) -> *mut u64;
    get_registers: fn() -> *mut Array<Descriptor>;
    read_register: fn(*mut c_void, *mut Array<u8>) -> Read;
    read_memory_vaddr: fn(u64, *mut Array<u8>, usize) -> bool;
}

functions! {
    /// GLib's functions, which QEMU is linked with.
    Glib from "g_";
    byte_array_new: fn() -> *mut Array<u8>;
    byte_array_free: fn(*mut Array<u8>, c_int) -> *mut u8;
    array_free: fn(*mut Array<Descriptor>, c_int) -> *mut c_void;
    array_get_element_size: fn(*mut Array<Descriptor>) -> c_uint;
}

/// `QEMU_PLUGIN_INLINE_STORE_U64`.
const INLINE_STORE: c_uint = 1;

/// The first processor's mark; the others' stand behind it.
static MARKS: AtomicPtr<u64> = AtomicPtr::new(core::ptr::null_mut());

/// How a whole machine is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    qemu: MachineFunctions,
    glib: Glib,
    /// A number of each virtual processor.
    marks: Entry,
}

// SAFETY: the pointer is QEMU's, valid as long as the plugin; QEMU's functions that take it may be called by any thread.
unsafe impl Send for Machine {}
// SAFETY: as above.
unsafe impl Sync for Machine {}

impl Machine {
    /// Looks everything up.
    ///
    /// # Errors
    /// The name of the first function that is not there.
    pub(crate) fn find() -> Result<Self, &'static str> {
        let (qemu, glib) = (MachineFunctions::find()?, Glib::find()?);
        // SAFETY: the plugin is being installed.
        let score = unsafe { (qemu.scoreboard_new)(8) };
        let marks = Entry { score, offset: 0 };
        Ok(Self { qemu, glib, marks })
    }

    pub(crate) fn on_idle(&self, id: Id, callback: VcpuCallback) {
        // SAFETY: `id` is what QEMU gave us; the callback lives as long as the plugin.
        unsafe { (self.qemu.register_vcpu_idle_cb)(id, callback, DATA) }
    }

    /// Has the processor's mark set whenever it comes to the block's `index`th instruction. Only during its translation.
    pub(crate) fn mark_at(&self, functions: &Functions, tb: Tb, index: usize) {
        // SAFETY: the index is below the number of instructions, as the caller counts them; the entry is QEMU's.
        unsafe {
            let insn = (functions.tb_get_insn)(tb, index);
            let set = self.qemu.register_vcpu_insn_exec_inline_per_vcpu;
            set(insn, INLINE_STORE, self.marks, 1);
        }
    }

    /// Finds out where the marks are. To be called whenever a block is translated: QEMU's generated code has their place in it, so when QEMU
    /// moves them, which it does while no processor runs, it throws all code away.
    pub(crate) fn find_marks(&self) {
        // SAFETY: the scoreboard is QEMU's, and has room for processors.
        let first = unsafe { (self.qemu.scoreboard_find)(self.marks.score, 0) };
        MARKS.store(first, Ordering::Relaxed);
    }

    /// Whether a processor's mark is where [`Self::take_mark`] takes it from.
    pub(crate) fn has_mark(&self, vcpu: c_uint) -> bool {
        // SAFETY: as above; the processor is there.
        let found = unsafe { (self.qemu.scoreboard_find)(self.marks.score, vcpu) };
        found == MARKS.load(Ordering::Relaxed).wrapping_add(vcpu as usize)
    }

    /// Whether the mark of a processor is set, as [`Self::take_mark`] would say, which then takes it.
    #[inline]
    pub(crate) fn is_marked(vcpu: c_uint) -> bool {
        // SAFETY: as in `take_mark`.
        unsafe { MARKS.load(Ordering::Relaxed).add(vcpu as usize).read() != 0 }
    }

    /// Takes the mark of a processor, whose thread this must be, and which has a mark ([`Self::has_mark`]): whether it was set since it was
    /// taken last.
    pub(crate) fn take_mark(vcpu: c_uint) -> bool {
        let marks = MARKS.load(Ordering::Relaxed);
        // SAFETY: marks are found before any block runs, and found anew before any does after they were moved. The processor is there, and
        // its thread alone uses its mark.
        unsafe { marks.add(vcpu as usize).replace(0) != 0 }
    }

    /// Reads memory at linear addresses, as the running processor sees it; `false` if there is none.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> bool {
        // SAFETY: called by a processor's thread, in a callback. The array is ours, and is freed.
        unsafe {
            let array = (self.glib.byte_array_new)();
            let is_read = (self.qemu.read_memory_vaddr)(address, array, into.len())
                && (*array).len as usize >= into.len();
            if is_read {
                into.copy_from_slice(core::slice::from_raw_parts((*array).data, into.len()));
            }
            (self.glib.byte_array_free)(array, 1);
            is_read
        }
    }

    /// The running processor's registers of these names, as far as QEMU has them.
    pub(crate) fn registers<const N: usize>(&self, names: [&str; N]) -> [Option<u64>; N] {
        let mut values = [None; N];
        // SAFETY: called by a processor's thread, in a callback. QEMU's list holds `len` descriptors with terminated names;
        // the arrays are ours, and are freed.
        unsafe {
            let list = (self.qemu.get_registers)();
            let size = (self.glib.array_get_element_size)(list) as usize;
            for index in 0..(*list).len as usize {
                let register = &*(*list).data.byte_add(index * size);
                let name = CStr::from_ptr(register.name).to_bytes();
                let Some(place) = names.iter().position(|known| known.as_bytes() == name) else {
                    continue;
                };
                let array = (self.glib.byte_array_new)();
                if was_read((self.qemu.read_register)(register.handle, array)) {
                    let bytes = core::slice::from_raw_parts((*array).data, (*array).len as usize);
                    let mut value = [0; 8];
                    let len = bytes.len().min(8);
                    value[..len].copy_from_slice(&bytes[..len]);
                    values[place] = Some(u64::from_le_bytes(value));
                }
                (self.glib.byte_array_free)(array, 1);
            }
            (self.glib.array_free)(list, 1);
        }
        values
    }
}

/// What QEMU says of itself when it loads the plugin.
#[repr(C)]
pub(crate) struct Info {
    target: *const c_char,
    versions: [c_int; 2],
    /// Whether it runs a whole machine.
    pub(crate) is_machine: bool,
}

fn lookup(name: &'static str) -> Result<NonNull<c_void>, &'static str> {
    CStr::from_bytes_with_nul(name.as_bytes())
        .ok()
        .and_then(sys::symbol)
        .ok_or_else(|| name.trim_end_matches('\0'))
}

impl Functions {
    pub(crate) fn on_translation(&self, id: Id, callback: TranslateCallback) {
        // SAFETY: `id` is what QEMU gave us; the callback lives as long as the plugin.
        unsafe { (self.register_vcpu_tb_trans_cb)(id, callback, DATA) }
    }
    pub(crate) fn on_vcpu_exit(&self, id: Id, callback: VcpuCallback) {
        // SAFETY: as above.
        unsafe { (self.register_vcpu_exit_cb)(id, callback, DATA) }
    }
    pub(crate) fn on_system_call(&self, id: Id, callback: SyscallCallback) {
        // SAFETY: as above.
        unsafe { (self.register_vcpu_syscall_cb)(id, callback, DATA) }
    }
    pub(crate) fn on_system_call_return(&self, id: Id, callback: SyscallReturnCallback) {
        // SAFETY: as above.
        unsafe { (self.register_vcpu_syscall_ret_cb)(id, callback, DATA) }
    }
    /// Has `callback` called with `data` whenever the block runs. Only during its translation.
    pub(crate) fn on_execution(&self, tb: Tb, callback: ExecCallback, data: usize) {
        let data = core::ptr::without_provenance_mut(data);
        // SAFETY: `tb` is the block under translation; the callback lives as long as the plugin, and `data` is a number.
        unsafe { (self.register_vcpu_tb_exec_cb)(tb, callback, REGISTERS_USED, data) }
    }
    pub(crate) fn address(&self, tb: Tb) -> u64 {
        // SAFETY: `tb` is the block under translation.
        unsafe { (self.tb_vaddr)(tb) }
    }
    pub(crate) fn len(&self, tb: Tb) -> usize {
        // SAFETY: as above.
        unsafe { (self.tb_n_insns)(tb) }
    }

    /// Appends the code of the block's `index`th instruction.
    pub(crate) fn append_code(&self, tb: Tb, index: usize, code: &mut Vec<u8>) {
        // SAFETY: the index is below the number of instructions, as the caller counts them.
        let (insn, size) = unsafe {
            let insn = (self.tb_get_insn)(tb, index);
            (insn, (self.insn_size)(insn))
        };
        let begin = code.len();
        code.resize(begin + size, 0);
        let place = &mut code[begin..];
        if VERSION == 1 {
            // SAFETY: in version 1 the function takes the instruction and returns where its bytes are, `size` of them,
            // valid during translation. The other arguments are ignored by the C calling convention.
            unsafe {
                let from = (self.insn_data)(insn, place.as_mut_ptr(), 0);
                let from = core::ptr::with_exposed_provenance::<u8>(from);
                place.copy_from_slice(core::slice::from_raw_parts(from, size));
            }
        } else {
            // SAFETY: it stores at most `size` bytes, which `place` has.
            unsafe {
                (self.insn_data)(insn, place.as_mut_ptr(), size);
            }
        }
    }
}
