//! QEMU's own execution log (`-d in_asm,exec,nochain,int`), compared with a list of addresses.
//!
//! A line `Trace` says that a translated block was entered; what is in it, a part `IN:` has said when it was translated. Lines of
//! interrupts stand between. So each block must have run as a whole, unless something of that kind follows.

use std::collections::HashMap;
use std::io::BufRead;

use anyhow::{Context, Result, bail, ensure};

/// What was compared.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Agreed {
    /// Blocks that QEMU entered.
    pub(super) blocks: u64,
    /// Instructions of the list.
    pub(super) instructions: u64,
    /// Interrupts and exceptions that QEMU tells of.
    pub(super) interrupts: u64,
    /// Blocks that control left before their end.
    pub(super) partial: u64,
}

/// A translated block: the distances of its instructions from the first, and whether the last one is repeated by itself.
#[derive(Clone, Debug, Default)]
struct Block {
    at: Vec<u64>,
    repeats: bool,
    /// It ends with INT, which is an event and no entry of the list.
    interrupts: bool,
    /// It ends with a near branch, which may lead back into it.
    branches: bool,
}

/// A block that was entered.
struct Entered {
    start: u64,
    block: Block,
    /// Interrupts since.
    interrupts: u64,
    /// QEMU has left it before the instruction at this address, to begin there anew.
    rewound: Option<u64>,
}

fn hex(text: &str) -> Result<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
        .with_context(|| format!("{text:?} is no hexadecimal number"))
}

/// The place and the address of a line such as `Trace 0: 0x7f17 [base/pc/flags/cflags] name`.
fn trace(line: &str) -> Result<Option<(u64, u64)>> {
    let Some(rest) = line.strip_prefix("Trace 0: ") else {
        return Ok(None);
    };
    let (place, rest) = rest.split_once(" [").context("no state in a Trace line")?;
    let pc = rest
        .split('/')
        .nth(1)
        .context("no address in a Trace line")?;
    Ok(Some((hex(place)?, hex(pc)?)))
}

/// Reads `log` and compares each block with what comes next in `list`. The last block may be missing there.
pub(super) fn compare(
    log: impl BufRead,
    list: impl Iterator<Item = Result<u64>>,
) -> Result<Agreed> {
    let mut list = list.peekable();
    let mut agreed = Agreed::default();
    let mut known: HashMap<u64, Block> = HashMap::new();
    let mut fresh: Option<Block> = None;
    let mut first = 0;
    let mut entered: Option<Entered> = None;
    // The block before that one, and what may have interrupted it, until the next is known to have begun.
    let mut before: Option<Entered> = None;
    for line in log.lines() {
        let line = line.context("reading QEMU's log")?;
        if line.starts_with("IN:") {
            fresh = Some(Block::default());
        } else if let (Some(block), true) = (&mut fresh, line.starts_with("0x")) {
            let (address, rest) = line.split_once(':').context("no address in a listing")?;
            let address = hex(address)?;
            // Bytes, then words: "f3 a4   rep movsb …". Long instructions have their last bytes on a line of their own.
            let mut words = rest.split_whitespace();
            let Some(mnemonic) = words.find(|word| word.len() > 2 || hex(word).is_err()) else {
                continue;
            };
            if block.at.is_empty() {
                first = address;
            }
            block.at.push(address.wrapping_sub(first));
            block.repeats = mnemonic.starts_with("rep");
            block.branches = ["j", "loop", "call", "ret"]
                .iter()
                .any(|begin| mnemonic.starts_with(begin));
            block.interrupts = mnemonic.starts_with("int");
        } else if let Some((place, start)) = trace(&line)? {
            if let Some(block) = fresh.take() {
                known.insert(place, block);
            }
            let block = known
                .get(&place)
                .with_context(|| format!("the block at {place:#x} was never listed"))?
                .clone();
            if let (Some(block), Some(next)) = (before.take(), &entered) {
                consume(&block, next.start, &mut list, &mut agreed)?;
            }
            before = entered.take();
            agreed.blocks += 1;
            entered = Some(Entered {
                start,
                block,
                interrupts: 0,
                rewound: None,
            });
        } else if line.starts_with("Stopped execution of TB chain before") {
            // The block of the last line did not begin.
            agreed.blocks -= 1;
            entered = before.take();
        } else if let Some(address) =
            line.strip_prefix("cpu_io_recompile: rewound execution of TB to ")
        {
            if let Some(entered) = &mut entered {
                entered.rewound = Some(hex(address.trim())?);
            }
        } else if line.trim_start().contains(": v=")
            || line.starts_with("Servicing hardware INT")
            || line.starts_with("SMM: enter")
        {
            agreed.interrupts += u64::from(!line.starts_with("Servicing"));
            if let Some(entered) = &mut entered {
                entered.interrupts += 1;
            }
        }
    }
    if let (Some(block), Some(next)) = (before, &entered) {
        consume(&block, next.start, &mut list, &mut agreed)?;
    }
    // Of the last block, as much as the list has: the machine ends in it.
    if let Some(last) = entered {
        for at in last.block.at {
            if list.peek().is_none() {
                break;
            }
            take(&mut list, last.start.wrapping_add(at), &mut agreed)?;
        }
    }
    if let Some(more) = list.next() {
        bail!(
            "the list goes on with {:#x} when QEMU's log has ended",
            more?
        );
    }
    ensure!(agreed.blocks > 0, "QEMU's log tells of no block");
    Ok(agreed)
}

