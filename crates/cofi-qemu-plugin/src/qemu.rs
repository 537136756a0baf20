//! QEMU's plugin functions, as its documentation describes them, found by name when the plugin is installed.
#![allow(
    unsafe_code,
    reason = "QEMU's interface is one of C; each use has its justification"
)]

use crate::sys;
use core::ffi::{CStr, c_uint, c_void};
use core::ptr::NonNull;

/// The plugin API version that this build is for: what QEMU looks at before it calls us.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is QEMU's")]
pub(crate) static qemu_plugin_version: core::ffi::c_int = VERSION;

/// The version of this build.
#[cfg(cofi_plugin_api_4)]
pub(crate) const VERSION: core::ffi::c_int = 4;
/// The version of this build.
#[cfg(not(cofi_plugin_api_4))]
pub(crate) const VERSION: core::ffi::c_int = 1;

/// The plugin's number, given by QEMU.
pub(crate) type Id = u64;
/// A block under translation.
pub(crate) type Tb = *mut c_void;
/// An instruction of one.
type Insn = *mut c_void;
/// Called before a block runs.
pub(crate) type ExecCallback = unsafe extern "C" fn(c_uint, *mut c_void);
pub(crate) type TranslateCallback = extern "C" fn(Id, Tb);
pub(crate) type VcpuCallback = extern "C" fn(Id, c_uint);
#[rustfmt::skip]
pub(crate) type SyscallCallback = extern "C" fn(Id, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);

pub(crate) type SyscallReturnCallback = extern "C" fn(Id, c_uint, i64, i64);

/// The callback neither reads nor writes registers.
const NO_REGS: c_uint = 0;

macro_rules! functions {
    ($( $(#[$doc:meta])* $name:ident: fn($($arg:ty),*) $(-> $ret:ty)?; )*) => {
        /// QEMU's functions.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Functions {
            $( $(#[$doc])* $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?, )*
        }

        impl Functions {
            /// Looks all of them up.
            ///
            /// # Errors
            /// The name of the first that QEMU does not have.
            pub(crate) fn find() -> Result<Self, &'static str> {
                $( let $name = lookup(concat!("qemu_plugin_", stringify!($name), "\0"))?; )*
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
    register_vcpu_tb_trans_cb: fn(Id, TranslateCallback);
    register_vcpu_tb_exec_cb: fn(Tb, ExecCallback, c_uint, *mut c_void);
    register_vcpu_exit_cb: fn(Id, VcpuCallback);
    register_vcpu_syscall_cb: fn(Id, SyscallCallback);
    register_vcpu_syscall_ret_cb: fn(Id, SyscallReturnCallback);
    tb_n_insns: fn(Tb) -> usize;
    tb_vaddr: fn(Tb) -> u64;
    tb_get_insn: fn(Tb, usize) -> Insn;
    /// In version 1 a function of the instruction alone that returns the bytes' address.
    insn_data: fn(Insn, *mut u8, usize) -> usize;
    insn_size: fn(Insn) -> usize;
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
        unsafe { (self.register_vcpu_tb_trans_cb)(id, callback) }
    }
    pub(crate) fn on_vcpu_exit(&self, id: Id, callback: VcpuCallback) {
        // SAFETY: as above.
        unsafe { (self.register_vcpu_exit_cb)(id, callback) }
    }
    pub(crate) fn on_system_call(&self, id: Id, callback: SyscallCallback) {
        // SAFETY: as above.
        unsafe { (self.register_vcpu_syscall_cb)(id, callback) }
    }
    pub(crate) fn on_system_call_return(&self, id: Id, callback: SyscallReturnCallback) {
        // SAFETY: as above.
        unsafe { (self.register_vcpu_syscall_ret_cb)(id, callback) }
    }
    /// Has `callback` called with `data` whenever the block runs. Only during its translation.
    pub(crate) fn on_execution(&self, tb: Tb, callback: ExecCallback, data: usize) {
        let data = core::ptr::without_provenance_mut(data);
        // SAFETY: `tb` is the block under translation; the callback lives as long as the plugin, and `data` is a number.
        unsafe { (self.register_vcpu_tb_exec_cb)(tb, callback, NO_REGS, data) }
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
