//! Trials: does the code from a place on fit the packets that follow?
//!
//! After an error that casts doubt on packets, an address that is compressed, and a return to a caller from before the error, are likely but
//! not certain. A trial walks ahead from there, on a copy of the reader, and reports nothing. It is refuted where code and packets
//! contradict each other; it is confirmed when enough has agreed that could have contradicted. Only what is confirmed is taken up, so nothing is
//! reported on probation.

use cofi_insn::{Class, CodeSource};
use cofi_packet::{ExecMode, Ip};

use crate::FlowConfig;
use crate::code::cache::{BasicBlock, Cache, End};
use crate::code::retstack::ReturnStack;
use crate::family::IntelPt;
use crate::reader::Reader;
use crate::reader::intel::Flow;

/// What must agree, in units of about a bit: the chance of a coincidence halves with each.
const ENOUGH: u32 = 24;
/// An indirect branch or uncompressed return has its TIP next, with no TNT bit left.
const TARGET: u32 = 4;
/// A compressed return is one that is taken, and its call is known.
const RETURN: u32 = 1;
/// Code leads to the address of a FUP without a further packet.
const REACHED: u32 = 8;
/// Code leads to the address of a PSB+, and its mode is the same. That alone is not enough: ways join.
const STATUS: u32 = 16;
/// Tracing ends where a far transfer stands.
const FAR: u32 = 6;
/// And goes on behind it.
const RESUMED: u32 = 12;

/// A trial goes through so many blocks at most.
const MAX_BLOCKS: u32 = 4096;
/// All trials of a decoder together take so many blocks, and so many more for each byte since the first: the cost stays linear.
const BLOCKS: u64 = 16_384;
const BLOCKS_A_BYTE: u64 = 8;
/// Reading so many bytes ahead costs as much as a block.
const BYTES_A_BLOCK: usize = 8;
/// The cache of trials has this share of the limit.
const SHARE: usize = 8;

/// What is remembered of a loss for the sake of trials.
#[derive(Debug)]
pub(crate) struct Trials {
    /// The return addresses known when control was lost.
    callers: ReturnStack,
    /// Where the first trial began, and how many blocks all have taken.
    begun: Option<usize>,
    spent: u64,
    /// Code that they decoded: apart from that of the flow, whose place in its cache is kept while they run.
    cache: Cache,
}

impl Trials {
    pub(crate) fn new(config: &FlowConfig) -> Self {
        Self {
            callers: ReturnStack::new(),
            begun: None,
            spent: 0,
            cache: Cache::new(&FlowConfig {
                cache_limit: config.cache_limit / SHARE,
                ..*config
            }),
        }
    }

    /// Decoded code is not that any more.
    pub(crate) fn code_changed(&mut self) {
        self.cache.clear();
    }

    /// Control is about to be lost: the calls that are known may still be returned from.
    pub(crate) fn keep_callers(&mut self, callers: &ReturnStack, and_older: bool) {
        if !and_older {
            self.callers.clear();
        }
        self.callers.extend(callers);
    }

    /// Whether code from `ip` on fits the packets behind the one that `reader` has read last.
    pub(crate) fn confirms(
        &mut self,
        code: &mut impl CodeSource,
        reader: &Reader<'_, IntelPt>,
        ip: Ip,
        mode: ExecMode,
    ) -> bool {
        let mut trial = Trial::new(reader, ip, mode);
        match self.walk(code, &mut trial) {
            Outcome::Confirmed => true,
            Outcome::Refuted | Outcome::Open => false,
            Outcome::Returns => self.only_caller(code, &trial).is_some(),
        }
    }

    /// Where a compressed return leads whose call was lost, if exactly one of the callers from before the loss fits. The TNT bits behind it
    /// are given.
    pub(crate) fn caller(
        &mut self,
        code: &mut impl CodeSource,
        reader: &Reader<'_, IntelPt>,
        mode: ExecMode,
        (tnt, tnt_len): (u64, u8),
    ) -> Option<Ip> {
        let mut trial = Trial::new(reader, Ip(0), mode);
        (trial.tnt, trial.tnt_len) = (tnt, tnt_len);
        self.only_caller(code, &trial)
    }

