//! iptr's packet decoder: counts packets, and adds them up to the checksum of `exam/libipt/ptpackets.c` and of cofi-packet's example `bench`.

use std::convert::Infallible;
use std::num::NonZero;
use std::process::ExitCode;

use cofi_peers::{Found, passes};
use iptr_decoder::{
    DecodeOptions, DecoderContext, HandlePacket, IpReconstructionPattern, PtwPayload, decode,
};

#[derive(Default)]
struct Sum(Found);

impl Sum {
    #[inline(always)]
    fn add(&mut self, kind: u64, value: u64, extra: u64) -> Result<(), Infallible> {
        let packet = value.wrapping_add((kind | extra << 5) << 56);
        self.0.count += 1;
        self.0.sum = self.0.sum.rotate_left(5) ^ packet;
        Ok(())
    }

    #[inline(always)]
    fn address(&mut self, kind: u64, pattern: IpReconstructionPattern) -> Result<(), Infallible> {
        use IpReconstructionPattern as Ip;
        // The second number is the field IPBytes.
        let (payload, ip_bytes) = match pattern {
            Ip::OutOfContext => (0, 0),
            Ip::TwoBytesWithLastIp(payload) => (payload.into(), 1),
            Ip::FourBytesWithLastIp(payload) => (payload.into(), 2),
            Ip::SixBytesExtended(payload) => (payload, 3),
            Ip::SixBytesWithLastIp(payload) => (payload, 4),
            Ip::EightBytes(payload) => (payload, 6),
        };
        self.add(kind, payload, ip_bytes)
    }
}

type Done = Result<(), Infallible>;

impl HandlePacket for Sum {
    type Error = Infallible;

    fn at_decode_begin(&mut self) -> Done {
        *self = Self::default();
        Ok(())
    }

    fn on_short_tnt_packet(&mut self, _: &DecoderContext, byte: NonZero<u8>, len: u32) -> Done {
        let bits = u64::from(byte.get()) >> 1 & ((1 << len) - 1);
        self.add(6, bits | u64::from(len) << 48, 0)
    }

    fn on_long_tnt_packet(
        &mut self,
        _: &DecoderContext,
        bytes: NonZero<u64>,
        highest: u32,
    ) -> Done {
        let len = highest.wrapping_add(1);
        let bits = bytes.get() & ((1 << len) - 1);
        self.add(7, bits | u64::from(len) << 48, 0)
    }

    fn on_tip_packet(&mut self, _: &DecoderContext, ip: IpReconstructionPattern) -> Done {
        self.address(8, ip)
    }

    fn on_tip_pge_packet(&mut self, _: &DecoderContext, ip: IpReconstructionPattern) -> Done {
        self.address(9, ip)
    }

    fn on_tip_pgd_packet(&mut self, _: &DecoderContext, ip: IpReconstructionPattern) -> Done {
        self.address(10, ip)
    }

    fn on_fup_packet(&mut self, _: &DecoderContext, ip: IpReconstructionPattern) -> Done {
        self.address(11, ip)
    }

    fn on_pad_packet(&mut self, _: &DecoderContext) -> Done {
        self.add(1, 0, 0)
    }

    fn on_psb_packet(&mut self, _: &DecoderContext) -> Done {
        self.add(2, 0, 0)
    }

    fn on_psbend_packet(&mut self, _: &DecoderContext) -> Done {
        self.add(3, 0, 0)
    }

    fn on_ovf_packet(&mut self, _: &DecoderContext) -> Done {
        self.add(4, 0, 0)
    }

    fn on_trace_stop_packet(&mut self, _: &DecoderContext) -> Done {
        self.add(5, 0, 0)
    }

    fn on_pip_packet(&mut self, _: &DecoderContext, cr3: u64, nr: bool) -> Done {
        // iptr-decoder 0.1.3 shifts this field by one place too many: what it gives is twice the address. That has nothing to do with
        // its speed, and is put right here.
        self.add(12, cr3 >> 1 | u64::from(nr), 0)
    }

    fn on_mode_packet(&mut self, _: &DecoderContext, leaf: u8, mode: u8) -> Done {
        self.add(13 + u64::from(leaf), u64::from(mode & 3), 0)
    }

    fn on_cbr_packet(&mut self, _: &DecoderContext, ratio: u8) -> Done {
        self.add(15, ratio.into(), 0)
    }

    fn on_tsc_packet(&mut self, _: &DecoderContext, tsc: u64) -> Done {
        self.add(16, tsc, 0)
    }

    fn on_mtc_packet(&mut self, _: &DecoderContext, ctc: u8) -> Done {
        self.add(17, ctc.into(), 0)
    }

    fn on_tma_packet(&mut self, _: &DecoderContext, ctc: u16, fast: u8, fc8: bool) -> Done {
        let fast = u64::from(fast) | u64::from(fc8) << 8;
        self.add(18, u64::from(ctc) | fast << 16, 0)
    }

    fn on_cyc_packet(&mut self, _: &DecoderContext, bytes: &[u8]) -> Done {
        // The packet's own bytes: the first has five bits of the number, each other one seven.
        let (mut cycles, mut shift) = (0, 0);
        for byte in bytes {
            let (bits, width) = if shift == 0 {
                (byte >> 3, 5)
            } else {
                (byte >> 1, 7)
            };
            cycles |= u64::from(bits).checked_shl(shift).unwrap_or(0);
            shift += width;
        }
        self.add(19, cycles, 0)
    }

    fn on_vmcs_packet(&mut self, _: &DecoderContext, base: u64) -> Done {
        self.add(20, base, 0)
    }

    fn on_mnt_packet(&mut self, _: &DecoderContext, payload: u64) -> Done {
        self.add(21, payload, 0)
    }

    fn on_ptw_packet(&mut self, _: &DecoderContext, ip: bool, payload: PtwPayload) -> Done {
        let (payload, size) = match payload {
            PtwPayload::FourBytes(payload) => (payload.into(), 0),
            PtwPayload::EightBytes(payload) => (payload, 1),
        };
        self.add(22, payload, size | u64::from(ip) << 2)
    }

    fn on_exstop_packet(&mut self, _: &DecoderContext, ip: bool) -> Done {
        self.add(23, ip.into(), 0)
    }

    fn on_mwait_packet(&mut self, _: &DecoderContext, hints: u8, ext: u8) -> Done {
        self.add(24, u64::from(hints) | u64::from(ext) << 32, 0)
    }

    fn on_pwre_packet(&mut self, _: &DecoderContext, _: bool, state: u8, sub_state: u8) -> Done {
        self.add(25, u64::from(state) << 12 | u64::from(sub_state) << 8, 0)
    }

    fn on_pwrx_packet(&mut self, _: &DecoderContext, last: u8, deepest: u8, wake: u8) -> Done {
        let wake = u64::from(wake & 0b1101);
        self.add(26, u64::from(last) << 4 | u64::from(deepest) | wake << 8, 0)
    }
}

fn main() -> ExitCode {
    cofi_peers::main(|task| {
        passes(task, Sum::default, |sum| {
            // From the first byte on, as the others do.
            let mut options = DecodeOptions::default();
            options.sync(false);
            decode(&task.stream, options, sum).map_err(|error| format!("{error}"))?;
            Ok(sum.0)
        })
    })
}
