//! RTIT: whatever the packets and the code, no panic, an end, and errors that say where.

mod common;

use cofi_flow::{
    Errata, FlowConfig, FlowDecoder, IpFilter, Item, RtitFlowConfig, StopRanges, TraceFormat,
};
use cofi_insn::Segment;
use cofi_packet::{ExecMode, Ip, rtit};
use common::any::{branchy, check, check_events, check_times, check_ways};
use common::rtit_packets;
use proptest::prelude::*;

fn words() -> impl Strategy<Value = String> {
    let address = prop_oneof![
        8 => (0_u64..0x40).prop_map(|low| format!("{:x}", 0x1000 + low)),
        2 => (0_u64..0x40).prop_map(|low| format!("~{:x}", 0x1000 + low)),
        1 => (0_u64..1 << 47).prop_map(|ip| format!("{ip:x}")),
    ];
    let address =
        move |name: &'static str| address.clone().prop_map(move |ip| format!("{name}:{ip}"));
    let word = prop_oneof![
        10 => "tnt:[TN]{1,5}",
        3 => "tnt:[TN]{6}",
        8 => address("tip"),
        4 => address("pge"),
        4 => address("pgd"),
        1 => (address("far"), address("tip")).prop_map(|(far, tip)| format!("{far} {tip}")),
        1 => address("far"),
        1 => address("pcc"),
        2 => address("ovf"),
        3 => "psb|psb\\.late|stop|bad",
        2 => "pip:5000|pip\\.off:5000|pip:6000",
        2 => "mtc:[0-3]\\.[0-9a-f]{1,2}|sts:[0-9a-f]{1,10}",
    ];
    // In cycle-accurate mode the bytes mean something else: those are any bytes then.
    prop::collection::vec(word, 0..60).prop_map(|words| words.join(" "))
}

fn configs() -> impl Strategy<Value = FlowConfig> {
    let ranges = |first: u64| {
        prop_oneof![
            Just(Vec::new()),
            (0_u64..0x20, 0_u64..0x40).prop_map(move |(from, len)| {
                let from = first + from;
                vec![(Ip(from), Ip(from + len))]
            }),
        ]
    };
    let mode = prop_oneof![
        4 => Just(ExecMode::Bits64),
        1 => Just(ExecMode::Bits32),
        1 => Just(ExecMode::Bits16),
    ];
    let cycles = prop_oneof![4 => Just(rtit::Mode::Plain), 1 => Just(rtit::Mode::CycleAccurate)];
    let errata = any::<u8>().prop_map(|bits| {
        let mut errata = Errata::default();
        for e in 1..=8 {
            errata.set(&format!("rtit_e{e}"), bits >> (e - 1) & 1 == 1);
        }
        errata
    });
    let tnt_buff = prop::option::of(any::<u8>());
    let rest = (errata, any::<bool>(), 0_usize..5000);
    (ranges(0x1000), ranges(0x1010), mode, cycles, tnt_buff, rest).prop_map(
        |(filter, stop, initial_mode, cycles, tnt_buff, (errata, cr3_filter, cache_limit))| {
            let mut config = FlowConfig::default();
            config.format = TraceFormat::Rtit({
                let mut rtit = RtitFlowConfig::default();
                rtit.cycles = cycles;
                rtit.tnt_buff = tnt_buff;
                rtit.stop = StopRanges::new(&stop);
                rtit
            });
            config.filter = IpFilter::new(&filter);
            config.initial_mode = initial_mode;
            config.errata = errata;
            config.cr3_filter = cr3_filter;
            config.cache_limit = cache_limit;
            config.max_nonturbo_ratio = 20;
            config.max_packetless_run = 1000;
            config
        },
    )
}

fn source(bytes: &[u8]) -> Segment<'_> {
    Segment {
        base: Ip(0x1000),
        bytes,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn packets_in_any_order(words in words(), bytes in branchy(), config in configs()) {
        let trace = rtit_packets(&format!("psb pge:1000 {words}"));
        check_events(&trace, config)?;
        check(&trace, source(&bytes), config)?;
    }

    #[test]
    fn any_bytes(trace in prop::collection::vec(any::<u8>(), 0..400), bytes in branchy(), config in configs()) {
        let trace = [rtit_packets("psb pge:1000"), trace].concat();
        check_events(&trace, config)?;
        check(&trace, source(&bytes), config)?;
    }

    #[test]
    fn flipped_bits(words in words(), flips in prop::collection::vec(any::<(u16, u8)>(), 1..4), bytes in branchy(), config in configs()) {
        let mut trace = rtit_packets(&format!("psb pge:1000 {words}"));
        for (at, bit) in flips {
            let at = usize::from(at) % trace.len();
            trace[at] ^= 1 << (bit % 8);
        }
        check_events(&trace, config)?;
        check(&trace, source(&bytes), config)?;
    }

    #[test]
    fn all_ways_through_a_flow_give_the_same(words in words(), bytes in branchy(), config in configs()) {
        let trace = rtit_packets(&format!("psb pge:1000 {words}"));
        check_ways(&trace, source(&bytes), config)?;
    }

    /// Also where bits are damaged: who seldom asks for the time is told the same.
    #[test]
    fn the_time_does_not_depend_on_who_asks(
        words in words(),
        flips in prop::collection::vec(any::<(u16, u8)>(), 0..3),
        bytes in branchy(),
        config in configs(),
    ) {
        let mut trace = rtit_packets(&format!("psb pge:1000 {words}"));
        for (at, bit) in flips {
            let at = usize::from(at) % trace.len();
            trace[at] ^= 1 << (bit % 8);
        }
        check_times(&trace, source(&bytes), config)?;
    }

    /// A small cache that is emptied all the time changes nothing.
    #[test]
    fn cache_size_does_not_matter(words in words(), bytes in branchy(), config in configs()) {
        let trace = rtit_packets(&format!("psb pge:1000 {words}"));
        let run = |cache_limit| -> Vec<Item> {
            let mut config = config;
            config.cache_limit = cache_limit;
            let mut blocks = Vec::new();
            FlowDecoder::new(&trace, source(&bytes), config).for_each(|item| blocks.push(item));
            blocks
        };
        prop_assert_eq!(run(0), run(1 << 20));
    }
}
