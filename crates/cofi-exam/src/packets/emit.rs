//! Writes packets from the manual's tables (33.4.2), and notes what each was meant to be.
//!
//! This is on purpose not Cofi's encoder, and shares nothing with it: a mistake that both made could hide.

use serde_json::Value;

use super::listing::{Entry, FORBIDDEN, hex};

/// Which of the packets with an IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IpPacket {
    Tip,
    TipPge,
    TipPgd,
    Fup,
}

/// The stream so far.
#[derive(Debug, Default)]
pub(super) struct Emitter {
    /// Its bytes.
    pub(super) bytes: Vec<u8>,
    /// What they are.
    pub(super) entries: Vec<Entry>,
    last_ip: u64,
    /// Payload bytes of the current block's items; 0 outside of blocks.
    item: usize,
}

impl Emitter {
    fn put(&mut self, name: &str, bytes: &[u8], fields: &[(&str, Value)]) {
        let offset = self.bytes.len() as u64;
        let mut fields = fields.to_vec();
        // Shows that a block's end is missing.
        if self.item != 0 && FORBIDDEN.contains(&name) {
            fields.push(("error", "not in a block".into()));
            self.item = 0;
        }
        self.entries
            .push(Entry::packet(offset, bytes.len() as u64, name, &fields));
        self.bytes.extend(bytes);
    }

    /// Payload bytes of the current block's items, if there is a block.
    pub(super) fn item(&self) -> Option<usize> {
        (self.item != 0).then_some(self.item)
    }

    /// Table 33-39.
    pub(super) fn pad(&mut self) {
        self.put("pad", &[0], &[]);
    }

    /// Table 33-36. Last IP becomes 0.
    pub(super) fn psb(&mut self) {
        self.last_ip = 0;
        self.put("psb", &[0x02, 0x82].repeat(8), &[]);
    }

    /// Table 33-37.
    pub(super) fn psbend(&mut self) {
        self.put("psbend", &[0x02, 0x23], &[]);
    }

    /// Table 33-35. Ends a block (33.4.1.1).
    pub(super) fn ovf(&mut self) {
        self.item = 0;
        self.put("ovf", &[0x02, 0xf3], &[]);
    }

    /// Table 33-28.
    pub(super) fn tracestop(&mut self) {
        self.put("tracestop", &[0x02, 0x83], &[]);
    }

    /// Table 33-16: the short form for 1 to 6 results and the long for up to 47; the oldest comes first.
    pub(super) fn tnt(&mut self, long: bool, results: &[bool]) {
        let text: String = results.iter().map(|b| if *b { 'T' } else { 'N' }).collect();
        // The stop bit is the one before the oldest.
        let bits = results.iter().fold(1_u64, |v, b| v << 1 | u64::from(*b));
        let fields = [("bits", text.into())];
        if long {
            let mut bytes = vec![0x02, 0xa3];
            bytes.extend(&bits.to_le_bytes()[..6]);
            self.put("tnt.64", &bytes, &fields);
        } else {
            self.put("tnt.8", &[(bits << 1) as u8], &fields);
        }
    }

    /// Tables 33-17 to 33-22; `payload` is cut to what IPBytes (0 to 4, or 6) has room for.
    pub(super) fn ip(&mut self, which: IpPacket, ip_bytes: u8, payload: u64) {
        let (name, opcode) = match which {
            IpPacket::Tip => ("tip", 0b0_1101),
            IpPacket::TipPge => ("tip.pge", 0b1_0001),
            IpPacket::TipPgd => ("tip.pgd", 0b0_0001),
            IpPacket::Fup => ("fup", 0b1_1101),
        };
        let size = [0, 2, 4, 6, 6, 0, 8][usize::from(ip_bytes)];
        let mut bytes = vec![ip_bytes << 5 | opcode];
        bytes.extend(&payload.to_le_bytes()[..size]);
        // Table 33-18, byte by byte.
        let mut ip = self.last_ip.to_le_bytes();
        ip[..size].copy_from_slice(&payload.to_le_bytes()[..size]);
        if ip_bytes == 0b011 {
            let sign = if ip[5] >= 0x80 { 0xff } else { 0 };
            ip[6..].fill(sign);
        }
        let shown = match size {
            0 => Value::Null,
            _ => hex(u64::from_le_bytes(ip)),
        };
        self.last_ip = u64::from_le_bytes(ip);
        self.put(name, &bytes, &[("ipc", ip_bytes.into()), ("ip", shown)]);
    }

