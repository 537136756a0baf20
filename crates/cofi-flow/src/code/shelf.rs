//! Decoded code of other address spaces, and of other states of them, for when they come back.

use alloc::vec::Vec;

use crate::FlowConfig;
use crate::code::cache::Cache;

/// What tells one state of all code from another: of a processor that switches between programs, which one runs, in which version, beside which
/// version of the kernel. The same key always means the same code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodeKey(pub [u64; 4]);

/// Caches that are not in use, the one used last at the end.
///
/// Invariant: together they use at most half of `FlowConfig::cache_limit`, and the one in use what they leave of it.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    /// What the cache in use is of; none if nobody said.
    key: Option<CodeKey>,
    kept: Vec<(CodeKey, Cache)>,
}

impl Shelf {
    /// What was decoded may be wrong.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Exchanges `cache` for that of `key`; `false` if it is that already.
    pub(crate) fn exchange(
        &mut self,
        cache: &mut Cache,
        key: CodeKey,
        config: &FlowConfig,
    ) -> bool {
        let before = self.key.replace(key);
        if before == Some(key) {
            return false;
        }
        let next = match self.kept.iter().position(|(of, _)| *of == key) {
            Some(at) => self.kept.remove(at).1,
            None => Cache::new(config),
        };
        let old = core::mem::replace(cache, next);
        self.put(before, old);
        cache.set_limit(config.cache_limit - self.trim(config.cache_limit / 2));
        true
    }

    /// Keeps a cache, if it is known what it is of.
    fn put(&mut self, key: Option<CodeKey>, cache: Cache) {
        match key {
            Some(key) if !cache.is_empty() => self.kept.push((key, cache)),
            _ => {}
        }
    }

    /// Forgets what was used longest ago until the rest takes no more than `most` bytes; how many it takes.
    fn trim(&mut self, most: usize) -> usize {
        let mut used: usize = self
            .kept
            .iter()
            .map(|(_, cache)| cache.bytes_in_all())
            .sum();
        let too_many = self.kept.iter().take_while(|(_, cache)| {
            let is_too_much = used > most;
            if is_too_much {
                used -= cache.bytes_in_all();
            }
            is_too_much
        });
        let count = too_many.count();
        self.kept.drain(..count);
        used
    }

    /// Begins with what another decoder has decoded, if that was told the same.
    pub(crate) fn lent(cache: CodeCache, config: &FlowConfig) -> Self {
        match cache.config {
            Some(before) if before == *config => cache.shelf,
            _ => Self::default(),
        }
    }

    /// Gives all away, and the cache that is in use.
    pub(crate) fn give(&mut self, cache: Cache, config: &FlowConfig) -> CodeCache {
        let key = self.key.take();
        self.put(key, cache);
        // None is in use beside them.
        self.trim(config.cache_limit);
        CodeCache {
            config: Some(*config),
            shelf: core::mem::take(self),
        }
    }
}

/// Decoded code that outlives its decoder, so that the next one need not decode it again: see
/// [`FlowDecoder::with_code_cache`](crate::FlowDecoder::with_code_cache).
///
/// It holds code of which a decoder was told [what it is](crate::FlowDecoder::code_changed_to), and no other. Its size is bounded by
/// `FlowConfig::cache_limit`.
#[derive(Debug, Default)]
pub struct CodeCache {
    /// What the decoder was told: what is decoded depends on it.
    config: Option<FlowConfig>,
    shelf: Shelf,
}

#[cfg(test)]
mod tests {
    use alloc::rc::Rc;
    use core::cell::Cell;

    use cofi_insn::CodeSource;
    use cofi_packet::Ip;
    use cofi_packet::intel::PSB;

    use super::*;
    use crate::{Event, FlowDecoder, Item};

    /// `ret` everywhere, or as many `nop`s before it; counts how often it is asked.
    struct Programs {
        nops: Rc<Cell<u64>>,
        asked: Rc<Cell<usize>>,
    }

