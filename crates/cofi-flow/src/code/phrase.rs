//! Phrases: packets that come again and again from the same place in the code, byte for byte, and what ran then.
//!
//! Where TNT and TIP packets lead is a function of the node where control is, of the last IP, and of the return addresses that compressed returns
//! go back to. A loop whose indirect branches go the same ways each time writes the same bytes each time: of these a window is looked up as a
//! whole. Timing packets are never part of a phrase: with a CYC at every other packet there are hardly two windows alike.
//!
//! A phrase is put together from the graph when its window comes a second time. Where windows do not come again, looking them up is given up
//! for a while. Each phrase remembers the one that came after it: mostly it comes again, and then nothing has to be looked up.

use alloc::vec::Vec;

use cofi_insn::Checksum;
use cofi_packet::intel::{IpBytes, Kind, LastIp, Packet, decode};
use cofi_packet::{ExecMode, Ip};

use crate::FlowConfig;
use crate::code::graph::{Decision, Graph};
use crate::code::index::NONE;
use crate::code::retstack::ReturnStack;

/// So many bytes of packets are looked up at once.
pub(crate) const WINDOW: usize = 8;
/// Fewer bytes are not worth it.
const LEAST_BYTES: u8 = 4;
/// Of the memory for decoded code, phrases use this part beside; when they need more, all are forgotten.
const PART: usize = 16;
/// With less memory, none are kept.
const LEAST_MEMORY: usize = 1 << 18;
/// So many return addresses from before a phrase it may use, and so many calls it may make.
const MOST_POPPED: usize = 8;
const MOST_CALLS: usize = 16;
/// A window has so many TNT bits and TIPs at most.
const MOST_NODES: usize = WINDOW * 6;
/// The smallest table, as a power of two.
const LEAST_BUCKETS: u32 = 10;
/// After so many look-ups of which fewer than one in `LEAST_HITS` found something, there are none for so many runs.
const TRIES: u32 = 4096;
const LEAST_HITS: u32 = 3;
const PAUSE: u32 = 1 << 16;

/// What stands in the table for a window that makes no phrase.
const NEVER: u32 = NONE - 1;

/// By what a phrase is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// The node from which it leads on.
    node: u32,
    /// The packets, the first byte lowest.
    bytes: u64,
    /// Of the last IP, what not every TIP tells anew.
    base: u64,
}

impl Key {
    #[inline]
    pub(crate) const fn new(node: u32, window: [u8; WINDOW], last_ip: LastIp) -> Self {
        Self {
            node,
            bytes: u64::from_le_bytes(window),
            base: last_ip.get().0 >> 16,
        }
    }

    #[inline]
    const fn hash(&self) -> u64 {
        let key = self.bytes ^ (self.node as u64) << 20 ^ self.base.rotate_left(40);
        let product = (key as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        (product >> 64) as u64 ^ product as u64
    }
}

/// What a window of packets does. (It is as large as a line of the processor's cache.)
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Phrase {
    key: Key,
    /// The last IP behind it, if there was a TIP.
    pub(crate) last_ip: LastIp,
    /// The node behind it.
    pub(crate) end: u32,
    /// The phrase that came after it the last time.
    next: u32,
    /// Where its nodes are, in [`Phrases::nodes`].
    nodes: u32,
    /// The same of the return addresses from before it that it uses, and of those that it leaves behind.
    popped: u32,
    calls: u32,
    pub(crate) insns: u16,
    node_count: u8,
    popped_count: u8,
    call_count: u8,
    /// How many more return addresses there are at most than before it.
    deepest: u8,
    /// How many bytes it takes, and where the last packet among them begins.
    pub(crate) size: u8,
    pub(crate) last: u8,
    /// So many bytes tell that it is this one.
    telling: u8,
    pub(crate) has_tnt: bool,
    /// How its last TIP told its address; suppressed if there is none.
    pub(crate) tip: IpBytes,
}

impl Phrase {
    /// Whether it comes next.
    #[inline]
    fn is(&self, key: &Key) -> bool {
        let differing = (key.bytes ^ self.key.bytes) << (64 - 8 * u32::from(self.telling));
        differing == 0 && key.node == self.key.node && key.base == self.key.base
    }
}

/// Four slots of the table: a part of each hash, and the number of the phrase; [`NONE`] where the window was seen but once, or [`NEVER`].
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Bucket {
    tags: [u32; 4],
    phrases: [u32; 4],
}

impl Bucket {
    const EMPTY: Self = Self {
        tags: [0; 4],
        phrases: [NONE; 4],
    };

