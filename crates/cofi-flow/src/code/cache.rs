//! Decoded code, cached: runs of instructions up to the next one that can do something else than go on, and above them the
//! [graph](crate::code::graph) of what lies between two decisions.

use alloc::vec::Vec;

use cofi_insn::{Class, CodeSource, InsnError, LinearDecoder, MAX_INSN_LEN, advance, decode};
use cofi_packet::{ExecMode, Ip};

use crate::FlowConfig;
use crate::code::graph::{self, Graph};
use crate::code::index::{Index, NONE};
use crate::family::CodeRules;

/// How many plain instructions a straight run holds at most.
const MAX_BODY: usize = 512;

/// How a straight run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With an instruction that is not of class [`Class::Other`].
    Insn,
    /// Because it is long enough: more code follows.
    Split,
    /// With bytes that are no instruction.
    Fault,
    /// With an instruction for which the family of packets has [rules](CodeRules::is_special) of its own.
    Special,
    /// Where control [may leave](CodeRules::is_limit) the traced code.
    Limit,
}

impl End {
    /// Whether the run ends with an instruction that is not of class [`Class::Other`].
    pub(crate) const fn has_insn(self) -> bool {
        matches!(self, End::Insn | End::Special)
    }
}

/// A run of plain instructions and the one that ends it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BasicBlock {
    /// The first instruction.
    pub(crate) ip: Ip,
    /// The ending instruction.
    pub(crate) term_ip: Ip,
    /// The address after the ending instruction.
    pub(crate) next: Ip,
    /// The direct target of the ending instruction, or zero.
    pub(crate) target: Ip,
    /// Where the lengths of the plain instructions are, in [`Cache::lens`].
    pub(crate) first: u32,
    /// How many plain instructions there are.
    pub(crate) body: u16,
    /// The length of the ending instruction.
    pub(crate) len: u8,
    /// The class of the ending instruction.
    pub(crate) class: Class,
    /// The digest of the ending instruction's bytes.
    pub(crate) digest: u32,
    pub(crate) end: End,
    pub(crate) mode: ExecMode,
    /// The blocks that came next the last time: after falling through, after branching.
    links: [u32; 2],
}

impl BasicBlock {
    /// Whether it ends with a direct call, and not one that only reads the instruction pointer.
    #[inline(always)]
    pub(crate) fn is_direct_call<R: CodeRules>(&self) -> bool {
        self.class == Class::DirectCall && (self.target != self.next || R::NOTES_EVERY_CALL)
    }
}

/// How often the younger part of a full cache is emptied before all of it is: code that ran long ago may not run again.
const ROUNDS: u32 = 16;

/// How much of a cache there was at some time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    blocks: usize,
    lens: usize,
    graph: graph::Mark,
}

/// All decoded code.
///
/// Links between straight runs are mere hints, checked before use.
///
/// Once it is full, what came into the last quarter of it makes room, and what came before stays. So a program that goes round in more code
/// than there is room for finds most of what stayed each time, where emptying all of it, or what is oldest, would find nothing.
#[derive(Debug)]
pub(crate) struct Cache {
    blocks: Vec<BasicBlock>,
    /// Lengths of the plain instructions of all blocks.
    lens: Vec<u8>,
    /// And the digests of their bytes.
    digests: Vec<u32>,
    index: Index,
    pub(crate) graph: Graph,
    limit: usize,
    /// What stays when it is full; none as long as there is less.
    stays: Option<Mark>,
    /// How often the rest was emptied.
    rounds: u32,
    /// How many nodes and straight runs were put together so far.
    pub(crate) built: u64,
    /// The most instructions of a node.
    pub(crate) longest: u32,
}

