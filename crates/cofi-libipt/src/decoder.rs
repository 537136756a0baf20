//! What all decoders tell in the same way: where they are, and of what configuration.

use std::ffi::c_int;

use crate::boundary::{given, given_mut, returned};
use crate::config::Config;
use crate::error::Error;
use crate::sync::Place;

/// A decoder of any level.
pub(crate) trait Decoder {
    /// Where it is.
    fn place(&self) -> &Place;
    /// Its configuration.
    fn config(&self) -> &Config;
}

/// Tells where the decoder is.
///
/// # Safety
/// `decoder` is null or a decoder; at `offset`, if it is not null, there is room.
pub(crate) unsafe fn tell_offset<D: Decoder>(decoder: *const D, offset: *mut u64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { tell(decoder, offset, Place::offset) }
}

/// Tells where the decoder was synchronised.
///
/// # Safety
/// As [`tell_offset`].
pub(crate) unsafe fn tell_sync_offset<D: Decoder>(decoder: *const D, offset: *mut u64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { tell(decoder, offset, Place::sync_offset) }
}

/// As [`tell_offset`], of a place.
///
/// # Safety
/// As [`tell_offset`].
unsafe fn tell<D: Decoder>(
    decoder: *const D,
    offset: *mut u64,
    of: fn(&Place) -> Result<u64, Error>,
) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let (decoder, offset) = unsafe { (given(decoder)?, given_mut(offset)?) };
        *offset = of(decoder.place())?;
        Ok(0)
    })
}

/// The decoder's configuration; null without a decoder.
///
/// # Safety
/// `decoder` is null or a decoder.
pub(crate) unsafe fn config_of<D: Decoder>(decoder: *const D) -> *const Config {
    // SAFETY: as the caller says.
    unsafe { decoder.as_ref() }.map_or(std::ptr::null(), |decoder| &raw const *decoder.config())
}
