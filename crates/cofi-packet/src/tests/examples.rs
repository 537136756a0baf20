//! The encoder's refusals and the assembler's messages, by example.

use super::{assemble, hex};
use crate::intel::{Block, IntelPt, ItemSize};
use crate::rtit::{Mode, Rtit};
use crate::{Assembler, Buffer, EncodeError, Encoder, Full};
use std::format;
use std::string::String;

#[test]
fn the_encoder_refuses_what_a_reader_would_not_read() {
    use crate::Misfit;
    use crate::intel::{BlockType, Packet, Payload};
    let mut buffer = [0; 64];
    let mut encoder = Encoder::<IntelPt, _>::new(Buffer::new(&mut buffer));
    let id = crate::Uint::truncate(1);
    let item = Packet::Bip {
        id,
        payload: Payload::Eight(0),
    };
    let misfit = |misfit| Err(EncodeError::Misfit(misfit));
    assert_eq!(encoder.packet(&item), misfit(Misfit::OutsideBlock));
    let begin = Packet::Bbp {
        size: ItemSize::Four,
        kind: BlockType::GPR,
    };
    assert_eq!(encoder.packet(&begin), Ok(()));
    assert_eq!(encoder.packet(&item), misfit(Misfit::ItemSize));
    assert_eq!(encoder.packet(&Packet::Psb), misfit(Misfit::InBlock));
    assert_eq!(encoder.packet(&Packet::Pad), Ok(()));
    assert_eq!(encoder.packet(&Packet::Bep { ip: false }), Ok(()));
    assert_eq!(encoder.packet(&Packet::Psb), Ok(()));
    assert_eq!(encoder.sink().written().len(), 3 + 1 + 2 + 16);

    let mut buffer = [0; 17];
    let mut encoder = Encoder::<IntelPt, _>::new(Buffer::new(&mut buffer));
    assert_eq!(encoder.packet(&Packet::Psb), Ok(()));
    let full = EncodeError::Sink(Full { need: 2, room: 1 });
    assert_eq!(encoder.packet(&Packet::PsbEnd), Err(full));
    assert_eq!(encoder.packet(&Packet::Pad), Ok(()));

    let mut buffer = [0; 64];
    let sink = Buffer::new(&mut buffer);
    let mut encoder = Encoder::<Rtit, _>::in_context(sink, Mode::CycleAccurate);
    let stop = crate::rtit::Packet::TraceStop;
    assert_eq!(encoder.packet(&stop), Ok(()));
    let mtc = |cycles| crate::rtit::Packet::Mtc {
        range: crate::Uint::truncate(0),
        tsc: 0,
        cycles,
    };
    assert_eq!(encoder.packet(&mtc(None)), misfit(Misfit::NoCycles));
    let cycles = crate::rtit::CycleCount::new(5);
    assert_eq!(encoder.packet(&mtc(cycles)), Ok(()));
    assert_eq!(encoder.sink().written(), [0xc1, 0xc4, 0, 0x15]);
}

