//! QEMU's interface for plugins, version 7, as its documentation describes it: functions found by name when the plugin is installed.
#![allow(
    unsafe_code,
    reason = "QEMU's interface is one of C; each use has its justification"
)]

use crate::count::CALL;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The version of the interface that the plugin is for: what QEMU looks at before it calls us.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is QEMU's")]
static qemu_plugin_version: c_int = 7;

/// The plugin's number, given by QEMU.
pub(crate) type Id = u64;
/// A block under translation.
pub(crate) type Tb = *mut c_void;
/// An instruction of one.
type Insn = *mut c_void;
/// Called when code runs, by generated code, or when something happens to a processor.
pub(crate) type Callback = unsafe extern "C" fn(c_uint, *mut c_void);
pub(crate) type TranslateCallback = extern "C" fn(Tb, *mut c_void);
pub(crate) type DiscontinuityCallback = extern "C" fn(c_uint, c_int, u64, u64, *mut c_void);
pub(crate) type VcpuCallback = extern "C" fn(c_uint, *mut c_void);
pub(crate) type ExitCallback = extern "C" fn(*mut c_void);

/// The callback reads and writes registers.
const READS_AND_WRITES: c_uint = 2;
/// And it may go on elsewhere.
const GOES_ELSEWHERE: c_uint = 3;
/// `QEMU_PLUGIN_DISCON_INTERRUPT`: exceptions are told as such, too, and these alone tell exactly where they came from.
const DISCONTINUITY_INTERRUPT: c_int = 1;
/// `QEMU_PLUGIN_COND_GE`.
const NOT_BELOW: c_uint = 7;
/// `QEMU_PLUGIN_INLINE_ADD_U64`.
const INLINE_ADD: c_uint = 0;
/// `QEMU_PLUGIN_INLINE_STORE_U64`.
const INLINE_STORE: c_uint = 1;

/// How many processors there are.
static KNOWN: AtomicU32 = AtomicU32::new(0);
/// How many there can be at most, as QEMU says; of one that does not say it, no number is so large.
static MOST: AtomicU32 = AtomicU32::new(u32::MAX);
/// Where each processor has its numbers, once they move no more. QEMU moves them when a processor comes for which there is no room: when the last of those
/// that there can be is there, none comes.
static NUMBERS: [AtomicPtr<u64>; 256] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 256];

/// The numbers of a processor, for as long as one of its callbacks takes: they stay where they are so long, and no other thread has to do with them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers(*mut u64);

impl Numbers {
    /// Those of this processor, whose thread this must be, if they have their place for good.
    #[inline]
    pub(crate) fn of(vcpu: c_uint) -> Option<Self> {
        let at = NUMBERS.get(vcpu as usize)?.load(Ordering::Acquire);
        (!at.is_null()).then_some(Self(at))
    }

    /// Whether the processor has come to the last instruction of its block since the mark was cleared.
    #[inline]
    pub(crate) fn has_mark(self) -> bool {
        // SAFETY: the processor is there, its thread alone uses the numbers, and they stay where they are.
        unsafe { self.0.read() != 0 }
    }

    #[inline]
    pub(crate) fn clear_mark(self) {
        // SAFETY: as above.
        unsafe { self.0.write(0) }
    }

    /// What its blocks add up to.
    #[inline]
    pub(crate) fn count(self) -> u64 {
        // SAFETY: as above; there are three of them.
        unsafe { self.0.add(1).read() }
    }
}

/// What QEMU says of itself (`qemu_info_t`, of a whole machine).
#[repr(C)]
pub(crate) struct Info {
    target_name: *const c_char,
    versions: [c_int; 2],
    is_machine: bool,
    processors: c_int,
    max_processors: c_int,
}

#[link(name = "c")]
unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