    /// The one caller to which a return must have led. Of those above it nothing is known: control may have come in by other calls since.
    fn only_caller(&mut self, code: &mut impl CodeSource, trial: &Trial<'_>) -> Option<Ip> {
        let mut callers = self.callers.clone();
        let mut found: Option<Ip> = None;
        let mut tried: [Ip; 64] = [Ip(0); 64];
        let mut count = 0;
        while let Some(mut ip) = callers.pop() {
            if trial.mode.bits() < 64 {
                ip = Ip(ip.0 & 0xffff_ffff);
            }
            if tried[..count].contains(&ip) {
                continue;
            }
            tried[count] = ip;
            count += 1;
            let mut trial = trial.clone();
            trial.ip = ip;
            trial.returns.clear();
            match self.walk(code, &mut trial) {
                Outcome::Refuted => {}
                Outcome::Confirmed if found.is_none() => found = Some(ip),
                // More than one may be it.
                _ => return None,
            }
        }
        found
    }

    /// Walks until enough agrees, something contradicts, or nothing more can be found out.
    fn walk(&mut self, code: &mut impl CodeSource, trial: &mut Trial<'_>) -> Outcome {
        let begun = *self.begun.get_or_insert(trial.reader.psb_at());
        let bytes = trial.reader.at.saturating_sub(begun) as u64;
        let left = (BLOCKS + BLOCKS_A_BYTE * bytes).saturating_sub(self.spent);
        self.cache.shrink();
        let limit = left.min(MAX_BLOCKS.into()) as u32;
        trial.blocks = 0;
        let outcome = loop {
            if trial.score >= ENOUGH {
                break Outcome::Confirmed;
            }
            if trial.blocks >= limit {
                break Outcome::Open;
            }
            match trial.step(&mut self.cache, code) {
                None => {}
                Some(outcome) => break outcome,
            }
        };
        self.spent += u64::from(trial.blocks) + 1;
        outcome
    }
}

/// What a packet says comes next.
#[derive(Clone, Copy)]
enum Ahead {
    Nothing,
    Tip(Ip),
    Pgd,
    /// Control gets to the first address and goes on at the second, or tracing ends there.
    Async(Ip, Option<Ip>),
    /// A PSB+ with this address, and perhaps a mode.
    Status(Ip, Option<ExecMode>),
}

/// A walk ahead.
#[derive(Clone)]
struct Trial<'t> {
    reader: Reader<'t, IntelPt>,
    ip: Ip,
    mode: ExecMode,
    tnt: u64,
    tnt_len: u8,
    ahead: Ahead,
    returns: ReturnStack,
    score: u32,
    blocks: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Confirmed,
    Refuted,
    /// Neither: it comes to what a trial does not follow.
    Open,
    /// A compressed return without a call.
    Returns,
}

/// What reading ahead came to.
enum Read {
    Ahead,
    Is(Outcome),
}

impl<'t> Trial<'t> {
    fn new(reader: &Reader<'t, IntelPt>, ip: Ip, mode: ExecMode) -> Self {
        Self {
            reader: reader.clone(),
            ip,
            mode,
            tnt: 0,
            tnt_len: 0,
            ahead: Ahead::Nothing,
            returns: ReturnStack::new(),
            score: 0,
            blocks: 0,
        }
    }

    fn agree(&mut self, units: u32) {
        self.score += units;
    }

    /// Reads TNT bits or what comes next.
    fn read(&mut self) -> Read {
        let from = self.reader.at;
        let read = self.read_ahead();
        self.blocks += ((self.reader.at - from) / BYTES_A_BLOCK) as u32;
        read
    }

    fn read_ahead(&mut self) -> Read {
        let Some(Ok(flow)) = self.reader.next() else {
            // The end, or other damage: what has agreed so far must do.
            return Read::Is(Outcome::Open);
        };
        let likely = self.reader.own.likely;
        self.ahead = match (flow, likely) {
            (Flow::Tnt { bits, len }, _) => {
                self.tnt = bits << (64 - u32::from(len));
                self.tnt_len = len;
                return Read::Ahead;
            }
            (Flow::Tip(_), Some(ip)) => Ahead::Tip(ip),
            (Flow::Pgd(_), _) => Ahead::Pgd,
            (Flow::Fup(_), Some(ip)) => match self.reader.next() {
                Some(Ok(Flow::Tip(_))) => match self.reader.own.likely {
                    Some(to) => Ahead::Async(ip, Some(to)),
                    None => return Read::Is(Outcome::Refuted),
                },
                Some(Ok(Flow::Pgd(_))) => Ahead::Async(ip, None),
                _ => return Read::Is(Outcome::Open),
            },
            (Flow::Psb, _) => match self.read_psb_plus() {
                Some((ip, mode)) => Ahead::Status(ip, mode),
                None => return Read::Is(Outcome::Open),
            },
            (Flow::Tip(_) | Flow::Fup(_) | Flow::Pge(_) | Flow::PsbEnd, _) => {
                return Read::Is(Outcome::Refuted);
            }
            _ => return Read::Is(Outcome::Open),
        };
        Read::Ahead
    }