#[test]
fn text_that_is_wrong_is_shown_where() {
    let refused = |line: &str| {
        let mut assembler = Assembler::<IntelPt, _>::new(crate::Nowhere);
        match assembler.line(line) {
            Err(crate::AssembleError::Text(error)) => {
                let (column, word) = error.within(line);
                format!("{column} {word:?}: {error}")
            }
            other => panic!("{line}: {other:?}"),
        }
    };
    for (line, expected) in [
        ("tipp 0x1", "0 \"tipp\": there is no packet of this name"),
        ("  here: tip", "11 \"\": the operand ip is missing"),
        ("tip 0x1g", "4 \"0x1g\": this cannot be read as a value"),
        (
            "tip 0x100000000 ipc=1",
            "4 \"0x100000000\": the last IP does not allow this address to be sent so",
        ),
        (
            "tip 0x1 ipc=5",
            "12 \"5\": the value is out of range for ipc",
        ),
        ("tnt TNX", "4 \"TNX\": this cannot be read as a value"),
        (
            "tnt.8 TTTTTTT",
            "6 \"TTTTTTT\": the value is out of range for bits",
        ),
        ("mtc 256", "4 \"256\": the value is out of range for ctc"),
        (
            "mtc 5 ip=1",
            "6 \"ip=1\": the packet has no use for this operand",
        ),
        ("psb ; fine\u{0}", ""),
        (
            "tip ip=0x401000",
            "7 \"0x401000\": an address stands without a key; ip= is a payload as it is sent, and goes with ipc=",
        ),
        (
            ".byte +5",
            "6 \"+5\": this is no byte: one or two hexadecimal digits, without 0x",
        ),
        (
            "bip id=1 payload=1",
            "0 \"bip\": a bip stands only between bbp and bep",
        ),
        (
            ".byte 1 100",
            "8 \"100\": this is no byte: one or two hexadecimal digits, without 0x",
        ),
        ("cyc 5 raw=2d", "10 \"2d\": these bytes are not this packet"),
        (
            "mode.tsx intx=1 abort=1",
            "22 \"1\": the value is out of range for abort",
        ),
    ] {
        if expected.is_empty() {
            assert!(
                Assembler::<IntelPt, _>::new(crate::Nowhere)
                    .line(line)
                    .is_ok()
            );
        } else {
            assert_eq!(refused(line), expected, "{line}");
        }
    }
}

#[test]
fn what_a_reader_would_misread_is_not_assembled() {
    let mut assembler = Assembler::<IntelPt, _>::new(crate::Nowhere);
    assert!(assembler.line("bbp 8 gpr").is_ok());
    let before = assembler.offset();
    for line in ["tnt N", "tnt.8 TNTN raw=34"] {
        assert!(assembler.line(line).is_err(), "{line}");
    }
    assert_eq!(assembler.offset(), before);
    // Forbidden there, but read as what it is.
    assert!(assembler.line("tnt T").is_ok());
    assert!(assembler.line("tnt N").is_ok());
}

#[test]
fn text_as_people_write_it() {
    let lines = [
        "; a comment, and an empty line",
        "",
        "start:  PSB        # as psb",
        "        psbend",
        "  loop: Tip.Pge 0x40_1000",
        "tnt TNNT",
        "tnt TNNTTNNT",
        "tip 0b1",
        "fup - ; out of context",
        "mode.exec 64 if=1",
        "mode.exec mode=32",
        "cfe type=intr vector=14 ip=1",
        "cfe 1 14 ip=true",
        "ptw 0x1234",
        "ptw size=4 payload=0x1234",
        "bbp 4 gpr",
        "bip 2 7",
        "bep ip=1",
        "cyc 0 raw=070100",
        ".byte 5 ff",
        "1f: mwait 0x20 1",
    ]
    .map(String::from);
    let bytes = assemble::<IntelPt>(Block::Outside, &lines).unwrap();
    let expected = "02 82 02 82 02 82 02 82 02 82 02 82 02 82 02 82 02 23 51 00 10 40 00 32 02 a3 99 01 00 00 00 00 \
        4d 01 00 00 00 1d 99 05 99 02 02 13 81 0e 02 13 81 0e 02 32 34 12 00 00 00 00 00 00 02 12 34 12 00 00 \
        02 63 81 14 07 00 00 00 02 b3 07 01 00 05 ff 02 c2 20 00 00 00 01 00 00 00";
    assert_eq!(bytes, hex(expected));
}

/// The first wrong line is named by its number, among empty ones, comments and labels too.
#[test]
fn a_text_is_assembled_up_to_its_first_wrong_line() {
    let text = "psb ; begin\n\nhere: tip.pge 0x401000\r\ntnt TN\n";
    let bytes: std::vec::Vec<u8> =
        crate::assemble::<IntelPt, _>(text, Block::Outside).expect("packets");
    assert_eq!(bytes[16..], hex("51 00 10 40 00 0c"));
    let wrong = "psb\n# nothing\ntip.pge\ntnt X";
    let error = crate::assemble::<IntelPt, std::vec::Vec<u8>>(wrong, Block::Outside);
    let error = error.expect_err("a line without its operand");
    assert_eq!(error.line, 3);
    assert!(format!("{error}").starts_with("line 3: "), "{error}");
}
