//! Measures how fast a stream of Intel PT packets is decoded, encoded and searched.
//!
//! `bench STREAM ROUNDS decode|encode|sync|memcpy` goes over the stream ROUNDS times and prints one JSON object: mode, bytes,
//! packets, errors, checksum, and the processor time of each pass. The checksums are those of `exam/libipt/ptpackets.c`, so
//! that two programs can be seen to have done the same work.

use cofi_packet::intel::{
    Encoder, IntelPt, Kind, Located, Packet, Packets, StreamError, TsxState, sync_forward,
};
use cofi_packet::{Buffer, ExecMode, PacketVisitor};
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Packets of one slice when encoding, as in the counterpart.
const SLICE: usize = 8192;
const LONGEST: usize = 16;

#[derive(Default)]
struct Pass {
    packets: u64,
    errors: u64,
    checksum: u64,
    time: Duration,
}

/// The counterpart's number of a kind.
const fn number(kind: Kind) -> u64 {
    match kind {
        Kind::Pad => 1,
        Kind::Psb => 2,
        Kind::PsbEnd => 3,
        Kind::Ovf => 4,
        Kind::TraceStop => 5,
        Kind::Tnt8 => 6,
        Kind::Tnt64 => 7,
        Kind::Tip => 8,
        Kind::TipPge => 9,
        Kind::TipPgd => 10,
        Kind::Fup => 11,
        Kind::Pip => 12,
        Kind::ModeExec => 13,
        Kind::ModeTsx => 14,
        Kind::Cbr => 15,
        Kind::Tsc => 16,
        Kind::Mtc => 17,
        Kind::Tma => 18,
        Kind::Cyc => 19,
        Kind::Vmcs => 20,
        Kind::Mnt => 21,
        Kind::Ptw => 22,
        Kind::ExStop => 23,
        Kind::Mwait => 24,
        Kind::Pwre => 25,
        Kind::Pwrx => 26,
        _ => 0,
    }
}

/// What a packet adds to the checksum: its payload, and what else there is of it.
#[inline(always)]
fn weigh(packet: &Packet) -> u64 {
    // What most packets are comes first, as one would write it.
    if let Packet::Pad = packet {
        return number(Kind::Pad) << 56;
    }
    if let Packet::Tnt8 { bits } = packet {
        return (bits.bits() | (bits.len() as u64) << 48) + (number(Kind::Tnt8) << 56);
    }
    let (value, extra) = match *packet {
        Packet::Tnt8 { bits } => (bits.bits() | (bits.len() as u64) << 48, 0),
        Packet::Tnt64 { bits } => (bits.bits() | (bits.len() as u64) << 48, 0),
        Packet::Tip { ip } | Packet::TipPge { ip } | Packet::TipPgd { ip } | Packet::Fup { ip } => {
            (ip.payload(), ip.ip_bytes() as u64)
        }
        Packet::ModeExec { mode, .. } => (
            match mode {
                ExecMode::Bits16 => 0,
                ExecMode::Bits64 => 1,
                ExecMode::Bits32 => 2,
            },
            0,
        ),
        Packet::ModeTsx { tx } => (
            match tx {
                TsxState::NotInTx => 0,
                TsxState::InTx => 1,
                TsxState::Aborted => 2,
            },
            0,
        ),
        Packet::Pip { cr3, nr } => (cr3.get() | u64::from(nr), 0),
        Packet::Vmcs { base } => (base.get(), 0),
        Packet::Cbr { ratio } => (ratio.into(), 0),
        Packet::Tsc { tsc } => (tsc.get(), 0),
        Packet::Tma { ctc, fc } => (u64::from(ctc) | fc.get() << 16, 0),
        Packet::Mtc { ctc } => (ctc.into(), 0),
        Packet::Cyc { cycles } => (cycles, 0),
        Packet::Mnt { payload } => (payload.0, 0),
        Packet::ExStop { ip } => (ip.into(), 0),
        Packet::Mwait { hints, ext } => (u64::from(hints) | ext.get() << 32, 0),
        Packet::Pwre {
            state, sub_state, ..
        } => (u64::from(state.get()) << 12 | sub_state.get() << 8, 0),
        Packet::Pwrx {
            last,
            deepest,
            wake,
        } => (
            u64::from(last.get()) << 4
                | u64::from(deepest.get())
                | u64::from(wake.get() & 0b1101) << 8,
            0,
        ),
        Packet::Ptw { payload, ip } => (
            payload.get(),
            u64::from(payload.size().bytes() == 8) | u64::from(ip) << 2,
        ),
        _ => (0, 0),
    };
    value.wrapping_add((number(packet.kind()) | extra << 5) << 56)
}

