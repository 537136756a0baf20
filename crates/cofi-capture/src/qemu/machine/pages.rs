//! The code that a machine ran, page by page.
//!
//! Pages are put together from the blocks that ran on them; so bytes that nobody ran stay unknown, and it costs nothing that
//! more of a page comes to be known. Bytes that are other than before make a new version of the page.

#[cfg(test)]
mod tests;

use crate::{CodePage, MachineObserver, Moment, Pid};
use std::collections::BTreeMap;

const PAGE: u64 = 4096;
/// So many pages are kept until they are written.
const MOST: usize = 1 << 15;

/// A page as it is now.
#[derive(Debug)]
struct Page {
    bytes: Box<[Option<u8>]>,
    since: Moment,
}

/// Pages by address space and number.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pages: BTreeMap<(Pid, u64), Page>,
    /// Changes whenever a block that was in place may not be so any more.
    pub(super) epoch: u32,
    /// Pages have been written before their end: what is new now may have been before.
    has_flushed: bool,
}

impl Pages {
    /// Makes sure that these bytes stand at `start` in an address space, from now on at the latest.
    pub(super) fn place(
        &mut self,
        observer: &mut dyn MachineObserver,
        machine: Pid,
        space: Pid,
        start: u64,
        code: &[u8],
    ) {
        for (number, at, part) in parts(start, code) {
            self.place_in(observer, machine, (space, number), at, part);
        }
    }

    fn place_in(
        &mut self,
        observer: &mut dyn MachineObserver,
        machine: Pid,
        key: (Pid, u64),
        at: usize,
        code: &[u8],
    ) {
        let place = at..at + code.len();
        let agrees = |page: &Page| {
            page.bytes[place.clone()]
                .iter()
                .zip(code)
                .all(|(known, byte)| known.is_none_or(|known| known == *byte))
        };
        let is_new = match self.pages.get(&key) {
            Some(page) if agrees(page) => false,
            Some(page) => {
                write(observer, key, page);
                true
            }
            None => true,
        };
        if is_new {
            let is_change = self.has_flushed || self.pages.contains_key(&key);
            let since = if is_change {
                self.epoch += 1;
                observer.code_changes(machine)
            } else {
                Moment::beginning()
            };
            let bytes = vec![None; PAGE as usize].into();
            self.pages.insert(key, Page { bytes, since });
        }
        if let Some(page) = self.pages.get_mut(&key) {
            for (known, byte) in page.bytes[place].iter_mut().zip(code) {
                *known = Some(*byte);
            }
        }
        if self.pages.len() > MOST {
            self.flush(observer);
        }
    }

    /// Tells of all pages.
    pub(super) fn flush(&mut self, observer: &mut dyn MachineObserver) {
        for (key, page) in &self.pages {
            write(observer, *key, page);
        }
        self.pages.clear();
        self.epoch += 1;
        self.has_flushed = true;
    }
}

/// Code page by page: the page's number, where in it, and the bytes there.
fn parts(start: u64, code: &[u8]) -> impl Iterator<Item = (u64, usize, &[u8])> {
    let mut address = start;
    let mut rest = code;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (number, at) = (address / PAGE, (address % PAGE) as usize);
        let (part, behind) = rest.split_at(rest.len().min(PAGE as usize - at));
        address = address.wrapping_add(part.len() as u64);
        rest = behind;
        Some((number, at, part))
    })
}

fn write(observer: &mut dyn MachineObserver, (space, number): (Pid, u64), page: &Page) {
    let bytes: Vec<u8> = page.bytes.iter().map(|byte| byte.unwrap_or(0)).collect();
    observer.code_page(CodePage {
        space,
        start: number * PAGE,
        bytes: &bytes,
        since: page.since,
    });
}
