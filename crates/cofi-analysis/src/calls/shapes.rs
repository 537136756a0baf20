//! What the reconstruction of calls has to know of a block, worked out once for each distinct one.

use std::ops::Range;

use cofi_flow::Executed;
use cofi_image::ImageView;
use cofi_insn::{Class, advance};
use cofi_packet::Ip;

use super::FunctionId;
use super::inlines::{Inlines, Span};
use super::names::{CallNames, Location};

/// An instruction that leads elsewhere.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Transfer {
    pub(crate) class: Class,
    pub(crate) from: Ip,
    /// The address behind it.
    pub(crate) after: Ip,
    /// The function in which it stands.
    pub(crate) source: FunctionId,
}

/// A direct call, or a direct jump to another function, within a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    pub(crate) transfer: Transfer,
    /// How many of the block's instructions have run by then.
    pub(crate) insns: u32,
    pub(crate) to: Ip,
    pub(crate) target: Location,
}

/// A block.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) ip: Ip,
    pub(crate) insns: u32,
    pub(crate) first: Location,
    /// Its hops, in [`Shapes`].
    pub(crate) hops: Range<u32>,
    /// Its inlined functions, in [`Shapes`].
    pub(crate) spans: Range<u32>,
    /// How it ends; none if something else happened before that.
    pub(crate) end: Option<Transfer>,
}

impl Shape {
    /// Whether a packet tells what comes behind it.
    pub(super) fn is_decided(&self) -> bool {
        self.end.is_some_and(|end| end.class.needs_packet())
    }

    /// Whether control stays where it is if this runs behind an instruction: a conditional branch within a function.
    #[inline]
    pub(crate) fn goes_on_from(&self, by: &Transfer) -> bool {
        by.class == Class::Conditional && by.source == self.first.function
    }

    /// The instruction that runs last, or, if the block's end tells nothing, its first.
    #[inline]
    pub(crate) fn last_ip(&self) -> Ip {
        self.end.map_or(self.ip, |end| end.from)
    }
}

/// A straight run: its first address, how many instructions it has, and the last of them if it is of another class than [`Class::Other`].
pub(crate) type PlainRun = (Ip, usize, Option<Executed>);

/// The distinct blocks, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Shapes {
    list: Vec<Shape>,
    hops: Vec<Hop>,
    spans: Vec<Span>,
}

impl Shapes {
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.hops.clear();
        self.spans.clear();
    }

    pub(crate) fn get(&self, number: usize) -> Option<(&Shape, &[Hop])> {
        let shape = self.list.get(number)?;
        let hops = shape.hops.start as usize..shape.hops.end as usize;
        Some((shape, self.hops.get(hops).unwrap_or_default()))
    }

    /// Where other inlined functions run along a block.
    pub(crate) fn spans(&self, shape: &Shape) -> &[Span] {
        let spans = shape.spans.start as usize..shape.spans.end as usize;
        self.spans.get(spans).unwrap_or_default()
    }

    /// The next block: its straight runs, and its instructions, if inlined functions are wanted. Gives the address behind it.
    pub(crate) fn push(
        &mut self,
        names: &mut CallNames,
        view: &ImageView<'_>,
        inlines: Option<&mut Inlines>,
        runs: impl Iterator<Item = PlainRun>,
        ips: impl Iterator<Item = Ip>,
    ) -> Ip {
        let begin = self.hops.len() as u32;
        let first_span = self.spans.len() as u32;
        let mut insns = 0;
        let mut starts = Vec::new();
        let mut first: Option<(Ip, Location)> = None;
        let mut end: Option<Transfer> = None;
        for (ip, len, last) in runs {
            let target = names.at(view, ip);
            if let Some(transfer) = end.take()
                && (transfer.class == Class::DirectCall
                    || transfer.class.is_branch() && transfer.source != target.function)
            {
                self.hops.push(Hop {
                    transfer,
                    insns,
                    to: ip,
                    target,
                });
            }
            first.get_or_insert((ip, target));
            starts.push(insns);
            insns += len as u32;
            end = last.map(|last| Transfer {
                class: last.class,
                from: last.ip,
                after: advance(last.ip, last.len, last.mode),
                source: names.at(view, last.ip).function,
            });
        }
        let (ip, first) = first.unwrap_or_else(|| (Ip(0), names.at(view, Ip(0))));
        if let Some(inlines) = inlines {
            let mut last = None;
            for (insns, ip) in (0..insns).zip(ips) {
                let chain = inlines.at(view, names, ip);
                // Behind a call or a jump, another call may be the innermost.
                if last != Some(chain) || starts.contains(&insns) {
                    self.spans.push(Span { insns, ip, chain });
                }
                last = Some(chain);
            }
        }
        self.list.push(Shape {
            ip,
            insns,
            first,
            hops: begin..self.hops.len() as u32,
            spans: first_span..self.spans.len() as u32,
            end,
        });
        end.map_or(ip, |end| end.after)
    }
}
