//! The Table of Physical Addresses (33.2.7.2): the format of its entries (Figure 33-2, Table 33-3).

/// The smallest output region, the alignment of tables and the unit of addresses in entries.
pub const PAGE: u64 = 4096;

/// The size of an entry.
pub const ENTRY_BYTES: u64 = 8;

/// The offset of the last entry that a table can have: proc_trace_table_offset goes no further and wraps to 0.
pub const LAST_ENTRY_OFFSET: u64 = 0x0fff_fff8;

/// One field of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// The manual's name.
    pub name: &'static str,
    /// Its lowest bit.
    pub low: u32,
    /// The bit after its highest.
    pub high: u32,
}

impl Field {
    /// The field's bits.
    #[must_use]
    pub const fn mask(&self) -> u64 {
        (u64::MAX >> (64 - (self.high - self.low))) << self.low
    }
}

/// The fields of an entry; what none covers is reserved. The address ends at MAXPHYADDR, so its upper bits may be
/// illegal too.
pub const FIELDS: [Field; 5] = [
    END,
    INT,
    STOP,
    SIZE,
    Field {
        name: "Output Region Base Physical Address",
        low: 12,
        high: 64,
    },
];

const END: Field = Field {
    name: "END",
    low: 0,
    high: 1,
};
const INT: Field = Field {
    name: "INT",
    low: 2,
    high: 3,
};
const STOP: Field = Field {
    name: "STOP",
    low: 4,
    high: 5,
};
const SIZE: Field = Field {
    name: "Size",
    low: 6,
    high: 10,
};

/// The bits that are reserved at every physical-address width: 1, 3, 5, 10 and 11.
pub const RESERVED: u64 = {
    let (mut reserved, mut i) = (u64::MAX, 0);
    while i < FIELDS.len() {
        reserved &= !FIELDS[i].mask();
        i += 1;
    }
    reserved
};

/// An entry: 8 bytes, little-endian in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Entry(pub u64);

impl Entry {
    /// An entry for an output region of `size` bytes at `base`; `None` where no encoding has this size. Whether the
    /// address suits the size is for the processor to judge.
    #[must_use]
    pub const fn region(base: u64, size: u64) -> Option<Self> {
        let code = size.trailing_zeros().wrapping_sub(PAGE.trailing_zeros());
        if size.is_power_of_two() && code < 16 {
            Some(Self(base | (code as u64) << SIZE.low))
        } else {
            None
        }
    }

    /// The END entry that leads to the table at `base`.
    #[must_use]
    pub const fn table(base: u64) -> Self {
        Self(base | END.mask())
    }

    /// The entry with INT set: a PMI when its region is filled.
    #[must_use]
    pub const fn with_int(self) -> Self {
        Self(self.0 | INT.mask())
    }

    /// The entry with STOP set: tracing stops when its region is filled.
    #[must_use]
    pub const fn with_stop(self) -> Self {
        Self(self.0 | STOP.mask())
    }

    /// END: the address is that of the next table.
    #[must_use]
    pub const fn is_end(self) -> bool {
        self.0 & END.mask() != 0
    }

    /// INT: a PMI when the region is filled.
    #[must_use]
    pub const fn int(self) -> bool {
        self.0 & INT.mask() != 0
    }

    /// STOP: tracing stops when the region is filled.
    #[must_use]
    pub const fn stop(self) -> bool {
        self.0 & STOP.mask() != 0
    }

    /// The size of the region in bytes, 4K to 128M. It means nothing where END is set.
    #[must_use]
    pub const fn size(self) -> u64 {
        PAGE << ((self.0 & SIZE.mask()) >> SIZE.low)
    }

    /// The physical address of the output region, or of the next table.
    #[must_use]
    pub const fn base(self) -> u64 {
        self.0 & !(PAGE - 1)
    }
}

impl core::fmt::Debug for Entry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ToPA entry {:#x}", self.0)
    }
}