    /// Table 33-24; `cr3` is bits 51 to 5 of CR3.
    pub(super) fn pip(&mut self, cr3: u64, nr: bool) {
        let mut bytes = vec![0x02, 0x43];
        bytes.extend(&(cr3 << 1 | u64::from(nr)).to_le_bytes()[..6]);
        self.put("pip", &bytes, &[("cr3", hex(cr3 << 5)), ("nr", nr.into())]);
    }

    /// Table 33-26, two bits reserved.
    pub(super) fn mode_exec(&mut self, mode: u8, interrupts: bool, reserved: u64) {
        let cs = match mode {
            64 => 0b01,
            32 => 0b10,
            _ => 0b00,
        };
        let byte = (reserved as u8) << 3 | u8::from(interrupts) << 2 | cs;
        let fields = [("mode", mode.into()), ("if", interrupts.into())];
        self.put("mode.exec", &[0x99, byte], &fields);
    }

    /// Table 33-27.
    pub(super) fn mode_tsx(&mut self, intx: bool, abort: bool) {
        let byte = 0b0010_0000 | u8::from(abort) << 1 | u8::from(intx);
        let fields = [("intx", intx.into()), ("abort", abort.into())];
        self.put("mode.tsx", &[0x99, byte], &fields);
    }

    /// 33.4.2.8: a leaf (2 to 7) that the chapter does not define, with its five bits.
    pub(super) fn mode(&mut self, leaf: u8, bits: u8) {
        let fields = [("leaf", leaf.into()), ("bits", bits.into())];
        self.put("mode", &[0x99, leaf << 5 | bits], &fields);
    }

    /// Table 33-29, a byte reserved.
    pub(super) fn cbr(&mut self, ratio: u8, reserved: u64) {
        let bytes = [0x02, 0x03, ratio, reserved as u8];
        self.put("cbr", &bytes, &[("ratio", ratio.into())]);
    }

    /// Table 33-30: 56 bits.
    pub(super) fn tsc(&mut self, tsc: u64) {
        let mut bytes = vec![0x19];
        bytes.extend(&tsc.to_le_bytes()[..7]);
        self.put("tsc", &bytes, &[("tsc", tsc.into())]);
    }

    /// Table 33-31.
    pub(super) fn mtc(&mut self, ctc: u8) {
        self.put("mtc", &[0x59, ctc], &[("ctc", ctc.into())]);
    }

    /// Table 33-32: a fast counter of 9 bits; twice 7 bits reserved.
    pub(super) fn tma(&mut self, ctc: u16, fc: u16, reserved: u64) {
        let [low, high] = ctc.to_le_bytes();
        let [fc_low, fc_high] = fc.to_le_bytes();
        let (first, second) = ((reserved & 0x7f) as u8, (reserved >> 7 & 0x7f) as u8);
        let bytes = [
            0x02,
            0x73,
            low,
            high,
            first << 1,
            fc_low,
            second << 1 | fc_high,
        ];
        self.put("tma", &bytes, &[("ctc", ctc.into()), ("fc", fc.into())]);
    }

    /// Table 33-33: 5 bits, then 7 a byte, as many as are needed.
    pub(super) fn cyc(&mut self, cycles: u64) {
        let mut rest = cycles >> 5;
        let mut bytes = vec![((cycles & 0x1f) as u8) << 3 | u8::from(rest != 0) << 2 | 0b11];
        while rest != 0 {
            let low = (rest & 0x7f) as u8;
            rest >>= 7;
            bytes.push(low << 1 | u8::from(rest != 0));
        }
        self.put("cyc", &bytes, &[("cycles", cycles.into())]);
    }

    /// Table 33-34; `pointer` is its bits 51:12.
    pub(super) fn vmcs(&mut self, pointer: u64) {
        let mut bytes = vec![0x02, 0xc8];
        bytes.extend(&pointer.to_le_bytes()[..5]);
        self.put("vmcs", &bytes, &[("base", hex(pointer << 12))]);
    }

