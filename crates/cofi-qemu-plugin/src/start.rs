//! What a program finds when it starts: its name and its environment, as if QEMU were not there.
//!
//! So that QEMU, and what loads it, acts on no variable of the program's, each comes under another name: six hexadecimal digits
//! (its place), `=`, and then the variable as it is. QEMU hands them on in another order. Before the program's first
//! instruction all is put right on its stack.

use crate::sys::{self, peek64};
use crate::tell::tell;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How many variables there are to give back.
static VARIABLES: AtomicUsize = AtomicUsize::new(0);
/// A block has been translated.
static BEGUN: AtomicBool = AtomicBool::new(false);
/// The digits and the sign before a variable.
const PREFIX: usize = 7;
/// No variable is longer than the kernel's limit.
const LONG: usize = 1 << 18;

/// A program's name from hexadecimal digits.
pub(crate) fn name(digits: &[u8]) -> Option<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks(2).map(byte).collect()
}

pub(crate) fn number(digits: &[u8]) -> usize {
    let digits = core::str::from_utf8(digits).unwrap_or_default();
    digits.parse().unwrap_or(0)
}

/// QEMU starts with the program of this name and so many variables.
pub(crate) fn begin(comm: Option<&[u8]>, variables: usize) {
    if let Some(comm) = comm {
        sys::set_name(comm);
    }
    VARIABLES.store(variables, Ordering::Relaxed);
}

/// Whether this is the first call: the first block is translated, with something to do before it.
pub(crate) fn is_first() -> bool {
    !BEGUN.swap(true, Ordering::Relaxed)
}

/// Gives the program its variables back: `stack` is where it begins, with the number of arguments, their addresses, 0, and
/// those of the variables.
pub(crate) fn give_back(stack: u64) {
    let count = VARIABLES.swap(0, Ordering::Relaxed);
    if restore(stack, count).is_none() {
        tell!("cofi: the program does not get its environment as it should");
    }
}

fn restore(stack: u64, count: usize) -> Option<()> {
    let arguments = peek64(stack)?;
    let first_argument = peek64(stack.checked_add(8)?)?;
    let list = stack.checked_add(8 * arguments.checked_add(2)?)?;
    let mut variables = vec![None; count];
    let mut at = u64::MAX;
    for i in 0..count as u64 {
        let address = peek64(list + 8 * i)?;
        let text = read_string(address)?;
        let (prefix, variable) = text.split_at_checked(PREFIX)?;
        let place = core::str::from_utf8(prefix.strip_suffix(b"=")?).ok()?;
        let place = usize::from_str_radix(place, 16).ok()?;
        *variables.get_mut(place)? = Some(variable.to_vec());
        at = at.min(address);
    }
    // One behind the other where they were, each shorter than before.
    let begin = at;
    let (mut texts, mut table) = (Vec::new(), Vec::new());
    for variable in variables {
        table.extend_from_slice(&(begin + texts.len() as u64).to_ne_bytes());
        texts.extend_from_slice(&variable?);
        texts.push(0);
    }
    let end = begin.wrapping_add(texts.len() as u64);
    let done = count == 0 || sys::poke(begin, &texts) && sys::poke(list, &table);
    if done && count > 0 && arguments > 0 && first_argument < begin {
        // What others see of this process in /proc, too. Without the right to it they see QEMU's.
        let last = peek64(stack + 8 * arguments)?;
        let last = last + read_string(last)?.len() as u64 + 1;
        sys::set_command_line(first_argument..last, begin..end);
    }
    done.then_some(())
}

/// A string in this process's memory.
fn read_string(address: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < LONG {
        let at = address.checked_add(text.len() as u64)?;
        // Never beyond the page: what follows may be nothing.
        let mut bytes = [0; 256];
        let len = bytes.len().min(0x1000 - (at & 0xfff) as usize);
        let bytes = &mut bytes[..len];
        if !sys::peek(at, bytes) {
            return None;
        }
        let end = bytes.iter().position(|byte| *byte == 0);
        text.extend_from_slice(&bytes[..end.unwrap_or(len)]);
        if end.is_some() {
            return Some(text);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{name, number, restore};
    use alloc::format;
    use alloc::string::String;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn options_are_read() {
        assert_eq!(name(b"6c732c").as_deref(), Some(&b"ls,"[..]));
        assert_eq!(name(b"6x"), None);
        assert_eq!((number(b"42"), number(b"-")), (42, 0));
    }

    /// A program's stack as QEMU makes it, with these variables; the variables after all is put right.
    fn restored(variables: &[&str]) -> Option<Vec<String>> {
        let texts: Vec<_> = variables.iter().map(|text| format!("{text}\0")).collect();
        let mut all: Vec<u8> = texts.concat().into_bytes();
        let mut at = all.as_mut_ptr().expose_provenance() as u64;
        let mut stack = vec![0_u64, 0];
        for text in &texts {
            stack.push(at);
            at += text.len() as u64;
        }
        stack.push(0);
        restore(stack.as_ptr().expose_provenance() as u64, variables.len())?;
        let base = all.as_ptr().addr() as u64;
        let text = |address: &u64| {
            let text = all[(address - base) as usize..].split(|byte| *byte == 0);
            String::from_utf8_lossy(text.into_iter().next().unwrap()).into_owned()
        };
        Some(stack[2..stack.len() - 1].iter().map(text).collect())
    }

    #[test]
    fn variables_come_back_in_their_order() {
        let mixed = [
            "000002=no sign",
            "000000=A=1",
            "000001=QEMU_X=y=z",
            "000003=A=2",
        ];
        let wanted = ["A=1", "QEMU_X=y=z", "no sign", "A=2"];
        assert_eq!(restored(&mixed).unwrap(), wanted);
        assert_eq!(restored(&[]).unwrap(), [""; 0]);
        for wrong in [["A=1"], ["000001=A"], ["00000g=A"], ["000000A"]] {
            assert_eq!(restored(&wrong), None);
        }
    }
}
