//! What paths do to the stack, worked out once for each.
//!
//! Most blocks along a path do nothing to it: a conditional branch leads on within its function. So who comes along a path again has to
//! look at calls, returns and the like alone.

use cofi_flow::PathNumber;
use cofi_insn::Class;
use cofi_packet::{Ip, StreamOffset};
use rustc_hash::FxHashMap;

use super::brief::BriefStep;
use super::inlines::{Chain, Span};
use super::names::{CallNames, Location};
use super::net::NetStep;
use super::shapes::{Hop, Shape, Transfer};
use super::thread::Coming;

/// A path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Track {
    /// Its first instruction.
    pub(crate) ip: Ip,
    pub(crate) at: Location,
    /// [`Location::is_plain`] of that.
    pub(super) is_plain: bool,
    pub(crate) insns: u32,
    /// How its last block ends; none if something else happened before that.
    pub(crate) end: Option<Transfer>,
    /// The instruction that ran last, or that the last block began with.
    pub(crate) last_ip: Ip,
    /// How far before the path's last packet the one begins that led behind the last block.
    behind: u32,
    /// Its steps, in [`Tracks`], and the same in brief.
    first: u32,
    after: u32,
    first_brief: u32,
    after_brief: u32,
    /// What they come to, if that was asked for.
    first_net: u32,
    after_net: u32,
}

/// A path that is known, and its steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'t> {
    pub(crate) track: &'t Track,
    pub(crate) steps: &'t [Step],
    pub(crate) brief: &'t [BriefStep],
    pub(super) net: &'t [NetStep],
}

/// What happens along a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) kind: StepKind,
    /// How many of the path's instructions have run by then.
    pub(crate) insns: u32,
    /// How far before the path's last packet the one begins that led to the block; none if that stands before the path.
    pub(super) behind: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum StepKind {
    /// Control comes from one block to another.
    Arrive(Transfer, Ip, Location),
    /// It goes elsewhere within a block.
    Hop(Hop),
    /// Other inlined functions run.
    Inline(Ip, Chain),
}

/// The paths that are known.
#[derive(Debug, Default)]
pub(crate) struct Tracks {
    list: Vec<Track>,
    steps: Vec<Step>,
    brief: Vec<BriefStep>,
    net: Vec<NetStep>,
    /// The generation and the code of `slots`.
    owner: (usize, u32),
    slots: Slots,
    others: FxHashMap<(usize, u32), Slots>,
    /// How many slots all of them have.
    len: usize,
    /// The path that is being added: where its steps begin, what is known of its blocks so far, and where its last packet is.
    begin: usize,
    begin_brief: usize,
    begin_net: usize,
    open: Option<Track>,
    last: StreamOffset,
    /// The inlined functions that run there, if nothing happened since they were noted.
    chain: Option<Chain>,
    /// How often all of this was forgotten.
    generation: u64,
}

/// Where the paths of a generation and code are.
///
/// Who runs a few paths of great numbers would take room for all numbers below. So there is room only as paths are gone along block by block.
#[derive(Debug, Default)]
struct Slots {
    /// By the [index](PathNumber::index) of a path.
    list: Vec<Slot>,
    room: usize,
}

/// A path in short, to know whether it does nothing to the stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// Where it is in the list, or `u32::MAX`.
    number: u32,
    pub(crate) insns: u32,
    /// The function in which it begins, if nothing happens along it.
    first: u32,
    /// The inlined functions that run along it, then.
    chain: Chain,
    pub(crate) end: Stays,
}

/// The function in which control stays if what runs next begins in it: behind a conditional branch, or wherever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stays(u32);

impl Stays {
    const NEVER: Self = Self(u32::MAX);
    const ALWAYS: Self = Self(u32::MAX - 1);

    #[inline]
    pub(crate) fn after(coming: &Coming) -> Self {
        match coming {
            Coming::Straight => Self::ALWAYS,
            Coming::By(by) if by.class == Class::Conditional => Self(by.source.0),
            _ => Self::NEVER,
        }
    }
}

impl Slot {
    const NONE: Self = Self {
        number: u32::MAX,
        insns: 0,
        first: Self::SOMETHING,
        chain: 0,
        end: Stays::NEVER,
    };
    /// Something happens along the path.
    const SOMETHING: u32 = u32::MAX - 2;

    /// Whether the path does nothing to the stack, if these inlined functions run before it.
    #[inline]
    pub(crate) fn passes(&self, before: Stays, chain: Chain) -> bool {
        self.chain == chain
            && (self.first == before.0 || before == Stays::ALWAYS && self.first != Self::SOMETHING)
    }
}

