//! `pt_qry_*`.

use std::ffi::c_int;

use super::{Answer, Query};
use crate::boundary::{given, given_mut, hand_out, pointed, put, put_sized, returned, take_back};
use crate::config::Config;
use crate::decoder::{config_of, tell_offset, tell_sync_offset};
use crate::error::Error;
use crate::event::{Event, status};

/// A query decoder for a buffer; null if the configuration cannot be.
///
/// # Safety
/// As `Config::taken`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_alloc_decoder(config: *const Config) -> *mut Query {
    // SAFETY: as the caller says.
    pointed(|| Some(hand_out(Query::new(unsafe { Config::taken(config)? }))))
}

/// Frees a decoder.
///
/// # Safety
/// It is null, or one that was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_free_decoder(decoder: *mut Query) {
    // SAFETY: as the caller says.
    unsafe { take_back(decoder) }
}

/// Gives an address to the caller, and the flags.
///
/// # Safety
/// `ip` is null, or there is room.
unsafe fn answered(decoder: &Query, ip: *mut u64, (told, behind): Answer) -> Result<c_int, Error> {
    let mut flags = 0;
    match told {
        // SAFETY: as the caller says.
        Some(told) => unsafe { put(ip, told) },
        None => flags = status::IP_SUPPRESSED,
    }
    behind?;
    Ok(flags | decoder.status())
}

/// Begins at a PSB.
///
/// # Safety
/// As the functions that call it.
unsafe fn begin(
    decoder: *mut Query,
    ip: *mut u64,
    to: impl FnOnce(&mut Query) -> Result<Answer, Error>,
) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let decoder = unsafe { given_mut(decoder)? };
        let (told, behind) = to(decoder)?;
        if told.is_none() {
            // SAFETY: as the caller says.
            unsafe { put(ip, 0) };
        }
        // SAFETY: as the caller says.
        unsafe { answered(decoder, ip, (told, behind)) }
    })
}

/// Goes to the next PSB.
///
/// # Safety
/// `decoder` is null or a decoder; `ip` is null, or there is room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_sync_forward(decoder: *mut Query, ip: *mut u64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { begin(decoder, ip, Query::begin_forward) }
}

/// Goes to the PSB before.
///
/// # Safety
/// As [`pt_qry_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_sync_backward(decoder: *mut Query, ip: *mut u64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { begin(decoder, ip, Query::begin_backward) }
}

/// Goes to the PSB at an offset.
///
/// # Safety
/// As [`pt_qry_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_sync_set(decoder: *mut Query, ip: *mut u64, offset: u64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { begin(decoder, ip, |decoder| decoder.begin_at(offset)) }
}

/// Where the decoder is.
///
/// # Safety
/// `decoder` is null or a decoder; at `offset`, if it is not null, there is room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_get_offset(decoder: *const Query, offset: *mut u64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { tell_offset(decoder, offset) }
}

/// Where the decoder was synchronised.
///
/// # Safety
/// As [`pt_qry_get_offset`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_get_sync_offset(decoder: *const Query, offset: *mut u64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { tell_sync_offset(decoder, offset) }
}

/// The decoder's configuration.
///
/// # Safety
/// `decoder` is null or a decoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_get_config(decoder: *const Query) -> *const Config {
    // SAFETY: as the caller says.
    unsafe { config_of(decoder) }
}

/// Whether the next conditional branch was taken.
///
/// # Safety
/// `decoder` is null or a decoder; at `taken`, if it is not null, there is room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_cond_branch(decoder: *mut Query, taken: *mut c_int) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let (decoder, taken) = unsafe { (given_mut(decoder)?, given_mut(taken)?) };
        *taken = decoder.synchronised()?.cond_branch()?.into();
        Ok(decoder.status())
    })
}

/// Where the next indirect branch goes.
///
/// # Safety
/// `decoder` is null or a decoder; at `ip`, if it is not null, there is room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_indirect_branch(decoder: *mut Query, ip: *mut u64) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let decoder = unsafe { given_mut(decoder)? };
        if ip.is_null() {
            return Err(Error::Invalid);
        }
        let answer = decoder.synchronised()?.indirect_branch()?;
        // SAFETY: as the caller says.
        unsafe { answered(decoder, ip, answer) }
    })
}

/// The next event.
///
/// # Safety
/// `decoder` is null or a decoder; at `event`, if it is not null, there is room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_event(
    decoder: *mut Query,
    event: *mut Event,
    size: usize,
) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let decoder = unsafe { given_mut(decoder)? };
        if event.is_null() || size < Event::LEAST {
            return Err(Error::Invalid);
        }
        let mut found = Event::default();
        let behind = decoder.synchronised()?.event(&mut found)?;
        // SAFETY: there is room, as the caller says.
        unsafe { put_sized(event, size, &found) };
        behind?;
        Ok(decoder.status())
    })
}

/// The time at the last question.
///
/// # Safety
/// `decoder` is null or a decoder; the other pointers are null, or there is room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_time(
    decoder: *mut Query,
    time: *mut u64,
    lost_mtc: *mut u32,
    lost_cyc: *mut u32,
) -> c_int {
    // SAFETY: as the caller says.
    returned(|| unsafe { given(decoder)?.time().tell(time, lost_mtc, lost_cyc) })
}

/// The core:bus ratio at the last question.
///
/// # Safety
/// `decoder` is null or a decoder; `ratio` is null, or there is room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_core_bus_ratio(decoder: *mut Query, ratio: *mut u32) -> c_int {
    // SAFETY: as the caller says.
    returned(|| unsafe { given(decoder)?.time().tell_ratio(ratio) })
}
