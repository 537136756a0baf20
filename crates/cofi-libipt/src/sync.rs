//! Where a decoder may begin: the search for PSBs, forward and backward, from where the decoder is.

use cofi_packet::intel::{PSB, sync_backward, sync_forward};

use crate::error::Error;

/// The words by which libipt searches.
const WORD: usize = 8;

/// The offset at or before `at` that is aligned in memory; 0 if there is none.
fn aligned(bytes: &[u8], at: usize) -> usize {
    let into = (bytes.as_ptr().addr() + at) % WORD;
    at.saturating_sub(into)
}

/// Where a decoder is, and the PSB that it came to last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// Where it reads next; none before it was synchronised.
    pub(crate) at: Option<usize>,
    /// The last synchronisation point.
    pub(crate) sync: Option<usize>,
}

impl Place {
    /// The next PSB: the first one, or the first behind where the decoder is.
    ///
    /// Where the decoder stopped within a PSB, having taken its beginning for the end of another packet, that PSB is found: as in libipt, whose search
    /// goes by aligned words, if an aligned word of it is left.
    pub(crate) fn forward(&self, bytes: &[u8]) -> Result<usize, Error> {
        let from = match self.at {
            None => 0,
            Some(at) => {
                let begin = if self.sync == Some(at) {
                    at + PSB.len()
                } else {
                    at
                };
                aligned(bytes, begin).saturating_sub(WORD)
            }
        };
        sync_forward(bytes, from).ok_or(Error::End)
    }

    /// The PSB before: the last one, or the last of which an aligned word stands before where the decoder is.
    pub(crate) fn backward(&self, bytes: &[u8]) -> Result<usize, Error> {
        let end = aligned(bytes, self.at.unwrap_or(bytes.len()));
        let before = (end + 1).checked_sub(WORD).ok_or(Error::End)?;
        sync_backward(bytes, before).ok_or(Error::End)
    }

    /// Where it reads next.
    #[inline]
    pub(crate) fn offset(&self) -> Result<u64, Error> {
        self.at.map(|at| at as u64).ok_or(Error::NoSync)
    }

    /// The last synchronisation point.
    pub(crate) fn sync_offset(&self) -> Result<u64, Error> {
        self.sync.map(|at| at as u64).ok_or(Error::NoSync)
    }
}
