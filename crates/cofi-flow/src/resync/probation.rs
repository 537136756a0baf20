//! Places that a packet in doubt gives, and that a [trial](crate::resync::trial) confirms or does not.

use cofi_packet::intel::DecodeError;
use cofi_packet::{ExecMode, Ip};

use crate::bind::Binder;
use crate::bind::control::Control;
use crate::family::{IntelPt, ReadFamily};
use crate::reader::intel::Flow;
use crate::resync::loss::Run;

impl Binder<'_, IntelPt> {
    /// Whether code at `ip` surely runs in the mode that was the last. A trial does not tell: much code fits in two modes.
    fn is_mode_sure(&self, ip: Ip) -> bool {
        let is_same = self
            .own
            .bound
            .mode
            .is_none_or(|(mode, _)| mode == self.mode);
        // Only 64-bit code has such addresses.
        let is_wide = ip.0 >> 32 != 0 && self.mode == ExecMode::Bits64;
        is_same && (is_wide || self.own.loss.is_one_mode_told_again())
    }

    /// Control being lost in doubt, a packet just read gives this address, if nothing before it was wrong. Goes on there if a trial
    /// confirms it.
    pub(crate) fn try_place<W: Control>(&mut self, walk: &mut W) -> bool {
        if !W::FOLLOWS_CODE || !self.reader.damaged {
            return false;
        }
        let Some(ip) = self.reader.own.likely.filter(|ip| self.is_mode_sure(*ip)) else {
            return false;
        };
        if !self
            .own
            .trials
            .confirms(walk.code(), &self.reader, ip, self.mode)
        {
            return false;
        }
        self.reader.own.doubt = false;
        self.own.loss.is_mode_doubtful = false;
        true
    }

    /// Whether the TIP that was just read stands where no TNT bits before it can belong behind it. Reads on from the last PSB to find
    /// out, so it must not be asked for each error.
    pub(crate) fn is_last_tip_alone<W: Control>(&self, _: &W) -> bool {
        if !W::FOLLOWS_CODE {
            return false;
        }
        let mut again = self.reader.clone();
        again.start_at(self.reader.psb_at());
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
    pub(crate) fn try_behind_bad_bytes<W: Control>(&mut self, walk: &mut W) -> bool {
        if !W::FOLLOWS_CODE {
            return false;
        }
        let mut ahead = self.reader.clone();
        ahead.damaged = true;
        ahead.own.doubt = true;
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
                let Some(ip) = reader.own.likely.filter(|ip| self.is_mode_sure(*ip)) else {
                    continue;
                };
                if self
                    .own
                    .trials
                    .confirms(walk.code(), &reader, ip, self.mode)
                {
                    reader.own.doubt = false;
                    // Timing packets among them may be none, either: none of those is used, and it is not known how many there were.
                    IntelPt::show_all(&mut self.reader);
                    reader.follow_loss(&self.reader);
                    self.reader = reader;
                    self.read_at = self.reader.offset();
                    self.release_held(None);
                    self.own.loss.is_mode_doubtful = false;
                    self.turn_on(walk, ip);
                    return true;
                }
            }
        }
    }
}
