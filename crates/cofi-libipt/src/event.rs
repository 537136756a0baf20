//! `struct pt_event`.

/// `struct pt_event`. The variant is three words, whose bytes mean what the type says.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Event {
    pub(crate) kind: u32,
    pub(crate) flags: u32,
    pub(crate) tsc: u64,
    pub(crate) lost_mtc: u32,
    pub(crate) lost_cyc: u32,
    pub(crate) reserved: [u64; 2],
    pub(crate) variant: [u64; 3],
}

/// Flags of an event.
pub(crate) mod flag {
    pub(crate) const IP_SUPPRESSED: u32 = 1;
    pub(crate) const STATUS_UPDATE: u32 = 1 << 1;
    pub(crate) const HAS_TSC: u32 = 1 << 2;
}

/// `enum pt_event_type`.
pub(crate) mod ptev {
    pub(crate) const ENABLED: u32 = 0;
    pub(crate) const DISABLED: u32 = 1;
    pub(crate) const ASYNC_DISABLED: u32 = 2;
    pub(crate) const ASYNC_BRANCH: u32 = 3;
    pub(crate) const PAGING: u32 = 4;
    pub(crate) const ASYNC_PAGING: u32 = 5;
    pub(crate) const OVERFLOW: u32 = 6;
    pub(crate) const EXEC_MODE: u32 = 7;
    pub(crate) const TSX: u32 = 8;
    pub(crate) const STOP: u32 = 9;
    pub(crate) const VMCS: u32 = 10;
    pub(crate) const ASYNC_VMCS: u32 = 11;
    pub(crate) const EXSTOP: u32 = 12;
    pub(crate) const MWAIT: u32 = 13;
    pub(crate) const PWRE: u32 = 14;
    pub(crate) const PWRX: u32 = 15;
    pub(crate) const PTWRITE: u32 = 16;
    pub(crate) const TICK: u32 = 17;
    pub(crate) const CBR: u32 = 18;
    pub(crate) const MNT: u32 = 19;
}

/// Bits of what functions return.
pub(crate) mod status {
    use std::ffi::c_int;
    pub(crate) const EVENT_PENDING: c_int = 1;
    pub(crate) const IP_SUPPRESSED: c_int = 1 << 1;
    pub(crate) const END: c_int = 1 << 2;
}

impl Event {
    /// The smallest event that a caller may have room for: type, flags and time.
    pub(crate) const LEAST: usize = 40;

    pub(crate) fn new(kind: u32, variant: [u64; 3]) -> Self {
        Self {
            kind,
            variant,
            ..Self::default()
        }
    }

    pub(crate) fn with(mut self, flags: u32) -> Self {
        self.flags |= flags;
        self
    }

    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Which word of the variant holds the address that a packet tells later, if one does.
    fn ip_word(&self) -> Option<usize> {
        Some(match self.kind {
            ptev::ENABLED | ptev::DISABLED | ptev::OVERFLOW | ptev::TSX | ptev::EXSTOP => 0,
            ptev::MWAIT | ptev::PTWRITE | ptev::TICK => 0,
            ptev::ASYNC_BRANCH | ptev::ASYNC_DISABLED | ptev::EXEC_MODE | ptev::ASYNC_VMCS => 1,
            ptev::ASYNC_PAGING => 2,
            _ => return None,
        })
    }

    /// Gives it its address; or says that there is none.
    pub(crate) fn at(mut self, ip: Option<u64>) -> Self {
        self.set_ip(ip);
        self
    }

    /// As [`Self::at`], where it stands.
    pub(crate) fn set_ip(&mut self, ip: Option<u64>) {
        if let Some(word) = self.ip_word() {
            match ip {
                Some(ip) => self.variant[word] = ip,
                None => self.flags |= flag::IP_SUPPRESSED,
            }
        }
    }

    /// The address at which it takes effect; none if there is none, or it was suppressed.
    pub(crate) fn ip(&self) -> Option<u64> {
        if self.has(flag::IP_SUPPRESSED) {
            return None;
        }
        self.ip_word().map(|word| self.variant[word])
    }
}