    /// Where a new one goes: not where a phrase is.
    #[inline]
    fn room(&self, hash: u64) -> Option<usize> {
        let first = (hash >> 40) as usize;
        (first..first + 4)
            .map(|way| way % 4)
            .find(|way| self.phrases[*way] >= NEVER)
    }
}

/// Phrases that came more than once.
#[derive(Debug, Default)]
pub(crate) struct Phrases {
    buckets: Vec<Bucket>,
    /// How far a hash is shifted to be the number of a bucket.
    shift: u32,
    phrases: Vec<Phrase>,
    /// Of each phrase, of all its instructions.
    checksums: Vec<Checksum>,
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

fn slice<T>(all: &[T], first: u32, count: u8) -> &[T] {
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
        if !self.buckets.is_empty() {
            *self = Self {
                most: self.most,
                ..Self::default()
            };
        }
    }

    /// Begins to keep phrases, if there is room for some.
    pub(crate) fn begin(&mut self) {
        if self.buckets.is_empty() && self.most >= LEAST_MEMORY {
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
        !self.buckets.is_empty()
    }

    #[inline]
    pub(crate) fn phrase(&self, number: u32) -> &Phrase {
        &self.phrases[number as usize]
    }

    /// What it is of all instructions of a phrase.
    pub(crate) fn checksum(&self, number: u32) -> &Checksum {
        &self.checksums[number as usize]
    }

    /// The nodes of a phrase, each with the place in the window of the packet by which it was left.
    #[inline]
    pub(crate) fn nodes(&self, phrase: &Phrase) -> &[(u32, u8)] {
        slice(&self.nodes, phrase.nodes, phrase.node_count)
    }

    /// Does to the stack of return addresses what a phrase does; `false`, and nothing, where another address is there than it knows.
    #[inline(always)]
    pub(crate) fn call_and_return(&self, phrase: &Phrase, returns: &mut ReturnStack) -> bool {
        if phrase.popped_count != 0 {
            let popped = slice(&self.popped, phrase.popped, phrase.popped_count);
            if !returns.begins_with(popped) {
                return false;
            }
        }
        if phrase.deepest != 0 && !returns.has_room(phrase.deepest) {
            return false;
        }
        returns.drop_youngest(phrase.popped_count.into());
        for (ip, site) in slice(&self.calls, phrase.calls, phrase.call_count) {
            returns.push_site(*ip, *site);
        }
        true
    }

    /// How much memory they use.
    pub(crate) fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
            + self.phrases.len() * (size_of::<Phrase>() + size_of::<Checksum>())
            + self.nodes.len() * size_of::<(u32, u8)>()
            + self.popped.len() * size_of::<Option<Ip>>()
            + self.calls.len() * size_of::<(Ip, u32)>()
    }

    fn grow(&mut self) {
        let log = match self.buckets.len() {
            0 => LEAST_BUCKETS,
            len => len.ilog2() + 2,
        };
        self.shift = 64 - log;
        self.buckets.clear();
        self.buckets.resize(1 << log, Bucket::EMPTY);
        for (phrase, number) in self.phrases.iter().zip(0..) {
            let hash = phrase.key.hash();
            let bucket = &mut self.buckets[(hash >> self.shift) as usize];
            if let Some(way) = bucket.room(hash) {
                (bucket.tags[way], bucket.phrases[way]) = (Self::tag(hash), number);
            }
        }
    }

