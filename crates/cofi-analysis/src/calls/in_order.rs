//! Finished calls in the order in which they began.
//!
//! What a call comes to is known at its end, when all that began in it has long been known. So calls wait, in a compact form, and beyond
//! some amount in a file without a name.

use std::io;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::ends::{Ends, Sorted};
use super::packed::{Packed, Part, Shared};
use super::{Call, CallEnd};

/// So many calls are kept as they are. Those that are left by the time when there are so many need no more room elsewhere.
const CHUNK: usize = 1 << 10;

/// A call that has begun and ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedCall {
    /// How it began. The outermost call is at depth 0.
    pub call: Call,
    /// How it ended.
    pub end: CallEnd,
    /// The same for all calls that one [`CallsInOrder`] gives of one function, address, caller and kind: small numbers from 0 on.
    pub site: u32,
}

/// Takes calls as they begin and are left, and gives them back in the order in which they began.
///
/// The calls of one thread, or some of them.
#[derive(Debug, Default)]
pub struct CallsInOrder {
    /// Calls that were open before the trace, the innermost first.
    outer: Vec<(Call, Option<CallEnd>)>,
    /// The calls that began last.
    chunk: Vec<(Call, Option<CallEnd>)>,
    /// Those before them, but for what is not known yet.
    packed: Packed,
    /// Calls that were packed and have not been left.
    open: FxHashSet<i64>,
    /// Ends of calls that were packed before they were left.
    ends: Ends,
    failed: Option<io::Error>,
}

impl CallsInOrder {
    /// A call begins.
    #[inline]
    pub fn enter(&mut self, call: &Call) {
        if call.number < 0 {
            self.outer.push((*call, None));
            return;
        }
        self.chunk.push((*call, None));
        if self.chunk.len() >= CHUNK {
            self.pack();
        }
    }

    #[inline(never)]
    fn pack(&mut self) {
        let packed = self.packed.put(&self.chunk);
        self.note(packed);
        let open = self.chunk.iter().filter(|(_, end)| end.is_none());
        self.open.extend(open.map(|(call, _)| call.number));
        self.chunk.clear();
    }

    /// A call that has [begun](Self::enter) is left.
    #[inline]
    pub fn leave(&mut self, call: &Call, end: &CallEnd) {
        if call.number >= 0
            && let Some((first, _)) = self.chunk.first()
            && let Ok(index) = usize::try_from(call.number - first.number)
            && let Some((other, slot)) = self.chunk.get_mut(index)
            && other.number == call.number
        {
            // Where all calls are wanted.
            *slot = Some(*end);
            return;
        }
        self.leave_one_of_some(call, end);
    }

    /// A call is left that began before the last ones, or if not all are wanted.
    fn leave_one_of_some(&mut self, call: &Call, end: &CallEnd) {
        if call.number < 0 {
            let is_it = |(other, _): &&mut (Call, _)| other.number == call.number;
            if let Some((_, slot)) = self.outer.iter_mut().rev().find(is_it) {
                *slot = Some(*end);
            }
            return;
        }
        match self.chunk.first() {
            Some((first, _)) if first.number <= call.number => {
                // It is most often one of the last.
                let len = self.chunk.len();
                let mut reach = 1;
                while reach < len
                    && let Some((other, _)) = self.chunk.get(len - reach)
                    && other.number > call.number
                {
                    reach *= 2;
                }
                let from = len.saturating_sub(reach);
                let part = self.chunk.get_mut(from..).unwrap_or_default();
                let found = part.binary_search_by_key(&call.number, |(other, _)| other.number);
                if let Some((_, slot)) = found.ok().and_then(|index| part.get_mut(index)) {
                    *slot = Some(*end);
                }
            }
            _ if self.open.remove(&call.number) => {
                let pushed = self.ends.push(call.number, *end);
                self.note(pushed);
            }
            // It was not among those that were wanted.
            _ => {}
        }
    }

    /// Keeps what went wrong first.
    fn note(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }

