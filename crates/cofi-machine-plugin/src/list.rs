//! What each processor ran while it was traced, for whoever wants to compare: the address of each instruction.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// So many bytes are written at once.
const WRITTEN_AT_ONCE: usize = 1 << 16;

/// A processor's list: addresses of eight bytes, the least significant one first.
#[derive(Debug)]
pub(crate) struct List(Option<BufWriter<File>>);

impl List {
    /// A processor's, in this folder.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn create(folder: &Path, vcpu: u32) -> io::Result<Self> {
        let file = File::create(folder.join(format!("cpu{vcpu}.ips")))?;
        Ok(Self(Some(BufWriter::with_capacity(WRITTEN_AT_ONCE, file))))
    }

    /// An instruction at this address ran, PacketEn being 1.
    #[inline]
    pub(crate) fn ran(&mut self, ip: u64) {
        if let Some(file) = &mut self.0
            && let Err(error) = file.write_all(&ip.to_le_bytes())
        {
            self.give_up(&error);
        }
    }

    /// Everything is to be in the file.
    pub(crate) fn flush(&mut self) {
        if let Some(file) = &mut self.0
            && let Err(error) = file.flush()
        {
            self.give_up(&error);
        }
    }

    #[cold]
    fn give_up(&mut self, error: &io::Error) {
        eprintln!("cofi: the list of what ran is not complete: {error}");
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn addresses_are_written_in_their_order() {
        let folder = std::env::temp_dir().join(format!("cofi-list-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut list = List::create(&folder, 3).unwrap();
        list.ran(0x1234);
        list.ran(u64::MAX - 1);
        list.flush();
        let bytes = fs::read(folder.join("cpu3.ips")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let wanted = [0x1234_u64.to_le_bytes(), (u64::MAX - 1).to_le_bytes()];
        assert_eq!(bytes, wanted.concat());
    }
}
