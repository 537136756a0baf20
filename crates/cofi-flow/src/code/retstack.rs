//! The stack of return addresses by which compressed returns are resolved (33.4.2.2), and RTIT's one return address (4.2.3.2).

use cofi_packet::Ip;

use crate::code::index::NONE;
use crate::family::WalkFamily;

const DEPTH: usize = 64;

/// The youngest 64 return addresses, each with the number of the [site](crate::code::graph::Graph::calls) of its call, if it has one.
#[derive(Clone, Debug)]
pub(crate) struct ReturnStack {
    slots: [(Ip, u32); DEPTH],
    /// Where the next address goes.
    top: usize,
    len: usize,
}

impl ReturnStack {
    pub(crate) const fn new() -> Self {
        Self {
            slots: [(Ip(0), NONE); DEPTH],
            top: 0,
            len: 0,
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
    fn pop_site(&mut self) -> Option<(Ip, u32)> {
        self.len = self.len.checked_sub(1)?;
        self.top = (self.top + DEPTH - 1) % DEPTH;
        Some(self.slots[self.top % DEPTH])
    }

    /// A return goes back to the youngest address, and uses it up if this family has a stack.
    #[inline]
    pub(crate) fn go_back<F: WalkFamily>(&mut self) -> Option<(Ip, u32)> {
        if F::HAS_STACK {
            self.pop_site()
        } else {
            self.peek(0)
        }
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
    use crate::family::Rtit;

    #[test]
    fn keeps_the_youngest_64() {
        let mut stack = ReturnStack::new();
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
        let mut last = ReturnStack::new();
        assert_eq!(last.go_back::<Rtit>(), None);
        for ip in 0..100 {
            last.push(Ip(ip));
            for _ in 0..2 {
                assert_eq!(last.go_back::<Rtit>(), Some((Ip(ip), NONE)));
            }
        }
        last.clear();
        assert_eq!(last.go_back::<Rtit>(), None);
    }
}
