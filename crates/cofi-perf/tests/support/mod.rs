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

/// A file in its parts, to be put together in another form.
#[derive(Clone, Default)]
pub struct Parts {
    /// Each `perf_event_attr`, and its ids.
    pub attrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub data: Vec<u8>,
    pub features: Vec<(u32, Vec<u8>)>,
}

fn number(bytes: &[u8], at: usize) -> usize {
    let bytes = bytes[at..at + 8].try_into().expect("eight bytes");
    usize::try_from(u64::from_le_bytes(bytes)).expect("an offset")
}

/// The size of the record at the beginning, with the payload that an AUXTRACE has.
fn record_size(data: &[u8]) -> usize {
    let size = usize::from(u16::from_le_bytes([data[6], data[7]]));
    match data[0] {
        71 => size + number(data, 8),
        _ => size,
    }
}

impl Parts {
    /// Takes a finished file apart. The index of AUXTRACE records is left out: it holds offsets.
    pub fn of(file: &[u8]) -> Self {
        let section = |at: usize| number(file, at)..number(file, at) + number(file, at + 8);
        let mut this = Self {
            data: file[section(40)].to_vec(),
            ..Self::default()
        };
        let entry = number(file, 16);
        for at in section(24).step_by(entry) {
            let attr = file[at..at + entry - 16].to_vec();
            let ids = file[section(at + entry - 16)].to_vec();
            this.attrs.push((attr, ids));
        }
        let mut table = section(40).end;
        for bit in (0..256).filter(|bit| file[72 + bit / 8] >> (bit % 8) & 1 != 0) {
            if bit != 18 {
                this.features
                    .push((bit as u32, file[section(table)].to_vec()));
            }
            table += 16;
        }
        this
    }

    /// The records of the data, with the payloads of AUXTRACE records.
    pub fn records(&self) -> Vec<Vec<u8>> {
        let (mut records, mut rest) = (Vec::new(), self.data.as_slice());
        while !rest.is_empty() {
            let (record, after) = rest.split_at(record_size(rest));
            records.push(record.to_vec());
            rest = after;
        }
        records
    }

    /// As `perf record -o FILE` writes it.
    pub fn file(&self) -> Vec<u8> {
        let (mut ids, mut attrs) = (Fields::default(), Fields::default());
        for (attr, names) in &self.attrs {
            let at = 104 + ids.0.len() as u64;
            ids = ids.bytes(names);
            attrs = attrs.bytes(attr).u64(at).u64(names.len() as u64);
        }
        let attrs_at = 104 + ids.0.len() as u64;
        let data_at = attrs_at + attrs.0.len() as u64;
        let entry = self.attrs[0].0.len() as u64 + 16;
        let mut file = Fields::default().bytes(MAGIC).u64(104).u64(entry);
        file = file.u64(attrs_at).u64(attrs.0.len() as u64);
        file = file.u64(data_at).u64(self.data.len() as u64).u64(0).u64(0);
        let bits = self.features.iter().map(|(number, _)| 1 << number);
        file = file.u64(bits.sum()).u64(0).u64(0).u64(0);
        file = file.bytes(&ids.0).bytes(&attrs.0).bytes(&self.data);
        let mut at = file.0.len() as u64 + 16 * self.features.len() as u64;
        for (_, payload) in &self.features {
            file = file.u64(at).u64(payload.len() as u64);
            at += payload.len() as u64;
        }
        let payloads = self.features.iter();
        payloads
            .fold(file, |file, (_, payload)| file.bytes(payload))
            .0
    }

    /// As `perf record -o -` writes it.
    pub fn pipe(&self) -> Vec<u8> {
        let mut pipe = Fields::default().bytes(MAGIC).u64(16);
        for (attr, ids) in &self.attrs {
            let body = Fields::default().bytes(attr).bytes(ids);
            pipe = pipe.bytes(&record(64, 0, body));
        }
        for (feature, payload) in &self.features {
            let body = Fields::default().u64((*feature).into()).bytes(payload);
            pipe = pipe.bytes(&record(80, 0, body));
        }
        // HEADER_LAST_FEATURE of perf 6.1, a number that is none, without payload.
        pipe = pipe.bytes(&record(80, 0, Fields::default().u64(32)));
        pipe.bytes(&self.data).0
    }

    /// As `perf record -z` writes it: the kernel's records but the first few are in one stream, which `compress` makes of
    /// them and which is cut into records of `chunk` bytes.
    pub fn compress(&mut self, chunk: usize, compress: impl Fn(&[u8]) -> Vec<u8>) {
        let kernel = |record: &Vec<u8>| record[0] < 64;
        let (packed, plain): (Vec<_>, Vec<_>) = self.records().into_iter().partition(kernel);
        let stream = compress(&packed.concat());
        let mut chunks = stream.chunks(chunk).map(|chunk| {
            let body = Fields::default().bytes(chunk);
            record(81, 0, body)
        });
        let mut data = Vec::new();
        for record in plain {
            // Some before each AUXTRACE.
            if record[0] == 71 {
                data.extend(chunks.by_ref().take(2).flatten());
            }
            data.extend(record);
        }
        data.extend(chunks.flatten());
        self.data = data;
        // Version, type zstd, level, ratio, and the size of the buffer that perf decompresses into.
        let feature = Fields::default().u32(1).u32(1).u32(1).u32(10).u32(1 << 20);
        self.features.push((27, feature.0));
        self.features.sort_by_key(|(number, _)| *number);
    }
}

/// A zstd frame of raw blocks, that does not end: nothing is compressed, but the format is that of what is.
pub fn raw_frame(bytes: &[u8], block: usize) -> Vec<u8> {
    // Magic; no content size, no checksum, a window of 1 MiB.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 10 << 3];
    for block in bytes.chunks(block) {
        let header = (block.len() as u32) << 3;
        frame.extend(&header.to_le_bytes()[..3]);
        frame.extend(block);
    }
    frame
}
