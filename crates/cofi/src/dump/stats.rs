//! `--stats`: what a stream is made of.

use crate::table::{lines, table};
use cofi_packet::{PacketKind, StreamItem, extent};
use cofi_session::compact;
use cofi_text::Line;
use cofi_text::digits::{counted, grouped};
use cofi_text::packets::Known;
use std::cmp::Reverse;
use std::io::{Result, Write};
use std::marker::PhantomData;

/// How many of something, and their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes as u64;
    }
    fn and(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            bytes: self.bytes + other.bytes,
        }
    }
    fn all(sums: &[Self]) -> Self {
        sums.iter().copied().fold(Self::default(), Self::and)
    }
}

/// The distances between the beginnings of PSBs, in bytes.
#[derive(Clone, Copy, Debug)]
struct Distances {
    count: u64,
    first: u64,
    last: u64,
    least: u64,
    most: u64,
}

impl Distances {
    fn add(this: &mut Option<Self>, offset: u64) {
        let Some(distances) = this else {
            *this = Some(Self {
                count: 1,
                first: offset,
                last: offset,
                least: u64::MAX,
                most: 0,
            });
            return;
        };
        let distance = offset - distances.last;
        distances.count += 1;
        distances.last = offset;
        distances.least = distances.least.min(distance);
        distances.most = distances.most.max(distance);
    }

    /// The mean; `None` of fewer than two PSBs.
    fn mean(&self) -> Option<f64> {
        (self.count > 1).then(|| (self.last - self.first) as f64 / (self.count - 1) as f64)
    }
}

/// The statistics of one stream.
#[derive(Debug)]
pub(crate) struct Stats<F: Known> {
    kinds: Vec<Sum>,
    /// Bytes that form no packet.
    unread: Sum,
    /// Packets that stand where they may not.
    misplaced: u64,
    psb: Option<Distances>,
    ips: Vec<Sum>,
    format: PhantomData<F>,
}

/// A part of the whole; of nothing it is nothing.
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn tenths(number: f64) -> u64 {
    (10.0 * number).round() as u64
}

impl<F: Known> Stats<F> {
    /// Of a stream without items.
    pub(crate) fn new() -> Self {
        Self {
            kinds: vec![Sum::default(); F::Kind::ALL.len()],
            unread: Sum::default(),
            misplaced: 0,
            psb: None,
            ips: vec![Sum::default(); F::IP_FORMS.len()],
            format: PhantomData,
        }
    }

    /// Counts an item.
    #[inline]
    pub(crate) fn add(&mut self, item: &StreamItem<F>) {
        let (offset, size) = extent(item);
        let raw = match item {
            Ok(located) => located.raw,
            Err(error) => match error.packet {
                Some(raw) => {
                    self.misplaced += 1;
                    raw
                }
                None => return self.unread.add(size),
            },
        };
        self.kinds[F::index(raw.kind())].add(size);
        let packet = F::packet(&raw);
        if let Some(ip) = F::ip_form(&packet) {
            self.ips[ip.form].add(ip.bytes);
        } else if raw.len() == F::PSB.len() && raw.bytes().starts_with(F::PSB) {
            Distances::add(&mut self.psb, offset.0);
        }
    }

    fn bytes(&self) -> u64 {
        Sum::all(&self.kinds).bytes + self.unread.bytes
    }

    /// The packets that there are, by name, those with most bytes first.
    fn types(&self) -> Vec<(&'static str, Sum)> {
        let mut types: Vec<(&str, Sum)> = Vec::new();
        for (kind, sum) in F::Kind::ALL.iter().zip(&self.kinds) {
            // The two TNTs of RTIT have one name, and are neighbours.
            match types.last_mut() {
                Some((name, before)) if *name == kind.name() => *before = before.and(*sum),
                _ => types.push((kind.name(), *sum)),
            }
        }
        types.retain(|(_, sum)| sum.count > 0);
        compact::sort_by_key(&mut types, |(_, sum)| Reverse(sum.bytes));
        types
    }

    /// The addresses that were sent: how many, and their bytes; and how many were suppressed.
    fn addresses(&self) -> (Sum, u64) {
        let suppressed: u64 = self
            .ips
            .iter()
            .filter(|form| form.bytes == 0)
            .map(|form| form.count)
            .sum();
        let mut sent = Sum::all(&self.ips);
        sent.count -= suppressed;
        (sent, suppressed)
    }

