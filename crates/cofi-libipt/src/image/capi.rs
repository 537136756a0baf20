//! `pt_image_*`.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Arc;

use super::cache::{Numbered, SectionCache};
use super::section::Section;
use super::{Asid, Image, ReadCallback};
use crate::boundary::{Context, given, given_mut, hand_out, pointed, returned, take_back};
use crate::error::Error;

/// A copy of a string.
///
/// # Safety
/// The pointer is null or a string.
pub(super) unsafe fn copied(text: *const c_char) -> Option<CString> {
    // SAFETY: as the caller says.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_owned())
}

/// A new image.
///
/// # Safety
/// `name` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_alloc(name: *const c_char) -> *mut Image {
    // SAFETY: as the caller says.
    pointed(|| Some(hand_out(Image::new(unsafe { copied(name) }))))
}

/// Frees an image.
///
/// # Safety
/// It is null, or one from [`pt_image_alloc`] that was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_free(image: *mut Image) {
    // SAFETY: as the caller says.
    unsafe { take_back(image) }
}

/// The image's name, or null.
///
/// # Safety
/// `image` is null or an image.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_name(image: *const Image) -> *const c_char {
    // SAFETY: as the caller says.
    let name = unsafe { image.as_ref() }.and_then(|image| image.name.as_ref());
    name.map_or(std::ptr::null(), |name| name.as_ptr())
}

/// Adds a section of a file.
///
/// # Safety
/// `image` is null or an image; `file` is null or a string; `asid` is as for `Asid::taken`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_add_file(
    image: *mut Image,
    file: *const c_char,
    offset: u64,
    size: u64,
    asid: *const Asid,
    base: u64,
) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let (image, file, asid) = unsafe { (given_mut(image)?, copied(file), Asid::taken(asid)) };
        let file = file.ok_or(Error::Invalid)?;
        let section = Section::new(file.as_bytes(), offset, size)?;
        image.add(Arc::new(section), 0, asid, base);
        Ok(0)
    })
}

/// Adds a section of a cache.
///
/// # Safety
/// `image` is null or an image; `cache` is null or a cache; `asid` is as for `Asid::taken`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_add_cached(
    image: *mut Image,
    cache: *mut SectionCache,
    isid: c_int,
    asid: *const Asid,
) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let (image, cache, asid) = unsafe {
            (
                given_mut(image)?,
                given(cache.cast_const())?,
                Asid::taken(asid),
            )
        };
        let Numbered { section, base } = cache.get(isid)?;
        image.add(section, isid, asid, base);
        Ok(0)
    })
}

/// Adds all sections of another image; none is ever left out.
///
/// # Safety
/// Both pointers are null or images.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_copy(image: *mut Image, from: *const Image) -> c_int {
    returned(|| {
        if image.is_null() {
            return Err(Error::Invalid);
        }
        // SAFETY: as the caller says. (The list is copied, so that an image may be copied onto itself.)
        let sections = unsafe { given(from)? }.sections.clone();
        // SAFETY: as the caller says; nothing refers to the other image any more.
        let image = unsafe { given_mut(image)? };
        for section in sections {
            image.put_part(section);
        }
        Ok(0)
    })
}

/// Removes the sections of a file; how many.
///
/// # Safety
/// `image` is null or an image; `file` is null or a string; `asid` is as for `Asid::taken`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_remove_by_filename(
    image: *mut Image,
    file: *const c_char,
    asid: *const Asid,
) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let (image, file, asid) = unsafe { (given_mut(image)?, copied(file), Asid::taken(asid)) };
        let file = file.ok_or(Error::Invalid)?;
        Ok(image.remove(|old| old.asid.matches(&asid) && old.section.file == file.as_bytes()))
    })
}

/// Removes the sections of an address space; how many.
///
/// # Safety
/// `image` is null or an image; `asid` is as for `Asid::taken`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_remove_by_asid(image: *mut Image, asid: *const Asid) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let (image, asid) = unsafe { (given_mut(image)?, Asid::taken(asid)) };
        Ok(image.remove(|old| old.asid.matches(&asid)))
    })
}

/// Sets the function that reads what stands in no section.
///
/// # Safety
/// `image` is null or an image; the function is as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_set_callback(
    image: *mut Image,
    callback: Option<ReadCallback>,
    context: Context,
) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let image = unsafe { given_mut(image)? };
        image.callback = callback.map(|callback| (callback, context));
        image.code.forget();
        Ok(0)
    })
}
