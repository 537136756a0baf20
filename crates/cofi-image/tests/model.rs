//! Random histories of mappings against a model that knows every byte by itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use cofi_image::{AddressSpace, CodeFile, ImageView, Version};
use cofi_insn::CodeSource;
use cofi_packet::Ip;
use proptest::prelude::*;

/// Addresses the histories play in; the top of the address space has its own part.
const SPAN: u64 = 96;
const FILE_LEN: usize = 80;

#[derive(Clone, Debug)]
enum Step {
    Map {
        start: u64,
        len: u64,
        file: usize,
        offset: u64,
    },
    Unmap {
        start: u64,
        len: u64,
    },
    Clear,
    /// Becomes what the other space is.
    Inherit,
    /// The next steps are another version.
    NextVersion,
    /// The next steps happen to the other space.
    Switch,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..SPAN, 0u64..40, 0usize..3, 0u64..90).prop_map(|(start, len, file, offset)| Step::Map {
            start,
            len,
            file,
            offset
        }),
        2 => (0..SPAN, 0u64..40).prop_map(|(start, len)| Step::Unmap { start, len }),
        1 => Just(Step::Clear),
        1 => Just(Step::Inherit),
        6 => Just(Step::NextVersion),
        2 => Just(Step::Switch),
    ]
}

/// What each address shows: a byte, or mapped but past the end of the file.
type Bytes = BTreeMap<u64, Option<u8>>;

fn read_model(bytes: &Bytes, at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64)
        .map_while(|address| bytes.get(&address).copied().flatten())
        .collect()
}