type List<I> = std::iter::Peekable<I>;

fn take(
    list: &mut List<impl Iterator<Item = Result<u64>>>,
    expected: u64,
    agreed: &mut Agreed,
) -> Result<()> {
    let found = list.next().transpose()?;
    let number = agreed.instructions;
    ensure!(
        found == Some(expected),
        "entry {number}, QEMU's block {}: QEMU ran {expected:#x}, the list has {found:x?}",
        agreed.blocks
    );
    agreed.instructions += 1;
    Ok(())
}

/// Takes from the list what ran of a block after which the one at `next` was entered.
fn consume(
    entered: &Entered,
    next: u64,
    list: &mut List<impl Iterator<Item = Result<u64>>>,
    agreed: &mut Agreed,
) -> Result<()> {
    let Entered {
        start,
        block,
        interrupts,
        rewound,
    } = entered;
    let count = block.at.len();
    for (i, at) in block.at.iter().enumerate() {
        let address = start.wrapping_add(*at);
        let is_last = i + 1 == count;
        if *rewound == Some(address) {
            agreed.partial += 1;
            return Ok(());
        }
        // The next round of a repeated instruction, which is an entry only once; or QEMU began here anew.
        let is_anew = if is_last {
            block.repeats
        } else {
            !block.branches
        };
        if next == address && is_anew && *interrupts == 0 {
            agreed.partial += u64::from(!is_last);
            return Ok(());
        }
        if is_last && block.interrupts {
            // In real mode QEMU does not tell of it.
            return Ok(());
        }
        let is_there = matches!(list.peek(), Some(Ok(found)) if *found == address);
        if !is_there && *interrupts > 0 {
            // It was interrupted here; what the list has is the handler's.
            agreed.partial += 1;
            return Ok(());
        }
        take(list, address, agreed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Agreed, compare};

    const LOG: &str = "\
----------------
IN: 
0x00001000:  90                       nop
0x00001001:  75 fd                    jne      0x1000

Trace 0: 0x7f00 [00000000/0000000000001000/000000b0/ff000200] 
Trace 0: 0x7f00 [00000000/0000000000001000/000000b0/ff000200] 
     0: v=20 e=0000 i=0 cpl=0 IP=0008:00001001 pc=00001001
----------------
IN: 
0x00002000:  f3 a4                    rep movsb %ds:(%esi), %es:(%edi)

Trace 0: 0x7f80 [00000000/0000000000002000/000000b0/ff000200] 
Trace 0: 0x7f80 [00000000/0000000000002000/000000b0/ff000200] 
----------------
IN: 
0x00002002:  cd 30                    int      $0x30

Trace 0: 0x7fc0 [00000000/0000000000002002/000000b0/ff000200] 
     1: v=30 e=0000 i=1 cpl=0 IP=0008:00002002 pc=00002002
----------------
IN: 
0x00003000:  f4                       hlt

Trace 0: 0x7fd0 [00000000/0000000000003000/000000b0/ff000200] 
";

    fn judge(list: &[u64]) -> anyhow::Result<Agreed> {
        compare(LOG.as_bytes(), list.iter().map(|address| Ok(*address)))
    }

    #[test]
    fn what_ran_agrees() {
        let agreed = judge(&[0x1000, 0x1001, 0x1000, 0x2000, 0x3000]).expect("agrees");
        let expected = Agreed {
            blocks: 6,
            instructions: 5,
            interrupts: 2,
            partial: 1,
        };
        assert_eq!(agreed, expected);
    }

    #[test]
    fn what_did_not_run_does_not() {
        for (list, why) in [
            (&[0x1000, 0x1000, 0x2000, 0x3000][..], "0x1001"),
            (&[0x1000, 0x1001, 0x1000, 0x2000, 0x2000, 0x3000], "0x3000"),
            (&[0x1000, 0x1001, 0x1000, 0x2000, 0x2002, 0x3000], "0x3000"),
            (&[0x1000, 0x1001, 0x1000, 0x2000, 0x3000, 0x3001], "0x3001"),
            (&[0x1000, 0x1001], "0x2000"),
        ] {
            let error = judge(list).expect_err("a difference").to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
