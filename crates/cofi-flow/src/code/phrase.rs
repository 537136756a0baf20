//! Phrases: packets that come again and again from the same place in the code, byte for byte, and what ran then.
//!
//! Where TNT and TIP packets lead is a function of the node where control is, of the last IP, and of the return addresses that compressed returns
//! go back to. A loop whose indirect branches go the same ways each time writes the same bytes each time: of these a window is looked up as a
//! whole. Timing packets are never part of a phrase: with a CYC at every other packet there are hardly two windows alike.
//!
//! A phrase is put together from the graph when its window comes a second time. Where windows do not come again, looking them up is given up
//! for a while.

use alloc::vec::Vec;

use cofi_insn::Checksum;
use cofi_packet::intel::{IpBytes, Kind, LastIp, Packet, decode};
use cofi_packet::{ExecMode, Ip};

use crate::FlowConfig;
use crate::code::graph::{Decision, Graph};
use crate::code::index::NONE;
use crate::walk::retstack::ReturnStack;

/// So many bytes of packets are looked up at once.
pub(crate) const WINDOW: usize = 8;
/// Fewer bytes are not worth it.
const LEAST_BYTES: u8 = 4;
/// Of the memory for decoded code, phrases use this part beside; when they need more, all are forgotten.
const PART: usize = 16;
/// With less memory, none are kept.
const LEAST_MEMORY: usize = 1 << 18;
/// So many return addresses from before a phrase it may use, and so deep its own calls may be nested.
const MOST_POPPED: usize = 8;
const MOST_CALLS: usize = 16;
/// A window has so many TNT bits and TIPs at most.
const MOST_NODES: usize = WINDOW * 6;
/// The smallest table, as a power of two.
const LEAST_SLOTS: u32 = 12;
/// After so many look-ups of which fewer than one in `LEAST_HITS` found something, there are none for so many runs.
const TRIES: u32 = 4096;
const LEAST_HITS: u32 = 3;
const PAUSE: u32 = 1 << 16;

/// What stands in the slot of a window that makes no phrase.
const NEVER: u32 = NONE - 1;

/// What a window of packets does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phrase {
    /// The node behind it.
    pub(crate) end: u32,
    /// How many bytes it takes, and where the last packet among them begins.
    pub(crate) size: u8,
    pub(crate) last: u8,
    pub(crate) has_tnt: bool,
    /// The last IP behind it, and how it was told, if there was a TIP.
    pub(crate) tip: Option<(LastIp, IpBytes)>,
    /// How many more return addresses there are at most than before it.
    deepest: u8,
    /// Where its nodes are, in [`Phrases::nodes`], and how many.
    nodes: (u32, u8),
    /// The same of the return addresses from before it that it uses, and of those that it leaves behind.
    popped: (u32, u8),
    calls: (u32, u8),
    pub(crate) insns: u32,
    pub(crate) checksum: Checksum,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    bytes: u64,
    last_ip: Ip,
    node: u32,
    /// The number of a phrase; [`NONE`] where it was seen but once, or [`NEVER`].
    phrase: u32,
}

impl Slot {
    const EMPTY: Self = Self {
        bytes: 0,
        last_ip: Ip(0),
        node: NONE,
        phrase: NONE,
    };
}

/// Phrases that came more than once.
#[derive(Debug, Default)]
pub(crate) struct Phrases {
    slots: Vec<Slot>,
    /// How far a hash is shifted to be the number of a slot.
    shift: u32,
    phrases: Vec<Phrase>,
    /// The nodes of phrases, and where in the window the packet begins by which each was left.
    nodes: Vec<(u32, u8)>,
    /// Addresses on the stack of calls, the youngest first; none where any will do.
    popped: Vec<Option<Ip>>,
    /// The return addresses and sites of calls that a phrase leaves open.
    calls: Vec<(Ip, u32)>,
    /// So many bytes they may use.
    most: usize,
    tries: u32,
    hits: u32,
    /// For so many runs nothing is looked up.
    pause: u32,
}

fn slice<T>(all: &[T], (first, count): (u32, u8)) -> &[T] {
    let first = first as usize;
    &all[first..first + usize::from(count)]
}

impl Phrases {
    pub(crate) fn new(config: &FlowConfig) -> Self {
        Self {
            most: config.cache_limit / PART,
            ..Self::default()
        }
    }

    /// Forgets all phrases, and gives their memory back.
    pub(crate) fn clear(&mut self) {
        if !self.slots.is_empty() {
            *self = Self {
                most: self.most,
                ..Self::default()
            };
        }
    }

    /// Begins to keep phrases, if there is room for some.
    pub(crate) fn begin(&mut self) {
        if self.slots.is_empty() && self.most >= LEAST_MEMORY {
            self.grow();
        }
    }

    /// Whether it is worth to look for a phrase now.
    #[inline]
    pub(crate) fn are_wanted(&mut self) -> bool {
        if self.pause != 0 {
            self.pause -= 1;
            return false;
        }
        !self.slots.is_empty()
    }

    #[inline]
    pub(crate) fn phrase(&self, number: u32) -> &Phrase {
        &self.phrases[number as usize]
    }