    impl CodeSource for Programs {
        fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
            self.asked.set(self.asked.get() + 1);
            for (place, byte) in buf.iter_mut().enumerate() {
                let at = ip.0 + place as u64;
                *byte = if at < 0x1000 + self.nops.get() {
                    0x90
                } else {
                    0xc3
                };
            }
            buf.len()
        }
    }

    /// The lengths of the runs between TIP.PGEs, and how often code was read, where the programs take turns.
    fn run(turns: &[u64], limit: usize) -> (Vec<usize>, usize) {
        let mut trace = Vec::from(PSB);
        trace.extend([0x02, 0x23]);
        for _ in turns {
            trace.extend([0x71, 0x00, 0x10, 0, 0, 0, 0]); // TIP.PGE 0x1000
            trace.extend([0x01]); // TIP.PGD
        }
        let (nops, asked) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let code = Programs {
            nops: nops.clone(),
            asked: asked.clone(),
        };
        let config = FlowConfig {
            cache_limit: limit,
            ..FlowConfig::default()
        };
        let mut decoder = FlowDecoder::new(&trace, code, config);
        let (mut lens, mut turns) = (Vec::new(), turns.iter());
        while let Some(item) = decoder.blocks(|block| {
            if let Some(len) = lens.last_mut() {
                *len += block.len();
            }
        }) {
            match item {
                Item::Event(Event::Enabled { .. }) => {
                    let program = *turns.next().expect("a program a turn");
                    nops.set(program);
                    decoder.code_changed_to(CodeKey([program, 0, 0, 0]));
                    lens.push(0);
                }
                Item::Error(error) => panic!("{error}"),
                _ => {}
            }
        }
        (lens, asked.get())
    }

    #[test]
    fn code_that_comes_back_is_not_decoded_again() {
        let (once, of_two) = run(&[3, 5], 1 << 20);
        let (again, of_six) = run(&[3, 5, 3, 5, 5, 3], 1 << 20);
        assert_eq!(once, [4, 6]);
        assert_eq!(again, [4, 6, 4, 6, 6, 4]);
        assert_eq!(of_six, of_two);
    }

    /// A decoder that begins with what another one has decoded reads no code.
    #[test]
    fn what_was_decoded_outlives_the_decoder() {
        let mut trace = Vec::from(PSB);
        // PSBEND, TIP.PGE 0x1000, TIP.PGD.
        trace.extend([0x02, 0x23, 0x71, 0x00, 0x10, 0, 0, 0, 0, 0x01]);
        let asked = Rc::new(Cell::new(0));
        let config = FlowConfig::default();
        let decode = |program: u64, cache: CodeCache, config: FlowConfig| {
            let code = Programs {
                nops: Rc::new(Cell::new(program)),
                asked: asked.clone(),
            };
            let before = asked.get();
            let mut decoder = FlowDecoder::new(&trace, code, config).with_code_cache(cache);
            decoder.code_changed_to(CodeKey([program, 0, 0, 0]));
            let mut insns = 0;
            while decoder.blocks(|block| insns += block.len()).is_some() {}
            (insns, asked.get() - before, decoder.take_code_cache())
        };
        let (insns, reads, cache) = decode(3, CodeCache::default(), config);
        assert_eq!((insns, reads > 0), (4, true));
        let (insns, reads, cache) = decode(5, cache, config);
        assert_eq!((insns, reads > 0), (6, true));
        let (insns, reads, cache) = decode(3, cache, config);
        assert_eq!((insns, reads), (4, 0));
        // What is decoded may depend on what the decoder is told.
        let other = FlowConfig {
            max_packetless_run: 1000,
            ..config
        };
        let (insns, reads, _) = decode(5, cache, other);
        assert_eq!((insns, reads > 0), (6, true));
    }

    #[test]
    fn without_room_it_is() {
        let (lens, asked) = run(&[3, 5, 3, 5, 5, 3], 0);
        assert_eq!(lens, [4, 6, 4, 6, 6, 4]);
        assert!(asked > run(&[3, 5], 0).1);
    }
}
