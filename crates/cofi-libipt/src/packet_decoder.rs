//! `pt_pkt_*`: packet by packet.

use std::ffi::c_int;

use crate::boundary::{given, given_mut, hand_out, pointed, put_sized, returned, take_back};
use crate::config::Config;
use crate::decoder::{Decoder, config_of, tell_offset, tell_sync_offset};
use crate::error::Error;
use crate::packets::{CPacket, Found, length, read_at};
use crate::sync::Place;

/// `struct pt_packet_decoder`.
pub struct PacketDecoder {
    config: Config,
    place: Place,
}

impl Decoder for PacketDecoder {
    fn place(&self) -> &Place {
        &self.place
    }

    fn config(&self) -> &Config {
        &self.config
    }
}

impl PacketDecoder {
    fn next(&mut self) -> Result<(CPacket, usize), Error> {
        let at = self.place.at.ok_or(Error::NoSync)?;
        let (packet, len) = match read_at(&self.config, at)? {
            Found::Packet(packet) => (CPacket::of(&packet), packet.len()),
            Found::Unknown(unknown, len) => (CPacket::unknown(unknown, len), len),
            Found::Spoilt(len) => (CPacket::spoilt(len), len),
        };
        self.place.at = Some(at + len);
        Ok((packet, len))
    }

    fn go(&mut self, to: usize) -> c_int {
        self.place = Place {
            at: Some(to),
            sync: Some(to),
        };
        0
    }
}

/// A packet decoder for a buffer; null if the configuration cannot be.
///
/// # Safety
/// As `Config::taken`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_alloc_decoder(config: *const Config) -> *mut PacketDecoder {
    pointed(|| {
        // SAFETY: as the caller says.
        let config = unsafe { Config::taken(config)? };
        Some(hand_out(PacketDecoder {
            config,
            place: Place::default(),
        }))
    })
}

/// Frees a decoder.
///
/// # Safety
/// It is null, or one that was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_free_decoder(decoder: *mut PacketDecoder) {
    // SAFETY: as the caller says.
    unsafe { take_back(decoder) }
}

/// Goes to the next PSB.
///
/// # Safety
/// `decoder` is null or a decoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_sync_forward(decoder: *mut PacketDecoder) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let decoder = unsafe { given_mut(decoder)? };
        let to = decoder.place.forward(decoder.config.bytes())?;
        Ok(decoder.go(to))
    })
}

/// Goes to the PSB before.
///
/// # Safety
/// `decoder` is null or a decoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_sync_backward(decoder: *mut PacketDecoder) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let decoder = unsafe { given_mut(decoder)? };
        let to = decoder.place.backward(decoder.config.bytes())?;
        Ok(decoder.go(to))
    })
}

/// Goes to an offset, whatever stands there.
///
/// # Safety
/// `decoder` is null or a decoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_sync_set(decoder: *mut PacketDecoder, offset: u64) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let decoder = unsafe { given_mut(decoder)? };
        match usize::try_from(offset) {
            Ok(to) if to <= decoder.config.len() => Ok(decoder.go(to)),
            _ => Err(Error::End),
        }
    })
}

/// Where the decoder is.
///
/// # Safety
/// `decoder` is null or a decoder; at `offset`, if it is not null, there is room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_get_offset(
    decoder: *const PacketDecoder,
    offset: *mut u64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { tell_offset(decoder, offset) }
}

/// Where the decoder was synchronised.
///
/// # Safety
/// As [`pt_pkt_get_offset`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_get_sync_offset(
    decoder: *const PacketDecoder,
    offset: *mut u64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { tell_sync_offset(decoder, offset) }
}

/// The decoder's configuration.
///
/// # Safety
/// `decoder` is null or a decoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_get_config(decoder: *const PacketDecoder) -> *const Config {
    // SAFETY: as the caller says.
    unsafe { config_of(decoder) }
}

/// The next packet.
///
/// # Safety
/// `decoder` is null or a decoder; at `packet`, if it is not null, there is room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_next(
    decoder: *mut PacketDecoder,
    packet: *mut CPacket,
    size: usize,
) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let decoder = unsafe { given_mut(decoder)? };
        if packet.is_null() {
            return Err(Error::Invalid);
        }
        let (found, len) = decoder.next()?;
        // SAFETY: there is room, as the caller says.
        unsafe { put_sized(packet, size, &found) };
        Ok(length(len))
    })
}

/// `struct pt_encoder`.
pub struct Encoder {
    config: Config,
    at: usize,
}

/// A packet encoder for a buffer; null if the configuration cannot be.
///
/// # Safety
/// As `Config::taken`; nobody else uses the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_alloc_encoder(config: *const Config) -> *mut Encoder {
    pointed(|| {
        // SAFETY: as the caller says.
        let config = unsafe { Config::taken(config)? };
        Some(hand_out(Encoder { config, at: 0 }))
    })
}

/// Frees an encoder.
///
/// # Safety
/// It is null, or one that was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_free_encoder(encoder: *mut Encoder) {
    // SAFETY: as the caller says.
    unsafe { take_back(encoder) }
}

/// Goes to an offset.
///
/// # Safety
/// `encoder` is null or an encoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_enc_sync_set(encoder: *mut Encoder, offset: u64) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let encoder = unsafe { given_mut(encoder)? };
        match usize::try_from(offset) {
            Ok(to) if to <= encoder.config.len() => encoder.at = to,
            _ => return Err(Error::End),
        }
        Ok(0)
    })
}

/// Where the encoder is.
///
/// # Safety
/// `encoder` is null or an encoder; at `offset`, if it is not null, there is room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_enc_get_offset(encoder: *const Encoder, offset: *mut u64) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let (encoder, offset) = unsafe { (given(encoder)?, given_mut(offset)?) };
        *offset = encoder.at as u64;
        Ok(0)
    })
}

/// The encoder's configuration.
///
/// # Safety
/// `encoder` is null or an encoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_enc_get_config(encoder: *const Encoder) -> *const Config {
    // SAFETY: as the caller says.
    unsafe { encoder.as_ref() }.map_or(std::ptr::null(), |encoder| &raw const encoder.config)
}

/// Writes a packet.
///
/// # Safety
/// `encoder` is null or an encoder; `packet` is null or leads to a packet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_enc_next(encoder: *mut Encoder, packet: *const CPacket) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let (encoder, packet) = unsafe { (given_mut(encoder)?, given(packet)?) };
        let (word, len) = crate::encode::encode(packet)?;
        if encoder.config.len() - encoder.at < len {
            return Err(Error::End);
        }
        // SAFETY: the buffer goes on for as many bytes, and is the encoder's.
        unsafe {
            let to = encoder.config.begin.add(encoder.at);
            std::ptr::copy_nonoverlapping(word.to_le_bytes().as_ptr(), to, len);
        }
        encoder.at += len;
        Ok(length(len))
    })
}
