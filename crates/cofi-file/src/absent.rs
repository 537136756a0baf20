//! Where nobody can be stopped who touches an address, and go on when there is something: no file is held.

use std::fs::File;
use std::io;

/// There is none.
#[derive(Debug)]
pub enum Region {}

impl Region {
    pub(crate) fn of_file(_: &File, _: usize) -> io::Result<Option<&'static Self>> {
        Ok(None)
    }

    pub(crate) fn of_pieces(_: &[&[u8]]) -> Option<&'static Self> {
        None
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match *self {}
    }
}
