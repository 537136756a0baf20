//! `struct pt_image_section_cache`: sections with numbers, for several images.

use std::ffi::{CString, c_char, c_int};
use std::sync::{Arc, Mutex, MutexGuard};

use super::section::Section;
use crate::boundary::{given, hand_out, pointed, returned, take_back};
use crate::error::Error;

/// A section and where it is loaded.
#[derive(Clone, Debug)]
pub(super) struct Numbered {
    pub(super) section: Arc<Section>,
    pub(super) base: u64,
}

/// `struct pt_image_section_cache`. Several threads may use it.
pub struct SectionCache {
    name: Option<CString>,
    /// The section of number 1 is the first.
    sections: Mutex<Vec<Numbered>>,
}

impl SectionCache {
    fn sections(&self) -> Result<MutexGuard<'_, Vec<Numbered>>, Error> {
        self.sections.lock().map_err(|_| Error::BadLock)
    }

    fn add(&self, file: &[u8], offset: u64, size: u64, base: u64) -> Result<c_int, Error> {
        let section = Section::new(file, offset, size)?;
        let mut sections = self.sections()?;
        let same = sections.iter().position(|old| {
            let Section {
                file, offset, size, ..
            } = &*old.section;
            (file, *offset, *size, old.base) == (&section.file, section.offset, section.size, base)
        });
        let index = match same {
            Some(index) => index,
            None => {
                let section = Arc::new(section);
                sections.push(Numbered { section, base });
                sections.len() - 1
            }
        };
        c_int::try_from(index + 1).map_err(|_| Error::NoMemory)
    }

    /// The section of a number.
    pub(super) fn get(&self, isid: c_int) -> Result<Numbered, Error> {
        let index = usize::try_from(isid)
            .ok()
            .and_then(|isid| isid.checked_sub(1));
        let sections = self.sections()?;
        index
            .and_then(|index| sections.get(index))
            .cloned()
            .ok_or(Error::BadImage)
    }
}

/// A new cache.
///
/// # Safety
/// `name` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_iscache_alloc(name: *const c_char) -> *mut SectionCache {
    pointed(|| {
        Some(hand_out(SectionCache {
            // SAFETY: as the caller says.
            name: unsafe { super::capi::copied(name) },
            sections: Mutex::default(),
        }))
    })
}

/// Frees a cache. What images have of it stays theirs.
///
/// # Safety
/// It is null, or one that was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_iscache_free(cache: *mut SectionCache) {
    // SAFETY: as the caller says.
    unsafe { take_back(cache) }
}

/// Says how much may be kept mapped. This library reads what is used, and keeps it as long as the cache or an image has the section; so the limit
/// changes nothing.
///
/// # Safety
/// `cache` is null or a cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_iscache_set_limit(cache: *mut SectionCache, _limit: u64) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        unsafe { given(cache)? };
        Ok(0)
    })
}

/// The cache's name, or null.
///
/// # Safety
/// `cache` is null or a cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_iscache_name(cache: *const SectionCache) -> *const c_char {
    // SAFETY: as the caller says.
    let name = unsafe { cache.as_ref() }.and_then(|cache| cache.name.as_ref());
    name.map_or(std::ptr::null(), |name| name.as_ptr())
}

/// Adds a section; its number.
///
/// # Safety
/// `cache` is null or a cache; `file` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_iscache_add_file(
    cache: *mut SectionCache,
    file: *const c_char,
    offset: u64,
    size: u64,
    base: u64,
) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let (cache, file) = unsafe { (given(cache.cast_const())?, super::capi::copied(file)) };
        let file = file.ok_or(Error::Invalid)?;
        cache.add(file.as_bytes(), offset, size, base)
    })
}

/// Reads memory of a section.
///
/// # Safety
/// `cache` is null or a cache; at `buffer`, if it is not null, there is room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_iscache_read(
    cache: *mut SectionCache,
    buffer: *mut u8,
    size: u64,
    isid: c_int,
    ip: u64,
) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let cache = unsafe { given(cache.cast_const())? };
        if buffer.is_null() || size == 0 {
            return Err(Error::Invalid);
        }
        let Numbered { section, base } = cache.get(isid)?;
        let from = ip.checked_sub(base).filter(|from| *from < section.size);
        let from = usize::try_from(from.ok_or(Error::NoMap)?).map_err(|_| Error::NoMap)?;
        let bytes = section.bytes().get(from..).unwrap_or_default();
        let most = usize::try_from(size)
            .unwrap_or(usize::MAX)
            .min(c_int::MAX as usize);
        let len = bytes.len().min(most);
        // SAFETY: there is room for so many, as the caller says.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, len) };
        Ok(len as c_int)
    })
}
