//! The format of a stream, and what its decoder is told: from a fuzzer's bytes.

use arbitrary::Arbitrary;
use cofi_flow::{Errata, FlowConfig, IpFilter, RtitFlowConfig, StopRanges, TraceFormat};
use cofi_packet::{Ip, intel, rtit};

/// Intel PT, or RTIT with what it needs.
#[derive(Arbitrary, Debug)]
pub struct Format {
    rtit: Option<Rtit>,
    /// A bit for each erratum, over and over.
    errata: u16,
    mtc_freq: u8,
    ratio: (u32, u32),
    bus_ratio: u8,
}

#[derive(Arbitrary, Debug)]
struct Rtit {
    cycles: bool,
    tnt_buff: Option<u8>,
    filter: Option<(u16, u16)>,
    stop: Option<(u16, u16)>,
}

impl Format {
    /// The stream: a PSB, and `bytes`.
    pub fn stream(&self, bytes: &[u8]) -> Vec<u8> {
        match self.rtit {
            None => [&intel::PSB[..], bytes].concat(),
            Some(_) => [&rtit::PSB[..], bytes].concat(),
        }
    }

    /// What the decoder is told; ranges count from `base`.
    pub fn config(&self, base: u64) -> FlowConfig {
        let mut config = FlowConfig::default();
        config.mtc_freq = self.mtc_freq;
        config.tsc_art_ratio = self.ratio;
        config.max_nonturbo_ratio = self.bus_ratio;
        for (index, erratum) in Errata::ALL.iter().enumerate() {
            config.errata.set(erratum.name, self.errata >> (index % 16) & 1 == 1);
        }
        let ranges = |range: Option<(u16, u16)>| {
            let ip = |offset: u16| Ip(base.wrapping_add(offset.into()));
            range.map(|(first, last)| (ip(first), ip(last)))
        };
        if let Some(told) = &self.rtit {
            config.filter = IpFilter::new(ranges(told.filter).as_slice());
            let mut rtit = RtitFlowConfig::default();
            rtit.cycles = if told.cycles { rtit::Mode::CycleAccurate } else { rtit::Mode::Plain };
            rtit.tnt_buff = told.tnt_buff;
            rtit.stop = StopRanges::new(ranges(told.stop).as_slice());
            config.format = TraceFormat::Rtit(rtit);
        }
        config
    }
}
