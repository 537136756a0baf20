//! Numbers as text, quickly: a listing has one or two in each of its lines.

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Appends `number` in lower-case hexadecimal, without leading zeros.
#[inline]
pub(crate) fn hex(out: &mut Vec<u8>, number: u64) {
    hex_padded(out, number, 1);
}

/// Appends `number` in lower-case hexadecimal, with spaces before it up to `width` (at most 16).
#[inline]
pub(crate) fn hex_padded(out: &mut Vec<u8>, number: u64, width: usize) {
    let mut digits = [b' '; 16];
    let (mut rest, mut at) = (number, digits.len());
    loop {
        at -= 1;
        digits[at] = HEX[(rest & 0xf) as usize];
        rest >>= 4;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at.min(digits.len() - width)..]);
}

/// 00 to 99.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < pairs.len() {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

/// No number has more digits.
const MOST: usize = 20;

/// Appends `number` in decimal.
#[inline]
pub(crate) fn decimal(out: &mut Vec<u8>, number: u64) {
    // Behind the digits there is room, so that what is copied is always as long: then no call is needed for it.
    let mut digits = [0; 2 * MOST];
    let (mut rest, mut at) = (number, MOST);
    while rest >= 100 {
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[(rest % 100) as usize]);
        rest /= 100;
    }
    if rest >= 10 {
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[rest as usize]);
    } else {
        at -= 1;
        digits[at] = b'0' + rest as u8;
    }
    if let Some(digits) = digits[at..].first_chunk::<MOST>() {
        let end = out.len() + MOST - at;
        out.extend_from_slice(digits);
        out.truncate(end);
    }
}

/// Appends the results of a TNT: `len` low bits of `bits`, the highest of them first.
#[inline]
pub(crate) fn tnt(out: &mut Vec<u8>, bits: u64, len: u32) {
    out.extend(
        (0..len)
            .rev()
            .map(|i| if bits >> i & 1 == 1 { b'T' } else { b'N' }),
    );
}

/// 1234567 as 1,234,567.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// So many of something: `1 byte`, `1,234 bytes`.
pub(crate) fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn as_the_standard_library_writes_them() {
        let shifted = (0..64).flat_map(|shift| [1 << shift, u64::MAX >> shift, (1 << shift) - 1]);
        for number in shifted.chain([9, 10, 99, 100, 12_345]) {
            assert_eq!(written(|out| hex(out, number)), format!("{number:x}"));
            assert_eq!(written(|out| decimal(out, number)), number.to_string());
            assert_eq!(
                written(|out| hex_padded(out, number, 8)),
                format!("{number:8x}")
            );
        }
        assert_eq!(written(|out| tnt(out, 0b0110, 4)), "NTTN");
    }

    #[test]
    fn digits_in_groups() {
        let all = [0, 999, 1000, 123_456, 1_234_567].map(grouped);
        assert_eq!(all, ["0", "999", "1,000", "123,456", "1,234,567"]);
        let all = [0, 1, 1000].map(|number| counted(number, "byte"));
        assert_eq!(all, ["0 bytes", "1 byte", "1,000 bytes"]);
    }
}
