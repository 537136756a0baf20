//! Packets: bytes to packets, and text to bytes.

use crate::status::{
    Growing, Place, Status, bytes, given_mut, guarded, hand_out, invalid, take_back, text,
};
use cofi_packet::intel::IntelPt;
use cofi_packet::rtit::{Mode, Rtit};
use cofi_packet::{Format, Listing, Packets, StreamOffset, assemble, extent};
use core::mem::offset_of;
use std::ffi::{CString, c_char};

/// `cofi_packet`.
#[derive(Debug)]
#[repr(C)]
pub struct Packet {
    /// What the caller takes it for.
    pub size: u32,
    /// Whether it is none.
    pub is_error: u32,
    /// Where it begins.
    pub offset: u64,
    /// How many bytes it has.
    pub len: u64,
    /// Its text.
    pub text: *const c_char,
}

// SAFETY: numbers and a pointer.
unsafe impl Growing for Packet {
    const FIRST: usize = 32;
}

/// Where the members are, for who compares with cofi.h.
#[must_use]
pub const fn layout() -> [usize; 6] {
    [
        size_of::<Packet>(),
        offset_of!(Packet, size),
        offset_of!(Packet, is_error),
        offset_of!(Packet, offset),
        offset_of!(Packet, len),
        offset_of!(Packet, text),
    ]
}

/// `cofi_packets`.
pub struct List {
    items: Box<dyn Iterator<Item = (u64, usize, String, bool)>>,
    text: CString,
}

impl std::fmt::Debug for List {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("List").finish_non_exhaustive()
    }
}

/// The family of packets of this number (`cofi_format`).
enum Family {
    Pt,
    Rtit(Mode),
}

fn family(number: u32) -> Result<Family, Status> {
    match number {
        0 => Ok(Family::Pt),
        1 => Ok(Family::Rtit(Mode::Plain)),
        2 => Ok(Family::Rtit(Mode::CycleAccurate)),
        _ => Err(invalid(format_args!("there is no format {number}"))),
    }
}

/// The packets of bytes that they own.
struct Owned<F: Format> {
    bytes: Vec<u8>,
    at: StreamOffset,
    context: F::Context,
    listing: Listing<F>,
}

impl<F: Format> Owned<F> {
    fn new(bytes: Vec<u8>, context: F::Context) -> Self {
        Self {
            bytes,
            at: StreamOffset(0),
            context,
            listing: Listing::new(),
        }
    }
}

impl<F: Format> Iterator for Owned<F> {
    type Item = (u64, usize, String, bool);

    fn next(&mut self) -> Option<Self::Item> {
        let mut packets = Packets::<F>::starting_at(&self.bytes, self.at).in_context(self.context);
        let item = packets.next()?;
        (self.at, self.context) = (packets.offset(), packets.context());
        let (offset, len) = extent(&item);
        let listed = self.listing.item(&item);
        let (text, is_error) = match (&item, listed) {
            (Ok(_), listed) => (
                listed.map_or_else(String::new, |listed| listed.to_string()),
                false,
            ),
            (Err(error), _) => (error.error.to_string(), true),
        };
        Some((offset.0, len, text, is_error))
    }
}

/// `cofi_packets_new`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_packets_new(
    data: *const u8,
    len: usize,
    format: u32,
    out: *mut *mut List,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (data, out) = unsafe { (bytes(data, len)?, given_mut(out, "out")?) };
        let data = data.to_vec();
        let items: Box<dyn Iterator<Item = _>> = match family(format)? {
            Family::Pt => Box::new(Owned::<IntelPt>::new(data, Default::default())),
            Family::Rtit(mode) => Box::new(Owned::<Rtit>::new(data, mode)),
        };
        let text = CString::default();
        hand_out(List { items, text }, out);
        Ok(())
    })
}

/// `cofi_packets_next`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_packets_next(list: *mut List, out: *mut Packet) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (list, out) = unsafe { (given_mut(list, "packets")?, Place::of(out, "packet")?) };
        let (offset, len, text, is_error) = list.items.next().ok_or(Status::End)?;
        list.text = CString::new(text).unwrap_or_default();
        out.store(Packet {
            size: 0,
            is_error: is_error.into(),
            offset,
            len: len as u64,
            text: list.text.as_ptr(),
        });
        Ok(())
    })
}

/// `cofi_packets_free`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_packets_free(list: *mut List) {
    // SAFETY: as the caller says.
    unsafe { take_back(list) }
}

/// `cofi_assemble`.
///
/// # Safety
/// As cofi.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cofi_assemble(
    text: *const c_char,
    format: u32,
    buffer: *mut u8,
    len: *mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller says.
        let (text, len) = unsafe { (self::text(text, "text")?, given_mut(len, "len")?) };
        let made = match family(format)? {
            Family::Pt => assemble::<IntelPt, Vec<u8>>(text, Default::default()),
            Family::Rtit(mode) => assemble::<Rtit, _>(text, mode),
        };
        let made = made.map_err(invalid)?;
        // SAFETY: as the caller says.
        unsafe { fill(&made, buffer, len) }
    })
}

/// Stores bytes where the caller has room, and their number.
///
/// # Safety
/// There is room for `len` bytes at `buffer`.
pub(crate) unsafe fn fill(made: &[u8], buffer: *mut u8, len: &mut usize) -> Result<(), Status> {
    let room = std::mem::replace(len, made.len());
    if made.len() > room {
        return Err(invalid(format_args!(
            "there is room for {room} bytes, and {} are needed",
            made.len()
        )));
    }
    if !made.is_empty() {
        if buffer.is_null() {
            return Err(invalid("buffer is null"));
        }
        // SAFETY: as the caller says.
        unsafe { core::ptr::copy_nonoverlapping(made.as_ptr(), buffer, made.len()) };
    }
    Ok(())
}
