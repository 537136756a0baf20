//! Any bytes behind any configuration of libipt's: no call of any decoder fails inside, decoders stay within the buffer and move on, and packets are those of
//! `cofi-packet`.
#![no_main]

use arbitrary::Arbitrary;
use cofi_libipt::block::CBlock;
use cofi_libipt::code::CInsn;
use cofi_libipt::config::Config;
use cofi_libipt::event::Event;
use cofi_libipt::flow::capi::*;
use cofi_libipt::image::Asid;
use cofi_libipt::image::capi::pt_image_set_callback;
use cofi_libipt::packet_decoder::*;
use cofi_libipt::packets::CPacket;
use cofi_libipt::query::capi::*;
use cofi_packet::DecodeError;
use cofi_packet::intel::{Kind, PSB, Packet as Typed, Raw, decode};
use libfuzzer_sys::fuzz_target;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// `-pte_internal`: an error of the library itself.
const INTERNAL: c_int = -1;
const EVENT_PENDING: c_int = 1;
/// Where code stands.
const BASE: u64 = 0x1000;
/// The erratum SKZ84 makes eight bytes of a TMA.
const SKZ84: u32 = 1 << 9;

/// `struct pt_config`, as intel-pt.h has it.
#[repr(C)]
struct CConfig {
    size: usize,
    begin: *const u8,
    end: *const u8,
    callback: usize,
    context: usize,
    cpu: [u32; 2],
    errata: [u32; 16],
    cpuid_15: [u32; 2],
    mtc_freq: u8,
    nom_freq: u8,
    flags: [u32; 4],
    filter: [u64; 17],
}

/// `struct pt_packet`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SeenPacket {
    kind: u32,
    size: u8,
    payload: [u64; 2],
}

#[derive(Arbitrary, Debug)]
struct Settings {
    errata: u16,
    cpuid_15: [u16; 2],
    mtc_freq: u8,
    nom_freq: u8,
    flags: u8,
    range: [u16; 3],
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Call {
    Forward,
    Backward,
    To(u16),
    /// What the decoder has next, so many times.
    Next(u8),
    Event,
    Time,
}

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    settings: Settings,
    calls: [Call; 12],
    code: &'a [u8],
    stream: &'a [u8],
}

impl Settings {
    fn config(&self, bytes: &[u8]) -> CConfig {
        let range = bytes.as_ptr_range();
        let mut filter = [0; 17];
        filter[..3].copy_from_slice(&self.range.map(u64::from));
        CConfig {
            size: size_of::<CConfig>(),
            begin: range.start,
            end: range.end,
            callback: 0,
            context: 0,
            cpu: [0; 2],
            errata: std::array::from_fn(|word| if word == 0 { self.errata.into() } else { 0 }),
            cpuid_15: self.cpuid_15.map(u32::from),
            mtc_freq: self.mtc_freq,
            nom_freq: self.nom_freq,
            flags: [self.flags.into(), 0, 0, 0],
            filter,
        }
    }
}

/// A decoder of any level.
struct Decoder<'d> {
    sync_forward: &'d dyn Fn() -> c_int,
    sync_backward: &'d dyn Fn() -> c_int,
    sync_set: &'d dyn Fn(u64) -> c_int,
    /// Anything that it has next.
    next: &'d mut dyn FnMut() -> c_int,
    event: &'d dyn Fn() -> c_int,
    time: &'d dyn Fn() -> c_int,
    offset: &'d dyn Fn(&mut u64) -> c_int,
    sync_offset: &'d dyn Fn(&mut u64) -> c_int,
}

fn good(status: c_int) -> c_int {
    assert!(status != INTERNAL && status > -64, "status {status}");
    status
}

impl Decoder<'_> {
    fn is_within(&self, len: usize) {
        for tell in [self.offset, self.sync_offset] {
            let mut at = 0;
            if tell(&mut at) >= 0 {
                assert!(at <= len as u64, "{at} of {len}");
            }
        }
    }

    fn run(&mut self, calls: &[Call], len: usize) {
        for call in calls {
            match *call {
                Call::Forward => drop(good((self.sync_forward)())),
                Call::Backward => drop(good((self.sync_backward)())),
                Call::To(offset) => drop(good((self.sync_set)(offset.into()))),
                Call::Event => drop(good((self.event)())),
                Call::Time => drop(good((self.time)())),
                Call::Next(times) => {
                    for _ in 0..times {
                        let status = good((self.next)());
                        self.is_within(len);
                        if status < 0 {
                            break;
                        }
                    }
                }
            }
            self.is_within(len);
        }
        // From one synchronisation to the next: each is behind the one before.
        let mut last = None;
        // (Control that loops without packets goes on for ever.)
        let mut calls = 8 * len;
        for _ in 0..len {
            if (self.sync_forward)() < 0 {
                let mut at = 0;
                // (An error that stands where it was found is gone over by the next search.)
                if (self.sync_offset)(&mut at) < 0 || last == Some(at) {
                    break;
                }
            }
            let mut at = 0;
            if (self.sync_offset)(&mut at) < 0 || last.is_some_and(|last| at <= last) {
                break;
            }
            last = Some(at);
            while calls > 0 && good((self.next)()) >= 0 {
                self.is_within(len);
                calls -= 1;
            }
        }
    }
}