    /// Table 33-38.
    pub(super) fn mnt(&mut self, payload: u64) {
        let mut bytes = vec![0x02, 0xc3, 0x88];
        bytes.extend(payload.to_le_bytes());
        self.put("mnt", &bytes, &[("payload", hex(payload))]);
    }

    /// Table 33-40; the payload of the short form is cut.
    pub(super) fn ptw(&mut self, wide: bool, payload: u64, ip: bool) {
        let size = if wide { 8 } else { 4 };
        let mut bytes = vec![0x02, u8::from(ip) << 7 | u8::from(wide) << 5 | 0b1_0010];
        bytes.extend(&payload.to_le_bytes()[..size]);
        let payload = if wide { payload } else { payload & 0xffff_ffff };
        let fields = [
            ("size", size.into()),
            ("payload", hex(payload)),
            ("ip", ip.into()),
        ];
        self.put("ptw", &bytes, &fields);
    }

    /// Table 33-41.
    pub(super) fn exstop(&mut self, ip: bool) {
        let second = u8::from(ip) << 7 | 0b110_0010;
        self.put("exstop", &[0x02, second], &[("ip", ip.into())]);
    }

    /// Table 33-42: bytes 3 to 5 and 7 to 9 and six bits of byte 6 are reserved.
    pub(super) fn mwait(&mut self, hints: u8, ext: u8, reserved: u64) {
        let payload = reserved & !0x0000_0003_0000_00ff | u64::from(ext) << 32 | u64::from(hints);
        let mut bytes = vec![0x02, 0xc2];
        bytes.extend(payload.to_le_bytes());
        let fields = [("hints", hints.into()), ("ext", ext.into())];
        self.put("mwait", &bytes, &fields);
    }

    /// Table 33-43, seven bits reserved.
    pub(super) fn pwre(&mut self, hw: bool, state: u8, sub_state: u8, reserved: u64) {
        let second = u8::from(hw) << 7 | (reserved & 0x7f) as u8;
        let fields = [
            ("hw", hw.into()),
            ("state", state.into()),
            ("sub_state", sub_state.into()),
        ];
        self.put(
            "pwre",
            &[0x02, 0x22, second, state << 4 | sub_state],
            &fields,
        );
    }

    /// Table 33-44: 28 bits reserved.
    pub(super) fn pwrx(&mut self, last: u8, deepest: u8, wake: u8, reserved: u64) {
        let rest = ((reserved << 4) as u32 | u32::from(wake)).to_le_bytes();
        let mut bytes = vec![0x02, 0xa2, last << 4 | deepest];
        bytes.extend(rest);
        let fields = [
            ("last", last.into()),
            ("deepest", deepest.into()),
            ("wake", wake.into()),
        ];
        self.put("pwrx", &bytes, &fields);
    }

    /// Table 33-45, two bits reserved. Begins a block.
    pub(super) fn bbp(&mut self, short: bool, kind: u8, reserved: u64) {
        self.item = if short { 4 } else { 8 };
        let byte = u8::from(short) << 7 | ((reserved & 3) as u8) << 5 | kind;
        let fields = [("size", self.item.into()), ("type", kind.into())];
        self.put("bbp", &[0x02, 0x63, byte], &fields);
    }

    /// Table 33-46; the payload of a short item is cut. Only within a block.
    pub(super) fn bip(&mut self, id: u8, payload: u64) {
        let mut bytes = vec![id << 3 | 0b100];
        bytes.extend(&payload.to_le_bytes()[..self.item]);
        let payload = if self.item == 4 {
            payload & 0xffff_ffff
        } else {
            payload
        };
        let fields = [("id", id.into()), ("payload", hex(payload))];
        self.put("bip", &bytes, &fields);
    }

    /// Table 33-48. Ends a block.
    pub(super) fn bep(&mut self, ip: bool) {
        self.item = 0;
        let second = u8::from(ip) << 7 | 0b011_0011;
        self.put("bep", &[0x02, second], &[("ip", ip.into())]);
    }