    #[inline]
    const fn tag(hash: u64) -> u32 {
        // (No tag is that of an empty slot.)
        hash as u32 | 1
    }

    /// Notes how many phrases were found one after the other, before none was.
    #[inline]
    pub(crate) fn note_tries(&mut self, hits: u32) {
        self.tries += hits + 1;
        self.hits += hits;
        if self.tries >= TRIES {
            if self.hits < self.tries / LEAST_HITS {
                self.pause = PAUSE;
            }
            (self.tries, self.hits) = (0, 0);
        }
    }
}

impl Graph {
    /// The number of the phrase that comes next, if its packets came before; `before` is that of the one that came just before it, or [`NONE`].
    #[inline(always)]
    pub(crate) fn phrase(
        &mut self,
        before: u32,
        key: &Key,
        last_ip: LastIp,
        returns: &ReturnStack,
    ) -> Option<u32> {
        let phrases = &mut self.phrases;
        if let Some(before) = phrases.phrases.get(before as usize) {
            let next = before.next;
            let phrase = phrases.phrases.get(next as usize);
            if phrase.is_some_and(|phrase| phrase.is(key)) {
                return Some(next);
            }
        }
        let number = self.look_up_phrase(key, last_ip, returns)?;
        if let Some(before) = self.phrases.phrases.get_mut(before as usize) {
            before.next = number;
        }
        Some(number)
    }

    #[inline(always)]
    fn look_up_phrase(&mut self, key: &Key, last_ip: LastIp, returns: &ReturnStack) -> Option<u32> {
        let phrases = &mut self.phrases;
        let hash = key.hash();
        let tag = Phrases::tag(hash);
        let number = (hash >> phrases.shift) as usize;
        let bucket = &mut phrases.buckets[number];
        for way in 0..4 {
            if bucket.tags[way] == tag {
                return match bucket.phrases[way] {
                    NEVER => None,
                    NONE => self.keep_phrase(number, way, key, last_ip, returns),
                    found => phrases.phrases[found as usize].is(key).then_some(found),
                };
            }
        }
        if let Some(way) = bucket.room(hash) {
            (bucket.tags[way], bucket.phrases[way]) = (tag, NONE);
        }
        None
    }