impl Cache {
    pub(crate) fn new(config: &FlowConfig) -> Self {
        Self {
            blocks: Vec::new(),
            lens: Vec::new(),
            digests: Vec::new(),
            index: Index::default(),
            graph: Graph::new(config),
            limit: config.cache_limit,
            stays: None,
            rounds: 0,
            built: 0,
            longest: config.max_packetless_run,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.lens.clear();
        self.digests.clear();
        self.index.clear();
        self.graph.clear();
        self.stays = None;
        self.rounds = 0;
    }

    /// Whether nothing was decoded.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// From here on it may use so many bytes.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Forgets what was added since `mark`.
    fn truncate(&mut self, mark: Mark) {
        self.blocks.truncate(mark.blocks);
        self.lens.truncate(mark.lens);
        self.digests.truncate(mark.lens);
        let blocks = &self.blocks;
        self.index.truncate(mark.blocks as u32, |id| {
            let block = &blocks[id as usize];
            (block.ip, block.mode)
        });
        self.graph.truncate(mark.graph);
    }

    #[inline]
    pub(crate) fn block(&self, id: u32) -> &BasicBlock {
        &self.blocks[id as usize]
    }

    #[inline]
    pub(crate) fn len_at(&self, index: usize) -> u8 {
        self.lens[index]
    }

    #[inline]
    pub(crate) fn digest_at(&self, index: usize) -> u32 {
        self.digests[index]
    }

    #[inline]
    pub(crate) fn lens(&self, range: core::ops::Range<usize>) -> &[u8] {
        &self.lens[range]
    }

    #[inline]
    pub(crate) fn digests(&self, range: core::ops::Range<usize>) -> &[u32] {
        &self.digests[range]
    }

    fn find(&self, ip: Ip, mode: ExecMode) -> Option<u32> {
        self.index.find(ip, mode, |id| {
            let block = self.blocks.get(id as usize)?;
            Some((block.ip, block.mode))
        })
    }

    /// The straight run at `ip`.
    pub(crate) fn straight(
        &mut self,
        ip: Ip,
        mode: ExecMode,
        code: &mut impl CodeSource,
        rules: &impl CodeRules,
    ) -> u32 {
        match self.find(ip, mode) {
            Some(id) => id,
            None => self.build(ip, mode, code, rules),
        }
    }

    /// Makes room if there is too much.
    pub(crate) fn shrink(&mut self) {
        let mut used = self.bytes();
        if used > self.limit {
            // What can be had again without decoding makes room first.
            used -= self.graph.flat.bytes();
            self.graph.flat.clear();
        }
        if used > self.limit {
            match self.stays {
                Some(mark) if self.rounds < ROUNDS => {
                    self.rounds += 1;
                    self.truncate(mark);
                }
                _ => self.clear(),
            }
            // Its tables may have grown since.
            if self.bytes() > self.limit {
                self.clear();
            }
        } else if self.stays.is_none() && used > self.limit / 4 * 3 {
            self.stays = Some(Mark {
                blocks: self.blocks.len(),
                lens: self.lens.len(),
                graph: self.graph.mark(),
            });
        }
    }

    /// Whether so many bytes more may be used.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.bytes().saturating_add(bytes) <= self.limit
    }

    /// How much memory it uses with what is remembered of ways through it, which has a share of its own while the cache is in use.
    pub(crate) fn bytes_in_all(&self) -> usize {
        self.bytes() + self.graph.memo.bytes() + self.graph.phrases.bytes()
    }

    /// How much memory it uses.
    pub(crate) fn bytes(&self) -> usize {
        self.blocks.len() * size_of::<BasicBlock>()
            + self.lens.len() * (1 + size_of::<u32>())
            + self.index.bytes()
            + self.graph.bytes()
    }

    /// The block at `ip`, given that `from` came before it and left by its way `way`.
    #[inline]
    pub(crate) fn follow(
        &mut self,
        from: u32,
        way: usize,
        ip: Ip,
        mode: ExecMode,
        code: &mut impl CodeSource,
        rules: &impl CodeRules,
    ) -> u32 {
        if let Some(previous) = self.blocks.get(from as usize) {
            let link = previous.links[way];
            let block = self.blocks.get(link as usize);
            if block.is_some_and(|block| block.ip == ip && block.mode == mode) {
                return link;
            }
        }
        self.look_up(from, way, ip, mode, code, rules)
    }