    /// Table 33-49, two bits reserved.
    pub(super) fn cfe(&mut self, ip: bool, kind: u8, vector: u8, reserved: u64) {
        let byte = u8::from(ip) << 7 | ((reserved & 3) as u8) << 5 | kind;
        let fields = [
            ("ip", ip.into()),
            ("type", kind.into()),
            ("vector", vector.into()),
        ];
        self.put("cfe", &[0x02, 0x13, byte, vector], &fields);
    }

    /// Table 33-51, two bits reserved.
    pub(super) fn evd(&mut self, kind: u8, payload: u64, reserved: u64) {
        let mut bytes = vec![0x02, 0x53, ((reserved & 3) as u8) << 6 | kind];
        bytes.extend(payload.to_le_bytes());
        let fields = [("type", kind.into()), ("payload", hex(payload))];
        self.put("evd", &bytes, &fields);
    }

    /// Beyond the chapter: head D9, then IP, ICNTV and MULT in bits 7 to 5 (the others reserved), the vector of
    /// trigger results, and with ICNTV two bytes of instruction count.
    pub(super) fn trig(
        &mut self,
        ip: bool,
        mult: bool,
        vector: u8,
        icnt: Option<u16>,
        reserved: u64,
    ) {
        let flags = u8::from(ip) << 7 | u8::from(icnt.is_some()) << 6 | u8::from(mult) << 5;
        let mut bytes = vec![0xd9, flags | (reserved & 0x1f) as u8, vector];
        bytes.extend(icnt.into_iter().flat_map(u16::to_le_bytes));
        let fields = [
            ("ip", ip.into()),
            ("mult", mult.into()),
            ("vector", vector.into()),
            ("icnt", icnt.into()),
        ];
        self.put("trig", &bytes, &fields);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(write: impl FnOnce(&mut Emitter)) -> Vec<u8> {
        let mut emitter = Emitter::default();
        write(&mut emitter);
        emitter.bytes
    }

    #[test]
    fn the_stop_bit_stands_before_the_oldest_result() {
        // Table 33-16's partial packets: 0001 B1..B4 0.
        let results = [true, false, true, true];
        assert_eq!(bytes(|e| e.tnt(false, &results)), [0b0011_0110]);
        assert_eq!(
            bytes(|e| e.tnt(true, &results)),
            [0x02, 0xa3, 0b0001_1011, 0, 0, 0, 0, 0]
        );
        let full = [true; 47];
        assert_eq!(
            bytes(|e| e.tnt(true, &full)),
            [0x02, 0xa3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]
        );
    }

    #[test]
    fn a_cycle_count_takes_as_many_bytes_as_the_manual_says() {
        assert_eq!(bytes(|e| e.cyc(31)), [0xfb]);
        assert_eq!(bytes(|e| e.cyc(32)), [0x07, 0x02]);
        assert_eq!(bytes(|e| e.cyc(4095)), [0xff, 0xfe]);
        assert_eq!(bytes(|e| e.cyc(4096)), [0x07, 0x01, 0x02]);
        assert_eq!(bytes(|e| e.cyc(u64::MAX)).len(), 10);
    }

    #[test]
    fn an_address_is_put_together_with_the_last() {
        let mut emitter = Emitter::default();
        emitter.ip(IpPacket::Tip, 6, 0x1122_3344_5566_7788);
        emitter.ip(IpPacket::Fup, 4, 0xffff_aaaa_bbbb_cccc);
        emitter.ip(IpPacket::TipPgd, 0, 7);
        emitter.ip(IpPacket::TipPge, 1, 0x1_2345);
        emitter.ip(IpPacket::Tip, 3, 0x8000_0000_0000);
        emitter.psb();
        emitter.ip(IpPacket::Tip, 2, 0x9_0000_0001);
        let ips: Vec<_> = emitter
            .entries
            .iter()
            .filter_map(|e| e.field("ip"))
            .collect();
        assert_eq!(
            ips,
            [
                &hex(0x1122_3344_5566_7788),
                &hex(0x1122_aaaa_bbbb_cccc),
                &Value::Null,
                &hex(0x1122_aaaa_bbbb_2345),
                &hex(0xffff_8000_0000_0000),
                &hex(1)
            ]
        );
    }
}
