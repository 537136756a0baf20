//! Where code bytes come from.

use cofi_packet::Ip;

/// Something that knows the code bytes at an address.
pub trait CodeSource {
    /// Copies the code at `ip` into the start of `buf` and returns how many bytes it copied.
    ///
    /// A result shorter than `buf` means that the byte after it is unknown; 0 means that nothing is known at `ip`. A
    /// source that keeps its memory in pieces should join neighbouring ones: an instruction may lie across them.
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize;
}

impl<C: CodeSource + ?Sized> CodeSource for &mut C {
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        (**self).read(ip, buf)
    }
}

/// The simplest code source: one run of bytes at one address.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The address of the first byte.
    pub base: Ip,
    /// The code.
    pub bytes: &'a [u8],
}

impl CodeSource for Segment<'_> {
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        let Some(known) =
            ip.0.checked_sub(self.base.0)
                .and_then(|distance| usize::try_from(distance).ok())
                .and_then(|start| self.bytes.get(start..))
        else {
            return 0;
        };
        let len = known.len().min(buf.len());
        buf[..len].copy_from_slice(&known[..len]);
        len
    }
}

/// Code for a trace whose addresses are relative to a code segment.
///
/// A processor that reports RIPs (CPUID leaf 14H, LIP = 0) leaves the base of CS out, which is not zero in many a program of 16
/// or 32 bits; no packet tells it. This finds the code at its linear address all the same.
#[derive(Clone, Copy, Debug)]
pub struct InSegment<C> {
    /// The base of the code segment.
    pub base: u64,
    /// The code by linear address.
    pub code: C,
}

impl<C: CodeSource> CodeSource for InSegment<C> {
    fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
        self.code.read(Ip(ip.0.wrapping_add(self.base)), buf)
    }
}
