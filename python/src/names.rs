//! The functions of a recording, by number.

use cofi_image::{ImageView, Place};
use cofi_packet::Ip;
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A function.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    /// The file that its code is in, `[kernel]` or the like; none where nothing is mapped.
    pub(crate) file: Option<PathBuf>,
}

/// The functions seen so far.
#[derive(Debug, Default)]
pub(crate) struct Names {
    list: Vec<Named>,
    numbers: HashMap<(Option<PathBuf>, String), u32>,
}

impl Names {
    pub(crate) fn list(&self) -> &[Named] {
        &self.list
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Named> {
        self.list.get(number as usize)
    }

    /// The number of a function of this name in this file.
    pub(crate) fn number(&mut self, name: &str, file: Option<&Path>) -> u32 {
        let key = (file.map(Path::to_owned), name.to_owned());
        *self.numbers.entry(key).or_insert_with(|| {
            self.list.push(Named {
                name: name.to_owned(),
                file: file.map(Path::to_owned),
            });
            self.list.len() as u32 - 1
        })
    }

    fn of_place(&mut self, place: Option<&Place>) -> u32 {
        match place {
            Some(place) => {
                let name = match place.symbol_or_stub() {
                    Some(symbol) => symbol.demangled(),
                    None => place.owner().display().to_string(),
                };
                self.number(&name, Some(place.owner()))
            }
            None => self.number("[unmapped]", None),
        }
    }
}

/// A recording's functions, which all its iterators number alike.
#[derive(Debug, Default)]
pub(crate) struct Shared(Mutex<Names>);

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Names> {
        // A list that was only added to is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// In which function the code at an address is, found once for each version of the code.
#[derive(Debug, Default)]
pub(crate) struct Places {
    eras: FxHashMap<(usize, u64), u32>,
    known: FxHashMap<(u32, u64), u32>,
    /// The code in place when this was asked last.
    last: Option<((usize, u64), u32)>,
}

impl Places {
    /// So many places are remembered.
    const MOST: usize = 1 << 20;

    fn era(&mut self, key: (usize, u64)) -> u32 {
        match self.last {
            Some((last, era)) if last == key => era,
            _ => {
                if self.known.len() > Self::MOST {
                    *self = Self::default();
                }
                let next = self.eras.len() as u32;
                let era = *self.eras.entry(key).or_insert(next);
                self.last = Some((key, era));
                era
            }
        }
    }

    /// The number of the function of an instruction that runs in this code.
    #[inline]
    pub(crate) fn function(&mut self, ip: Ip, view: &ImageView<'_>, names: &Shared) -> u32 {
        let era = self.era((std::ptr::from_ref(view.space()).addr(), view.version().0));
        let known = self.known.entry((era, ip.0));
        *known.or_insert_with(|| {
            let place = view.place(ip);
            names.lock().of_place(place.as_ref())
        })
    }
}
