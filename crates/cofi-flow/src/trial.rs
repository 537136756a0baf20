//! Trials: does the code from a place on fit the packets that follow?
//!
//! After an error that casts doubt on packets, an address that is compressed, and a return to a caller from before the error, are likely but
//! not certain. A trial walks ahead from there, on a copy of the reader, and reports nothing. It is refuted where code and packets
//! contradict each other; it is confirmed when enough has agreed that could have contradicted. Only what is confirmed is taken up, so nothing is
//! reported on probation.

use cofi_insn::{Class, CodeSource};
use cofi_packet::intel::DecodeError;
use cofi_packet::{ExecMode, Ip};

use crate::cache::{Cache, End};
use crate::decoder::FlowDecoder;
use crate::events::notes::Run;
use crate::reader::{Flow, Reader};
use crate::retstack::ReturnStack;
use crate::{FlowConfig, FlowErrorKind, TraceFormat};

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
            callers: ReturnStack::new(&config.format),
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
struct Walker<'t> {
    reader: Reader<'t>,
    ip: Ip,
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

impl<'t> Walker<'t> {
    fn new(reader: &Reader<'t>, ip: Ip, format: &TraceFormat) -> Self {
        Self {
            reader: reader.clone(),
            ip,
            tnt: 0,
            tnt_len: 0,
            ahead: Ahead::Nothing,
            returns: ReturnStack::new(format),
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
        let likely = self.reader.likely;
        self.ahead = match (flow, likely) {
            (Flow::Tnt { bits, len }, _) => {
                self.tnt = bits << (64 - u32::from(len));
                self.tnt_len = len;
                return Read::Ahead;
            }
            (Flow::Tip(_), Some(ip)) => Ahead::Tip(ip),
            (Flow::Pgd(_), _) => Ahead::Pgd,
            (Flow::Fup(_), Some(ip)) => match self.reader.next() {
                Some(Ok(Flow::Tip(_))) => match self.reader.likely {
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
                Flow::Fup(_) => ip = self.reader.likely,
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
        if let Some(Ok(Flow::Pge(_))) = self.reader.next()
            && self.reader.likely == Some(next)
        {
            self.agree(RESUMED);
            self.ip = next;
            self.ahead = Ahead::Nothing;
            return Outcome::Confirmed;
        }
        Outcome::Open
    }
}

impl<'t, C: CodeSource> FlowDecoder<'t, C> {
    /// Whether trials are made: they need code.
    fn may_try(&self) -> bool {
        !self.reader.is_rtit() && !self.notes.tells
    }

    /// Whether code at `ip` surely runs in the mode that was the last. A trial does not tell: much code fits in two modes.
    fn is_mode_sure(&self, ip: Ip) -> bool {
        let is_same = self.bound.mode.is_none_or(|(mode, _)| mode == self.mode);
        // Only 64-bit code has such addresses.
        let is_wide = ip.0 >> 32 != 0 && self.mode == ExecMode::Bits64;
        is_same && (is_wide || self.notes.is_one_mode_told_again())
    }

    /// Control is about to be lost: the calls that are known may still be returned from.
    pub(crate) fn keep_callers(&mut self) {
        if !self.reader.damaged {
            self.trials.callers.clear();
        }
        self.trials.callers.extend(&self.returns);
    }

    /// Control being lost in doubt, a packet just read gives this address, if nothing before it was wrong. Goes on there if a trial
    /// confirms it.
    pub(crate) fn try_place(&mut self) -> bool {
        if !self.may_try() || !self.reader.damaged {
            return false;
        }
        let Some(ip) = self.reader.likely.filter(|ip| self.is_mode_sure(*ip)) else {
            return false;
        };
        let walker = Walker::new(&self.reader, ip, &self.config.format);
        if !self.is_confirmed(walker) {
            return false;
        }
        self.reader.doubt = false;
        self.notes.is_mode_doubtful = false;
        true
    }

    /// Whether the TIP that was just read stands where no TNT bits before it can belong behind it. Reads on from the last PSB to find
    /// out, so it must not be asked for each error.
    pub(crate) fn is_last_tip_alone(&self) -> bool {
        if !self.may_try() {
            return false;
        }
        let mut again = self.reader.clone();
        again.start_at(self.reader.psb_at());
        again.outside_block();
        let (mut run, mut timing) = (Run::Unknown, 0);
        while let Some(Ok(_)) = again.next() {
            if again.offset() >= self.reader.offset() {
                break;
            }
            (run, timing) = (again.run(), again.timing);
        }
        let run = match run {
            Run::Partial(_) if timing == again.timing => Run::Partial(self.reader.timing),
            Run::Partial(_) => Run::Unknown,
            run => run,
        };
        run.ends(&self.reader)
    }

    /// Behind bytes that form no packet, looks for a place where packets fit the code again, before the next PSB. Packets
    /// up to there are skipped: they may be none.
    pub(crate) fn try_behind_bad_bytes(&mut self) -> bool {
        if !self.may_try() {
            return false;
        }
        let mut ahead = self.reader.clone();
        ahead.damaged = true;
        ahead.doubt = true;
        ahead.outside_block();
        let sure = ahead.last_ip();
        let mut run = Run::Unknown;
        loop {
            let flow = match ahead.next() {
                Some(Ok(flow)) => flow,
                Some(Err(DecodeError::InBlock { .. })) | None => return false,
                Some(Err(_)) => {
                    run = Run::Unknown;
                    continue;
                }
            };
            let is_place = match flow {
                Flow::Psb => return false,
                Flow::ModeExec { mode, .. } if mode != self.mode => return false,
                // What they report must not be skipped: code of another address space may run, or none at all.
                Flow::Pip { .. } | Flow::Vmcs(_) | Flow::ModeTsx(_) | Flow::Ovf => return false,
                Flow::Tip(_) => run.ends(&ahead),
                Flow::Pge(_) => true,
                _ => false,
            };
            run = ahead.run();
            if !is_place {
                continue;
            }
            for again in [false, true] {
                let mut reader = ahead.clone();
                if again && !reader.assume_last_ip(sure) {
                    continue;
                }
                let Some(ip) = reader.likely.filter(|ip| self.is_mode_sure(*ip)) else {
                    continue;
                };
                let walker = Walker::new(&reader, ip, &self.config.format);
                if self.is_confirmed(walker) {
                    reader.doubt = false;
                    // Timing packets among them may be none, either: none of those is used, and it is not known how many there were.
                    self.reader.show_all();
                    reader
                        .clock
                        .follow_loss(&self.reader.clock, reader.at, reader.block);
                    self.reader = reader;
                    self.read_at = self.reader.offset();
                    self.release_held(None);
                    self.notes.is_mode_doubtful = false;
                    self.turn_on(ip);
                    return true;
                }
            }
        }
    }

    /// Where a compressed return leads whose call was lost, if exactly one of the callers from before the loss fits.
    pub(crate) fn try_callers(&mut self) -> Option<Ip> {
        if !self.may_try() || !self.reader.damaged || self.trials.callers.is_empty() {
            return None;
        }
        let mut walker = Walker::new(&self.reader, self.ip, &self.config.format);
        (walker.tnt, walker.tnt_len) = (self.tnt, self.tnt_len);
        self.only_caller(&walker)
    }

    /// The one caller to which a return must have led. Of those above it nothing is known: control may have come in by other calls since.
    fn only_caller(&mut self, walker: &Walker<'t>) -> Option<Ip> {
        let mut callers = self.trials.callers.clone();
        let mut found: Option<Ip> = None;
        let mut tried: [Ip; 64] = [Ip(0); 64];
        let mut count = 0;
        while let Some(mut ip) = callers.pop() {
            if self.mode.bits() < 64 {
                ip = Ip(ip.0 & 0xffff_ffff);
            }
            if tried[..count].contains(&ip) {
                continue;
            }
            tried[count] = ip;
            count += 1;
            let mut walker = walker.clone();
            walker.ip = ip;
            walker.returns.clear();
            match self.walk_ahead(&mut walker) {
                Outcome::Refuted => {}
                Outcome::Confirmed if found.is_none() => found = Some(ip),
                // More than one may be it.
                _ => return None,
            }
        }
        found
    }

    fn is_confirmed(&mut self, mut walker: Walker<'t>) -> bool {
        match self.walk_ahead(&mut walker) {
            Outcome::Confirmed => true,
            Outcome::Refuted | Outcome::Open => false,
            Outcome::Returns => self.only_caller(&walker).is_some(),
        }
    }

    /// Walks until enough agrees, something contradicts, or nothing more can be found out.
    fn walk_ahead(&mut self, walker: &mut Walker<'t>) -> Outcome {
        let psb = self.reader.psb_at();
        let begun = *self.trials.begun.get_or_insert(psb);
        let bytes = walker.reader.at.saturating_sub(begun) as u64;
        let left = (BLOCKS + BLOCKS_A_BYTE * bytes).saturating_sub(self.trials.spent);
        self.trials.cache.shrink();
        let limit = left.min(MAX_BLOCKS.into()) as u32;
        walker.blocks = 0;
        let outcome = loop {
            if walker.score >= ENOUGH {
                break Outcome::Confirmed;
            }
            if walker.blocks >= limit {
                break Outcome::Open;
            }
            match self.step_ahead(walker) {
                None => {}
                Some(outcome) => break outcome,
            }
        };
        self.trials.spent += u64::from(walker.blocks) + 1;
        outcome
    }

    /// One block of a trial.
    fn step_ahead(&mut self, walker: &mut Walker<'t>) -> Option<Outcome> {
        if walker.tnt_len == 0
            && matches!(walker.ahead, Ahead::Nothing)
            && let Read::Is(outcome) = walker.read()
        {
            return Some(outcome);
        }
        let cache = &mut self.trials.cache;
        let id = cache.straight(walker.ip, self.mode, &mut self.code);
        let block = *cache.block(id);
        walker.blocks += 1 + u32::from(block.body) / 16;
        let has_bits = walker.tnt_len != 0;
        if !has_bits
            && let Ahead::Async(stop, _) | Ahead::Status(stop, _) = walker.ahead
            && cache.position(id, stop).is_some()
        {
            return match walker.ahead {
                Ahead::Status(_, told) => {
                    walker.agree(STATUS);
                    let is_same = told.is_none_or(|told| told == self.mode);
                    Some(if is_same && walker.score >= ENOUGH {
                        Outcome::Confirmed
                    } else {
                        Outcome::Open
                    })
                }
                Ahead::Async(_, Some(to)) => {
                    walker.agree(REACHED);
                    (walker.ip, walker.ahead) = (to, Ahead::Nothing);
                    None
                }
                _ => match walker.resumes(stop) {
                    Outcome::Confirmed => None,
                    outcome => Some(outcome),
                },
            };
        }
        match block.end {
            End::Split => {
                walker.ip = block.next;
                return None;
            }
            End::Insn => {}
            End::Fault | End::Limit | End::Rtit => return Some(Outcome::Refuted),
        }
        match block.class {
            Class::Conditional => {
                walker.ip = match (walker.bit(), walker.ahead) {
                    (Some(true), _) => block.target,
                    (Some(false), _) => block.next,
                    (None, Ahead::Pgd) => return Some(Outcome::Open),
                    (None, _) => return Some(Outcome::Refuted),
                };
            }
            Class::DirectJump | Class::DirectCall => {
                if block.class == Class::DirectCall && block.target != block.next {
                    walker.returns.push(block.next);
                }
                walker.ip = block.target;
            }
            Class::Return if has_bits => {
                if walker.bit() != Some(true) {
                    return Some(Outcome::Refuted);
                }
                let Some(ip) = walker.returns.pop() else {
                    return Some(Outcome::Returns);
                };
                walker.agree(RETURN);
                walker.ip = ip;
            }
            Class::Return | Class::IndirectJump | Class::IndirectCall if !has_bits => {
                let to = match walker.ahead {
                    Ahead::Tip(to) => to,
                    Ahead::Pgd => return Some(Outcome::Open),
                    _ => return Some(Outcome::Refuted),
                };
                match block.class {
                    Class::Return => drop(walker.returns.pop()),
                    Class::IndirectCall => walker.returns.push(block.next),
                    _ => {}
                }
                walker.agree(TARGET);
                (walker.ip, walker.ahead) = (to, Ahead::Nothing);
            }
            // A TIP that was deferred (33.4.2.3) would have made these bits wait: a trial does not follow that.
            Class::IndirectJump | Class::IndirectCall => return Some(Outcome::Refuted),
            class if class.is_far() => match walker.ahead {
                Ahead::Pgd if !has_bits => {
                    if walker.resumes(block.next) != Outcome::Confirmed {
                        return Some(Outcome::Open);
                    }
                }
                Ahead::Tip(_) if !has_bits => return Some(Outcome::Open),
                _ => return Some(Outcome::Refuted),
            },
            _ => walker.ip = block.next,
        }
        None
    }

    /// Where a compressed return without a call led, if that can be found out; else control is lost.
    pub(crate) fn lost_caller(&mut self) -> Option<Ip> {
        let found = self.try_callers();
        if found.is_none() {
            self.fail(FlowErrorKind::EmptyReturnStack);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::FlowConfig;

    /// Code everywhere that never needs a packet: each trial goes on until it may not.
    struct Nops;

    impl CodeSource for Nops {
        fn read(&mut self, _: Ip, bytes: &mut [u8]) -> usize {
            bytes.fill(0x90);
            bytes.len()
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
        let spent = decoder.trials.spent;
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
            most = most.max(decoder.trials.cache.bytes());
        }
        decoder.by_ref().for_each(drop);
        most = most.max(decoder.trials.cache.bytes());
        assert!(errors > 0 && decoder.trials.spent > 10_000);
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