    #[cold]
    fn keep_phrase(
        &mut self,
        bucket: usize,
        way: usize,
        key: &Key,
        last_ip: LastIp,
        returns: &ReturnStack,
    ) -> Option<u32> {
        let mut phrases = core::mem::take(&mut self.phrases);
        if phrases.bytes() > phrases.most {
            phrases.clear();
            self.phrases = phrases;
            self.phrases.begin();
            self.begin_generation();
            return None;
        }
        let kept = phrases.add(self, key, last_ip, returns);
        phrases.buckets[bucket].phrases[way] = kept.unwrap_or(NEVER);
        if phrases.phrases.len() >= phrases.buckets.len() * 2 {
            phrases.grow();
        }
        self.phrases = phrases;
        kept
    }
}

impl Phrases {
    /// Puts a phrase together; none if too little of its packets is known.
    fn add(
        &mut self,
        graph: &Graph,
        key: &Key,
        last_ip: LastIp,
        returns: &ReturnStack,
    ) -> Option<u32> {
        let (nodes, popped, calls) = (self.nodes.len(), self.popped.len(), self.calls.len());
        let mut writer = Writer {
            graph,
            returns,
            mode: graph.detail(key.node).mode,
            nodes: &mut self.nodes,
            popped: &mut self.popped,
            calls: Few::new(),
        };
        let whole = writer.read(key, last_ip);
        let writer_calls = writer.calls;
        self.nodes.truncate(nodes + usize::from(whole.node_count));
        self.popped
            .truncate(popped + usize::from(whole.popped_count));
        if whole.size < LEAST_BYTES || whole.node_count == 0 {
            self.nodes.truncate(nodes);
            self.popped.truncate(popped);
            return None;
        }
        let mut open = whole.open;
        while let Some(call) = writer_calls.get(open) {
            self.calls.push((call.ip, call.site));
            open = call.below;
        }
        self.calls[calls..].reverse();
        self.phrases.push(Phrase {
            key: *key,
            last_ip: whole.last_ip,
            end: whole.end,
            next: NONE,
            nodes: u32::try_from(nodes).ok()?,
            popped: u32::try_from(popped).ok()?,
            calls: u32::try_from(calls).ok()?,
            insns: whole.insns,
            node_count: whole.node_count,
            popped_count: whole.popped_count,
            call_count: (self.calls.len() - calls) as u8,
            deepest: whole.deepest,
            size: whole.size,
            last: whole.last,
            telling: whole.telling,
            has_tnt: whole.has_tnt,
            tip: whole.tip,
        });
        self.checksums.push(whole.checksum);
        Some(self.phrases.len() as u32 - 1)
    }
}

/// A call that a phrase makes.
#[derive(Clone, Copy, Debug)]
struct Call {
    ip: Ip,
    site: u32,
    /// The one that is open below it, and how many are, itself among them.
    below: u8,
    depth: u8,
}

/// No call.
const NO_CALL: u8 = u8::MAX;

/// A few calls.
#[derive(Clone, Copy, Debug)]
struct Few {
    calls: [Call; MOST_CALLS],
    len: u8,
}

impl Few {
    const fn new() -> Self {
        const EMPTY: Call = Call {
            ip: Ip(0),
            site: NONE,
            below: NO_CALL,
            depth: 0,
        };
        Self {
            calls: [EMPTY; MOST_CALLS],
            len: 0,
        }
    }

    fn get(&self, number: u8) -> Option<&Call> {
        self.calls.get(usize::from(number))
    }

    /// The number of a new one; `None` if there is no room.
    fn push(&mut self, call: Call) -> Option<u8> {
        *self.calls.get_mut(usize::from(self.len))? = call;
        self.len += 1;
        Some(self.len - 1)
    }
}

/// As much of a phrase as has been put together. Each packet is part of it as a whole or not at all.
#[derive(Clone, Copy, Debug)]
struct Outline {
    end: u32,
    insns: u16,
    node_count: u8,
    popped_count: u8,
    /// The youngest call that is open.
    open: u8,
    deepest: u8,
    size: u8,
    last: u8,
    telling: u8,
    has_tnt: bool,
    tip: IpBytes,
    last_ip: LastIp,
    checksum: Checksum,
}

/// Puts a phrase together.
struct Writer<'g> {
    graph: &'g Graph,
    returns: &'g ReturnStack,
    mode: ExecMode,
    nodes: &'g mut Vec<(u32, u8)>,
    popped: &'g mut Vec<Option<Ip>>,
    /// All calls so far.
    calls: Few,
}

