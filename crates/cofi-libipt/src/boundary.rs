//! Where C calls: pointers become references, panics end, structures are copied as far as the caller knows them.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::Error;

/// Runs a function's body and gives what it returns in C; a panic ends here.
#[inline(always)]
pub(crate) fn returned(body: impl FnOnce() -> Result<c_int, Error>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(number)) => number,
        Ok(Err(error)) => error.code(),
        Err(_) => Error::Internal.code(),
    }
}

/// Runs the body of a function that gives a pointer: null where there is nothing to give.
pub(crate) fn pointed<T>(body: impl FnOnce() -> Option<*mut T>) -> *mut T {
    catch_unwind(AssertUnwindSafe(body))
        .ok()
        .flatten()
        .unwrap_or(std::ptr::null_mut())
}

/// What a pointer leads to.
///
/// # Safety
/// It is null, or leads to a `T` that nobody changes meanwhile.
#[inline(always)]
pub(crate) unsafe fn given<'a, T>(pointer: *const T) -> Result<&'a T, Error> {
    // SAFETY: as the caller says.
    unsafe { pointer.as_ref() }.ok_or(Error::Invalid)
}

/// As [`given`], to be changed.
///
/// # Safety
/// It is null, or leads to a `T` that nobody else uses meanwhile.
#[inline(always)]
pub(crate) unsafe fn given_mut<'a, T>(pointer: *mut T) -> Result<&'a mut T, Error> {
    // SAFETY: as the caller says.
    unsafe { pointer.as_mut() }.ok_or(Error::Invalid)
}

/// Writes a value where the caller wants it, if it wants it.
///
/// # Safety
/// The pointer is null, or there is room for a `T`.
pub(crate) unsafe fn put<T>(pointer: *mut T, value: T) {
    if !pointer.is_null() {
        // SAFETY: there is room, as the caller says.
        unsafe { pointer.write(value) }
    }
}

/// Writes a structure, as much of it as the caller has room for.
///
/// # Safety
/// The pointer is not null, and there is room for `size` bytes, aligned as a `T` if that is its size.
#[inline(always)]
pub(crate) unsafe fn put_sized<T: Copy>(pointer: *mut T, size: usize, value: &T) {
    if size == size_of::<T>() {
        // SAFETY: there is room for all of it.
        unsafe { pointer.write(*value) }
    } else {
        // SAFETY: as the caller says.
        unsafe { put_part(pointer, size, value) }
    }
}

/// As [`put_sized`], for who has another structure.
///
/// # Safety
/// There is room for `size` bytes.
#[cold]
#[inline(never)]
unsafe fn put_part<T: Copy>(pointer: *mut T, size: usize, value: &T) {
    let len = size.min(size_of::<T>());
    // SAFETY: so many bytes are there and have room.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const *value).cast::<u8>(), pointer.cast(), len);
    }
}

/// Gives a value to the caller, who gives it back with [`take_back`].
pub(crate) fn hand_out<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// Drops what was handed out.
///
/// # Safety
/// The pointer is null, or came from [`hand_out`] and was not given back yet.
pub(crate) unsafe fn take_back<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: as the caller says.
        let value = unsafe { Box::from_raw(pointer) };
        let _ = catch_unwind(AssertUnwindSafe(move || drop(value)));
    }
}

/// A pointer of the caller's, given back to its function as it came.
pub(crate) type Context = *mut c_void;
