//! The ways along which functions were called, each recursion folded.
//!
//! A recursion has about as many ways as it makes calls. So a function stands at most once in a way: where it is called again within itself, the way goes on from its
//! outermost call, and what lay between is left out. The number of ways then depends on the functions and not on how deep they recur.

use cofi_packet::Ip;
use rustc_hash::FxHashMap;
use std::hash::Hash;

/// So many callers outward a function is looked for, so that a new way costs no more than this.
const FURTHEST: usize = 256;

/// The number of a way.
pub(super) type WayId = u32;

/// How a function came to be called, from its caller outward.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way<F> {
    pub(super) function: F,
    /// The way to the caller, and the instruction there; none where nothing is known to have called the function.
    pub(super) caller: Option<(WayId, Ip)>,
    /// Whether the function was called again within itself, which is left out.
    pub(super) is_recursive: bool,
}

/// All ways that were looked for, each once.
#[derive(Debug)]
pub(super) struct Ways<F> {
    ways: Vec<Way<F>>,
    numbers: FxHashMap<(Option<(WayId, Ip)>, F), WayId>,
}

impl<F: Copy + Eq + Hash> Ways<F> {
    pub(super) fn new() -> Self {
        Self {
            ways: Vec::new(),
            numbers: FxHashMap::default(),
        }
    }

    /// The way to a function that this caller called.
    pub(super) fn called(&mut self, caller: Option<(WayId, Ip)>, function: F) -> WayId {
        if let Some(known) = self.numbers.get(&(caller, function)) {
            return *known;
        }
        let outer = caller.and_then(|(way, _)| self.outer(way, function));
        let number = outer.unwrap_or_else(|| {
            self.ways.push(Way {
                function,
                caller,
                is_recursive: false,
            });
            // One way takes more than a byte: there is no memory for as many as have no number.
            WayId::try_from(self.ways.len() - 1).unwrap_or(WayId::MAX)
        });
        if let Some(way) = self.ways.get_mut(number as usize) {
            way.is_recursive |= outer.is_some();
        }
        self.numbers.insert((caller, function), number);
        number
    }

    /// The function's own place in this way, if it is in there.
    fn outer(&self, way: WayId, function: F) -> Option<WayId> {
        let mut outward = self.outward(way).take(FURTHEST);
        let found = outward.find(|(_, way)| way.function == function);
        found.map(|(number, _)| number)
    }

    /// The functions of a way, from the innermost on.
    fn outward(&self, way: WayId) -> impl Iterator<Item = (WayId, Way<F>)> + '_ {
        let numbered = |number: WayId| Some((number, self.get(number)?));
        std::iter::successors(numbered(way), move |(_, way)| numbered(way.caller?.0))
    }

    pub(super) fn get(&self, way: WayId) -> Option<Way<F>> {
        self.ways.get(way as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The functions of a way, from the outermost on; those that recur with a star.
    fn shown(ways: &Ways<u32>, way: WayId) -> String {
        let mut names: Vec<String> = ways
            .outward(way)
            .map(|(_, way)| {
                let star = if way.is_recursive { "*" } else { "" };
                format!("{}{star}", way.function)
            })
            .collect();
        names.reverse();
        names.join(" ")
    }

    /// The way of calls within each other, each from another address of its caller.
    fn along(ways: &mut Ways<u32>, functions: &[u32]) -> WayId {
        let mut caller = None;
        for (at, function) in functions.iter().enumerate() {
            let way = ways.called(caller, *function);
            caller = Some((way, Ip(at as u64)));
        }
        caller.expect("a function").0
    }

    #[test]
    fn a_function_is_in_a_way_once() {
        let mut ways = Ways::new();
        let plain = along(&mut ways, &[1, 2, 3]);
        assert_eq!(shown(&ways, plain), "1 2 3");
        let direct = along(&mut ways, &[1, 4, 4, 4, 4, 5]);
        assert_eq!(shown(&ways, direct), "1 4* 5");
        let in_turn = along(&mut ways, &[1, 6, 7, 6, 7, 6, 7, 8]);
        assert_eq!(shown(&ways, in_turn), "1 6* 7 8");
        // What did not recur is as it was.
        assert_eq!(shown(&ways, plain), "1 2 3");
        assert_eq!(along(&mut ways, &[1, 2, 3]), plain);
    }

    #[test]
    fn ways_do_not_grow_with_a_recursion() {
        let mut ways = Ways::new();
        let (first, second) = (1, 2);
        let mut way = ways.called(None, first);
        let mut random = 1_u32;
        for _ in 0..100_000 {
            random = random.wrapping_mul(1_103_515_245).wrapping_add(12345);
            let function = if random >> 30 & 1 == 0 { first } else { second };
            way = ways.called(Some((way, Ip(u64::from(random >> 31)))), function);
        }
        // The first function, and the second from each of two places in it.
        assert_eq!(ways.ways.len(), 3);
        assert!(ways.numbers.len() <= 13, "{}", ways.numbers.len());
    }
}
