//! Return addresses of calls, for compressed returns.

/// How many there are; an older one gives way.
const ROOM: usize = 64;

/// The stack of return addresses.
#[derive(Clone, Debug)]
pub(super) struct RetStack {
    stack: [u64; ROOM],
    top: usize,
    len: usize,
}

impl Default for RetStack {
    fn default() -> Self {
        Self {
            stack: [0; ROOM],
            top: 0,
            len: 0,
        }
    }
}

impl RetStack {
    #[inline]
    pub(super) fn push(&mut self, ip: u64) {
        self.stack[self.top % ROOM] = ip;
        self.top = (self.top + 1) % ROOM;
        self.len = (self.len + 1).min(ROOM);
    }

    #[inline(always)]
    pub(super) fn push_all(&mut self, ips: &[u64]) {
        if ips.is_empty() {
            return;
        }
        let mut top = self.top;
        for ip in ips {
            self.stack[top % ROOM] = *ip;
            top += 1;
        }
        self.top = top % ROOM;
        self.len = (self.len + ips.len()).min(ROOM);
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<u64> {
        self.len = self.len.checked_sub(1)?;
        self.top = (self.top + ROOM - 1) % ROOM;
        Some(self.stack[self.top % ROOM])
    }
}
