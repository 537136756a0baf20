//! The code that the running kernel maps into every process.

use std::fs::File;

use crate::build_id::BuildId;
use crate::contents::FromFile;
use crate::places::VDSO;

/// Longer than any vDSO.
const LIMIT: u64 = 1 << 20;

/// This process's own vDSO, if its build id is the one that is wanted.
pub(crate) fn own(wanted: &BuildId) -> Option<Vec<u8>> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with(VDSO))?;
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let len = u64::from_str_radix(end, 16).ok()?.checked_sub(start)?;
    let mut bytes = vec![0; usize::try_from(len.min(LIMIT)).ok()?];
    let memory = File::open("/proc/self/mem").ok()?;
    cofi_host::read_exact_at(&memory, &mut bytes, start).ok()?;
    (Option::<BuildId>::parse(bytes.as_slice()).as_ref() == Some(wanted)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_one_that_is_wanted() {
        let other = BuildId::new(&[1; 20]).unwrap();
        assert!(own(&other).is_none());
    }
}