    fn read_psb_plus(&mut self) -> Option<(Ip, Option<ExecMode>)> {
        let (mut ip, mut told) = (None, None);
        loop {
            match self.reader.next()?.ok()? {
                Flow::PsbEnd => return ip.map(|ip| (ip, told)),
                Flow::Fup(_) => ip = self.reader.own.likely,
                Flow::ModeExec { mode, .. } => told = Some(mode),
                Flow::Ovf | Flow::Psb => return None,
                _ => {}
            }
        }
    }

    /// The outcome of a conditional branch; none if the trial is over.
    fn bit(&mut self) -> Option<bool> {
        let len = self.tnt_len.checked_sub(1)?;
        let is_taken = self.tnt >> 63 == 1;
        (self.tnt, self.tnt_len) = (self.tnt << 1, len);
        Some(is_taken)
    }

    /// Tracing has ended with the far transfer before `next`.
    fn resumes(&mut self, next: Ip) -> Outcome {
        self.agree(FAR);
        let is_on_again = matches!(self.reader.next(), Some(Ok(Flow::Pge(_))));
        if is_on_again && self.reader.own.likely == Some(next) {
            self.agree(RESUMED);
            self.ip = next;
            self.ahead = Ahead::Nothing;
            return Outcome::Confirmed;
        }
        Outcome::Open
    }

    /// One block of it.
    fn step(&mut self, cache: &mut Cache, code: &mut impl CodeSource) -> Option<Outcome> {
        if self.tnt_len == 0 && matches!(self.ahead, Ahead::Nothing) {
            if let Read::Is(outcome) = self.read() {
                return Some(outcome);
            }
        }
        let id = cache.straight(self.ip, self.mode, code, &IntelPt);
        let block = *cache.block(id);
        self.blocks += 1 + u32::from(block.body) / 16;
        let has_bits = self.tnt_len != 0;
        match self.ahead {
            Ahead::Async(stop, _) | Ahead::Status(stop, _)
                if !has_bits && cache.position(id, stop).is_some() =>
            {
                return self.arrive(stop);
            }
            _ => {}
        }
        match block.end {
            End::Split => {
                self.ip = block.next;
                None
            }
            End::Insn => self.finish(&block, has_bits),
            End::Fault | End::Limit | End::Special => Some(Outcome::Refuted),
        }
    }

    /// Code leads to the address that a packet gives.
    fn arrive(&mut self, stop: Ip) -> Option<Outcome> {
        match self.ahead {
            Ahead::Status(_, told) => {
                self.agree(STATUS);
                let is_same = told.is_none_or(|told| told == self.mode);
                Some(if is_same && self.score >= ENOUGH {
                    Outcome::Confirmed
                } else {
                    Outcome::Open
                })
            }
            Ahead::Async(_, Some(to)) => {
                self.agree(REACHED);
                (self.ip, self.ahead) = (to, Ahead::Nothing);
                None
            }
            _ => match self.resumes(stop) {
                Outcome::Confirmed => None,
                outcome => Some(outcome),
            },
        }
    }

