//! JSON Lines, one object at a time, keys in the order written.

use std::fmt::Write as _;

/// One object that grows key by key.
#[derive(Debug, Default)]
pub(crate) struct Line {
    text: String,
}

impl Line {
    /// Begins a new object, keeping the memory of the last.
    pub(crate) fn begin(&mut self) -> &mut Self {
        self.text.clear();
        self.text.push('{');
        self
    }

    fn key(&mut self, key: &str) {
        let comma = if self.text.len() > 1 { "," } else { "" };
        let _ = write!(self.text, "{comma}\"{key}\":");
    }

    /// A number.
    pub(crate) fn number(&mut self, key: &str, value: impl Into<u64>) -> &mut Self {
        self.key(key);
        let _ = write!(self.text, "{}", value.into());
        self
    }

    /// An address, register value or payload: "0x…".
    pub(crate) fn hex(&mut self, key: &str, value: u64) -> &mut Self {
        self.key(key);
        let _ = write!(self.text, "\"{value:#x}\"");
        self
    }

    /// An address that may be unknown.
    pub(crate) fn hex_or_null(&mut self, key: &str, value: Option<u64>) -> &mut Self {
        match value {
            Some(value) => self.hex(key, value),
            None => self.null(key),
        }
    }

    /// A field that is not there.
    pub(crate) fn null(&mut self, key: &str) -> &mut Self {
        self.key(key);
        self.text.push_str("null");
        self
    }

    /// A flag.
    pub(crate) fn flag(&mut self, key: &str, value: bool) -> &mut Self {
        self.key(key);
        self.text.push_str(if value { "true" } else { "false" });
        self
    }

    /// A text, escaped.
    pub(crate) fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.key(key);
        self.text
            .push_str(&serde_json::Value::from(value).to_string());
        self
    }

    /// Closes the object: the whole line, with its line feed.
    pub(crate) fn end(&mut self) -> &[u8] {
        self.text.push_str("}\n");
        self.text.as_bytes()
    }
}