    /// The nodes of a phrase, each with the place in the window of the packet by which it was left.
    #[inline]
    pub(crate) fn nodes(&self, phrase: &Phrase) -> &[(u32, u8)] {
        slice(&self.nodes, phrase.nodes)
    }

    /// Does to the stack of return addresses what a phrase does; `false`, and nothing, where another address is there than it knows.
    #[inline]
    pub(crate) fn call_and_return(&self, phrase: &Phrase, returns: &mut ReturnStack) -> bool {
        let popped = slice(&self.popped, phrase.popped);
        if !returns.has_room(phrase.deepest) || !returns.begins_with(popped) {
            return false;
        }
        returns.drop_youngest(popped.len());
        for (ip, site) in slice(&self.calls, phrase.calls) {
            returns.push_site(*ip, *site);
        }
        true
    }

    /// How much memory they use.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>()
            + self.phrases.len() * size_of::<Phrase>()
            + self.nodes.len() * size_of::<(u32, u8)>()
            + self.popped.len() * size_of::<Option<Ip>>()
            + self.calls.len() * size_of::<(Ip, u32)>()
    }

    #[inline]
    fn slot(&self, node: u32, bytes: u64, last_ip: Ip) -> usize {
        let key = bytes ^ (u64::from(node) << 20) ^ last_ip.0.rotate_left(40);
        let key = (key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (key >> self.shift) as usize
    }

    fn grow(&mut self) {
        let old = core::mem::take(&mut self.slots);
        let log = match old.len() {
            0 => LEAST_SLOTS,
            len => len.ilog2() + 2,
        };
        self.shift = 64 - log;
        self.slots.resize(1 << log, Slot::EMPTY);
        for slot in old {
            if slot.node != NONE && slot.phrase != NONE {
                let number = self.slot(slot.node, slot.bytes, slot.last_ip);
                self.slots[number] = slot;
            }
        }
    }

    /// Notes that a phrase was looked for, and whether one could be used.
    #[inline]
    pub(crate) fn note_try(&mut self, is_hit: bool) {
        self.tries += 1;
        self.hits += u32::from(is_hit);
        if self.tries == TRIES {
            if self.hits < TRIES / LEAST_HITS {
                self.pause = PAUSE;
            }
            (self.tries, self.hits) = (0, 0);
        }
    }
}

impl Graph {
    /// The number of the phrase from a node with these bytes, if they came before.
    #[inline]
    pub(crate) fn phrase(
        &mut self,
        node: u32,
        bytes: [u8; WINDOW],
        last_ip: LastIp,
        returns: &ReturnStack,
    ) -> Option<u32> {
        let word = u64::from_le_bytes(bytes);
        let phrases = &mut self.phrases;
        let number = phrases.slot(node, word, last_ip.get());
        let slot = &mut phrases.slots[number];
        if (slot.node, slot.bytes, slot.last_ip) == (node, word, last_ip.get()) {
            return match slot.phrase {
                NEVER => None,
                NONE => self.keep_phrase(number, bytes, last_ip, returns),
                found => Some(found),
            };
        }
        *slot = Slot {
            bytes: word,
            last_ip: last_ip.get(),
            node,
            phrase: NONE,
        };
        None
    }

    #[cold]
    fn keep_phrase(
        &mut self,
        slot: usize,
        bytes: [u8; WINDOW],
        last_ip: LastIp,
        returns: &ReturnStack,
    ) -> Option<u32> {
        let mut phrases = core::mem::take(&mut self.phrases);
        if phrases.bytes() > phrases.most {
            phrases.clear();
            self.phrases = phrases;
            self.phrases.begin();
            return None;
        }
        let node = phrases.slots[slot].node;
        let outline = Outline::new(self, node, bytes, last_ip, returns);
        let kept = outline.and_then(|outline| phrases.add(&outline));
        phrases.slots[slot].phrase = kept.unwrap_or(NEVER);
        if phrases.phrases.len() >= phrases.slots.len() / 2 {
            phrases.grow();
        }
        self.phrases = phrases;
        kept
    }
}

impl Phrases {
    fn add(&mut self, outline: &Outline) -> Option<u32> {
        let place = |len: usize, count: usize| Some((u32::try_from(len).ok()?, count as u8));
        let phrase = Phrase {
            end: outline.end,
            size: outline.size,
            last: outline.last,
            has_tnt: outline.has_tnt,
            tip: outline.tip,
            deepest: outline.deepest,
            nodes: place(self.nodes.len(), outline.nodes.len)?,
            popped: place(self.popped.len(), outline.popped.len)?,
            calls: place(self.calls.len(), outline.calls.len)?,
            insns: outline.insns,
            checksum: outline.checksum,
        };
        self.nodes.extend(outline.nodes.as_slice());
        self.popped.extend(outline.popped.as_slice());
        self.calls.extend(outline.calls.as_slice());
        self.phrases.push(phrase);
        Some(self.phrases.len() as u32 - 1)
    }
}

