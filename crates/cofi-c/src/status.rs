//! What functions return, and what they say of an error.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Display;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `cofi_status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum Status {
    /// `COFI_OK`.
    Ok = 0,
    /// `COFI_END`: there is nothing more.
    End = 1,
    /// `COFI_FAULT`: the processor would have faulted; nothing has changed.
    Fault = 2,
    /// `COFI_INVALID`: an argument is null, too small, or means nothing.
    Invalid = 3,
    /// `COFI_UNREADABLE`: a file cannot be read, or is none of these.
    Unreadable = 4,
    /// `COFI_STOPPED`: the caller's function asked for it; what was called is at its end.
    Stopped = 5,
    /// `COFI_FAILED`: an error of the library itself; what was called must be used no more.
    Failed = 6,
    /// `COFI_LOST`: the output of a trace unit does not hold all that was to be traced.
    Lost = 7,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Remembers what went wrong, for `cofi_last_error`.
pub(crate) fn because(status: Status, words: impl Display) -> Status {
    let words = words.to_string().replace('\0', "?");
    LAST.with(|last| *last.borrow_mut() = CString::new(words).unwrap_or_default());
    status
}

/// Something that a function was given cannot be.
pub(crate) fn invalid(words: impl Display) -> Status {
    because(Status::Invalid, words)
}

/// Runs a function's body; a panic ends here.
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), Status>) -> Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(status)) => status,
        Err(_) => because(Status::Failed, "an error of the library itself"),
    }
}

/// What a pointer leads to.
///
/// # Safety
/// It is null, or leads to a `T` that nobody changes meanwhile.
pub(crate) unsafe fn given<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Status> {
    // SAFETY: as the caller says.
    unsafe { pointer.as_ref() }.ok_or_else(|| invalid(format_args!("{name} is null")))
}

/// As [`given`], to be changed.
///
/// # Safety
/// It is null, or leads to a `T` that nobody else uses meanwhile.
pub(crate) unsafe fn given_mut<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T, Status> {
    // SAFETY: as the caller says.
    unsafe { pointer.as_mut() }.ok_or_else(|| invalid(format_args!("{name} is null")))
}

/// A structure of cofi.h that begins with its own size, as the caller knows it. It may grow at its end: who was compiled before that knows less of it.
///
/// # Safety
/// It is `repr(C)`, begins with a `u32`, and all zeros is a value of it.
pub(crate) unsafe trait Growing: Sized {
    /// Its size when it was first published.
    const FIRST: usize;
}

/// How much of it the caller has.
unsafe fn known<T: Growing>(pointer: *const T, name: &str) -> Result<usize, Status> {
    if pointer.is_null() {
        return Err(invalid(format_args!("{name} is null")));
    }
    // SAFETY: it begins with a 32-bit number, which is all that is looked at before its size is known.
    let size = unsafe { pointer.cast::<u32>().read() } as usize;
    if size < T::FIRST {
        return Err(invalid(format_args!(
            "{name}.size is {size}, and must be sizeof: {} at least",
            T::FIRST
        )));
    }
    Ok(size.min(size_of::<T>()))
}

/// What the caller gives; what it does not know of is 0.
///
/// # Safety
/// The pointer is null, or so many bytes are there as the structure says, which nobody changes meanwhile.
pub(crate) unsafe fn taken<T: Growing>(pointer: *const T, name: &str) -> Result<T, Status> {
    // SAFETY: as the caller says.
    let len = unsafe { known(pointer, name)? };
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: so much is there, and there is room for it; all zeros is a value, says the trait.
    unsafe {
        core::ptr::copy_nonoverlapping(pointer.cast::<u8>(), value.as_mut_ptr().cast(), len);
        Ok(value.assume_init())
    }
}

/// A place for what the caller is given: as much of it as it knows.
pub(crate) struct Place<T> {
    at: *mut T,
    len: usize,
}

impl<T: Growing> Place<T> {
    /// # Safety
    /// The pointer is null, or so many bytes are there as the structure says, which nobody else uses as long as the place is.
    pub(crate) unsafe fn of(at: *mut T, name: &str) -> Result<Self, Status> {
        // SAFETY: as the caller says.
        let len = unsafe { known(at, name)? };
        Ok(Self { at, len })
    }

    /// Stores it, but for the size, which is the caller's.
    pub(crate) fn store(&self, value: T) {
        let begin = size_of::<u32>();
        let from = (&raw const value).cast::<u8>();
        // SAFETY: there is room for so much, says `of`, and the value is at least as long.
        unsafe {
            core::ptr::copy_nonoverlapping(
                from.add(begin),
                self.at.cast::<u8>().add(begin),
                self.len - begin,
            );
        }
    }
}

/// Values that lie one behind the other; null is none.
///
/// # Safety
/// There are so many at the pointer, aligned, which nobody changes meanwhile.
pub(crate) unsafe fn array<'a, T>(
    pointer: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], Status> {
    match (pointer.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(invalid(format_args!("{count} {name} are at null"))),
        (false, _) if count > isize::MAX as usize / size_of::<T>() => {
            Err(invalid(format_args!("there cannot be {count} {name}")))
        }
        // SAFETY: as the caller says.
        (false, _) => Ok(unsafe { core::slice::from_raw_parts(pointer, count) }),
    }
}

/// Bytes; null is none.
///
/// # Safety
/// As [`array`].
pub(crate) unsafe fn bytes<'a>(pointer: *const u8, len: usize) -> Result<&'a [u8], Status> {
    // SAFETY: as the caller says.
    unsafe { array(pointer, len, "bytes") }
}

/// A text.
///
/// # Safety
/// The pointer is null, or leads to a terminated string that nobody changes meanwhile.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Status> {
    if pointer.is_null() {
        return Err(invalid(format_args!("{name} is null")));
    }
    // SAFETY: as the caller says.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str()
        .map_err(|error| invalid(format_args!("{name} is no UTF-8: {error}")))
}

/// Gives an object to C.
pub(crate) fn hand_out<T>(object: T, to: &mut *mut T) {
    *to = Box::into_raw(Box::new(object));
}

/// Takes an object back, and drops it.
///
/// # Safety
/// It is null or was handed out, and is not used any more.
pub(crate) unsafe fn take_back<T>(object: *mut T) {
    if !object.is_null() {
        // SAFETY: as the caller says.
        let object = unsafe { Box::from_raw(object) };
        let _ = guarded(|| {
            drop(object);
            Ok(())
        });
    }
}

/// `cofi_version`.
#[unsafe(no_mangle)]
pub extern "C" fn cofi_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// `cofi_last_error`.
#[unsafe(no_mangle)]
pub extern "C" fn cofi_last_error() -> *const c_char {
    // (It stays where it is until this thread's next error.)
    LAST.with(|last| last.borrow().as_ptr())
}
