//! JSON Lines, one object at a time, keys in the order written.

use crate::digits;

/// One object that grows key by key.
#[derive(Debug, Default)]
pub struct Line {
    text: Vec<u8>,
}

impl Line {
    /// Begins a new object, keeping the memory of the last.
    pub fn begin(&mut self) -> &mut Self {
        self.text.clear();
        self.text.push(b'{');
        self
    }

    /// Separates what follows from what stands before it.
    fn comma(&mut self) {
        if !matches!(self.text.last(), Some(b'{' | b'[')) {
            self.text.push(b',');
        }
    }

    /// Keys are our own words: nothing in them needs an escape.
    fn key(&mut self, key: &str) {
        self.comma();
        self.text.push(b'"');
        self.text.extend_from_slice(key.as_bytes());
        self.text.extend_from_slice(b"\":");
    }

    /// A number.
    pub fn number(&mut self, key: &str, value: impl Into<u64>) -> &mut Self {
        self.key(key);
        digits::decimal(&mut self.text, value.into());
        self
    }

    /// A share or a mean, with six digits after the point.
    pub fn real(&mut self, key: &str, value: f64) -> &mut Self {
        self.key(key);
        self.text
            .extend_from_slice(format!("{value:.6}").as_bytes());
        self
    }

    /// An address, register value or payload: "0x…".
    pub fn hex(&mut self, key: &str, value: u64) -> &mut Self {
        self.key(key);
        self.text.extend_from_slice(b"\"0x");
        digits::hex(&mut self.text, value);
        self.text.push(b'"');
        self
    }

    /// An address that may be unknown.
    pub fn hex_or_null(&mut self, key: &str, value: Option<u64>) -> &mut Self {
        match value {
            Some(value) => self.hex(key, value),
            None => self.null(key),
        }
    }

    /// A field that is not there.
    pub fn null(&mut self, key: &str) -> &mut Self {
        self.key(key);
        self.text.extend_from_slice(b"null");
        self
    }

    /// Members as [`members`](Self::members) gave them.
    pub fn splice(&mut self, members: &[u8]) -> &mut Self {
        if !members.is_empty() {
            self.comma();
            self.text.extend_from_slice(members);
        }
        self
    }

    /// The members of the object so far.
    pub fn members(&self) -> &[u8] {
        &self.text[1..]
    }

    /// A flag.
    pub fn flag(&mut self, key: &str, value: bool) -> &mut Self {
        self.key(key);
        let word: &[u8] = if value { b"true" } else { b"false" };
        self.text.extend_from_slice(word);
        self
    }

    /// Results of branches: `len` low bits of `bits` as letters, the highest of them first.
    pub fn tnt(&mut self, key: &str, bits: u64, len: u8) -> &mut Self {
        self.key(key);
        self.text.push(b'"');
        digits::tnt(&mut self.text, bits, len.into());
        self.text.push(b'"');
        self
    }

    fn string(&mut self, value: &str) {
        let plain = |byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        if value.bytes().all(plain) {
            self.text.push(b'"');
            self.text.extend_from_slice(value.as_bytes());
            self.text.push(b'"');
        } else {
            let escaped = serde_json::Value::from(value).to_string();
            self.text.extend_from_slice(escaped.as_bytes());
        }
    }

    /// A text, escaped.
    pub fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.key(key);
        self.string(value);
        self
    }

    /// The name of what stands under `key`, as `KEY_name`.
    pub fn name(&mut self, key: &str, value: &str) -> &mut Self {
        self.comma();
        self.text.push(b'"');
        self.text.extend_from_slice(key.as_bytes());
        self.text.extend_from_slice(b"_name\":");
        self.string(value);
        self
    }

    /// Any value.
    pub fn value(&mut self, key: &str, value: &serde_json::Value) -> &mut Self {
        self.key(key);
        self.text.extend_from_slice(value.to_string().as_bytes());
        self
    }

    /// A list of texts.
    pub fn texts(&mut self, key: &str, values: impl Iterator<Item = String>) -> &mut Self {
        self.key(key);
        self.text.push(b'[');
        for value in values {
            self.comma();
            self.string(&value);
        }
        self.text.push(b']');
        self
    }

    /// An object within the object.
    pub fn object(&mut self, key: &str, fill: impl FnOnce(&mut Self)) -> &mut Self {
        self.key(key);
        self.text.push(b'{');
        fill(self);
        self.text.push(b'}');
        self
    }

    /// A list of objects, one for each item.
    pub fn list<T>(
        &mut self,
        key: &str,
        items: impl IntoIterator<Item = T>,
        mut fill: impl FnMut(&mut Self, T),
    ) -> &mut Self {
        self.key(key);
        self.text.push(b'[');
        for item in items {
            self.comma();
            self.text.push(b'{');
            fill(self, item);
            self.text.push(b'}');
        }
        self.text.push(b']');
        self
    }

    /// Closes the object: the whole line, with its line feed.
    pub fn end(&mut self) -> &[u8] {
        self.text.extend_from_slice(b"}\n");
        &self.text
    }

    /// The line as [`end`](Self::end) left it.
    pub fn bytes(&self) -> &[u8] {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::Line;

    #[test]
    fn an_object_with_everything() {
        let mut line = Line::default();
        line.begin().number("n", 18_446_744_073_709_551_615_u64);
        line.hex("h", 0xab)
            .hex_or_null("none", None)
            .flag("f", true);
        line.text("t", "a \"b\"\\\u{1}é").name("t", "plain");
        line.object("o", |line| {
            line.tnt("bits", 0b01, 2).real("share", 0.5);
        });
        line.list("l", [1_u64, 2], |line, n| {
            line.number("n", n);
        });
        let wanted = serde_json::json!({
            "n": u64::MAX, "h": "0xab", "none": null, "f": true, "t": "a \"b\"\\\u{1}é",
            "t_name": "plain", "o": {"bits": "NT", "share": 0.5}, "l": [{"n": 1}, {"n": 2}],
        });
        let got: serde_json::Value = serde_json::from_slice(line.end()).expect("JSON");
        assert_eq!(got, wanted);
        assert_eq!(line.begin().end(), b"{}\n");
    }
}
