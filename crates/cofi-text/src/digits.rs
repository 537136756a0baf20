//! Numbers as text, quickly: a listing has one or two in each of its lines.

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Appends `number` in lower-case hexadecimal, without leading zeros.
pub fn hex(out: &mut Vec<u8>, number: u64) {
    hex_padded(out, number, 1);
}

/// Appends `number` in lower-case hexadecimal, with spaces before it up to `width` (at most 16).
pub fn hex_padded(out: &mut Vec<u8>, number: u64, width: usize) {
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

/// The eight digits of a number below 10^8, the first in the lowest byte: all at once, in a register.
const fn eight_digits(number: u64) -> u64 {
    let fours = (number / 10_000) | ((number % 10_000) << 32);
    let hundreds = ((fours * 10_486) >> 20) & 0x7f_0000_007f;
    let twos = hundreds | ((fours - hundreds * 100) << 16);
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | ((twos - tens * 10) << 8)
}

const EIGHT: u64 = 100_000_000;
const ASCII: u64 = 0x3030_3030_3030_3030;

/// Appends `number` in decimal.
pub fn decimal(out: &mut Vec<u8>, number: u64) {
    // Always as many bytes are copied, so that no call is needed for it; what follows the digits is cut off.
    if number < EIGHT {
        let digits = eight_digits(number);
        let zeros = (digits | (1 << 56)).trailing_zeros() / 8;
        let end = out.len() + 8 - zeros as usize;
        out.extend_from_slice(&((digits | ASCII) >> (8 * zeros)).to_le_bytes());
        out.truncate(end);
    } else if number < EIGHT * EIGHT {
        let digits = eight_digits(number / EIGHT);
        let zeros = digits.trailing_zeros() / 8;
        let end = out.len() + 16 - zeros as usize;
        let rest = u128::from(eight_digits(number % EIGHT) | ASCII);
        let digits = u128::from(digits | ASCII) | (rest << 64);
        out.extend_from_slice(&(digits >> (8 * zeros)).to_le_bytes());
        out.truncate(end);
    } else {
        out.extend_from_slice(number.to_string().as_bytes());
    }
}

/// Appends `number` in decimal, with spaces before it up to `width`.
pub fn decimal_padded(out: &mut Vec<u8>, number: u64, width: usize) {
    let from = out.len();
    decimal(out, number);
    let digits = out.len() - from;
    if digits < width {
        let spaces = width - digits;
        out.resize(from + width, b' ');
        out.copy_within(from..from + digits, from + spaces);
        out[from..from + spaces].fill(b' ');
    }
}

/// Appends spaces until there are `len` bytes.
pub fn fill(out: &mut Vec<u8>, len: usize) {
    if out.len() < len {
        out.resize(len, b' ');
    }
}

/// Appends the results of a TNT: `len` low bits of `bits`, the highest of them first.
pub fn tnt(out: &mut Vec<u8>, bits: u64, len: u32) {
    out.extend(
        (0..len)
            .rev()
            .map(|i| if bits >> i & 1 == 1 { b'T' } else { b'N' }),
    );
}

/// 1234567 as 1,234,567.
pub fn grouped(number: u64) -> String {
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
pub fn counted(number: u64, what: &str) -> String {
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
        let nines = (0..19).flat_map(|power| [10_u64.pow(power) - 1, 10_u64.pow(power)]);
        let mixed = (0..1000)
            .map(|number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (number % 60));
        for number in shifted.chain(nines).chain(mixed).chain([12_345]) {
            assert_eq!(written(|out| hex(out, number)), format!("{number:x}"));
            assert_eq!(written(|out| decimal(out, number)), number.to_string());
            assert_eq!(
                written(|out| hex_padded(out, number, 8)),
                format!("{number:8x}")
            );
            assert_eq!(
                written(|out| decimal_padded(out, number, 6)),
                format!("{number:>6}")
            );
        }
        assert_eq!(written(|out| tnt(out, 0b0110, 4)), "NTTN");
        let filled = |len| {
            written(|out| {
                hex(out, 0xabc);
                fill(out, len);
            })
        };
        assert_eq!([filled(2), filled(5)], ["abc", "abc  "]);
    }

    #[test]
    fn digits_in_groups() {
        let all = [0, 999, 1000, 123_456, 1_234_567].map(grouped);
        assert_eq!(all, ["0", "999", "1,000", "123,456", "1,234,567"]);
        let all = [0, 1, 1000].map(|number| counted(number, "byte"));
        assert_eq!(all, ["0 bytes", "1 byte", "1,000 bytes"]);
    }
}
