//! `pt_blk_*`.

use std::ffi::c_int;

use super::Walker;
use crate::block::CBlock;
use crate::boundary::{given, given_mut, hand_out, pointed, put_sized, returned, take_back};
use crate::config::Config;
use crate::error::Error;
use crate::event::Event;
use crate::image::{Asid, Image};
use crate::query::Query;

/// `struct pt_block_decoder`.
pub struct BlockDecoder(Walker);

/// A decoder of blocks for a buffer; null if the configuration cannot be.
///
/// # Safety
/// As `Config::taken`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_alloc_decoder(config: *const Config) -> *mut BlockDecoder {
    pointed(|| {
        // SAFETY: as the caller says.
        let config = unsafe { Config::taken(config)? };
        Some(hand_out(BlockDecoder(Walker::new(config, true))))
    })
}

/// Frees a decoder, and its own image.
///
/// # Safety
/// It is null, or one that was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_free_decoder(decoder: *mut BlockDecoder) {
    // SAFETY: as the caller says.
    unsafe { take_back(decoder) }
}

/// Goes to the next PSB.
///
/// # Safety
/// `decoder` is null or a decoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_sync_forward(decoder: *mut BlockDecoder) -> c_int {
    // SAFETY: as the caller says.
    returned(|| unsafe { given_mut(decoder)?.0.begin(Query::begin_forward) })
}

/// Goes to the PSB before.
///
/// # Safety
/// `decoder` is null or a decoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_sync_backward(decoder: *mut BlockDecoder) -> c_int {
    // SAFETY: as the caller says.
    returned(|| unsafe { given_mut(decoder)?.0.begin(Query::begin_backward) })
}

/// Goes to the PSB at an offset.
///
/// # Safety
/// `decoder` is null or a decoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_sync_set(decoder: *mut BlockDecoder, offset: u64) -> c_int {
    // SAFETY: as the caller says.
    returned(|| unsafe { given_mut(decoder)?.0.begin(|query| query.begin_at(offset)) })
}

/// Where the decoder is.
///
/// # Safety
/// `decoder` is null or a decoder; at `offset`, if it is not null, there is room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_get_offset(
    decoder: *const BlockDecoder,
    offset: *mut u64,
) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let (decoder, offset) = unsafe { (given(decoder)?, given_mut(offset)?) };
        *offset = decoder.0.query().place().offset()?;
        Ok(0)
    })
}

/// Where the decoder was synchronised.
///
/// # Safety
/// As [`pt_blk_get_offset`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_get_sync_offset(
    decoder: *const BlockDecoder,
    offset: *mut u64,
) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let (decoder, offset) = unsafe { (given(decoder)?, given_mut(offset)?) };
        *offset = decoder.0.query().place().sync_offset()?;
        Ok(0)
    })
}

/// The image in which the decoder looks for code.
///
/// # Safety
/// `decoder` is null or a decoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_get_image(decoder: *mut BlockDecoder) -> *mut Image {
    // SAFETY: as the caller says.
    pointed(|| unsafe { Some(decoder.as_mut()?.0.image_pointer()) })
}

/// Sets the image in which the decoder looks for code; null is its own.
///
/// # Safety
/// `decoder` is null or a decoder; `image` is null or an image that stays as long as it is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_set_image(decoder: *mut BlockDecoder, image: *mut Image) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        unsafe { given_mut(decoder)? }.0.set_image(image);
        Ok(0)
    })
}

/// The decoder's configuration.
///
/// # Safety
/// `decoder` is null or a decoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_get_config(decoder: *const BlockDecoder) -> *const Config {
    // SAFETY: as the caller says.
    unsafe { decoder.as_ref() }.map_or(std::ptr::null(), |decoder| {
        &raw const *decoder.0.query().config()
    })
}

/// The time.
///
/// # Safety
/// `decoder` is null or a decoder; the other pointers are null, or there is room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_time(
    decoder: *mut BlockDecoder,
    time: *mut u64,
    lost_mtc: *mut u32,
    lost_cyc: *mut u32,
) -> c_int {
    // SAFETY: as the caller says.
    returned(|| unsafe {
        given(decoder)?
            .0
            .query()
            .time()
            .tell(time, lost_mtc, lost_cyc)
    })
}

/// The core:bus ratio.
///
/// # Safety
/// `decoder` is null or a decoder; `ratio` is null, or there is room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_core_bus_ratio(
    decoder: *mut BlockDecoder,
    ratio: *mut u32,
) -> c_int {
    // SAFETY: as the caller says.
    returned(|| unsafe { given(decoder)?.0.query().time().tell_ratio(ratio) })
}

/// The address space.
///
/// # Safety
/// `decoder` is null or a decoder; at `asid`, if it is not null, there is room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_asid(
    decoder: *const BlockDecoder,
    asid: *mut Asid,
    size: usize,
) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let decoder = unsafe { given(decoder)? };
        if asid.is_null() || size < size_of::<usize>() {
            return Err(Error::Invalid);
        }
        let known = size.min(size_of::<Asid>());
        let told = Asid {
            size: known,
            ..*decoder.0.asid()
        };
        // SAFETY: there is room, as the caller says.
        unsafe { put_sized(asid, size, &told) };
        Ok(0)
    })
}

/// The next event.
///
/// # Safety
/// `decoder` is null or a decoder; at `event`, if it is not null, there is room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_event(
    decoder: *mut BlockDecoder,
    event: *mut Event,
    size: usize,
) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let decoder = unsafe { given_mut(decoder)? };
        if event.is_null() || size < Event::LEAST {
            return Err(Error::Invalid);
        }
        let (found, behind) = decoder.0.event()?;
        // SAFETY: there is room, as the caller says.
        unsafe { put_sized(event, size, &found) };
        behind
    })
}

/// The next block.
///
/// # Safety
/// `decoder` is null or a decoder; at `block`, if it is not null, there is room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_next(
    decoder: *mut BlockDecoder,
    block: *mut CBlock,
    size: usize,
) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let decoder = unsafe { given_mut(decoder)? };
        if block.is_null() {
            return Err(Error::Invalid);
        }
        if size == size_of::<CBlock>() {
            // SAFETY: there is room, as the caller says.
            return decoder.0.next_block(unsafe { &mut *block });
        }
        let mut found = CBlock::default();
        let status = decoder.0.next_block(&mut found);
        // SAFETY: there is room, as the caller says.
        unsafe { put_sized(block, size, &found) };
        status
    })
}
