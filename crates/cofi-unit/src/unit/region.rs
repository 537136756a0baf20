//! Where nothing about address ranges changes (33.2.5.3, 33.2.6.5).

use cofi_packet::Ip;

/// Addresses, as IP payloads, to which a taken branch or an event may lead without FilterEn or tracing being other than they
/// are. One comparison with it is all that most branches need, whatever ranges there are.
///
/// While TriggerEn is set FilterEn is what it is at each address of it: whoever changes one of them, or the ranges, forgets it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Region {
    from: u64,
    /// How many addresses it has; the last of all is in none, so that this is a number of 64 bits.
    len: u64,
}

/// What is remembered makes no difference: units are equal that have it looked up anew.
impl PartialEq for Region {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Region {}

impl Region {
    pub(super) const UNKNOWN: Self = Self { from: 0, len: 0 };
    pub(super) const EVERYWHERE: Self = Self {
        from: 0,
        len: u64::MAX,
    };

    #[inline(always)]
    pub(super) const fn has(self, Ip(payload): Ip) -> bool {
        payload.wrapping_sub(self.from) < self.len
    }

    /// What of all `ranges`, both of whose ends belong to them, is on the same side as `payload`, which lies in each of them or
    /// not.
    pub(super) fn around(payload: u64, ranges: impl Iterator<Item = (u64, u64)>) -> Self {
        let (mut first, mut last) = (0, u64::MAX - 1);
        for (from, to) in ranges.filter(|(from, to)| from <= to) {
            if payload < from {
                last = last.min(from - 1);
            } else if payload > to {
                first = first.max(to + 1);
            } else {
                (first, last) = (first.max(from), last.min(to));
            }
        }
        // Empty only if `payload` is the last address of all.
        Self {
            from: first,
            len: (last + 1).saturating_sub(first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_where_each_range_holds_all_or_nothing() {
        const EDGES: [u64; 9] = [0, 1, 2, 5, 6, 9, u64::MAX - 2, u64::MAX - 1, u64::MAX];
        let all = || {
            EDGES
                .into_iter()
                .flat_map(|from| EDGES.map(|to| (from, to)))
        };
        let in_both =
            |[a, b]: [(u64, u64); 2], ip: u64| [a, b].map(|(from, to)| (from..=to).contains(&ip));
        for (first, second) in all().flat_map(|first| all().map(move |second| (first, second))) {
            let ranges = [first, second];
            for payload in EDGES {
                let region = Region::around(payload, ranges.into_iter());
                assert_eq!(region.has(Ip(payload)), payload != u64::MAX);
                for ip in EDGES.into_iter().filter(|ip| region.has(Ip(*ip))) {
                    let (here, there) = (in_both(ranges, payload), in_both(ranges, ip));
                    assert_eq!(here, there, "{ranges:x?}, {payload:x}, {ip:x}");
                }
            }
        }
        assert!(!Region::UNKNOWN.has(Ip(0)) && Region::EVERYWHERE.has(Ip(u64::MAX - 1)));
    }
}
