//! What the plugin has instead of Rust's standard library: memory by the C library's `malloc`, and the end of a panic.
//!
//! Most of what std would add says where a panic came from. With it the plugin of this crate had four times the bytes, packed, and that of machines nearly
//! twice as many. A library for programs of Rust has none of this: memory and panics are theirs.
#![allow(
    unsafe_code,
    reason = "memory of the C library's, and the end of the process; each use has its justification"
)]

use crate::tell::StandardError;
use core::alloc::{GlobalAlloc, Layout};
use core::ffi::{c_int, c_void};
use core::fmt::Write;
use core::panic::PanicInfo;
use core::ptr;

unsafe extern "C" {
    fn malloc(len: usize) -> *mut c_void;
    fn calloc(count: usize, len: usize) -> *mut c_void;
    fn realloc(at: *mut c_void, len: usize) -> *mut c_void;
    fn posix_memalign(at: *mut *mut c_void, align: usize, len: usize) -> c_int;
    fn free(at: *mut c_void);
    fn abort() -> !;
}

/// `malloc` aligns to this, whatever is asked for.
const ALIGN: usize = 16;

/// The C library's memory.
struct Memory;

#[global_allocator]
static MEMORY: Memory = Memory;

/// Whether `malloc` aligns as this wants it. (It need not align for what would not fill it.)
fn is_plain(layout: Layout) -> bool {
    layout.align() <= ALIGN && layout.align() <= layout.size()
}

// SAFETY: the C library's functions fulfil what is asked of memory: it is nobody else's, as long and as aligned as is said, and stays until it is
// given back. Whether there is none they say by null, too. None of them unwinds.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_plain(layout) {
            // SAFETY: takes any length.
            return unsafe { malloc(layout.size()) }.cast();
        }
        let mut at = ptr::null_mut();
        // SAFETY: the alignment is a power of two, and one of a pointer's size at least, as is wanted; the address is stored into `at`.
        let failed = unsafe {
            posix_memalign(
                &raw mut at,
                layout.align().max(size_of::<usize>()),
                layout.size(),
            )
        };
        if failed == 0 {
            at.cast()
        } else {
            ptr::null_mut()
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_plain(layout) {
            // SAFETY: takes any length.
            return unsafe { calloc(layout.size(), 1) }.cast();
        }
        // SAFETY: as the caller says.
        let at = unsafe { self.alloc(layout) };
        if !at.is_null() {
            // SAFETY: so much memory is there, and nobody else has it.
            unsafe { ptr::write_bytes(at, 0, layout.size()) };
        }
        at
    }

    unsafe fn dealloc(&self, at: *mut u8, _: Layout) {
        // SAFETY: it comes from one of the functions above, says the caller, all of whose memory `free` takes.
        unsafe { free(at.cast()) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // SAFETY: the caller says that the length is one of a layout with this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(len, layout.align()) };
        if is_plain(layout) && is_plain(new) {
            // SAFETY: it comes from `malloc`, `calloc` or `realloc`.
            return unsafe { realloc(at.cast(), len) }.cast();
        }
        // SAFETY: as the caller says.
        let to = unsafe { self.alloc(new) };
        if !to.is_null() {
            // SAFETY: both are as long as that, and the new memory is nobody else's; the old one comes from here.
            unsafe {
                ptr::copy_nonoverlapping(at, to, layout.size().min(len));
                self.dealloc(at, layout);
            }
        }
        to
    }
}

// What Rust's `core` and `alloc` are compiled with asks for these two, which are std's and libgcc's where there is something that unwinds. Here nothing
// is: a panic ends the process. Who unwinds a thread without Rust's knowledge is told to go on (`_URC_CONTINUE_UNWIND`), and nobody comes to the other.
core::arch::global_asm!(
    ".pushsection .text.rust_eh_personality, \"ax\", @progbits",
    ".hidden rust_eh_personality",
    ".globl rust_eh_personality",
    ".type rust_eh_personality, @function",
    "rust_eh_personality:",
    "mov eax, 8",
    "ret",
    ".size rust_eh_personality, . - rust_eh_personality",
    ".hidden _Unwind_Resume",
    ".globl _Unwind_Resume",
    ".type _Unwind_Resume, @function",
    "_Unwind_Resume:",
    "ud2",
    ".size _Unwind_Resume, . - _Unwind_Resume",
    ".popsection",
);

/// Says why, and ends the process. So does memory that is not there: `alloc` makes a panic of it.
#[panic_handler]
fn end(panic: &PanicInfo<'_>) -> ! {
    // There is nobody to be told that this failed.
    let _ = writeln!(StandardError, "cofi: the plugin for QEMU: {panic}");
    // SAFETY: it may be called at any time.
    unsafe { abort() }
}
