//! perf.data files made by hand, field by field: what no recorder of ours writes.
//!
//! Used by the tests of several crates, each of which needs a part of it.
#![allow(dead_code, unreachable_pub)]

/// The magic of perf.data.
pub const MAGIC: &[u8; 8] = b"PERFILE2";
/// `perf_event_attr`: kernel records have a trailer.
pub const SAMPLE_ID_ALL: u64 = 1 << 18;

/// Bytes, field by field.
#[derive(Clone, Default)]
pub struct Fields(pub Vec<u8>);

impl Fields {
    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
    /// A text with its NUL, padded to eight bytes.
    pub fn text(mut self, text: &[u8]) -> Self {
        self.0.extend(text);
        self.0.push(0);
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self
    }
    /// pid 1, tid 2, time 3, CPU 4, the id.
    pub fn trailer(self, id: u64) -> Self {
        self.u32(1).u32(2).u64(3).u32(4).u32(0).u64(id)
    }
}

/// A record of this kind.
pub fn record(kind: u32, misc: u16, body: Fields) -> Vec<u8> {
    let size = u16::try_from(body.0.len() + 8).expect("a record's size");
    let header = Fields::default().u32(kind).u16(misc).u16(size);
    header.bytes(&body.0).0
}

/// An event.
#[derive(Clone, Default)]
pub struct Event<'a> {
    pub kind: u32,
    pub config: u64,
    pub sample_type: u64,
    pub flags: u64,
    pub ids: &'a [u64],
}

impl Event<'_> {
    /// `perf_event_attr`, of the size it had when Intel PT came.
    pub fn attr(&self) -> Vec<u8> {
        let fields = Fields::default().u32(self.kind).u32(112).u64(self.config);
        let fields = fields.u64(1).u64(self.sample_type).u64(4).u64(self.flags);
        fields.bytes(&[0; 64]).0
    }
}

/// A file with these events, records and features (number and payload, in the order of the numbers).
pub fn file(events: &[Event<'_>], data: &[u8], features: &[(u32, &[u8])]) -> Vec<u8> {
    let (mut ids, mut attrs) = (Fields::default(), Fields::default());
    for event in events {
        let at = 104 + ids.0.len() as u64;
        ids = event.ids.iter().fold(ids, |ids, id| ids.u64(*id));
        attrs = attrs.bytes(&event.attr());
        attrs = attrs.u64(at).u64(8 * event.ids.len() as u64);
    }
    let attrs_at = 104 + ids.0.len() as u64;
    let data_at = attrs_at + attrs.0.len() as u64;
    let mut header = Fields::default().bytes(MAGIC).u64(104).u64(128);
    header = header.u64(attrs_at).u64(attrs.0.len() as u64);
    header = header.u64(data_at).u64(data.len() as u64).u64(0).u64(0);
    let bits = features.iter().map(|(number, _)| 1 << number);
    header = header.u64(bits.sum()).u64(0).u64(0).u64(0);
    header = header.bytes(&ids.0).bytes(&attrs.0).bytes(data);
    let mut at = header.0.len() as u64 + 16 * features.len() as u64;
    for (_, payload) in features {
        header = header.u64(at).u64(payload.len() as u64);
        at += payload.len() as u64;
    }
    for (_, payload) in features {
        header = header.bytes(payload);
    }
    header.0
}
