//! `struct pt_config`: what every decoder and encoder is made of, the errata of processors, and the version.

use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;

use crate::boundary::{Context, given, returned};
use crate::error::Error;
use crate::packets::UnknownPacket;

/// `struct pt_version`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Version {
    /// The interface's major version.
    pub major: u8,
    /// The interface's minor version.
    pub minor: u8,
    /// The patch level.
    pub patch: u16,
    /// The build number.
    pub build: u32,
    /// What else there is to say.
    pub ext: *const c_char,
}

/// The version of libipt's interface that this library has. `ext` is empty, as Debian's: programs print it.
#[unsafe(no_mangle)]
pub extern "C" fn pt_library_version() -> Version {
    Version {
        major: 2,
        minor: 0,
        patch: 5,
        build: 0,
        ext: c"".as_ptr(),
    }
}

/// `struct pt_cpu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Cpu {
    /// 1 for Intel.
    pub vendor: u32,
    /// The family.
    pub family: u16,
    /// The model.
    pub model: u8,
    /// The stepping.
    pub stepping: u8,
}

/// `struct pt_errata`: a bit each, from bit 0 on in the header's order.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Errata {
    bits: u32,
    reserved: [u32; 15],
}

impl Errata {
    pub(crate) const BDM70: u32 = 1;
    pub(crate) const BDM64: u32 = 1 << 1;
    pub(crate) const SKD007: u32 = 1 << 2;
    pub(crate) const SKD022: u32 = 1 << 3;
    pub(crate) const SKD010: u32 = 1 << 4;
    pub(crate) const SKL014: u32 = 1 << 5;
    pub(crate) const APL12: u32 = 1 << 6;
    pub(crate) const APL11: u32 = 1 << 7;
    pub(crate) const SKL168: u32 = 1 << 8;
    pub(crate) const SKZ84: u32 = 1 << 9;

    /// Whether the erratum of this bit is to be worked around.
    #[inline]
    pub(crate) fn has(&self, bit: u32) -> bool {
        self.bits & bit != 0
    }
}

/// The errata of a processor of family 6; `None` for one that libipt 2.0.5 does not know.
fn errata_of(model: u8) -> Option<u32> {
    use Errata as E;
    Some(match model {
        // Broadwell.
        0x3d | 0x47 | 0x4f | 0x56 => E::BDM70 | E::BDM64,
        // Skylake to Comet Lake.
        0x4e | 0x5e | 0x8e | 0x9e | 0xa5 | 0xa6 => {
            E::BDM70 | E::SKD007 | E::SKD022 | E::SKD010 | E::SKL014 | E::SKL168
        }
        // Servers from Skylake on.
        0x55 | 0x6a | 0x6c | 0x8f => E::BDM70 | E::SKD022 | E::SKL014 | E::SKZ84,
        // Cannon Lake to Rocket Lake.
        0x66 | 0x7d | 0x7e | 0x8c | 0x8d | 0xa7 | 0xa8 => E::BDM70 | E::SKD022 | E::SKL014,
        // Alder Lake and Raptor Lake.
        0x97 | 0x9a | 0xbf => E::BDM70 | E::SKD022 | E::SKL014 | E::APL11,
        // Goldmont.
        0x5c | 0x5f => E::APL12 | E::APL11,
        // Goldmont Plus and Tremont.
        0x7a | 0x86 | 0x96 | 0x9c => E::APL11,
        _ => return None,
    })
}

/// The errata of a processor.
///
/// # Safety
/// Both pointers are null or lead to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_cpu_errata(errata: *mut Errata, cpu: *const Cpu) -> c_int {
    returned(|| {
        // SAFETY: as the caller says.
        let cpu = unsafe { given(cpu)? };
        if errata.is_null() {
            return Err(Error::Invalid);
        }
        let bits = (cpu.vendor == 1 && cpu.family == 6)
            .then(|| errata_of(cpu.model))
            .flatten();
        // SAFETY: it is not null, and there is room, as the caller says.
        unsafe {
            errata.write(Errata {
                bits: bits.unwrap_or(0),
                reserved: [0; 15],
            });
        }
        bits.map(|_| 0).ok_or(Error::BadCpu)
    })
}

/// The caller's function for packets that nobody knows.
pub type DecodeCallback =
    unsafe extern "C" fn(*mut UnknownPacket, *const Config, *const u8, Context) -> c_int;

/// `struct pt_config`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Config {
    pub(crate) size: usize,
    pub(crate) begin: *mut u8,
    pub(crate) end: *mut u8,
    pub(crate) callback: Option<DecodeCallback>,
    pub(crate) context: Context,
    pub(crate) cpu: Cpu,
    pub(crate) errata: Errata,
    pub(crate) cpuid_15_eax: u32,
    pub(crate) cpuid_15_ebx: u32,
    pub(crate) mtc_freq: u8,
    pub(crate) nom_freq: u8,
    /// Bits of the decoder's own; the other words are reserved.
    pub(crate) flags: [u32; 4],
    pub(crate) filter: AddressFilter,
}

/// `struct pt_conf_addr_filter`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct AddressFilter {
    /// Four bits a range: 1 filters, 2 stops tracing.
    pub(crate) config: u64,
    /// A and B of each range.
    pub(crate) ranges: [[u64; 2]; 4],
    reserved: [u64; 8],
}

/// The smallest configuration: size, begin and end.
const LEAST: usize = 24;

impl Config {
    /// What the caller gives, who may know less of the structure than this library: the rest is 0 then.
    ///
    /// # Safety
    /// The pointer is null, or leads to as many bytes as the structure's first field says; from `begin` to `end` there are bytes that stay as long
    /// as what is made of it.
    pub(crate) unsafe fn taken(pointer: *const Self) -> Option<Self> {
        if pointer.is_null() {
            return None;
        }
        // SAFETY: the size is the first field, and always there.
        let size = unsafe { pointer.cast::<usize>().read() };
        if size < LEAST {
            return None;
        }
        let size = size.min(size_of::<Self>());
        let mut config = MaybeUninit::<Self>::zeroed();
        // SAFETY: so many bytes are there and have room; all bits zero is a value of it, and so is what C writes.
        let mut config = unsafe {
            std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), config.as_mut_ptr().cast(), size);
            config.assume_init()
        };
        config.size = size;
        let ordered =
            !config.begin.is_null() && !config.end.is_null() && config.begin <= config.end;
        ordered.then_some(config)
    }

    /// How long the buffer is.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.end.addr() - self.begin.addr()
    }

    /// The buffer.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: who gave the configuration keeps the buffer (`taken`), and does not change it while a decoder runs.
        unsafe { std::slice::from_raw_parts(self.begin, self.len()) }
    }
}
