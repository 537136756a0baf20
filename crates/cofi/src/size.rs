//! Sizes on the command line.

/// A number of bytes, more than none: `4096`, `64K`, `4M`, `1G`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number = digits.parse::<u64>().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("{text:?} is no number of bytes: 4096, 64K, 4M, 1G"))
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_as_they_are_written() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("512k"), Ok(512 << 10));
        assert_eq!(bytes("64K"), Ok(64 << 10));
        assert_eq!(bytes("4m"), Ok(4 << 20));
        assert_eq!(bytes("1G"), Ok(1 << 30));
        let wrong = [
            "",
            "K",
            "M",
            "0",
            "0K",
            "-1",
            "-1K",
            "1T",
            "K1",
            "1.5M",
            "1é",
            "é",
            "17179869184G",
            "99999999999G",
        ];
        for wrong in wrong {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