/// A call of a function of C, whose duties this target keeps: decoders and buffers are there as long as they are used.
macro_rules! c {
    ($($call:tt)*) => {
        // SAFETY: the decoder was made above and is freed below; what pointers lead to lives until then.
        unsafe { $($call)* }
    };
}

/// Numbers of `enum pt_packet_type`.
fn number(kind: Kind) -> Option<u32> {
    Some(match kind {
        Kind::Pad => 2,
        Kind::Psb => 3,
        Kind::PsbEnd => 4,
        Kind::Fup => 5,
        Kind::Tip => 6,
        Kind::TipPge => 7,
        Kind::TipPgd => 8,
        Kind::Tnt8 => 9,
        Kind::Tnt64 => 10,
        Kind::ModeExec | Kind::ModeTsx => 11,
        Kind::Pip => 12,
        Kind::Vmcs => 13,
        Kind::Cbr => 14,
        Kind::Tsc => 15,
        Kind::Tma => 16,
        Kind::Mtc => 17,
        Kind::Cyc => 18,
        Kind::TraceStop => 19,
        Kind::Ovf => 20,
        Kind::Mnt => 21,
        Kind::ExStop => 22,
        Kind::Mwait => 23,
        Kind::Pwre => 24,
        Kind::Pwrx => 25,
        Kind::Ptw => 26,
        // Packets that came after libipt 2.0.5.
        _ => return None,
    })
}

fn same_packet(seen: &SeenPacket, raw: &Raw) {
    assert_eq!(Some(seen.kind), number(raw.kind()), "{raw:?}");
    assert_eq!(usize::from(seen.size), raw.len(), "{raw:?}");
    let payload = match raw.packet() {
        Typed::Tnt8 { bits } => bits.bits(),
        Typed::Tnt64 { bits } => bits.bits(),
        Typed::Tip { ip } | Typed::TipPge { ip } | Typed::TipPgd { ip } | Typed::Fup { ip } => {
            ip.payload()
        }
        _ => return,
    };
    assert_eq!(seen.payload[1], payload, "{raw:?}");
}

fn packets(config: &CConfig, input: &Input<'_>, bytes: &[u8]) {
    let decoder = c!(pt_pkt_alloc_decoder((&raw const *config).cast::<Config>()));
    assert!(!decoder.is_null());
    let offset = |at: &mut u64| c!(pt_pkt_get_offset(decoder, at));
    let mut next = || {
        let mut at = 0;
        let mut seen = SeenPacket::default();
        let is_somewhere = offset(&mut at) >= 0;
        let to = (&raw mut seen).cast::<CPacket>();
        let len = c!(pt_pkt_next(decoder, to, size_of::<SeenPacket>()));
        if len < 0 {
            return len;
        }
        assert!(is_somewhere && len > 0);
        let rest = &bytes[at as usize..];
        assert!(len as usize <= rest.len());
        // (As libipt, the decoder takes a PSB inside of a packet for a part of it, and knows no N/A bits of MODE.)
        match decode(rest) {
            _ if seen.kind == 0 => {
                assert!(config.errata[0] & SKZ84 != 0 && rest.starts_with(&[0x02, 0x73]))
            }
            Ok(raw) => same_packet(&seen, &raw),
            Err(DecodeError::Cut { .. }) => {
                let alone = decode(&rest[..len as usize]);
                same_packet(&seen, &alone.expect("without the PSB it is one"));
            }
            Err(_) => assert_eq!(rest[0], 0x99, "{:02x?}", &rest[..len as usize]),
        }
        len
    };
    Decoder {
        sync_forward: &|| c!(pt_pkt_sync_forward(decoder)),
        sync_backward: &|| c!(pt_pkt_sync_backward(decoder)),
        sync_set: &|to| c!(pt_pkt_sync_set(decoder, to)),
        next: &mut next,
        event: &|| 0,
        time: &|| 0,
        offset: &offset,
        sync_offset: &|at| c!(pt_pkt_get_sync_offset(decoder, at)),
    }
    .run(&input.calls, bytes.len());
    c!(pt_pkt_free_decoder(decoder));
}