    /// Gives all calls, which must have been left, and begins anew.
    ///
    /// # Errors
    /// What `emit` says, and what the file without a name says if there was need of it.
    pub fn drain(
        &mut self,
        mut emit: impl FnMut(&FinishedCall) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut parts = self.take_parts()?;
        while let Some(part) = parts.next_part()? {
            part.for_each(&mut emit)?;
        }
        Ok(())
    }

    /// Gives all calls, which must have been left, in parts, and begins anew. Several threads may go through parts.
    ///
    /// # Errors
    /// What the file without a name says if there was need of it.
    pub fn take_parts(&mut self) -> io::Result<CallParts> {
        let Self {
            mut outer,
            chunk,
            mut packed,
            ends,
            failed,
            ..
        } = std::mem::take(self);
        if let Some(error) = failed {
            return Err(error);
        }
        packed.put(&chunk)?;
        outer.sort_unstable_by_key(|(call, _)| call.number);
        let lowest = outer.iter().map(|(call, _)| call.depth).min().unwrap_or(0);
        let outer = outer.into_iter().filter_map(|(call, end)| {
            let site = packed.site(&call);
            let end = end?;
            Some(FinishedCall { call, end, site })
        });
        let outer = outer.collect();
        let (parts, shared) = match packed.finish() {
            Some((parts, shared)) => (parts, Some(Arc::new(shared))),
            None => (Vec::new(), None),
        };
        Ok(CallParts {
            outer,
            parts: parts.into_iter(),
            shared,
            ends: ends.sorted()?,
            deeper: lowest.min(0).saturating_neg(),
        })
    }
}

/// Calls in the order in which they began, in parts.
#[derive(Debug)]
pub struct CallParts {
    outer: Vec<FinishedCall>,
    parts: std::vec::IntoIter<Part>,
    shared: Option<Arc<Shared>>,
    ends: Sorted,
    /// How much deeper all calls lie than was known when they began.
    deeper: i32,
}

impl CallParts {
    /// The next part; none behind the last.
    ///
    /// # Errors
    /// What the file without a name says if there was need of it.
    pub fn next_part(&mut self) -> io::Result<Option<CallPart>> {
        let content = if !self.outer.is_empty() {
            Content::Outer(std::mem::take(&mut self.outer))
        } else if let Some(part) = self.parts.next()
            && let Some(shared) = &self.shared
        {
            let ends = self.ends.take_through(part.last)?;
            Content::Packed(part, shared.clone(), ends)
        } else {
            return Ok(None);
        };
        Ok(Some(CallPart {
            content,
            deeper: self.deeper,
        }))
    }
}

/// Some calls that began one after the other.
#[derive(Debug)]
pub struct CallPart {
    content: Content,
    deeper: i32,
}

#[derive(Debug)]
enum Content {
    /// Calls that were open before the trace.
    Outer(Vec<FinishedCall>),
    /// Others, what they share with other parts, and how those of them ended that were packed before that was known.
    Packed(Part, Arc<Shared>, Vec<(i64, CallEnd)>),
}

impl CallPart {
    /// Gives its calls.
    ///
    /// # Errors
    /// What `emit` says, and what the file without a name says if there was need of it.
    pub fn for_each(self, mut emit: impl FnMut(&FinishedCall) -> io::Result<()>) -> io::Result<()> {
        match self.content {
            Content::Outer(calls) => calls.into_iter().try_for_each(|mut finished| {
                finished.call.depth = within(finished.call.depth, self.deeper);
                emit(&finished)
            }),
            Content::Packed(part, shared, ends) => part.each(&shared, ends, self.deeper, emit),
        }
    }
}

