//! `pt_insn_*` and `pt_blk_*`: the same functions of two decoders, but for what comes next.

use std::ffi::c_int;

use super::Walker;
use crate::block::CBlock;
use crate::boundary::{given, given_mut, hand_out, pointed, put_sized, returned, take_back};
use crate::code::CInsn;
use crate::config::Config;
use crate::decoder::{Decoder, config_of, tell_offset, tell_sync_offset};
use crate::error::Error;
use crate::event::Event;
use crate::image::{Asid, Image};
use crate::query::Query;
use crate::sync::Place;

/// A decoder and its functions, by their names.
macro_rules! decoder {
    (
        $(#[$doc:meta])*
        $Decoder:ident, by_blocks $by_blocks:literal, $Next:ident by $take:ident or $at_hand:ident;
        $alloc_decoder:ident
        $free_decoder:ident
        $sync_forward:ident
        $sync_backward:ident
        $sync_set:ident
        $get_offset:ident
        $get_sync_offset:ident
        $get_image:ident
        $set_image:ident
        $get_config:ident
        $time:ident
        $core_bus_ratio:ident
        $asid:ident
        $event:ident
        $next:ident
    ) => {
        $(#[$doc])*
        pub struct $Decoder(Walker);

        impl Decoder for $Decoder {
            fn place(&self) -> &Place {
                self.0.query().place()
            }

            fn config(&self) -> &Config {
                self.0.query().config()
            }
        }

        /// A decoder for a buffer; null if the configuration cannot be.
        ///
        /// # Safety
        /// As `Config::taken`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $alloc_decoder(config: *const Config) -> *mut $Decoder {
            pointed(|| {
                // SAFETY: as the caller says.
                let config = unsafe { Config::taken(config)? };
                Some(hand_out($Decoder(Walker::new(config, $by_blocks))))
            })
        }

        /// Frees a decoder, and its own image.
        ///
        /// # Safety
        /// It is null, or one that was not freed yet.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $free_decoder(decoder: *mut $Decoder) {
            // SAFETY: as the caller says.
            unsafe { take_back(decoder) }
        }

        /// Goes to the next PSB.
        ///
        /// # Safety
        /// `decoder` is null or a decoder.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $sync_forward(decoder: *mut $Decoder) -> c_int {
            // SAFETY: as the caller says.
            returned(|| unsafe { given_mut(decoder)?.0.begin(Query::begin_forward) })
        }

        /// Goes to the PSB before.
        ///
        /// # Safety
        /// `decoder` is null or a decoder.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $sync_backward(decoder: *mut $Decoder) -> c_int {
            // SAFETY: as the caller says.
            returned(|| unsafe { given_mut(decoder)?.0.begin(Query::begin_backward) })
        }

        /// Goes to the PSB at an offset.
        ///
        /// # Safety
        /// `decoder` is null or a decoder.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $sync_set(decoder: *mut $Decoder, offset: u64) -> c_int {
            // SAFETY: as the caller says.
            returned(|| unsafe { given_mut(decoder)?.0.begin(|query| query.begin_at(offset)) })
        }

        /// Where the decoder is.
        ///
        /// # Safety
        /// `decoder` is null or a decoder; at `offset`, if it is not null, there is room.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get_offset(
            decoder: *const $Decoder,
            offset: *mut u64,
        ) -> c_int {
            // SAFETY: as the caller says.
            unsafe { tell_offset(decoder, offset) }
        }

        /// Where the decoder was synchronised.
        ///
        /// # Safety
        /// `decoder` is null or a decoder; at `offset`, if it is not null, there is room.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get_sync_offset(
            decoder: *const $Decoder,
            offset: *mut u64,
        ) -> c_int {
            // SAFETY: as the caller says.
            unsafe { tell_sync_offset(decoder, offset) }
        }

        /// The image in which the decoder looks for code.
        ///
        /// # Safety
        /// `decoder` is null or a decoder.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get_image(decoder: *mut $Decoder) -> *mut Image {
            // SAFETY: as the caller says.
            pointed(|| unsafe { Some(decoder.as_mut()?.0.image_pointer()) })
        }

        /// Sets the image in which the decoder looks for code; null is its own.
        ///
        /// # Safety
        /// `decoder` is null or a decoder; `image` is null or an image that stays as long as it is set.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $set_image(decoder: *mut $Decoder, image: *mut Image) -> c_int {
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
        pub unsafe extern "C" fn $get_config(decoder: *const $Decoder) -> *const Config {
            // SAFETY: as the caller says.
            unsafe { config_of(decoder) }
        }

        /// The time.
        ///
        /// # Safety
        /// `decoder` is null or a decoder; the other pointers are null, or there is room.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $time(
            decoder: *mut $Decoder,
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
        pub unsafe extern "C" fn $core_bus_ratio(
            decoder: *mut $Decoder,
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
        pub unsafe extern "C" fn $asid(
            decoder: *const $Decoder,
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
        pub unsafe extern "C" fn $event(
            decoder: *mut $Decoder,
            event: *mut Event,
            size: usize,
        ) -> c_int {
            returned(|| {
                // SAFETY: as the caller says.
                let decoder = unsafe { given_mut(decoder)? };
                if event.is_null() || size < Event::LEAST {
                    return Err(Error::Invalid);
                }
                // SAFETY: there is room, as the caller says.
                decoder.0.event(|found| unsafe { put_sized(event, size, found) })
            })
        }

        /// The next one.
        ///
        /// # Safety
        /// `decoder` is null or a decoder; at `next`, if it is not null, there is room for `size` bytes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $next(
            decoder: *mut $Decoder,
            next: *mut $Next,
            size: usize,
        ) -> c_int {
            // SAFETY: as the caller says.
            let (Some(decoder), false) = (unsafe { decoder.as_mut() }, next.is_null()) else {
                return Error::Invalid.code();
            };
            if size != size_of::<$Next>() {
                // SAFETY: as the caller says.
                return unsafe { decoder.partly(next, size) };
            }
            // SAFETY: there is room, as the caller says.
            let next = unsafe { &mut *next };
            match decoder.0.$at_hand(next) {
                Some(status) => status,
                None => decoder.0.$take(next),
            }
        }

        impl $Decoder {
            /// As the function above, for who has another structure, apart from what most callers need.
            ///
            /// # Safety
            /// There is room for `size` bytes.
            #[cold]
            #[inline(never)]
            unsafe fn partly(&mut self, next: *mut $Next, size: usize) -> c_int {
                let mut found = $Next::default();
                let status = self.0.$take(&mut found);
                // SAFETY: as the caller says.
                unsafe { put_sized(next, size, &found) };
                status
            }
        }
    };
}

decoder! {
    /// `struct pt_insn_decoder`.
    InsnDecoder, by_blocks false, CInsn by next_insn or insn_at_hand;
    pt_insn_alloc_decoder
    pt_insn_free_decoder
    pt_insn_sync_forward
    pt_insn_sync_backward
    pt_insn_sync_set
    pt_insn_get_offset
    pt_insn_get_sync_offset
    pt_insn_get_image
    pt_insn_set_image
    pt_insn_get_config
    pt_insn_time
    pt_insn_core_bus_ratio
    pt_insn_asid
    pt_insn_event
    pt_insn_next
}

decoder! {
    /// `struct pt_block_decoder`.
    BlockDecoder, by_blocks true, CBlock by next_block or block_at_hand;
    pt_blk_alloc_decoder
    pt_blk_free_decoder
    pt_blk_sync_forward
    pt_blk_sync_backward
    pt_blk_sync_set
    pt_blk_get_offset
    pt_blk_get_sync_offset
    pt_blk_get_image
    pt_blk_set_image
    pt_blk_get_config
    pt_blk_time
    pt_blk_core_bus_ratio
    pt_blk_asid
    pt_blk_event
    pt_blk_next
}