impl Step {
    /// One of which all but its place is known.
    pub(super) const fn of(kind: StepKind) -> Self {
        Self {
            kind,
            insns: 0,
            behind: None,
        }
    }

    /// The packet that led to the block.
    pub(crate) fn offset(&self, path: StreamOffset, before: StreamOffset) -> StreamOffset {
        self.behind.map_or(before, |behind| back(path, behind))
    }
}

impl Track {
    /// Whether control stays where it is if this runs behind an instruction: a conditional branch within a function.
    #[inline]
    pub(crate) fn goes_on_from(&self, by: &Transfer) -> bool {
        by.class == Class::Conditional && by.source == self.at.function
    }

    /// How control comes to what runs next.
    #[inline]
    pub(crate) fn coming(&self) -> Coming {
        self.end.map_or(Coming::Straight, Coming::By)
    }

    /// The packet that led behind the last block.
    pub(crate) fn offset(&self, path: StreamOffset) -> StreamOffset {
        back(path, self.behind)
    }
}

#[inline]
pub(super) fn back(path: StreamOffset, behind: u32) -> StreamOffset {
    StreamOffset(path.0.saturating_sub(behind.into()))
}

impl Tracks {
    /// So many steps, as many paths, and so many slots, are remembered.
    const STEPS: usize = 1 << 18;
    const SLOTS: usize = 1 << 22;
    /// Paths have no more steps, but for a few: there is room for those of one, so that lists do not become twice as long for them.
    const STEPS_OF_ONE: usize = 1 << 10;
    /// For each path that is gone along block by block, there is room for so many more slots.
    const ROOM: usize = 64;

    pub(crate) fn clear(&mut self) {
        let Self {
            list,
            steps,
            brief,
            net,
            owner: _,
            slots,
            others,
            len,
            begin,
            begin_brief,
            begin_net,
            open,
            last: _,
            chain,
            generation,
        } = self;
        // The room is needed again.
        list.clear();
        steps.clear();
        brief.clear();
        net.clear();
        slots.list.clear();
        slots.room = 0;
        others.clear();
        (*len, *begin, *begin_brief, *begin_net) = (0, 0, 0, 0);
        (*open, *chain) = (None, None);
        *generation += 1;
    }

    /// Numbers that [`end`](Self::end) gives begin anew with each generation.
    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    /// What is known in short of a path that was [added](Self::end).
    #[inline]
    pub(crate) fn slot(&mut self, code: u32, path: PathNumber) -> Option<&Slot> {
        if self.owner != (path.generation(), code) {
            self.change_owner((path.generation(), code));
        }
        self.slots.list.get(path.index())
    }

    /// The path of a [`slot`](Self::slot) that passes.
    pub(crate) fn of_slot(&self, slot: &Slot) -> Option<&Track> {
        self.list.get(slot.number as usize)
    }

    /// A path that was [added](Self::end), and its number.
    #[inline]
    pub(crate) fn get(&mut self, code: u32, path: PathNumber) -> Option<(usize, Known<'_>)> {
        let number = self.slot(code, path)?.number;
        let track = self.list.get(number as usize)?;
        let steps = self.steps.get(track.first as usize..track.after as usize)?;
        let brief = track.first_brief as usize..track.after_brief as usize;
        let brief = self.brief.get(brief)?;
        let net = track.first_net as usize..track.after_net as usize;
        let net = self.net.get(net)?;
        let known = Known {
            track,
            steps,
            brief,
            net,
        };
        Some((number as usize, known))
    }

    #[cold]
    fn change_owner(&mut self, owner: (usize, u32)) {
        let slots = std::mem::take(&mut self.slots);
        self.others.insert(self.owner, slots);
        self.slots = self.others.remove(&owner).unwrap_or_default();
        self.owner = owner;
    }

    /// A path begins that is not known. Its last packet is at `offset`. Its blocks are to be [noted](Self::note) and it is to be [added](Self::end).
    pub(crate) fn begin(&mut self, offset: StreamOffset) {
        let steps = self.steps.len().max(self.net.len());
        let is_full = steps.max(self.list.len()) + Self::STEPS_OF_ONE > Self::STEPS;
        if is_full || self.len >= Self::SLOTS {
            self.clear();
        }
        self.begin = self.steps.len();
        self.begin_brief = self.brief.len();
        self.begin_net = self.net.len();
        self.open = None;
        self.last = offset;
        self.chain = None;
    }