/// How deep a call lies that was thought to lie at `depth`, when all lie so much deeper.
pub(super) fn within(depth: i32, deeper: i32) -> i32 {
    depth.saturating_add(deeper).max(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::{CallKind, CallMoment, FunctionId, Left};
    use cofi_packet::{Ip, Tsc};
    use cofi_session::Task;
    use proptest::prelude::*;

    /// Calls nested at random: at each step one begins, or the innermost is left.
    fn history(steps: &[(bool, u64, u64)]) -> (Vec<FinishedCall>, CallsInOrder) {
        let (mut all, mut order) = (Vec::new(), CallsInOrder::default());
        let mut open: Vec<(usize, Call)> = Vec::new();
        let (mut next, mut outer) = (0, 0);
        let leave = |open: &mut Vec<(usize, Call)>,
                     all: &mut Vec<FinishedCall>,
                     order: &mut CallsInOrder,
                     x: u64| {
            if let Some((index, call)) = open.pop() {
                let end = CallEnd {
                    end: CallMoment {
                        tsc: (!x.is_multiple_of(3)).then_some(Tsc(x)),
                        cycles: x >> 3,
                        insns: x >> 1,
                    },
                    insns: x,
                    self_insns: x / 2,
                    left: Left::ALL[(x % 5) as usize],
                };
                order.leave(&call, &end);
                all[index].end = end;
            }
        };
        for (is_call, x, y) in steps {
            if !is_call {
                leave(&mut open, &mut all, &mut order, *x);
                continue;
            }
            let is_outer = open.is_empty() && x.is_multiple_of(7);
            // Not every number is there.
            next += 1 + (y % 2) as i64;
            outer -= i64::from(is_outer);
            let call = Call {
                task: Task { pid: 1, tid: 2 },
                number: if is_outer { outer } else { next },
                parent: open.last().map(|(_, call)| call.number),
                stack: (x % 3) as u32,
                function: FunctionId(*y as u32),
                ip: Ip(*x),
                depth: if is_outer {
                    outer as i32
                } else {
                    open.len() as i32
                },
                kind: [CallKind::Call, CallKind::Tail, CallKind::Signal][(x % 3) as usize],
                from: x.is_multiple_of(2).then_some(Ip(*y)),
                begin: CallMoment {
                    tsc: (!y.is_multiple_of(5)).then_some(Tsc(*y)),
                    cycles: y / 3,
                    insns: *x,
                },
            };
            order.enter(&call);
            open.push((all.len(), call));
            all.push(FinishedCall {
                call,
                end: CallEnd {
                    end: CallMoment::default(),
                    insns: 0,
                    self_insns: 0,
                    left: Left::End,
                },
                site: 0,
            });
        }
        while !open.is_empty() {
            leave(&mut open, &mut all, &mut order, 99);
        }
        all.sort_by_key(|finished| finished.call.number);
        let lowest = outer as i32;
        for finished in &mut all {
            finished.call.depth -= lowest;
        }
        (all, order)
    }

    fn drained(order: &mut CallsInOrder) -> Vec<FinishedCall> {
        let mut got = Vec::new();
        let drained = order.drain(|call| {
            got.push(*call);
            Ok(())
        });
        drained.expect("memory does not fail");
        // Sites are the same where function, address, caller and kind are.
        let mut sites = std::collections::HashMap::new();
        for finished in &mut got {
            let Call {
                function,
                ip,
                from,
                kind,
                ..
            } = finished.call;
            let site = (function, ip, from, kind);
            assert_eq!(*sites.entry(site).or_insert(finished.site), finished.site);
            finished.site = 0;
        }
        got
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn calls_come_back_as_they_began(
            steps in prop::collection::vec((any::<bool>(), any::<u64>(), any::<u64>()), 0..400)
        ) {
            let (wanted, mut order) = history(&steps);
            prop_assert_eq!(drained(&mut order), wanted);
            prop_assert!(drained(&mut order).is_empty());
        }
    }

    /// More than a chunk, with calls that are open across its ends.
    #[test]
    fn calls_that_were_packed_while_open() {
        let mut steps: Vec<(bool, u64, u64)> = Vec::new();
        for n in 1..3 * CHUNK as u64 {
            // Two calls begin for each that is left, up to some depth.
            steps.push((!n.is_multiple_of(3), n * 77 + 1, n * 1001 + 3));
            if n.is_multiple_of(1000) {
                steps.extend(std::iter::repeat_n((false, n, n), 300));
            }
        }
        let (wanted, mut order) = history(&steps);
        assert!(wanted.len() > CHUNK && !order.packed.is_empty() && !order.ends.is_empty());
        let got = drained(&mut order);
        assert_eq!(got.len(), wanted.len());
        assert!(got == wanted);
    }
}
