//! A list of packets, whoever made it: the objects of `cofi dump --json`.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The kinds of packets with their keys in `cofi dump --json`, in the order of the contract.
pub(super) const KINDS: &[(&str, &[&str])] = &[
    ("pad", &[]),
    ("psb", &[]),
    ("psbend", &[]),
    ("ovf", &[]),
    ("tracestop", &[]),
    ("tnt.8", &["bits"]),
    ("tnt.64", &["bits"]),
    ("tip", &["ipc", "ip"]),
    ("tip.pge", &["ipc", "ip"]),
    ("tip.pgd", &["ipc", "ip"]),
    ("fup", &["ipc", "ip"]),
    ("pip", &["cr3", "nr"]),
    ("mode.exec", &["mode", "if"]),
    ("mode.tsx", &["intx", "abort"]),
    ("mode", &["leaf", "bits"]),
    ("cbr", &["ratio"]),
    ("tsc", &["tsc"]),
    ("mtc", &["ctc"]),
    ("tma", &["ctc", "fc"]),
    ("cyc", &["cycles"]),
    ("vmcs", &["base"]),
    ("mnt", &["payload"]),
    ("ptw", &["size", "payload", "ip"]),
    ("exstop", &["ip"]),
    ("mwait", &["hints", "ext"]),
    ("pwre", &["hw", "state", "sub_state"]),
    ("pwrx", &["last", "deepest", "wake"]),
    ("bbp", &["size", "type"]),
    ("bip", &["id", "payload"]),
    ("bep", &["ip"]),
    ("cfe", &["ip", "type", "vector"]),
    ("evd", &["type", "payload"]),
    ("trig", &["ip", "mult", "vector", "icnt"]),
];

/// Table 33-15: what cannot stand in a block.
pub(super) const FORBIDDEN: &[&str] = &[
    "tnt.8",
    "tnt.64",
    "tip",
    "tip.pge",
    "tip.pgd",
    "mode.exec",
    "mode.tsx",
    "pip",
    "vmcs",
    "tracestop",
    "psb",
    "psbend",
    "ptw",
    "mwait",
];

/// The keys of a kind.
pub(super) fn keys(kind: &str) -> &'static [&'static str] {
    KINDS
        .iter()
        .find(|(name, _)| *name == kind)
        .map_or(&[], |(_, keys)| keys)
}

/// What some bytes are said to be.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum What {
    /// A packet, with its fields.
    Packet(String, BTreeMap<String, Value>),
    /// No packet, and why.
    Error(String),
}

/// One entry of a list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    /// Where it begins.
    pub(super) offset: u64,
    /// How many bytes it has.
    pub(super) size: u64,
    /// What it is.
    pub(super) what: What,
}

impl Entry {
    /// A packet.
    pub(super) fn packet(offset: u64, size: u64, name: &str, fields: &[(&str, Value)]) -> Self {
        let fields = fields
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect();
        Self {
            offset,
            size,
            what: What::Packet(name.to_owned(), fields),
        }
    }

    /// Bytes that form no packet.
    pub(super) fn error(offset: u64, size: u64, why: &str) -> Self {
        Self {
            offset,
            size,
            what: What::Error(why.to_owned()),
        }
    }

    /// The kind of packet; of an error, "error".
    pub(crate) fn name(&self) -> &str {
        match &self.what {
            What::Packet(name, _) => name,
            What::Error(_) => "error",
        }
    }

    /// Whether it is a packet where it may not stand: one that comes with an error.
    pub(super) fn misplaced(&self) -> bool {
        self.field("error").is_some()
    }

    /// A field, if it is there.
    pub(crate) fn field(&self, key: &str) -> Option<&Value> {
        match &self.what {
            What::Packet(_, fields) => fields.get(key),
            What::Error(_) => None,
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x} {:>2} ", self.offset, self.size)?;
        match &self.what {
            What::Error(why) => write!(f, "error: {why}"),
            What::Packet(name, fields) => {
                f.write_str(name)?;
                fields
                    .iter()
                    .try_for_each(|(key, value)| write!(f, " {key}={value}"))
            }
        }
    }
}

/// An address, register value or opaque payload, as the contract writes it.
pub(super) fn hex(value: u64) -> Value {
    Value::from(format!("{value:#x}"))
}

/// Reads JSON Lines.
pub(super) fn parse(text: &str) -> Result<Vec<Entry>> {
    text.lines()
        .map(|line| entry(line).with_context(|| format!("in the line {line}")))
        .collect()
}

fn entry(line: &str) -> Result<Entry> {
    let Value::Object(mut object) = serde_json::from_str(line)? else {
        bail!("not an object");
    };
    let mut number = |key: &str| object.remove(key).and_then(|value| value.as_u64());
    let offset = number("offset").context("no offset")?;
    // Where `size` is a field of the packet, `length` counts its bytes.
    let size = match number("length") {
        Some(length) => length,
        None => number("size").context("no size")?,
    };
    let Some(name) = object.remove("packet") else {
        let error = object.get("error").context("neither packet nor error")?;
        let why = error.as_str().context("an error that is no text")?;
        return Ok(Entry::error(offset, size, why));
    };
    let name = name.as_str().context("a name that is no text")?.to_owned();
    Ok(Entry {
        offset,
        size,
        what: What::Packet(name, object.into_iter().collect()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_is_called_size_is_not_the_packets_size() {
        let line = r#"{"offset":7,"length":6,"packet":"ptw","size":4,"payload":"0x9","ip":true}"#;
        let fields = [("size", 4.into()), ("payload", hex(9)), ("ip", true.into())];
        assert_eq!(
            parse(line).expect("a packet"),
            [Entry::packet(7, 6, "ptw", &fields)]
        );
    }

    #[test]
    fn an_error_is_an_entry() {
        let line = r#"{"offset":7,"size":3,"error":"what?"}"#;
        assert_eq!(
            parse(line).expect("an error"),
            [Entry::error(7, 3, "what?")]
        );
        assert!(parse(r#"{"offset":7}"#).is_err());
        let both = r#"{"offset":7,"size":2,"packet":"psbend","error":"not here"}"#;
        let both = parse(both).expect("a packet");
        assert!(both[0].misplaced() && both[0].name() == "psbend");
        assert!(parse("7").is_err());
    }
}
