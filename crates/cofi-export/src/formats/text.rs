//! Numbers as text, of which a timeline has several for each call.

/// Appends `number` in decimal.
pub(super) fn decimal(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends `number` in decimal, a sign before it if it is negative.
pub(super) fn signed(out: &mut Vec<u8>, number: i32) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends `number` in lower-case hexadecimal, with `0x`.
pub(super) fn hex(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(b"0x");
    let digits = (64 - number.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        let digit = (number >> (4 * digit) & 0xf) as usize;
        out.push(b"0123456789abcdef"[digit]);
    }
}

/// Nanoseconds as microseconds, with three digits behind the point.
pub(super) fn microseconds(out: &mut Vec<u8>, nanoseconds: u64) {
    decimal(out, nanoseconds / 1000);
    let rest = nanoseconds % 1000;
    let digit = |digit: u64| b'0' + (digit % 10) as u8;
    out.extend_from_slice(&[b'.', digit(rest / 100), digit(rest / 10), digit(rest)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_format_has_them() {
        let text = |put: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            put(&mut out);
            String::from_utf8(out).expect("digits")
        };
        for number in [
            0,
            9,
            10,
            999,
            1000,
            1001,
            65_535,
            0x1_0000,
            u64::MAX / 16,
            u64::MAX,
        ] {
            assert_eq!(text(&|out| decimal(out, number)), format!("{number}"));
            assert_eq!(text(&|out| hex(out, number)), format!("{number:#x}"));
            let wanted = format!("{}.{:03}", number / 1000, number % 1000);
            assert_eq!(text(&|out| microseconds(out, number)), wanted);
        }
        for number in [i32::MIN, -1, 0, 7] {
            assert_eq!(text(&|out| signed(out, number)), format!("{number}"));
        }
    }
}
