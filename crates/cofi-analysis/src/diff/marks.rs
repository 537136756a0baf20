//! What happened between the instructions of a flow, in a few bytes each: while one side waits for the other there may be a million of them.
//!
//! A mark is a byte with what it is and how many instructions came since the mark before, then, as far as they are not just what is expected, the
//! depth, the function and the time, as numbers of seven bits a byte.

use std::collections::VecDeque;

use cofi_packet::Tsc;

use crate::calls::CallKind;

/// Something that happened between instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// After so many instructions.
    pub(super) at: u64,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Enter {
        function: u32,
        depth: i32,
        kind: CallKind,
        tsc: Option<Tsc>,
    },
    Leave {
        depth: i32,
    },
    /// All calls were left.
    Reset,
    /// Flow is missing: the next of the [gaps](super::feed::Batch::gaps).
    Gap,
}

/// What the next mark is written against.
#[derive(Clone, Copy, Debug)]
struct State {
    at: u64,
    /// The depth of the innermost call.
    depth: i32,
    tsc: Option<Tsc>,
}

impl State {
    const START: Self = Self {
        at: 0,
        depth: -1,
        tsc: None,
    };
}

/// The lower three bits of the first byte.
mod tag {
    pub(super) const LEAVE: u8 = 0;
    pub(super) const ENTER: u8 = 1;
    /// The time is another one than at the call before.
    pub(super) const ENTER_AT: u8 = 2;
    /// The time is not known.
    pub(super) const ENTER_TIMELESS: u8 = 3;
    pub(super) const RESET: u8 = 4;
    pub(super) const GAP: u8 = 5;
}

/// A bit of the first byte: the depth is another one than expected, and follows.
const DEPTH: u8 = 1 << 3;
/// The upper four bits have the instructions since the mark before; if they are all set, what is beyond that follows.
const FAR: u64 = 15;

const KINDS: [CallKind; 6] = [
    CallKind::Call,
    CallKind::Tail,
    CallKind::Signal,
    CallKind::Entry,
    CallKind::Assumed,
    CallKind::Inline,
];

/// Marks of a part of a flow.
#[derive(Debug, Default)]
pub(super) struct Marks {
    bytes: Box<[u8]>,
    count: usize,
}

/// Writes marks, in their order.
#[derive(Debug)]
pub(super) struct MarkWriter {
    bytes: Vec<u8>,
    count: usize,
    state: State,
}

impl Default for MarkWriter {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            count: 0,
            state: State::START,
        }
    }
}

impl MarkWriter {
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Where the last mark is.
    pub(super) const fn at(&self) -> u64 {
        self.state.at
    }

    /// What was written since this was called last.
    pub(super) fn take(&mut self) -> Marks {
        let marks = Marks {
            bytes: self.bytes.as_slice().into(),
            count: self.count,
        };
        self.bytes.clear();
        self.count = 0;
        marks
    }

    /// The next mark, which does not stand before the one before.
    pub(super) fn push(&mut self, mark: Mark) {
        let since = mark.at - self.state.at;
        let (mut tag, mut jump) = (0, None);
        let mut expect = |depth: i32, expected: i32| {
            if depth != expected {
                tag |= DEPTH;
                jump = Some(zigzag(i64::from(depth) - i64::from(expected)));
            }
        };
        let (mut call, mut time) = (None, None);
        match mark.what {
            What::Enter {
                function,
                depth,
                kind,
                tsc,
            } => {
                expect(depth, self.state.depth.wrapping_add(1));
                tag |= match tsc {
                    None => tag::ENTER_TIMELESS,
                    _ if tsc == self.state.tsc => tag::ENTER,
                    Some(tsc) => {
                        let before = self.state.tsc.map_or(0, |tsc| tsc.0);
                        time = Some(zigzag(tsc.0.wrapping_sub(before) as i64));
                        self.state.tsc = Some(tsc);
                        tag::ENTER_AT
                    }
                };
                let kind = KINDS.iter().position(|known| *known == kind).unwrap_or(0);
                call = Some(u64::from(function) << 3 | kind as u64);
                self.state.depth = depth;
            }
            What::Leave { depth } => {
                expect(depth, self.state.depth);
                tag |= tag::LEAVE;
                self.state.depth = depth.wrapping_sub(1);
            }
            What::Reset => tag |= tag::RESET,
            What::Gap => tag |= tag::GAP,
        }
        self.bytes.push(tag | (since.min(FAR) as u8) << 4);
        let far = (since >= FAR).then(|| since - FAR);
        for number in [far, jump, call, time].into_iter().flatten() {
            self.number(number);
        }
        self.state.at = mark.at;
        self.count += 1;
    }

    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }
}

const fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

const fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Marks that wait.
#[derive(Debug, Default)]
pub(super) struct MarkQueue {
    parts: VecDeque<Marks>,
    /// The number of the first part.
    first: u64,
    /// How many marks there are from the one at the front on.
    len: usize,
}

