//! The stack of return addresses by which compressed returns are resolved (33.4.2.2), and RTIT's one return address (4.2.3.2).

use cofi_packet::Ip;

use crate::TraceFormat;
use crate::code::index::NONE;

const DEPTH: usize = 64;

/// The youngest 64 return addresses, each with the number of the [site](crate::code::graph::Graph::calls) of its call, if it has one.
#[derive(Clone, Debug)]
pub(crate) struct ReturnStack {
    slots: [(Ip, u32); DEPTH],
    /// Where the next address goes.
    top: usize,
    len: usize,
    /// Zero; of RTIT, one: returns do not use up the address that they go back to, which is always the youngest.
    kept: usize,
}

impl ReturnStack {
    pub(crate) const fn new(format: &TraceFormat) -> Self {
        Self {
            slots: [(Ip(0), NONE); DEPTH],
            top: 0,
            len: 0,
            kept: match format {
                TraceFormat::IntelPt => 0,
                TraceFormat::Rtit(_) => 1,
            },
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, ip: Ip) {
        self.push_site(ip, NONE);
    }

    #[inline]
    pub(crate) fn push_site(&mut self, ip: Ip, site: u32) {
        self.slots[self.top % DEPTH] = (ip, site);
        self.top = (self.top + 1) % DEPTH;
        self.len = (self.len + 1).min(DEPTH);
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Ip> {
        self.pop_site().map(|(ip, _)| ip)
    }

    #[inline]
    pub(crate) fn pop_site(&mut self) -> Option<(Ip, u32)> {
        self.len = self.len.checked_sub(1)?;
        self.top = (self.top + DEPTH - 1) % DEPTH;
        let slot = self.slots[self.top % DEPTH];
        self.len += self.kept;
        self.top = (self.top + self.kept) % DEPTH;
        Some(slot)
    }

    /// Whether so many more addresses push none out.
    #[inline]
    pub(crate) const fn has_room(&self, count: u8) -> bool {
        self.len + count as usize <= DEPTH
    }

    /// The address and site so many below the youngest.
    pub(crate) fn peek(&self, below: usize) -> Option<(Ip, u32)> {
        (below < self.len).then(|| self.slots[(self.top + 2 * DEPTH - 1 - below) % DEPTH])
    }

    /// Whether the youngest are these, as far as they are told, the youngest first.
    #[inline]
    pub(crate) fn begins_with(&self, youngest: &[Option<Ip>]) -> bool {
        let is_same = |(below, ip): (usize, &Option<Ip>)| match (ip, self.peek(below)) {
            (Some(ip), Some((found, _))) => found == *ip,
            (None, found) => found.is_some(),
            _ => false,
        };
        youngest.iter().enumerate().all(is_same)
    }

    /// Takes so many off, which are there.
    #[inline]
    pub(crate) fn drop_youngest(&mut self, count: usize) {
        self.len = self.len.saturating_sub(count);
        self.top = (self.top + DEPTH - count % DEPTH) % DEPTH;
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Pushes what is on another, in its order. The sites are those of code that may be forgotten: they are left out.
    pub(crate) fn extend(&mut self, other: &Self) {
        for back in (0..other.len).rev() {
            let slot = (other.top + 2 * DEPTH - 1 - back) % DEPTH;
            self.push(other.slots[slot].0);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_youngest_64() {
        let mut stack = ReturnStack::new(&TraceFormat::IntelPt);
        assert_eq!(stack.pop(), None);
        for ip in 0..100 {
            stack.push(Ip(ip));
        }
        for ip in (36..100).rev() {
            assert_eq!(stack.pop(), Some(Ip(ip)));
        }
        assert_eq!(stack.pop(), None);
        stack.push(Ip(7));
        stack.clear();
        assert_eq!(stack.pop(), None);
    }

    #[test]
    fn rtit_keeps_the_last_one() {
        let mut last = ReturnStack::new(&TraceFormat::Rtit(Default::default()));
        assert_eq!(last.pop(), None);
        for ip in 0..100 {
            last.push(Ip(ip));
            assert_eq!((last.pop(), last.pop()), (Some(Ip(ip)), Some(Ip(ip))));
        }
        last.clear();
        assert_eq!(last.pop(), None);
    }
}