/// A phrase that is being put together. Each packet is part of it as a whole or not at all.
#[derive(Clone, Copy, Debug)]
struct Outline {
    end: u32,
    size: u8,
    last: u8,
    has_tnt: bool,
    tip: Option<(LastIp, IpBytes)>,
    deepest: u8,
    nodes: Few<(u32, u8), MOST_NODES>,
    popped: Few<Option<Ip>, MOST_POPPED>,
    calls: Few<(Ip, u32), MOST_CALLS>,
    insns: u32,
    checksum: Checksum,
}

/// A few things.
#[derive(Clone, Copy, Debug)]
struct Few<T, const N: usize> {
    items: [T; N],
    len: usize,
}

impl<T: Copy, const N: usize> Few<T, N> {
    const fn new(empty: T) -> Self {
        Self {
            items: [empty; N],
            len: 0,
        }
    }

    /// `None` if there is no room.
    fn push(&mut self, item: T) -> Option<()> {
        *self.items.get_mut(self.len)? = item;
        self.len += 1;
        Some(())
    }

    fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        Some(self.items[self.len])
    }

    fn as_slice(&self) -> &[T] {
        &self.items[..self.len]
    }
}

impl Outline {
    /// What is known of the packets in a window; none if that is too little.
    fn new(
        graph: &Graph,
        node: u32,
        bytes: [u8; WINDOW],
        mut last_ip: LastIp,
        returns: &ReturnStack,
    ) -> Option<Self> {
        if graph.detail(node).mode != ExecMode::Bits64 {
            return None;
        }
        let mut whole = Self {
            end: node,
            size: 0,
            last: 0,
            has_tnt: false,
            tip: None,
            deepest: 0,
            nodes: Few::new((NONE, 0)),
            popped: Few::new(None),
            calls: Few::new((Ip(0), NONE)),
            insns: 0,
            checksum: Checksum::EMPTY,
        };
        while let Some(rest) = bytes.get(usize::from(whole.size)..)
            && let Ok(raw) = decode(rest)
        {
            let len = raw.len();
            // Whether a PSB begins within it, bytes behind the window may tell.
            let last = rest[len - 1];
            let may_go_on = rest.get(len).is_none_or(|behind| *behind == last ^ 0x80);
            if len > 1 && matches!(last, 0x02 | 0x82) && may_go_on {
                break;
            }
            let mut more = whole;
            let is_known = match raw.packet() {
                Packet::Pad => Some(()),
                Packet::Tnt8 { bits } => {
                    more.follow_tnt(graph, bits.bits(), bits.len() as u32, returns)
                }
                Packet::Tip { ip } => {
                    let to = last_ip.apply(ip);
                    more.tip = Some((last_ip, ip.ip_bytes()));
                    to.and_then(|to| more.follow_tip(graph, to))
                }
                _ => None,
            };
            if is_known.is_none() {
                break;
            }
            if raw.kind() != Kind::Pad {
                more.last = whole.size;
            }
            more.size += len as u8;
            whole = more;
        }
        (whole.size >= LEAST_BYTES && whole.nodes.len != 0).then_some(whole)
    }

    /// Goes over the node at its end, up to what ends that.
    fn run(&mut self, graph: &Graph) -> Option<()> {
        let node = graph.node(self.end);
        self.nodes.push((self.end, self.size))?;
        self.insns += u32::from(node.insns);
        self.checksum = self.checksum.then(*graph.checksum(self.end));
        for call in graph.calls(node) {
            self.calls.push(call)?;
        }
        self.deepest = self.deepest.max(self.calls.len as u8);
        Some(())
    }

    /// The return address at the top of the stack, and its site: of a call in the phrase, or from before it.
    fn pop(&mut self, returns: &ReturnStack) -> Option<(Ip, u32)> {
        if let Some(own) = self.calls.pop() {
            return Some(own);
        }
        let found = returns.peek(self.popped.len)?;
        self.popped.push(Some(found.0))?;
        Some(found)
    }

    fn follow_tnt(
        &mut self,
        graph: &Graph,
        bits: u64,
        len: u32,
        returns: &ReturnStack,
    ) -> Option<()> {
        self.has_tnt = true;
        for bit in (0..len).rev().map(|bit| bits >> bit & 1) {
            let node = graph.node(self.end);
            let next = match (node.decision, bit) {
                (Decision::Conditional, _) => {
                    self.run(graph)?;
                    node.next[bit as usize]
                }
                (Decision::Return, 1) => {
                    self.run(graph)?;
                    let (ip, site) = self.pop(returns)?;
                    graph.after_call(site, ip, ExecMode::Bits64)
                }
                _ => NONE,
            };
            if next == NONE {
                return None;
            }
            self.end = next;
        }
        Some(())
    }

    fn follow_tip(&mut self, graph: &Graph, to: Ip) -> Option<()> {
        match graph.node(self.end).decision {
            Decision::Indirect => self.run(graph)?,
            Decision::Return => {
                self.run(graph)?;
                if self.calls.pop().is_none() {
                    // Where the call was is of no matter, but that there was one.
                    self.popped.push(None)?;
                }
            }
            _ => return None,
        }
        self.end = graph.find(to, ExecMode::Bits64)?;
        Some(())
    }
}