impl Writer<'_> {
    /// Goes over the packets in a window as far as the graph knows where they lead.
    fn read(&mut self, key: &Key, last_ip: LastIp) -> Outline {
        let mut whole = Outline {
            end: key.node,
            insns: 0,
            node_count: 0,
            popped_count: 0,
            open: NO_CALL,
            deepest: 0,
            size: 0,
            last: 0,
            telling: 0,
            has_tnt: false,
            tip: IpBytes::Suppressed,
            last_ip,
            checksum: Checksum::EMPTY,
        };
        // (Addresses of 16 bits wrap.)
        if self.mode == ExecMode::Bits16 {
            return whole;
        }
        let bytes = key.bytes.to_le_bytes();
        while let Some(rest) = bytes.get(usize::from(whole.size)..) {
            let Ok(raw) = decode(rest) else {
                break;
            };
            let len = raw.len();
            // Whether a PSB begins within it, bytes behind the window may tell.
            let last = rest[len - 1];
            let may_go_on = rest.get(len).is_none_or(|behind| *behind == last ^ 0x80);
            if len > 1 && matches!(last, 0x02 | 0x82) {
                if may_go_on {
                    break;
                }
                whole.telling = WINDOW as u8;
            }
            let mut more = whole;
            let is_known = match raw.packet() {
                Packet::Pad => Some(()),
                Packet::Tnt8 { bits } => self.follow_tnt(&mut more, bits.bits(), bits.len() as u32),
                Packet::Tip { ip } => {
                    more.tip = ip.ip_bytes();
                    let to = more.last_ip.apply(ip);
                    to.and_then(|to| self.follow_tip(&mut more, to))
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
            more.telling = more.telling.max(more.size);
            whole = more;
        }
        whole
    }

    /// Goes over the node at the end, up to what ends that.
    fn run(&mut self, outline: &mut Outline) -> Option<()> {
        let node = self.graph.node(outline.end);
        outline.node_count += 1;
        outline.insns = outline.insns.checked_add(node.insns)?;
        outline.checksum = outline.checksum.then(*self.graph.checksum(outline.end));
        self.nodes.push((outline.end, outline.size));
        for (ip, site) in self.graph.calls(node) {
            let depth = self.calls.get(outline.open).map_or(0, |call| call.depth) + 1;
            outline.open = self.calls.push(Call {
                ip,
                site,
                below: outline.open,
                depth,
            })?;
            outline.deepest = outline.deepest.max(depth);
        }
        (usize::from(outline.node_count) <= MOST_NODES).then_some(())
    }

    /// The return address at the top of the stack, and its site: of a call in the phrase, or from before it.
    fn pop(&mut self, outline: &mut Outline) -> Option<(Ip, u32)> {
        if let Some(own) = self.calls.get(outline.open) {
            outline.open = own.below;
            return Some((own.ip, own.site));
        }
        let found = self.returns.peek(outline.popped_count.into())?;
        self.note_popped(outline, Some(found.0))?;
        Some(found)
    }

    fn note_popped(&mut self, outline: &mut Outline, ip: Option<Ip>) -> Option<()> {
        self.popped.push(ip);
        outline.popped_count += 1;
        (usize::from(outline.popped_count) <= MOST_POPPED).then_some(())
    }

    fn follow_tnt(&mut self, outline: &mut Outline, bits: u64, len: u32) -> Option<()> {
        outline.has_tnt = true;
        for bit in (0..len).rev().map(|bit| bits >> bit & 1) {
            let node = self.graph.node(outline.end);
            let next = match (node.decision, bit) {
                (Decision::Conditional, _) => {
                    self.run(outline)?;
                    node.next[bit as usize]
                }
                (Decision::Return, 1) => {
                    self.run(outline)?;
                    let (ip, site) = self.pop(outline)?;
                    // The stack holds no more than the mode's width of what a wider caller may have pushed.
                    if self.mode.bits() < 64 && ip.0 >> 32 != 0 {
                        return None;
                    }
                    self.graph.after_call(site, ip, self.mode)
                }
                _ => NONE,
            };
            if next == NONE {
                return None;
            }
            outline.end = next;
        }
        Some(())
    }

    fn follow_tip(&mut self, outline: &mut Outline, to: Ip) -> Option<()> {
        match self.graph.node(outline.end).decision {
            Decision::Indirect => self.run(outline)?,
            Decision::Return => {
                self.run(outline)?;
                match self.calls.get(outline.open) {
                    Some(own) => outline.open = own.below,
                    // Where the call was is of no matter, but that there was one.
                    None => self.note_popped(outline, None)?,
                }
            }
            _ => return None,
        }
        outline.end = self.graph.find(to, self.mode)?;
        Some(())
    }
}
