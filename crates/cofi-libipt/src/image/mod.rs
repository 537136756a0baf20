//! `struct pt_image`: what code stands where, in which address space.

pub mod cache;
pub mod capi;
mod section;

use std::ffi::{CString, c_int};
use std::sync::Arc;

use crate::boundary::Context;
use crate::code::Code;
use section::Section;

/// `struct pt_asid`, as far as it says something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Asid {
    pub(crate) size: usize,
    pub(crate) cr3: u64,
    pub(crate) vmcs: u64,
}

/// What is not known of an address space.
const UNKNOWN: u64 = u64::MAX;

impl Asid {
    /// Any address space.
    pub(crate) const ANY: Self = Self {
        size: size_of::<Self>(),
        cr3: UNKNOWN,
        vmcs: UNKNOWN,
    };

    /// What the caller gives, of which some fields may be missing; any address space if it gives none.
    ///
    /// # Safety
    /// The pointer is null, or leads to as many bytes as the structure's first field says, which is there at least.
    pub(crate) unsafe fn taken(pointer: *const Self) -> Self {
        let mut asid = Self::ANY;
        if pointer.is_null() {
            return asid;
        }
        // SAFETY: its size is there; of the other fields only those are read that it covers.
        unsafe {
            let size = pointer.cast::<usize>().read();
            if size >= 16 {
                asid.cr3 = (&raw const (*pointer).cr3).read();
            }
            if size >= 24 {
                asid.vmcs = (&raw const (*pointer).vmcs).read();
            }
        }
        asid
    }

    /// Whether both may be the same address space: what is unknown is no difference.
    pub(crate) fn matches(&self, other: &Self) -> bool {
        let may_be = |a, b| a == b || a == UNKNOWN || b == UNKNOWN;
        may_be(self.cr3, other.cr3) && may_be(self.vmcs, other.vmcs)
    }
}

/// A section, or what is left of it, at its place.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    section: Arc<Section>,
    /// The section's number in the cache that it came from, or 0.
    isid: c_int,
    asid: Asid,
    /// The address of the section's first byte.
    base: u64,
    /// The first address that is left, and the last.
    begin: u64,
    last: u64,
}

impl Mapped {
    fn overlaps(&self, other: &Self) -> bool {
        self.begin <= other.last && other.begin <= self.last && self.asid.matches(&other.asid)
    }

    fn holds(&self, ip: u64) -> bool {
        self.begin <= ip && ip <= self.last
    }

    /// The bytes from an address on.
    fn bytes(&self, ip: u64) -> &[u8] {
        let bytes = self.section.bytes();
        let from = usize::try_from(ip - self.base).unwrap_or(usize::MAX);
        let len = usize::try_from(self.last - ip).map_or(usize::MAX, |len| len.saturating_add(1));
        let rest = bytes.get(from..).unwrap_or_default();
        &rest[..len.min(rest.len())]
    }
}

/// The caller's function that reads memory.
pub type ReadCallback = unsafe extern "C" fn(*mut u8, usize, *const Asid, u64, Context) -> c_int;

/// `struct pt_image`.
pub struct Image {
    name: Option<CString>,
    sections: Vec<Mapped>,
    callback: Option<(ReadCallback, Context)>,
    /// What was decoded of the sections, as long as they stay what they are.
    pub(crate) code: Code,
}

/// Bytes of an instruction, with where they come from.
pub(crate) struct Fetched {
    pub(crate) bytes: [u8; 15],
    pub(crate) len: usize,
    pub(crate) isid: c_int,
    /// How many of them lie in the first section.
    pub(crate) first: usize,
    /// The first come from a section.
    pub(crate) sectioned: bool,
    /// All come from sections.
    pub(crate) lasting: bool,
}

impl Image {
    pub(crate) fn new(name: Option<CString>) -> Self {
        Self {
            name,
            sections: Vec::new(),
            callback: None,
            code: Code::default(),
        }
    }

    /// Adds a section; what it overlaps gives way. Of an empty section nothing is added.
    fn add(&mut self, section: Arc<Section>, isid: c_int, asid: Asid, base: u64) {
        let Some(more) = section.size.checked_sub(1) else {
            return;
        };
        // (One that would go beyond the last address ends there.)
        self.put_part(Mapped {
            section,
            isid,
            asid,
            base,
            begin: base,
            last: base.saturating_add(more),
        });
    }

    /// Adds what is left of a section, as it stands in another image.
    fn put_part(&mut self, new: Mapped) {
        self.code.forget();
        let mut left = Vec::with_capacity(self.sections.len() + 2);
        for old in self.sections.drain(..) {
            if !old.overlaps(&new) {
                left.push(old);
                continue;
            }
            if old.begin < new.begin {
                left.push(Mapped {
                    last: new.begin - 1,
                    ..old.clone()
                });
            }
            if old.last > new.last {
                left.push(Mapped {
                    begin: new.last + 1,
                    ..old
                });
            }
        }
        left.push(new);
        self.sections = left;
    }

    /// Removes sections; how many.
    fn remove(&mut self, goes: impl Fn(&Mapped) -> bool) -> c_int {
        let before = self.sections.len();
        self.sections.retain(|section| !goes(section));
        self.code.forget();
        c_int::try_from(before - self.sections.len()).unwrap_or(c_int::MAX)
    }

    fn find(&self, ip: u64, asid: &Asid) -> Option<&Mapped> {
        self.sections
            .iter()
            .find(|section| section.holds(ip) && section.asid.matches(asid))
    }

    /// Whether which code stands somewhere depends on the address space.
    pub(crate) fn has_spaces(&self) -> bool {
        self.sections
            .iter()
            .any(|section| section.asid != Asid::ANY)
    }

    /// Up to 15 bytes at an address, from sections first, then from the caller's function.
    pub(crate) fn fetch(&self, ip: u64, asid: &Asid) -> Fetched {
        let mut fetched = Fetched {
            bytes: [0; 15],
            len: 0,
            isid: 0,
            first: 0,
            sectioned: true,
            lasting: true,
        };
        while fetched.len < fetched.bytes.len() {
            let at = ip.wrapping_add(fetched.len as u64);
            let room = &mut fetched.bytes[fetched.len..];
            let (got, isid) = match self.find(at, asid) {
                Some(section) => {
                    let bytes = section.bytes(at);
                    let len = bytes.len().min(room.len());
                    room[..len].copy_from_slice(&bytes[..len]);
                    (len, section.isid)
                }
                None => {
                    fetched.lasting = false;
                    fetched.sectioned &= fetched.len > 0;
                    (self.call(room, asid, at), 0)
                }
            };
            if got == 0 {
                break;
            }
            if fetched.len == 0 {
                (fetched.isid, fetched.first) = (isid, got);
            }
            fetched.len += got;
        }
        fetched
    }

    fn call(&self, room: &mut [u8], asid: &Asid, ip: u64) -> usize {
        let Some((callback, context)) = self.callback else {
            return 0;
        };
        // SAFETY: the function is the caller's, and gets what the header says.
        let got = unsafe { callback(room.as_mut_ptr(), room.len(), asid, ip, context) };
        usize::try_from(got).map_or(0, |got| got.min(room.len()))
    }
}
