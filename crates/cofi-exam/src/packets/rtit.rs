//! A list of RTIT's packets made from chapter 4 of its programming reference alone: the stranger that RTIT has not got.
//!
//! On purpose the plainest way there is, byte by byte, and nothing of `cofi-packet` in it. Bytes that form no packet make an error
//! that reaches to the next PSB.

use serde_json::Value;

use super::listing::{Entry, What, hex};

/// Figure 3.
pub(super) const PSB: [u8; 9] = [0xc0, 0, 0, 0, 0, 0, 0, 0, 0];

type Fields = Vec<(&'static str, Value)>;

/// RTIT_LAST_LIP (Table 9) and the bytes that are still to be read.
struct Reader<'a> {
    rest: &'a [u8],
    /// Bits 47:32 and 31:16 of the last LIP, as far as they have been told.
    last: [Option<u16>; 2],
    cycle_accurate: bool,
}

/// All packets and errors, in order.
pub(crate) fn list(bytes: &[u8], cycle_accurate: bool) -> Vec<Entry> {
    let (mut entries, mut at, mut last) = (Vec::new(), 0, [None; 2]);
    while at < bytes.len() {
        let mut reader = Reader {
            rest: &bytes[at..],
            last,
            cycle_accurate,
        };
        let packet = reader.packet();
        let left = reader.rest.len();
        last = reader.last;
        let size;
        if let Some((name, fields)) = packet {
            size = bytes.len() - at - left;
            entries.push(Entry::packet(at as u64, size as u64, name, &fields));
        } else {
            // There may have been a LIP in there.
            last = [None; 2];
            let next = (at + 1..bytes.len()).find(|next| bytes[*next..].starts_with(&PSB));
            size = next.unwrap_or(bytes.len()) - at;
            entries.push(Entry::error(at as u64, size as u64, "no packet"));
        }
        at += size;
    }
    entries
}