    /// The next block of the path, and where the packet begins that decided where it led.
    pub(crate) fn note(
        &mut self,
        shape: &Shape,
        hops: &[Hop],
        spans: &[Span],
        offset: StreamOffset,
        names: &CallNames,
    ) {
        let Self {
            steps,
            brief,
            begin: first,
            begin_brief: first_brief,
            open,
            chain,
            ..
        } = self;
        let (first, first_brief) = (*first, *first_brief);
        let track = open.get_or_insert(Track {
            ip: shape.ip,
            at: shape.first,
            is_plain: shape.first.is_plain(names),
            insns: 0,
            end: None,
            last_ip: shape.ip,
            behind: 0,
            first: first as u32,
            after: 0,
            first_brief: first_brief as u32,
            after_brief: 0,
            first_net: 0,
            after_net: 0,
        });
        let begin = track.insns;
        let behind = (begin > 0).then_some(track.behind);
        let mut push = |kind, insns: u32| {
            let step = Step {
                kind,
                insns: begin + insns,
                behind,
            };
            let index = (steps.len() - first) as u32;
            BriefStep::push(brief, first_brief, &step, index, names);
            steps.push(step);
        };
        if let Some(by) = track.end
            && !shape.goes_on_from(&by)
        {
            push(StepKind::Arrive(by, shape.ip, shape.first), 0);
            *chain = None;
        }
        let (mut hops, mut spans) = (hops.iter().peekable(), spans.iter().peekable());
        loop {
            let next = hops.peek().map_or(u32::MAX, |hop| hop.insns);
            // A branch is the last instruction before its target.
            if let Some(span) = spans.next_if(|span| span.insns < next) {
                if chain.replace(span.chain) != Some(span.chain) {
                    push(StepKind::Inline(span.ip, span.chain), span.insns);
                }
            } else if let Some(hop) = hops.next() {
                push(StepKind::Hop(*hop), hop.insns);
                *chain = None;
            } else {
                break;
            }
        }
        track.insns += shape.insns;
        track.end = shape.end;
        track.last_ip = shape.last_ip();
        track.behind = self.last.0.saturating_sub(offset.0) as u32;
    }

    fn forget_open(&mut self) {
        self.steps.truncate(self.begin);
        self.brief.truncate(self.begin_brief);
        self.net.truncate(self.begin_net);
    }

    /// The path whose blocks were noted so far, and what it comes to.
    pub(super) fn noted(
        &mut self,
        net: impl FnOnce(&[BriefStep], &mut Vec<NetStep>),
    ) -> Option<Known<'_>> {
        let steps = self.steps.get(self.begin..)?;
        let brief = self.brief.get(self.begin_brief..)?;
        net(brief, &mut self.net);
        let net = self.net.get(self.begin_net..)?;
        let track = self.open.as_ref()?;
        Some(Known {
            track,
            steps,
            brief,
            net,
        })
    }

    /// All blocks of the path were noted. If it has a number, it is known from now on: by the number that is returned.
    pub(crate) fn end(&mut self, code: u32, path: Option<PathNumber>) -> Option<usize> {
        let (Some(path), Some(mut track)) = (path, self.open.take()) else {
            self.forget_open();
            return None;
        };
        let owner = (path.generation(), code);
        if self.owner != owner {
            self.change_owner(owner);
        }
        self.slots.room += Self::ROOM;
        if path.index() >= self.slots.room {
            self.forget_open();
            return None;
        }
        let slots = &mut self.slots.list;
        if slots.len() <= path.index() {
            self.len += path.index() + 1 - slots.len();
            slots.resize(path.index() + 1, Slot::NONE);
        }
        track.after = self.steps.len() as u32;
        track.after_brief = self.brief.len() as u32;
        track.first_net = self.begin_net as u32;
        track.after_net = self.net.len() as u32;
        let number = self.list.len();
        // Where inlined functions are wanted, a path's first step says which run there; where they are not, none do (0).
        let chain = match self.steps.get(self.begin..).unwrap_or_default() {
            [] => Some(0),
            [only] if only.insns == 0 => match only.kind {
                StepKind::Inline(_, chain) => Some(chain),
                _ => None,
            },
            _ => None,
        };
        slots[path.index()] = Slot {
            number: number as u32,
            insns: track.insns,
            first: chain.map_or(Slot::SOMETHING, |_| track.at.function.0),
            chain: chain.unwrap_or(0),
            end: Stays::after(&track.coming()),
        };
        self.list.push(track);
        Some(number)
    }
}