impl MarkQueue {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, marks: Marks) {
        if marks.count > 0 {
            self.len += marks.count;
            self.parts.push_back(marks);
        }
    }

    fn part(&self, number: u64) -> Option<&Marks> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.parts.get(index)
    }

    /// The mark that `front` is at is past.
    pub(super) fn pass(&mut self, front: &mut MarkCursor) {
        front.pass();
        self.len = self.len.saturating_sub(1);
        while self.first < front.part && self.parts.pop_front().is_some() {
            self.first += 1;
        }
    }
}

/// Goes along marks.
#[derive(Clone, Copy, Debug)]
pub(super) struct MarkCursor {
    /// Which part the next bytes are of, and where in it.
    part: u64,
    byte: usize,
    state: State,
    /// The next mark, if it was read.
    next: Option<Mark>,
}

impl Default for MarkCursor {
    fn default() -> Self {
        Self {
            part: 0,
            byte: 0,
            state: State::START,
            next: None,
        }
    }
}

impl MarkCursor {
    /// The next mark, if there is one by now. (Not a copy: one of what was just written piece by piece waits for these writes.)
    #[inline]
    pub(super) fn peek(&mut self, queue: &MarkQueue) -> Option<&Mark> {
        if self.next.is_none() {
            self.read(queue);
        }
        self.next.as_ref()
    }

    /// The next mark is past.
    #[inline]
    pub(super) const fn pass(&mut self) {
        self.next = None;
    }

    fn read(&mut self, queue: &MarkQueue) {
        let Some(part) = queue.part(self.part) else {
            return;
        };
        let bytes = part.bytes.get(self.byte..).unwrap_or_default();
        let mut bytes = bytes.iter().copied();
        let left = bytes.len();
        let mut next = || bytes.next().unwrap_or(0);
        let first = next();
        let mut number = || {
            let (mut number, mut shift) = (0, 0);
            loop {
                let byte = next();
                number |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 || shift > 63 {
                    return number;
                }
            }
        };
        let state = &mut self.state;
        state.at += match u64::from(first >> 4) {
            FAR => FAR + number(),
            near => near,
        };
        let jump = match first & DEPTH {
            0 => 0,
            _ => unzigzag(number()) as i32,
        };
        let what = match first & 7 {
            tag::LEAVE => {
                let depth = state.depth.wrapping_add(jump);
                state.depth = depth.wrapping_sub(1);
                What::Leave { depth }
            }
            tag::RESET => What::Reset,
            tag::GAP => What::Gap,
            enter => {
                let call = number();
                if enter == tag::ENTER_AT {
                    let before = state.tsc.map_or(0, |tsc| tsc.0);
                    let tsc = before.wrapping_add(unzigzag(number()) as u64);
                    state.tsc = Some(Tsc(tsc));
                }
                state.depth = state.depth.wrapping_add(1).wrapping_add(jump);
                What::Enter {
                    function: (call >> 3) as u32,
                    depth: state.depth,
                    kind: *KINDS.get((call & 7) as usize).unwrap_or(&CallKind::Call),
                    tsc: state.tsc.filter(|_| enter != tag::ENTER_TIMELESS),
                }
            }
        };
        self.next = Some(Mark { at: state.at, what });
        self.byte += left - bytes.len();
        if bytes.len() == 0 {
            (self.part, self.byte) = (self.part + 1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn marks() -> impl Strategy<Value = Vec<Mark>> {
        let depth = prop_oneof![-3..9, any::<i32>()];
        let tsc = proptest::option::of(prop_oneof![
            (0_u64..300).prop_map(Tsc),
            any::<u64>().prop_map(Tsc)
        ]);
        let enter = (any::<u32>(), depth.clone(), 0..KINDS.len(), tsc).prop_map(
            |(function, depth, kind, tsc)| What::Enter {
                function,
                depth,
                kind: KINDS[kind],
                tsc,
            },
        );
        let what = prop_oneof![
            enter,
            depth.prop_map(|depth| What::Leave { depth }),
            Just(What::Reset),
            Just(What::Gap),
        ];
        let since = prop_oneof![0_u64..40, 0_u64..1 << 40];
        proptest::collection::vec((since, what), 0..60).prop_map(|list| {
            let mut at = 0;
            let mark = |(since, what)| {
                at += since;
                Mark { at, what }
            };
            list.into_iter().map(mark).collect()
        })
    }

    proptest! {
        /// What is read is what was written, however it is cut, and for a second reader too.
        #[test]
        fn marks_come_back(list in marks(), cut in 1_usize..9) {
            let (mut writer, mut queue) = (MarkWriter::default(), MarkQueue::default());
            let (mut front, mut ahead) = (MarkCursor::default(), MarkCursor::default());
            for part in list.chunks(cut) {
                for mark in part {
                    writer.push(*mark);
                }
                queue.push(writer.take());
                for mark in part {
                    prop_assert_eq!(ahead.peek(&queue), Some(mark));
                    ahead.pass();
                }
                prop_assert_eq!(ahead.peek(&queue), None);
            }
            for (index, mark) in list.iter().enumerate() {
                prop_assert_eq!(queue.len(), list.len() - index);
                prop_assert_eq!(front.peek(&queue), Some(mark));
                queue.pass(&mut front);
            }
            prop_assert_eq!((queue.len(), front.peek(&queue)), (0, None));
        }
    }
}