fn lookup(name: &'static CStr) -> Result<NonNull<c_void>, &'static str> {
    // SAFETY: the name is terminated; the null handle is RTLD_DEFAULT.
    let found = unsafe { dlsym(core::ptr::null_mut(), name.as_ptr()) };
    NonNull::new(found).ok_or(name.to_str().unwrap_or("a function"))
}

macro_rules! functions {
    ($( $(#[$doc:meta])* $symbol:literal $name:ident: fn($($arg:ty),*) $(-> $ret:ty)?; )*) => {
        /// The functions.
        #[derive(Clone, Copy, Debug)]
        struct Functions {
            $( $(#[$doc])* $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?, )*
        }

        impl Functions {
            fn find() -> Result<Self, &'static str> {
                $( let $name = lookup($symbol)?; )*
                Ok(Self { $(
                    // SAFETY: the function of this name has this type, says the documentation.
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
    c"qemu_plugin_register_vcpu_tb_trans_cb" on_translation: fn(Id, TranslateCallback, *mut c_void);
    c"qemu_plugin_register_vcpu_tb_exec_cb" on_block: fn(Tb, Callback, c_uint, *mut c_void);
    c"qemu_plugin_register_vcpu_tb_exec_cond_cb" on_block_if: fn(Tb, Callback, c_uint, c_uint, Entry, u64, *mut c_void);
    c"qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu" inline_block: fn(Tb, c_uint, Entry, u64);
    c"qemu_plugin_register_vcpu_insn_exec_cb" on_insn: fn(Insn, Callback, c_uint, *mut c_void);
    c"qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu" inline: fn(Insn, c_uint, Entry, u64);
    c"qemu_plugin_register_vcpu_discon_cb" on_discontinuity: fn(Id, c_int, DiscontinuityCallback, *mut c_void);
    c"qemu_plugin_register_vcpu_init_cb" on_init: fn(Id, VcpuCallback, *mut c_void);
    c"qemu_plugin_register_vcpu_idle_cb" on_idle: fn(Id, VcpuCallback, *mut c_void);
    c"qemu_plugin_register_vcpu_resume_cb" on_resume: fn(Id, VcpuCallback, *mut c_void);
    c"qemu_plugin_register_atexit_cb" on_exit: fn(Id, ExitCallback, *mut c_void);
    c"qemu_plugin_tb_n_insns" len: fn(Tb) -> usize;
    c"qemu_plugin_tb_vaddr" address: fn(Tb) -> u64;
    c"qemu_plugin_tb_get_insn" insn: fn(Tb, usize) -> Insn;
    c"qemu_plugin_insn_data" insn_data: fn(Insn, *mut u8, usize) -> usize;
    c"qemu_plugin_insn_size" insn_size: fn(Insn) -> usize;
    c"qemu_plugin_scoreboard_new" scoreboard_new: fn(usize) -> *mut c_void;
    c"qemu_plugin_scoreboard_find" scoreboard_find: fn(*mut c_void, c_uint) -> *mut u64;
    c"qemu_plugin_get_registers" registers: fn() -> *mut Array;
    c"qemu_plugin_read_register" read_register: fn(*mut c_void, *mut Bytes) -> bool;
    /// (It returns if it fails.)
    c"qemu_plugin_set_pc" set_pc: fn(u64);
    c"qemu_plugin_read_memory_vaddr" read_linear: fn(u64, *mut Bytes, usize) -> bool;
    c"qemu_plugin_read_memory_hwaddr" read_physical: fn(u64, *mut Bytes, usize) -> c_int;
    c"qemu_plugin_write_memory_hwaddr" write_physical: fn(u64, *mut Bytes) -> c_int;
    c"g_byte_array_new" bytes_new: fn() -> *mut Bytes;
    c"g_byte_array_free" bytes_free: fn(*mut Bytes, c_int) -> *mut u8;
    c"g_array_free" array_free: fn(*mut Array, c_int) -> *mut c_void;
    c"g_array_get_element_size" element_size: fn(*mut Array) -> c_uint;
}

/// A pointer and a place, as QEMU wants a 64-bit number of each processor named.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Entry {
    score: *mut c_void,
    offset: usize,
}

/// An array of GLib's of bytes.
#[repr(C)]
struct Bytes {
    data: *mut u8,
    len: c_uint,
}

/// An array of GLib's of something larger.
#[repr(C)]
struct Array {
    data: *const u8,
    len: c_uint,
}

/// How a register's description begins.
#[repr(C)]
struct Descriptor {
    handle: *mut c_void,
    name: *const c_char,
}

/// QEMU, as the plugin sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Qemu {
    functions: Functions,
    /// Three numbers of each processor: whether it has come to the last instruction of its block, what its blocks add up to ([`crate::count`]),
    /// and how many instructions it has run.
    marks: Entry,
    counts: Entry,
    executed: Entry,
}

// SAFETY: the pointers are QEMU's functions and its scoreboard, valid as long as the plugin, and any thread may call them.
unsafe impl Send for Qemu {}
// SAFETY: as above.
unsafe impl Sync for Qemu {}

impl Qemu {
    /// Looks everything up.
    ///
    /// # Errors
    /// The name of the first function that is not there.
    pub(crate) fn find() -> Result<Self, &'static str> {
        let functions = Functions::find()?;
        // SAFETY: the plugin is being installed.
        let score = unsafe { (functions.scoreboard_new)(24) };
        let marks = Entry { score, offset: 0 };
        let counts = Entry { score, offset: 8 };
        let executed = Entry { score, offset: 16 };
        Ok(Self {
            functions,
            marks,
            counts,
            executed,
        })
    }

    pub(crate) fn on_translation(&self, id: Id, callback: TranslateCallback) {
        // SAFETY: `id` is what QEMU gave us; the callback lives as long as the plugin.
        unsafe { (self.functions.on_translation)(id, callback, core::ptr::null_mut()) }
    }

    pub(crate) fn on_discontinuity(&self, id: Id, callback: DiscontinuityCallback) {
        // SAFETY: as above.
        unsafe {
            (self.functions.on_discontinuity)(
                id,
                DISCONTINUITY_INTERRUPT,
                callback,
                core::ptr::null_mut(),
            );
        }
    }

    pub(crate) fn on_init(&self, id: Id, callback: VcpuCallback) {
        // SAFETY: as above.
        unsafe { (self.functions.on_init)(id, callback, core::ptr::null_mut()) }
    }

    pub(crate) fn on_idle_and_resume(&self, id: Id, idle: VcpuCallback, resume: VcpuCallback) {
        // SAFETY: as above.
        unsafe {
            (self.functions.on_idle)(id, idle, core::ptr::null_mut());
            (self.functions.on_resume)(id, resume, core::ptr::null_mut());
        }
    }

    pub(crate) fn on_exit(&self, id: Id, callback: ExitCallback) {
        // SAFETY: as above.
        unsafe { (self.functions.on_exit)(id, callback, core::ptr::null_mut()) }
    }

    /// Has `callback` called with `data` whenever the block runs. Only during its translation.
    pub(crate) fn on_block(&self, tb: Tb, callback: Callback, data: usize) {
        let data = core::ptr::with_exposed_provenance_mut(data);
        // SAFETY: `tb` is the block under translation; the callback lives as long as the plugin, as what `data` is the address of.
        unsafe { (self.functions.on_block)(tb, callback, READS_AND_WRITES, data) }
    }

    /// As [`Self::on_block`], but only if the processor's count is [`CALL`] or more before the block.
    /// What the block adds to it comes after that.
    pub(crate) fn on_block_if_called(&self, tb: Tb, callback: Callback, data: usize) {
        let data = core::ptr::with_exposed_provenance_mut(data);
        // SAFETY: as above; the entry is QEMU's.
        unsafe {
            (self.functions.on_block_if)(
                tb,
                callback,
                READS_AND_WRITES,
                NOT_BELOW,
                self.counts,
                CALL,
                data,
            );
        }
    }

    /// Has this added to the count of the processor that runs the block. Only during its translation.
    pub(crate) fn add(&self, tb: Tb, more: u64) {
        // SAFETY: `tb` is the block under translation; the entry is QEMU's.
        unsafe { (self.functions.inline_block)(tb, INLINE_ADD, self.counts, more) }
    }

    /// Sets the count of a processor, whose thread this must be (or it does not run yet).
    pub(crate) fn set_count(&self, vcpu: c_uint, count: u64) {
        // SAFETY: the processor is there, and its thread alone uses these numbers, of which there are three.
        unsafe {
            self.place(vcpu).add(1).write(count);
        }
    }

    /// Has `callback` called with `data` before the block's `index`th instruction. Only during its translation.
    /// What it does may end with [`Self::go_to`].
    pub(crate) fn on_insn(&self, tb: Tb, index: usize, callback: Callback, data: usize) {
        let data = core::ptr::with_exposed_provenance_mut(data);
        // SAFETY: as above, and the index is below the number of instructions.
        unsafe {
            let insn = (self.functions.insn)(tb, index);
            (self.functions.on_insn)(insn, callback, GOES_ELSEWHERE, data);
        }
    }

    /// Leaves the callback that this is called in, and goes on at an address: an offset into the code segment.
    ///
    /// # Safety
    /// The caller is a callback of [`Self::on_insn`], and it and what it has called hold nothing that is to be dropped.
    pub(crate) unsafe fn go_to(&self, ip: u64) {
        // SAFETY: as the caller says: QEMU jumps over the frames.
        unsafe { (self.functions.set_pc)(ip) }
    }

    /// Has the processor's mark set whenever it comes to the block's `index`th instruction. Only during its translation.
    pub(crate) fn mark_at(&self, tb: Tb, index: usize) {
        // SAFETY: the index is below the number of instructions; the entry is QEMU's.
        unsafe {
            let insn = (self.functions.insn)(tb, index);
            (self.functions.inline)(insn, INLINE_STORE, self.marks, 1);
        }
    }

    /// Has so many instructions counted whenever the block runs. Only during its translation.
    pub(crate) fn count(&self, tb: Tb, instructions: u64) {
        // SAFETY: `tb` is the block under translation; the entry is QEMU's.
        unsafe { (self.functions.inline_block)(tb, INLINE_ADD, self.executed, instructions) }
    }

    /// What QEMU says of itself, before any processor is there.
    pub(crate) fn notes(info: &Info) {
        if let (true, Ok(most)) = (info.is_machine, u32::try_from(info.max_processors)) {
            MOST.store(most, Ordering::Relaxed);
        }
    }

    /// A processor is there, whose number is `vcpu`.
    pub(crate) fn knows(&self, vcpu: c_uint) {
        let known = KNOWN.fetch_max(vcpu + 1, Ordering::Relaxed).max(vcpu + 1);
        if known == MOST.load(Ordering::Relaxed) {
            for (vcpu, place) in (0..known).zip(&NUMBERS) {
                // SAFETY: there is room for the last of them, so for all.
                let at = unsafe { (self.functions.scoreboard_find)(self.marks.score, vcpu) };
                place.store(at, Ordering::Release);
            }
        }
    }

    /// Where a processor for which there is room has its numbers, of which there are three.
    #[inline]
    fn place(&self, vcpu: c_uint) -> *mut u64 {
        match Numbers::of(vcpu) {
            Some(Numbers(at)) => at,
            // SAFETY: there is room for it.
            None => unsafe { (self.functions.scoreboard_find)(self.marks.score, vcpu) },
        }
    }

    /// Whether there is no second one.
    #[allow(
        clippy::unused_self,
        reason = "there is one QEMU, whose processors these are"
    )]
    pub(crate) fn has_one_processor(&self) -> bool {
        KNOWN.load(Ordering::Relaxed) == 1
    }

    /// How many instructions all processors have run, as far as they were to be counted: those of a block count when it begins.
    pub(crate) fn executed(&self) -> u64 {
        let of = |vcpu| {
            // SAFETY: there is room for the processor, as for one behind it. It has three numbers, aligned; its thread alone adds to this one, whole.
            unsafe { AtomicU64::from_ptr(self.place(vcpu).add(2)).load(Ordering::Relaxed) }
        };
        (0..KNOWN.load(Ordering::Relaxed)).map(of).sum()
    }

    /// The numbers of a processor, whose thread this must be.
    #[inline]
    pub(crate) fn numbers(&self, vcpu: c_uint) -> Numbers {
        Numbers(self.place(vcpu))
    }

    /// Takes the mark of a processor, whose thread this must be: whether it was set since it was taken last; and its count.
    #[inline]
    pub(crate) fn take_mark(&self, vcpu: c_uint) -> (bool, u64) {
        let numbers = self.numbers(vcpu);
        let has_mark = numbers.has_mark();
        numbers.clear_mark();
        (has_mark, numbers.count())
    }

    /// The count of a processor, whose thread this must be.
    pub(crate) fn count_of(&self, vcpu: c_uint) -> u64 {
        // SAFETY: as above.
        unsafe { self.place(vcpu).add(1).read() }
    }

    /// The address at which a block is translated.
    pub(crate) fn address(&self, tb: Tb) -> u64 {
        // SAFETY: `tb` is the block under translation.
        unsafe { (self.functions.address)(tb) }
    }

    /// How many instructions the block under translation has.
    pub(crate) fn len(&self, tb: Tb) -> usize {
        // SAFETY: as above.
        unsafe { (self.functions.len)(tb) }
    }

    /// Appends the code of the block's `index`th instruction.
    pub(crate) fn append_code(&self, tb: Tb, index: usize, code: &mut Vec<u8>) {
        // SAFETY: the index is below the number of instructions. It stores at most `size` bytes, for which there is room.
        unsafe {
            let insn = (self.functions.insn)(tb, index);
            let size = (self.functions.insn_size)(insn);
            let begin = code.len();
            code.resize(begin + size, 0);
            (self.functions.insn_data)(insn, code[begin..].as_mut_ptr(), size);
        }
    }

    /// The running processor's registers of these names, as far as QEMU has them.
    pub(crate) fn registers<const N: usize>(&self, names: [&str; N]) -> [Option<u64>; N] {
        let mut values = [None; N];
        // SAFETY: called by a processor's thread, in a callback. QEMU's list holds `len` descriptors, of which each begins
        // as ours does; names are terminated; the arrays are ours, and are freed.
        unsafe {
            let list = (self.functions.registers)();
            let size = (self.functions.element_size)(list) as usize;
            for index in 0..(*list).len as usize {
                let register = (*list).data.add(index * size).cast::<Descriptor>().read();
                let name = CStr::from_ptr(register.name).to_bytes();
                let Some(place) = names.iter().position(|known| known.as_bytes() == name) else {
                    continue;
                };
                let array = (self.functions.bytes_new)();
                if (self.functions.read_register)(register.handle, array) {
                    let bytes = core::slice::from_raw_parts((*array).data, (*array).len as usize);
                    let mut value = [0; 8];
                    let len = bytes.len().min(8);
                    value[..len].copy_from_slice(&bytes[..len]);
                    values[place] = Some(u64::from_le_bytes(value));
                }
                (self.functions.bytes_free)(array, 1);
            }
            (self.functions.array_free)(list, 1);
        }
        values
    }

    /// Reads memory by linear addresses, as the running processor sees it; `false` if there is none.
    pub(crate) fn read_linear(&self, address: u64, into: &mut [u8]) -> bool {
        self.read(into, |array, len| {
            // SAFETY: called by a processor's thread, in a callback; the array is GLib's.
            unsafe { (self.functions.read_linear)(address, array, len) }
        })
    }

    /// Reads memory by physical addresses, of devices too; `false` if there is none.
    pub(crate) fn read_physical(&self, address: u64, into: &mut [u8]) -> bool {
        self.read(into, |array, len| {
            // SAFETY: as above.
            unsafe { (self.functions.read_physical)(address, array, len) == 0 }
        })
    }

    fn read(&self, into: &mut [u8], read: impl FnOnce(*mut Bytes, usize) -> bool) -> bool {
        // SAFETY: the array is ours, and is freed; it holds as many bytes as it says.
        unsafe {
            let array = (self.functions.bytes_new)();
            let is_read = read(array, into.len()) && (*array).len as usize >= into.len();
            if is_read {
                into.copy_from_slice(core::slice::from_raw_parts((*array).data, into.len()));
            }
            (self.functions.bytes_free)(array, 1);
            is_read
        }
    }

    /// Writes to memory by physical addresses, to devices too; `false` if there is none.
    pub(crate) fn write_physical(&self, address: u64, bytes: &[u8]) -> bool {
        let mut array = Bytes {
            data: bytes.as_ptr().cast_mut(),
            len: bytes.len() as c_uint,
        };
        // SAFETY: called by a processor's thread, in a callback. QEMU reads as many bytes as the array says, and does no more with it.
        unsafe { (self.functions.write_physical)(address, &raw mut array) == 0 }
    }
}
