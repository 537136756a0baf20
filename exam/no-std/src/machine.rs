//! What a program has from its system otherwise: a beginning and an end, memory, and the functions that compilers call.
#![allow(
    unsafe_code,
    reason = "nothing is below this; each use has its justification"
)]

use core::alloc::{GlobalAlloc, Layout};
use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::panic::PanicInfo;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

/// So much can be allocated; nothing is ever given back.
const HEAP: usize = 64 << 20;

#[repr(align(64))]
struct Heap(UnsafeCell<[u8; HEAP]>, AtomicUsize);

// SAFETY: bytes are handed out once, by the atomic number.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP_OF_ALL: Heap = Heap(UnsafeCell::new([0; HEAP]), AtomicUsize::new(0));

// SAFETY: what is handed out is within the heap, aligned (up to its own alignment), and not handed out again.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > 64 {
            return null_mut();
        }
        let take = |used: usize| {
            let end = used
                .next_multiple_of(layout.align())
                .checked_add(layout.size())?;
            (end <= HEAP).then_some(end)
        };
        match self
            .1
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
        {
            // SAFETY: the start is below the end, which is within the heap.
            Ok(used) => unsafe {
                self.0
                    .get()
                    .cast::<u8>()
                    .add(used.next_multiple_of(layout.align()))
            },
            Err(_) => null_mut(),
        }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

// Where Linux begins: the stack is aligned there, and is not behind a call.
global_asm!(".globl _start", "_start:", "call {start}", "ud2", start = sym start);

extern "C" fn start() -> ! {
    exit(super::run())
}

/// Ends the program.
fn exit(status: u8) -> ! {
    // SAFETY: exit_group(2) takes one number and does not return.
    unsafe {
        asm!("syscall", in("rax") 231, in("rdi") u64::from(status), options(noreturn, nostack));
    }
}

#[panic_handler]
fn panicked(_: &PanicInfo<'_>) -> ! {
    exit(101)
}

/// `alloc` is compiled to be unwound, and names it; nothing calls it.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// The functions that `core` calls by C's names. By instructions: as loops the compiler would make calls of themselves of them.
mod c {
    use core::arch::asm;

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
        // SAFETY: the caller says that both have so many bytes.
        unsafe {
            asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack, preserves_flags));
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
        if to.addr().wrapping_sub(from.addr()) >= len {
            // SAFETY: as the caller says; from front to back, nothing is written before it was read.
            return unsafe { memcpy(to, from, len) };
        }
        // SAFETY: as the caller says; there is a last byte, as `len` is not 0 here. The direction is as it was afterwards.
        unsafe {
            asm!("std", "rep movsb", "cld", inout("rcx") len => _, inout("rdi") to.add(len - 1) => _, inout("rsi") from.add(len - 1) => _, options(nostack));
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
        // SAFETY: the caller says that there are so many bytes.
        unsafe {
            asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") byte as u8, options(nostack, preserves_flags));
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(one: *const u8, two: *const u8, len: usize) -> i32 {
        let (mut at, mut difference) = (0, 0);
        while at < len && difference == 0 {
            // SAFETY: the caller says that both have so many bytes.
            difference = unsafe { i32::from(*one.add(at)) - i32::from(*two.add(at)) };
            at += 1;
        }
        difference
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn bcmp(one: *const u8, two: *const u8, len: usize) -> i32 {
        // SAFETY: as the caller says.
        unsafe { memcmp(one, two, len) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn strlen(text: *const u8) -> usize {
        let mut len = 0;
        // SAFETY: the caller says that a zero comes.
        while unsafe { *text.add(len) } != 0 {
            len += 1;
        }
        len
    }
}