    /// The instruction at the end of a block.
    fn finish(&mut self, block: &BasicBlock, has_bits: bool) -> Option<Outcome> {
        match block.class {
            Class::Conditional => {
                self.ip = match (self.bit(), self.ahead) {
                    (Some(true), _) => block.target,
                    (Some(false), _) => block.next,
                    (None, Ahead::Pgd) => return Some(Outcome::Open),
                    (None, _) => return Some(Outcome::Refuted),
                };
            }
            Class::DirectJump | Class::DirectCall => {
                if block.is_direct_call::<IntelPt>() {
                    self.returns.push(block.next);
                }
                self.ip = block.target;
            }
            Class::Return if has_bits => {
                if self.bit() != Some(true) {
                    return Some(Outcome::Refuted);
                }
                let Some(ip) = self.returns.pop() else {
                    return Some(Outcome::Returns);
                };
                self.agree(RETURN);
                self.ip = ip;
            }
            Class::Return | Class::IndirectJump | Class::IndirectCall if !has_bits => {
                let to = match self.ahead {
                    Ahead::Tip(to) => to,
                    Ahead::Pgd => return Some(Outcome::Open),
                    _ => return Some(Outcome::Refuted),
                };
                match block.class {
                    Class::Return => drop(self.returns.pop()),
                    Class::IndirectCall => self.returns.push(block.next),
                    _ => {}
                }
                self.agree(TARGET);
                (self.ip, self.ahead) = (to, Ahead::Nothing);
            }
            // A TIP that was deferred (33.4.2.3) would have made these bits wait: a trial does not follow that.
            Class::IndirectJump | Class::IndirectCall => return Some(Outcome::Refuted),
            class if class.is_far() => match self.ahead {
                Ahead::Pgd if !has_bits => {
                    if self.resumes(block.next) != Outcome::Confirmed {
                        return Some(Outcome::Open);
                    }
                }
                Ahead::Tip(_) if !has_bits => return Some(Outcome::Open),
                _ => return Some(Outcome::Refuted),
            },
            _ => self.ip = block.next,
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::decoder::AnyBinder;
    use crate::{FlowConfig, FlowDecoder};

    /// Code everywhere that never needs a packet: each trial goes on until it may not.
    struct Nops;

    impl CodeSource for Nops {
        fn read(&mut self, _: Ip, bytes: &mut [u8]) -> usize {
            bytes.fill(0x90);
            bytes.len()
        }
    }

    fn trials<'d, C>(decoder: &'d FlowDecoder<'_, C>) -> &'d Trials {
        match &decoder.bind {
            AnyBinder::IntelPt(bind) => &bind.own.trials,
            AnyBinder::Rtit(_) => panic!("trials are Intel PT's"),
        }
    }

    #[test]
    fn all_trials_together_take_blocks_in_proportion_to_the_bytes() {
        let mut trace: Vec<u8> = [0x02, 0x82].repeat(8);
        // MODE.Exec of 64-bit code, PSBEND, the same mode, TIP.PGE 1000.
        trace.extend([0x99, 1, 0x02, 0x23, 0x99, 1, 0x31, 0x00, 0x10]);
        // TNT and TIP, again and again: each TIP may be a place.
        let tries = 4000;
        trace.extend([0x04, 0x2d, 0x00, 0x10].repeat(tries));
        trace.push(0x04);
        let config = FlowConfig {
            max_packetless_run: 1000,
            ..FlowConfig::default()
        };
        let mut decoder = FlowDecoder::new(&trace, Nops, config);
        let errors = decoder
            .by_ref()
            .filter(|item| matches!(item, crate::Item::Error(_)));
        assert_eq!(errors.count(), 1);
        let spent = trials(&decoder).spent;
        let share = BLOCKS + BLOCKS_A_BYTE * trace.len() as u64;
        // The last one may go a block too far, and asking costs one.
        let most = share + MAX_BODY_BLOCKS + tries as u64;
        assert!(spent > share / 2, "{spent}: they are made");
        assert!(spent <= most, "{spent} blocks, and not {most}");
    }

    /// What the longest block counts.
    const MAX_BODY_BLOCKS: u64 = 1 + 512 / 16;

    /// Trials have a share of the cache's limit, and keep to it.
    #[test]
    fn what_trials_decode_is_bounded() {
        let mut trace: Vec<u8> = [0x02, 0x82].repeat(8);
        trace.extend([0x99, 1, 0x02, 0x23, 0x99, 1, 0x31, 0x00, 0x10]);
        for place in 0..2000_u32 {
            trace.extend([0x04, 0x4d]);
            trace.extend((0x1000_0000 + (place << 16)).to_le_bytes());
        }
        trace.push(0x04);
        let config = FlowConfig {
            max_packetless_run: 1000,
            cache_limit: 1 << 20,
            ..FlowConfig::default()
        };
        let mut decoder = FlowDecoder::new(&trace, Nops, config);
        let (mut most, mut errors) = (0, 0);
        for _ in 0..3 {
            errors += usize::from(decoder.by_ref().next().is_some());
            most = most.max(trials(&decoder).cache.bytes());
        }
        decoder.by_ref().for_each(drop);
        most = most.max(trials(&decoder).cache.bytes());
        assert!(errors > 0 && trials(&decoder).spent > 10_000);
        // One trial may go beyond it, until the next makes room.
        let trial = MAX_BLOCKS as usize * 600;
        assert!(most < (1 << 20) / SHARE + trial, "{most} bytes");
    }

    /// Errors that cast no doubt on packets are not tried, and cost nothing behind them.
    #[test]
    fn missing_code_again_and_again_comes_to_an_end() {
        struct Jump;
        impl CodeSource for Jump {
            fn read(&mut self, ip: Ip, bytes: &mut [u8]) -> usize {
                let code = [0xff, 0xe0];
                let there = (0x1000..0x1002).contains(&ip.0);
                let from = if there {
                    &code[(ip.0 - 0x1000) as usize..]
                } else {
                    &[]
                };
                let len = from.len().min(bytes.len());
                bytes[..len].copy_from_slice(&from[..len]);
                len
            }
        }
        let mut trace: Vec<u8> = [0x02, 0x82].repeat(8);
        trace.extend([0x99, 1, 0x02, 0x23, 0x99, 2, 0x31, 0x00, 0x10]);
        let round = [
            0x2d, 0x00, 0x20, 0x2d, 0x00, 0x30, 0x99, 1, 0x2d, 0x00, 0x10,
        ];
        trace.extend(round.repeat(60_000));
        // Were each to read on from the PSB, this would not end for hours.
        let errors = FlowDecoder::new(&trace, Jump, FlowConfig::default())
            .filter(|item| matches!(item, crate::Item::Error(_)))
            .count();
        assert!(errors > 60_000, "{errors}");
    }

    /// What was skipped behind bad bytes may have been many MTCs: the next leaves the latest time open.
    #[test]
    fn mtcs_that_were_skipped_leave_the_time_open() {
        const CODE: [u8; 9] = [0x75, 0xfe, 0xff, 0xe0, 0x90, 0xff, 0xe0, 0x0f, 0x05];
        let mut trace: Vec<u8> = [0x02, 0x82].repeat(8);
        // TSC 0, TMA 0, MODE.Exec, PSBEND, MODE.Exec, TIP.PGE 1000, MTC 1; then no packet.
        trace.extend([0x19, 0, 0, 0, 0, 0, 0, 0]);
        trace.extend([0x02, 0x73, 0, 0, 0, 0, 0]);
        trace.extend([0x99, 1, 0x02, 0x23, 0x99, 1, 0x31, 0x00, 0x10]);
        trace.extend([0x59, 1, 0x02, 0xff, 0x00, 0x00]);
        for count in 2..=301_u32 {
            trace.extend([0x59, count as u8]);
        }
        let tip = |ip: u8| [0x2d, ip, 0x10];
        trace.extend([0x08, 0x08]);
        trace.extend(tip(0));
        trace.push(0x04);
        trace.extend([tip(5), tip(5), tip(5)].concat());
        trace.extend([0x59, 0x2e]);
        trace.extend([tip(5), tip(5), tip(7)].concat());
        trace.push(0x01);
        let code = cofi_insn::Segment {
            base: Ip(0x1000),
            bytes: &CODE,
        };
        let config = FlowConfig {
            tsc_art_ratio: (10, 1),
            ..FlowConfig::default()
        };
        let mut decoder = FlowDecoder::new(&trace, code, config);
        let (mut found, mut errors) = (0, 0);
        while let Some(item) = decoder.next() {
            errors += usize::from(matches!(item, crate::Item::Error(_)));
            if errors > 0 && matches!(item, crate::Item::Insn(_)) {
                found += 1;
                let latest = decoder.time().and_then(|time| time.latest);
                assert!(latest.is_none_or(|latest| latest.0 >= 3010), "{latest:?}");
            }
        }
        assert!(errors == 1 && found > 6, "{errors} {found}");
    }
}