/// The processor time that this process has used.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .map(Duration::from)
        .expect("every process has such a clock")
}

/// Adds packets up.
impl PacketVisitor<IntelPt> for Pass {
    #[inline(always)]
    fn packet(&mut self, located: Located) {
        self.checksum = self.checksum.rotate_left(5) ^ weigh(&located.packet());
        self.packets += 1;
    }

    fn error(&mut self, _: &StreamError) {
        self.errors += 1;
    }
}

fn decode(bytes: &[u8]) -> Pass {
    let mut pass = Pass::default();
    let begun = processor_time();
    Packets::new(bytes).visit(&mut pass);
    pass.time = processor_time() - begun;
    pass
}

fn add_bytes(mut sum: u64, bytes: &[u8]) -> u64 {
    for part in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        sum = sum.rotate_left(5) ^ u64::from_le_bytes(word);
    }
    sum
}

fn encode(bytes: &[u8]) -> Pass {
    let mut pass = Pass::default();
    let mut packets = Vec::with_capacity(SLICE);
    let mut out = vec![0; SLICE * LONGEST];
    let mut items = Packets::new(bytes);
    loop {
        packets.clear();
        packets.extend(
            items
                .by_ref()
                .filter_map(Result::ok)
                .take(SLICE)
                .map(|l| l.packet()),
        );
        if packets.is_empty() {
            return pass;
        }
        pass.packets += packets.len() as u64;
        let begun = processor_time();
        let mut encoder = Encoder::new(Buffer::new(&mut out));
        for packet in black_box(&packets) {
            if encoder.packet(packet).is_err() {
                pass.errors += 1;
            }
        }
        pass.time += processor_time() - begun;
        pass.checksum = add_bytes(pass.checksum, encoder.into_sink().into_written());
    }
}

fn sync(bytes: &[u8]) -> Pass {
    let mut pass = Pass::default();
    let begun = processor_time();
    let mut from = 0;
    while let Some(psb) = sync_forward(bytes, from) {
        pass.checksum = pass.checksum.rotate_left(5) ^ psb as u64;
        pass.packets += 1;
        from = psb + 1;
    }
    pass.time = processor_time() - begun;
    pass
}

fn memcpy(bytes: &[u8], copy: &mut [u8]) -> Pass {
    let mut pass = Pass::default();
    let begun = processor_time();
    black_box(&mut *copy).copy_from_slice(black_box(bytes));
    pass.time = processor_time() - begun;
    pass
}

fn run(arguments: &[String]) -> Result<(), String> {
    let [stream, rounds, mode] = arguments else {
        return Err("usage: bench STREAM ROUNDS decode|encode|sync|memcpy".into());
    };
    let bytes = std::fs::read(stream).map_err(|error| format!("{stream}: {error}"))?;
    let rounds: usize = rounds
        .parse()
        .map_err(|error| format!("{rounds}: {error}"))?;
    let mut copy = vec![0; if mode == "memcpy" { bytes.len() } else { 0 }];
    let mut passes = Vec::new();
    for _ in 0..rounds {
        passes.push(match mode.as_str() {
            "decode" => decode(&bytes),
            "encode" => encode(&bytes),
            "sync" => sync(&bytes),
            "memcpy" => memcpy(&bytes, &mut copy),
            _ => return Err(format!("{mode}: there is no such mode")),
        });
    }
    let seconds: Vec<_> = passes
        .iter()
        .map(|pass| format!("{:.6}", pass.time.as_secs_f64()))
        .collect();
    let pass = passes.first().ok_or("at least one round is wanted")?;
    println!(
        "{{\"mode\":\"{mode}\",\"bytes\":{},\"packets\":{},\"errors\":{},\"checksum\":\"{:#x}\",\"seconds\":[{}]}}",
        bytes.len(),
        pass.packets,
        pass.errors,
        pass.checksum,
        seconds.join(",")
    );
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::from(2)
        }
    }
}