    #[inline(never)]
    fn look_up(
        &mut self,
        from: u32,
        way: usize,
        ip: Ip,
        mode: ExecMode,
        code: &mut impl CodeSource,
        rules: &impl CodeRules,
    ) -> u32 {
        self.shrink();
        let id = self.straight(ip, mode, code, rules);
        // `shrink` may have emptied the cache: then the link lands in an unrelated block, where it is a wrong hint.
        if let Some(previous) = self.blocks.get_mut(from as usize) {
            previous.links[way] = id;
        }
        id
    }

    fn build(
        &mut self,
        ip: Ip,
        mode: ExecMode,
        code: &mut impl CodeSource,
        rules: &impl CodeRules,
    ) -> u32 {
        let first = self.lens.len();
        let mut at = ip;
        let mut block = BasicBlock {
            ip,
            term_ip: ip,
            next: ip,
            target: Ip(0),
            first: first as u32,
            body: 0,
            len: 0,
            class: Class::Other,
            digest: 0,
            end: End::Split,
            mode,
            links: [NONE; 2],
        };
        // Code bytes are read ahead, so that the source is not asked for each instruction.
        let mut bytes = [0; 64];
        'run: loop {
            let known = code.read(at, &mut bytes).min(bytes.len());
            let mut decoder = LinearDecoder::new(&bytes[..known], at, mode);
            loop {
                if self.lens.len() - first == MAX_BODY {
                    break 'run;
                }
                match decoder.decode_next() {
                    Ok(insn) if insn.class == Class::Other => {
                        self.lens.push(insn.len);
                        self.digests.push(insn.digest);
                        let before = core::mem::replace(&mut at, decoder.ip());
                        if rules.is_limit(at) {
                            block.end = End::Limit;
                            break 'run;
                        }
                        // Behind the highest address of the mode comes the lowest, where other code stands.
                        if at < before {
                            break;
                        }
                    }
                    Ok(insn) => {
                        let is_special = rules.is_special(insn.class, insn.target, decoder.ip());
                        block.end = if is_special { End::Special } else { End::Insn };
                        block.len = insn.len;
                        block.class = insn.class;
                        block.digest = insn.digest;
                        block.next = decoder.ip();
                        block.target = insn.target.unwrap_or(Ip(0));
                        break 'run;
                    }
                    Err(_) => {
                        block.end = End::Fault;
                        break 'run;
                    }
                }
                // The next instruction may be longer than what was read.
                if decoder.rest().len() < MAX_INSN_LEN {
                    break;
                }
            }
        }
        block.body = (self.lens.len() - first) as u16;
        block.term_ip = at;
        if !block.end.has_insn() {
            block.next = at;
        }
        self.built += 1;
        let id = self.blocks.len() as u32;
        self.blocks.push(block);
        let blocks = &self.blocks;
        self.index.insert(id, |id| {
            let block = &blocks[id as usize];
            (block.ip, block.mode)
        });
        id
    }

    /// How many plain instructions of a block come before the instruction at `stop`, if that is one of its own (the
    /// ending one counts too).
    pub(crate) fn position(&self, id: u32, stop: Ip) -> Option<u16> {
        let block = self.block(id);
        let mut at = block.ip;
        for index in 0..block.body {
            if at == stop {
                return Some(index);
            }
            at = advance(
                at,
                self.lens[block.first as usize + usize::from(index)],
                block.mode,
            );
        }
        (at == stop && !matches!(block.end, End::Split | End::Limit)).then_some(block.body)
    }
}

/// Decodes one instruction anew, past the cache.
pub(crate) fn decode_at(
    ip: Ip,
    mode: ExecMode,
    code: &mut impl CodeSource,
) -> Result<cofi_insn::Insn, InsnError> {
    let mut bytes = [0; MAX_INSN_LEN];
    let known = code.read(ip, &mut bytes).min(bytes.len());
    decode(&bytes[..known], ip, mode)
}
