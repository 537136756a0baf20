//! The functions of the code that runs.

use cofi_image::ImageView;
use cofi_packet::Ip;
use rustc_hash::FxHashMap;

/// A function and its file.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) function: Option<String>,
    pub(crate) file: Option<String>,
}

/// In which function the code at an address is, found once for each version of the code.
#[derive(Debug, Default)]
pub(crate) struct Places<'s> {
    list: Vec<Named>,
    known: FxHashMap<Ip, u32>,
    view: Option<ImageView<'s>>,
}

impl<'s> Places<'s> {
    /// So many places are remembered.
    const MOST: usize = 1 << 18;

    /// The code that is in place now. Whether numbers mean something else from here on.
    pub(crate) fn look_at(&mut self, view: &ImageView<'s>) -> bool {
        let is_same = |known: &ImageView<'_>| known.state() == view.state();
        if self.list.len() >= Self::MOST || !self.view.as_ref().is_some_and(is_same) {
            self.list.clear();
            self.known.clear();
            self.view = Some(view.clone());
            return true;
        }
        false
    }

    /// The number of what is at an address of the code looked at.
    pub(crate) fn of(&mut self, ip: Ip) -> u32 {
        if let Some(known) = self.known.get(&ip) {
            return *known;
        }
        let place = self.view.as_ref().and_then(|view| view.place(ip));
        let symbol = place.as_ref().and_then(|place| place.symbol_or_stub());
        self.list.push(Named {
            function: symbol.map(|symbol| symbol.demangled()),
            file: place
                .as_ref()
                .map(|place| place.owner().to_string_lossy().into_owned()),
        });
        let number = self.list.len() as u32 - 1;
        self.known.insert(ip, number);
        number
    }

    /// What has this number, until other code is looked at.
    pub(crate) fn get(&self, number: u32) -> Option<&Named> {
        self.list.get(number as usize)
    }
}