/// Whether Cofi says what this list does: place, name, all keys; a cycle count only where there is one.
pub(super) fn same(cofi: &Entry, manual: &Entry) -> bool {
    let place = |e: &Entry| (e.offset, e.size, e.name().to_owned());
    let fields = match &manual.what {
        What::Packet(_, fields) => fields
            .iter()
            .all(|(key, value)| cofi.field(key) == Some(value)),
        What::Error(_) => true,
    };
    let counted = |e: &Entry| e.field("cycles").is_some();
    place(cofi) == place(manual) && fields && counted(cofi) == counted(manual) && !cofi.misplaced()
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// Some bytes, the lowest first.
    fn number(&mut self, bytes: u32) -> Option<u64> {
        (0..bytes).try_fold(0, |sum, at| Some(sum | u64::from(self.byte()?) << (8 * at)))
    }

    /// Figure 2, from top to bottom; `None` when there is no such packet, or not all of it.
    fn packet(&mut self) -> Option<(&'static str, Fields)> {
        let head = self.byte()?;
        if head & 0x80 == 0 {
            return self.tnt(head);
        }
        if head & 0xc0 == 0x80 {
            let name = match head >> 3 & 7 {
                0b000 => "fup.pge",
                0b001 => "fup.pgd",
                0b010 => "fup.ovf",
                0b011 => "fup.pcc",
                0b110 => "tip",
                0b111 => "fup.far",
                _ => return None,
            };
            let ip = self.lip(name, head)?;
            let ip = ip.map_or(Value::Null, hex);
            return Some((name, self.with_cycles(vec![("ip", ip)])?));
        }
        match head {
            0b1100_0000 => (self.number(8)? == 0).then(|| ("psb", vec![])),
            0b1100_0001 => Some(("tracestop", vec![])),
            // Figure 9: CR3[39:0], the lowest byte first.
            0b1100_0010 | 0b1100_0011 => {
                let cr3 = hex(self.number(5)?);
                let fields = vec![("cr3", cr3), ("pg", (head & 1 != 0).into())];
                Some(("pip", self.with_cycles(fields)?))
            }
            // Figure 11.
            0b1100_0100..=0b1100_0111 => {
                let fields = vec![("range", (head & 3).into()), ("tsc", self.byte()?.into())];
                Some(("mtc", self.with_cycles(fields)?))
            }
            // Figure 12: ACBR[5:2] in the head, ACBR[1:0] above ECBR in the second byte.
            0b1101_0000..=0b1101_1111 => {
                let second = self.byte()?;
                let fields = vec![
                    ("acbr", ((head & 0xf) << 2 | second >> 6).into()),
                    ("ecbr", (second & 0x3f).into()),
                    ("tsc", self.number(5)?.into()),
                ];
                Some(("sts", self.with_cycles(fields)?))
            }
            _ => None,
        }
    }

    /// Figure 4. The bits shift in from the right behind a leading 1 (3.3.13), so the oldest stands leftmost.
    fn tnt(&mut self, head: u8) -> Option<(&'static str, Fields)> {
        let text = format!("{head:b}");
        let results = text.strip_prefix('1')?.replace('1', "T").replace('0', "N");
        let fields = vec![("bits", results.as_str().into())];
        match results.len() {
            0 => None,
            // A partial TNT has no cycle count (4.2.15).
            1..=5 => Some(("tnt", fields)),
            _ => Some(("tnt", self.with_cycles(fields)?)),
        }
    }

    /// Table 18: the bytes that are not there are zero, or those of the last LIP. That it is cleared (3.3.7) is the writer's affair:
    /// it does not compress against it then. Some packets behind a PSB it still does (3.3.9). Before an overflow
    /// packet it has been cleared for certain (4.2.5), and that does not become it.
    fn lip(&mut self, name: &str, head: u8) -> Option<Option<u64>> {
        let (zext, count) = (head & 4 != 0, head & 3);
        if name == "fup.ovf" {
            self.last = [None; 2];
        }
        let [mut high, mut middle] = if zext { [Some(0); 2] } else { self.last };
        let low = self.number(2)? as u16;
        match count {
            0 => {}
            1 => middle = Some(self.number(2)? as u16),
            2 => {
                middle = Some(self.number(2)? as u16);
                high = Some(self.number(2)? as u16);
            }
            _ => return None,
        }
        if name != "fup.ovf" {
            self.last = [high, middle];
        }
        let (Some(high), Some(middle)) = (high, middle) else {
            return Some(None);
        };
        let above: u16 = if high >= 0x8000 { 0xffff } else { 0 };
        Some(Some(
            u64::from(above) << 48
                | u64::from(high) << 32
                | u64::from(middle) << 16
                | u64::from(low),
        ))
    }

    /// Figure 13: what follows a packet in cycle-accurate mode.
    fn with_cycles(&mut self, mut fields: Fields) -> Option<Fields> {
        if self.cycle_accurate {
            let first = self.byte()?;
            let more = match first & 3 {
                0b01 => 0,
                0b10 => self.number(1)?,
                0b11 => self.number(2)?,
                _ => return None,
            };
            fields.push(("cycles", (more << 6 | u64::from(first >> 2)).into()));
        }
        Some(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(bytes: &[u8]) -> Vec<Value> {
        let list = list(bytes, false);
        list.iter().filter_map(|e| e.field("ip").cloned()).collect()
    }

    #[test]
    fn a_lip_is_completed_by_the_last_one_told() {
        let full = [0xb2, 1, 2, 3, 4, 5, 0x86];
        let (short, zext, ovf) = ([0xb8, 7, 7], [0xbc, 8, 8], [0x91, 9, 9, 9, 9]);
        assert_eq!(
            ips(&[&full[..], &short].concat()),
            [hex(0xffff_8605_0403_0201), hex(0xffff_8605_0403_0707)]
        );
        assert_eq!(
            ips(&[&full[..], &zext, &short].concat())[1..],
            [hex(0x0808), hex(0x0707)]
        );
        assert_eq!(
            ips(&[&full[..], &ovf, &short].concat())[1..],
            [Value::Null, Value::Null]
        );
        let behind_psb = [&full[..], &PSB, &short].concat();
        assert_eq!(ips(&behind_psb)[1..], [hex(0xffff_8605_0403_0707)]);
        assert_eq!(ips(&short), [Value::Null]);
        let behind_error = [&full[..], &[0xa0], &PSB, &short, &zext, &short].concat();
        let after = [Value::Null, hex(0x0808), hex(0x0707)];
        assert_eq!(ips(&behind_error)[1..], after);
    }

    #[test]
    fn cycles_follow_a_full_tnt_and_no_partial_one() {
        let list = list(&[0x0b, 0x7f, 0x17, 0xff, 0x80, 0xc1], true);
        assert_eq!(
            list[0],
            Entry::packet(0, 1, "tnt", &[("bits", "NTT".into())])
        );
        let full = [
            ("bits", "TTTTTT".into()),
            ("cycles", (0x80ff << 6 | 5).into()),
        ];
        assert_eq!(list[1], Entry::packet(1, 4, "tnt", &full));
        assert_eq!(list[2], Entry::packet(5, 1, "tracestop", &[]));
    }

    #[test]
    fn an_error_reaches_to_the_next_psb() {
        let list = list(&[&[0xc1, 0xa0, 0xc1][..], &PSB, &[0xc8, 1]].concat(), false);
        let places: Vec<_> = list.iter().map(|e| (e.offset, e.size, e.name())).collect();
        assert_eq!(
            places,
            [
                (0, 1, "tracestop"),
                (1, 2, "error"),
                (3, 9, "psb"),
                (12, 2, "error")
            ]
        );
    }
}