fn queries(config: &CConfig, input: &Input<'_>, len: usize) {
    let decoder = c!(pt_qry_alloc_decoder((&raw const *config).cast::<Config>()));
    assert!(!decoder.is_null());
    let mut ip = 0;
    let ip: *mut u64 = &raw mut ip;
    let event = || {
        let mut event = Event::default();
        c!(pt_qry_event(decoder, &raw mut event, size_of::<Event>()))
    };
    let mut status = 0;
    let mut next = || {
        if status >= 0 && status & EVENT_PENDING != 0 {
            status = event();
            return status;
        }
        let mut taken = 0;
        status = c!(pt_qry_cond_branch(decoder, &raw mut taken));
        if status < 0 {
            status = c!(pt_qry_indirect_branch(decoder, ip));
        }
        if status < 0 {
            status = event();
        }
        status
    };
    Decoder {
        sync_forward: &|| c!(pt_qry_sync_forward(decoder, ip)),
        sync_backward: &|| c!(pt_qry_sync_backward(decoder, ip)),
        sync_set: &|to| c!(pt_qry_sync_set(decoder, ip, to)),
        next: &mut next,
        event: &event,
        time: &|| c!(pt_qry_time(decoder, ip, null_mut(), null_mut())),
        offset: &|at| c!(pt_qry_get_offset(decoder, at)),
        sync_offset: &|at| c!(pt_qry_get_sync_offset(decoder, at)),
    }
    .run(&input.calls, len);
    c!(pt_qry_free_decoder(decoder));
}

/// Reads the input's code.
unsafe extern "C" fn read_code(
    buffer: *mut u8,
    size: usize,
    _: *const Asid,
    ip: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the context is the slice that was given with this function.
    let code = unsafe { *context.cast::<&[u8]>() };
    let at = usize::try_from(ip.wrapping_sub(BASE)).unwrap_or(usize::MAX);
    let Some(rest) = code.get(at..).filter(|rest| !rest.is_empty()) else {
        // -pte_nomap
        return -17;
    };
    let len = rest.len().min(size);
    // SAFETY: there is room for `size` bytes, says the header.
    unsafe { buffer.copy_from_nonoverlapping(rest.as_ptr(), len) };
    len as c_int
}

macro_rules! walk {
    ($name:ident, $Item:ident, $alloc:ident $free:ident $forward:ident $backward:ident $set:ident $image:ident
        $next:ident $event:ident $time:ident $offset:ident $sync_offset:ident) => {
        fn $name(config: &CConfig, input: &Input<'_>, len: usize) {
            let decoder = c!($alloc((&raw const *config).cast::<Config>()));
            assert!(!decoder.is_null());
            let mut code = input.code;
            let context: *mut &[u8] = &raw mut code;
            let image = c!($image(decoder));
            assert_eq!(
                c!(pt_image_set_callback(
                    image,
                    Some(read_code),
                    context.cast()
                )),
                0
            );
            let event = || {
                let mut event = Event::default();
                c!($event(decoder, &raw mut event, size_of::<Event>()))
            };
            let mut status = 0;
            let mut next = || {
                if status >= 0 && status & EVENT_PENDING != 0 {
                    status = event();
                    return status;
                }
                let mut item = $Item::default();
                status = c!($next(decoder, &raw mut item, size_of::<$Item>()));
                if status < 0 {
                    // (It may have been for an event that waits.)
                    let error = status;
                    status = event();
                    return if status < 0 { error } else { status };
                }
                status
            };
            let mut time = 0;
            let time: *mut u64 = &raw mut time;
            Decoder {
                sync_forward: &|| c!($forward(decoder)),
                sync_backward: &|| c!($backward(decoder)),
                sync_set: &|to| c!($set(decoder, to)),
                next: &mut next,
                event: &event,
                time: &|| c!($time(decoder, time, null_mut(), null_mut())),
                offset: &|at| c!($offset(decoder, at)),
                sync_offset: &|at| c!($sync_offset(decoder, at)),
            }
            .run(&input.calls, len);
            c!($free(decoder));
        }
    };
}

walk!(insns, CInsn, pt_insn_alloc_decoder pt_insn_free_decoder pt_insn_sync_forward pt_insn_sync_backward pt_insn_sync_set
    pt_insn_get_image pt_insn_next pt_insn_event pt_insn_time pt_insn_get_offset pt_insn_get_sync_offset);
walk!(blocks, CBlock, pt_blk_alloc_decoder pt_blk_free_decoder pt_blk_sync_forward pt_blk_sync_backward pt_blk_sync_set
    pt_blk_get_image pt_blk_next pt_blk_event pt_blk_time pt_blk_get_offset pt_blk_get_sync_offset);

fuzz_target!(|input: Input<'_>| {
    let bytes = [&PSB[..], &input.stream[..input.stream.len().min(1000)]].concat();
    let config = input.settings.config(&bytes);
    packets(&config, &input, &bytes);
    queries(&config, &input, bytes.len());
    insns(&config, &input, bytes.len());
    blocks(&config, &input, bytes.len());
});