fn files() -> Vec<Arc<CodeFile>> {
    (0..3u8)
        .map(|file| {
            CodeFile::from_bytes(
                format!("file {file}"),
                (0..FILE_LEN as u8).map(|i| i + 80 * file).collect(),
            )
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn agrees_with_the_byte_model(
        steps in prop::collection::vec(step(), 0..250),
        jumps in prop::collection::vec((any::<prop::sample::Index>(), 0..SPAN + 40, 1usize..20), 1..60),
    ) {
        let files = files();
        let mut spaces = [AddressSpace::new(), AddressSpace::new()];
        let mut models = [Bytes::new(), Bytes::new()];
        let mut history = Vec::new();
        let (mut current, mut version) = (0, Version(5));
        for step in &steps {
            let other = 1 - current;
            match *step {
                Step::Map { start, len, file, offset } => {
                    spaces[current].map(start, len, &files[file], offset, version);
                    for i in 0..len {
                        let at = (offset + i) as usize;
                        let byte = (at < FILE_LEN).then(|| at as u8 + 80 * file as u8);
                        models[current].insert(start + i, byte);
                    }
                }
                Step::Unmap { start, len } => {
                    spaces[current].unmap(start, len, version);
                    models[current].retain(|address, _| !(start..start + len).contains(address));
                }
                Step::Clear => {
                    spaces[current].clear(version);
                    models[current].clear();
                }
                Step::Inherit => {
                    let parent = spaces[other].clone();
                    spaces[current].inherit(&parent, version);
                    models[current] = models[other].clone();
                }
                Step::NextVersion => {
                    history.push((version, models.clone()));
                    version.0 += 3;
                }
                Step::Switch => current = other,
            }
            for (space, model) in spaces.iter().zip(&models) {
                prop_assert_eq!(space.overlaps(10, 7), model.range(10..17).next().is_some());
            }
        }
        history.push((version, models));

        for (number, space) in spaces.iter().enumerate() {
            let mut view = ImageView::new(space, Version(0));
            prop_assert_eq!(view.read(Ip(20), &mut [0; 4]), 0, "before the first change");
            for (index, at, len) in &jumps {
                let (version, models) = &history[index.index(history.len())];
                let before: Vec<_> = (0..SPAN + 40).map(|at| byte(&mut view, at)).collect();
                // Versions between two changes show the earlier one.
                let changed = view.set_version(Version(version.0 + index.index(3) as u64));
                let after: Vec<_> = (0..SPAN + 40).map(|at| byte(&mut view, at)).collect();
                prop_assert!(changed || before == after, "an untold change");
                let mut buf = vec![0xee; *len];
                let count = view.read(Ip(*at), &mut buf);
                let expected = read_model(&models[number], *at, *len);
                prop_assert_eq!(&buf[..count], &expected[..]);
                prop_assert_eq!(view.place(Ip(*at)).is_some(), models[number].contains_key(at));
            }
        }
    }
}

fn byte(view: &mut ImageView<'_>, at: u64) -> Option<u8> {
    let mut byte = [0];
    (view.read(Ip(at), &mut byte) == 1).then_some(byte[0])
}

#[test]
fn an_instruction_may_straddle_mappings() {
    let files = files();
    let mut space = AddressSpace::new();
    space.map(0x1000, 4, &files[0], 10, Version(0));
    space.map(0x1004, 4, &files[2], 0, Version(0));
    let mut view = ImageView::new(&space, Version(0));
    let mut buf = [0; 15];
    assert_eq!(view.read(Ip(0x1002), &mut buf), 6);
    assert_eq!(buf[..6], [12, 13, 160, 161, 162, 163]);
    assert_eq!(view.read(Ip(0xfff), &mut buf), 0);
    assert_eq!(view.read(Ip(0x1008), &mut buf), 0);
}

#[test]
fn the_ends_of_the_address_space() {
    let files = files();
    let mut space = AddressSpace::new();
    space.map(u64::MAX - 3, 100, &files[1], 0, Version(0));
    space.map(0, u64::MAX, &files[0], u64::MAX - 1, Version(1));
    let mut view = ImageView::new(&space, Version(0));
    let mut buf = [0; 15];
    assert_eq!(view.read(Ip(u64::MAX - 1), &mut buf), 2);
    assert_eq!(buf[..2], [82, 83]);
    view.set_version(Version(1));
    assert_eq!(view.read(Ip(0), &mut buf), 0, "beyond any file");
    assert_eq!(
        view.read(Ip(2), &mut buf),
        0,
        "left out: no file has such an offset"
    );
    space.unmap(5, u64::MAX, Version(2));
    let mut view = ImageView::new(&space, Version(2));
    assert_eq!(view.read(Ip(u64::MAX), &mut buf), 0);
}

#[test]
fn a_change_told_late_takes_effect_with_the_latest() {
    let files = files();
    let mut space = AddressSpace::new();
    space.map(0, 8, &files[0], 0, Version(10));
    space.map(0, 8, &files[1], 0, Version(4));
    assert_eq!(space.last_version(), Some(Version(10)));
    let mut view = ImageView::new(&space, Version(9));
    assert_eq!(byte(&mut view, 0), None);
    assert!(view.set_version(Version(10)));
    assert_eq!(byte(&mut view, 0), Some(80));
    assert!(!view.set_version(Version(11)));
}

proptest! {
    /// A process and the kernel together, where mappings lie across the middle of the address space, too.
    #[test]
    fn the_kernel_comes_first_in_its_half_and_last_in_the_other(
        own in prop::collection::vec((0u64..200, 1u64..60), 0..12),
        kernel in prop::collection::vec((0u64..200, 1u64..60), 0..12),
        reads in prop::collection::vec((0u64..260, 1usize..40), 1..20),
    ) {
        const MIDDLE: u64 = 1 << 63;
        let at = |place: u64| MIDDLE - 100 + place;
        let make = |list: &[(u64, u64)], first: u8| {
            let (mut space, mut model) = (AddressSpace::new(), std::collections::HashMap::new());
            for (number, &(start, len)) in (0u64..).zip(list) {
                // Each byte tells of its mapping.
                let file = CodeFile::from_bytes("x", vec![first + number as u8; len as usize]);
                space.map(at(start), len, &file, 0, Version(number));
                model.extend((start..start + len).map(|place| (place, first + number as u8)));
            }
            (space, model)
        };
        let ((own, own_model), (kernel, kernel_model)) = (make(&own, 0), make(&kernel, 100));
        let mut view = ImageView::new(&own, Version(u64::MAX)).with_kernel(&kernel);
        for (start, len) in reads {
            let mut buf = vec![255; len];
            let count = view.read(Ip(at(start)), &mut buf);
            for (place, byte) in (start..).zip(&buf) {
                let (first, second) = if at(place) >= MIDDLE {
                    (&kernel_model, &own_model)
                } else {
                    (&own_model, &kernel_model)
                };
                let expected = first.get(&place).or(second.get(&place)).copied();
                let is_read = place < start + count as u64;
                prop_assert_eq!(expected.filter(|_| is_read), is_read.then_some(*byte), "at {}", place);
                if place == start + count as u64 {
                    prop_assert_eq!(expected, None);
                }
                prop_assert_eq!(view.place(Ip(at(place))).is_some(), expected.is_some());
            }
        }
    }
}
