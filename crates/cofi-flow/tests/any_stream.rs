//! Whatever the packets and the code: no panic, an end, and errors that say where.

mod common;

use cofi_flow::{Cpu, Errata, FlowConfig, FlowDecoder};
use cofi_insn::{CodeSource, Segment};
use cofi_packet::Ip;
use common::any::{branchy, check, check_events, check_times, check_ways};
use common::packets;
use proptest::prelude::*;

fn words() -> impl Strategy<Value = String> {
    let address = prop_oneof![
        8 => (0_u64..0x40).prop_map(|low| format!("{:x}", 0x1000 + low)),
        1 => any::<u64>().prop_map(|ip| format!("{ip:x}")),
        1 => Just("-".to_owned()),
    ];
    let address =
        move |name: &'static str| address.clone().prop_map(move |ip| format!("{name}:{ip}"));
    let word = prop_oneof![
        10 => "tnt:[TN]{1,6}",
        2 => "tnt:[TN]{7,47}",
        // More of them than bits fit into a register.
        1 => (60_usize..140).prop_map(|count| "tnt:N ".repeat(count).trim_end().to_owned()),
        8 => address("tip"),
        5 => address("fup"),
        4 => address("pge"),
        4 => address("pgd"),
        2 => Just("psb psbend".to_owned()),
        2 => address("psb mode:64 fup").prop_map(|words| words + " psbend"),
        1 => Just("psb".to_owned()),
        1 => Just("psbend".to_owned()),
        2 => "ovf|stop|bad|pad",
        3 => "mode:(16|32|64)|tsx:(in|no|abort)|pip:5000|pip\\.nr:7000|vmcs:9000",
        1 => "bbp bip:5|bip:6|bep|bep:ip|trig\\.ip|mnt:7|ptw:8|ptw\\.ip:9",
        2 => "exstop:ip|exstop|mwait:1|pwre:2|pwrx:3|cfe:[1-9]|cfe\\.ip:[1-9]|evd:5",
        2 => "tsc:[0-9a-f]{1,14}|tma:[0-9]{1,3}|mtc:[0-9a-f]{1,2}|cyc:[0-9]{1,5}|cbr:[0-9a-f]{1,2}",
    ];
    prop::collection::vec(word, 0..60).prop_map(|words| words.join(" "))
}

fn configs() -> impl Strategy<Value = FlowConfig> {
    let models = prop_oneof![
        Just(0x4f),
        Just(0x5e),
        Just(0x55),
        Just(0x5c),
        Just(0x6a),
        Just(0)
    ];
    // Little memory, or enough for paths.
    let limits = prop_oneof![0_usize..5000, Just(1 << 20)];
    (models, any::<bool>(), limits).prop_map(|(model, cr3_filter, cache_limit)| {
        let mut config = FlowConfig::default();
        config.warm_after = 0;
        config.errata = Errata::for_cpu(Cpu {
            family: 6,
            model,
            stepping: 0,
        });
        config.tsc_art_ratio = (80, 1);
        config.max_nonturbo_ratio = 20;
        config.cr3_filter = cr3_filter;
        config.max_packetless_run = 1000;
        config.cache_limit = cache_limit;
        config
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn packets_in_any_order(words in words(), bytes in branchy(), config in configs()) {
        let trace = packets(&format!("psb fup:1000 psbend {words}"));
        check_events(&trace, config)?;
        check(&trace, Segment { base: Ip(0x1000), bytes: &bytes }, config)?;
    }

    #[test]
    fn any_bytes(trace in prop::collection::vec(any::<u8>(), 0..400), bytes in branchy(), config in configs()) {
        let trace = [packets("psb fup:1000 psbend"), trace].concat();
        check_events(&trace, config)?;
        check(&trace, Segment { base: Ip(0x1000), bytes: &bytes }, config)?;
    }

    #[test]
    fn flipped_bits(words in words(), flips in prop::collection::vec(any::<(u16, u8)>(), 1..4), bytes in branchy()) {
        let mut trace = packets(&format!("psb fup:1000 psbend {words}"));
        for (at, bit) in flips {
            let at = usize::from(at) % trace.len();
            trace[at] ^= 1 << (bit % 8);
        }
        let mut config = FlowConfig::default();
        config.max_packetless_run = 1000;
        check(&trace, Segment { base: Ip(0x1000), bytes: &bytes }, config)?;
    }

    /// Code everywhere, the same pattern over and over: nothing is ever unmapped.
    #[test]
    fn endless_code(words in words(), pattern in branchy(), config in configs()) {
        struct Everywhere(Vec<u8>);
        impl CodeSource for Everywhere {
            fn read(&mut self, ip: Ip, buf: &mut [u8]) -> usize {
                for (i, byte) in buf.iter_mut().enumerate() {
                    *byte = self.0[(ip.0.wrapping_add(i as u64) % self.0.len() as u64) as usize];
                }
                buf.len()
            }
        }
        let trace = packets(&format!("psb fup:1000 psbend {words}"));
        check(&trace, Everywhere(pattern), config)?;
    }

    /// Runs and blocks hold what single items hold, in the same order.
    #[test]
    fn all_ways_through_a_flow_give_the_same(words in words(), bytes in branchy(), config in configs()) {
        let trace = packets(&format!("psb fup:1000 psbend {words}"));
        check_ways(&trace, Segment { base: Ip(0x1000), bytes: &bytes }, config)?;
    }

    /// Also where bits are damaged: who seldom asks for the time is told the same.
    #[test]
    fn the_time_does_not_depend_on_who_asks(
        words in words(),
        flips in prop::collection::vec(any::<(u16, u8)>(), 0..3),
        bytes in branchy(),
        config in configs(),
    ) {
        let mut trace = packets(&format!("psb fup:1000 psbend {words}"));
        for (at, bit) in flips {
            let at = usize::from(at) % trace.len();
            trace[at] ^= 1 << (bit % 8);
        }
        check_times(&trace, Segment { base: Ip(0x1000), bytes: &bytes }, config)?;
    }

    /// A small cache that is emptied all the time changes nothing.
    #[test]
    fn cache_size_does_not_matter(words in words(), bytes in branchy()) {
        let trace = packets(&format!("psb fup:1000 psbend {words}"));
        let run = |cache_limit| {
            let mut config = FlowConfig::default();
            config.cache_limit = cache_limit;
            config.max_packetless_run = 1000;
            let code = Segment { base: Ip(0x1000), bytes: &bytes };
            let items = FlowDecoder::new(&trace, code, config).collect::<Vec<_>>();
            let mut blocks = Vec::new();
            FlowDecoder::new(&trace, code, config).for_each(|item| blocks.push(item));
            assert_eq!(items, blocks);
            items
        };
        prop_assert_eq!(run(0), run(1 << 20));
    }
}