    /// Writes everything into `line`, but the keys of the stream.
    pub(crate) fn describe(&self, line: &mut Line) {
        let bytes = self.bytes();
        line.begin()
            .number("bytes", bytes)
            .number("packets", Sum::all(&self.kinds).count)
            .number("errors", self.unread.count + self.misplaced)
            .number("error_bytes", self.unread.bytes);
        line.list("types", self.types(), |line, (name, sum)| {
            line.text("packet", name)
                .number("count", sum.count)
                .number("bytes", sum.bytes)
                .real("share", share(sum.bytes, bytes));
        });
        line.object("psb", |line| {
            line.number("count", self.psb.map_or(0, |psb| psb.count));
            match self.psb.and_then(|psb| Some((psb, psb.mean()?))) {
                Some((psb, mean)) => line
                    .number("min_distance", psb.least)
                    .real("mean_distance", mean)
                    .number("max_distance", psb.most),
                None => line
                    .null("min_distance")
                    .null("mean_distance")
                    .null("max_distance"),
            };
        });
        let (sent, suppressed) = self.addresses();
        line.object("ip", |line| {
            line.number("count", sent.count)
                .number("bytes", sent.bytes)
                .number("full_bytes", sent.count * F::IP_BYTES);
            match sent.count {
                0 => line.null("ratio"),
                count => line.real("ratio", share(sent.bytes, count * F::IP_BYTES)),
            };
            line.number("suppressed", suppressed);
            let forms = F::IP_FORMS.iter().zip(&self.ips);
            let forms = forms.filter(|(_, sum)| sum.count > 0);
            line.list("forms", forms, |line, (form, sum)| {
                line.text("form", form)
                    .number("count", sum.count)
                    .number("bytes", sum.bytes);
            });
        });
    }

    /// Prints everything as tables.
    pub(crate) fn print(&self, out: &mut impl Write) -> Result<()> {
        let bytes = self.bytes();
        let percent = |part, whole| format!("{:.1} %", 100.0 * share(part, whole));
        let mut packets = table(&["packet", "count", "bytes", "share"], &[0]);
        let mut row = |name: &str, sum: Sum| {
            packets.add_row([
                name.to_owned(),
                grouped(sum.count),
                grouped(sum.bytes),
                percent(sum.bytes, bytes),
            ]);
        };
        for (name, sum) in self.types() {
            row(name, sum);
        }
        if self.unread.count > 0 {
            row("(no packet)", self.unread);
        }
        row("all", Sum::all(&self.kinds).and(self.unread));
        writeln!(out, "{}\n", lines(&packets))?;

        match self.psb.and_then(|psb| Some((psb, psb.mean()?))) {
            Some((psb, mean)) => writeln!(
                out,
                "PSBs: {}; from one to the next {} to {} bytes, {}.{} on average",
                grouped(psb.count),
                grouped(psb.least),
                grouped(psb.most),
                grouped(tenths(mean) / 10),
                tenths(mean) % 10,
            )?,
            None => writeln!(out, "PSBs: {}", u8::from(self.psb.is_some()))?,
        }
        let (sent, suppressed) = self.addresses();
        write!(out, "Addresses: {}", grouped(sent.count))?;
        if sent.count > 0 {
            write!(
                out,
                " in {}, {} of the {} that they have",
                counted(sent.bytes, "byte"),
                percent(sent.bytes, sent.count * F::IP_BYTES),
                counted(sent.count * F::IP_BYTES, "byte"),
            )?;
        }
        writeln!(out, "; {} suppressed", grouped(suppressed))?;
        for (form, sum) in F::IP_FORMS.iter().zip(&self.ips) {
            if let Some(size) = sum.bytes.checked_div(sum.count) {
                writeln!(
                    out,
                    "  {form:<12} ({size} bytes) {:>14}",
                    grouped(sum.count)
                )?;
            }
        }
        let (unread, misplaced) = (self.unread, self.misplaced);
        if unread.count + misplaced == 0 {
            return writeln!(out, "Errors: none");
        }
        writeln!(
            out,
            "Errors: {}; {} passed over, {} where {} may not stand",
            grouped(unread.count + misplaced),
            counted(unread.bytes, "byte"),
            counted(misplaced, "packet"),
            if misplaced == 1 { "it" } else { "they" },
        )
    }
}
