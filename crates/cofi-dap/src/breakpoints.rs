//! Where an editor wants to stop.

use cofi_index::{Explorer, Target};
use cofi_packet::Ip;

/// What breakpoints there are, each with the number that the editor knows it by.
#[derive(Clone, Debug, Default)]
pub(crate) struct Breakpoints {
    /// By source, as the editor names it.
    lines: Vec<(String, u64, Target)>,
    functions: Vec<(u64, Target)>,
    instructions: Vec<(u64, Target)>,
    /// Gaps are places to stop at, too.
    pub(crate) at_gaps: bool,
    next: u64,
}

/// A breakpoint as it was set: its number and its line, or why it is none.
pub(crate) type Set = Result<(u64, Option<u32>), String>;

impl Breakpoints {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Sets those of a source file, in the place of all that it had.
    pub(crate) fn set_lines(
        &mut self,
        explorer: &mut Explorer<'_>,
        path: &str,
        lines: &[u32],
    ) -> Vec<Set> {
        self.lines.retain(|(of, ..)| of != path);
        let mut set = Vec::new();
        for line in lines {
            // Code was made of few lines: the next one of which there is some is meant.
            set.push(match explorer.line_at_or_behind(path, *line) {
                None => Err("no code of the recording was made of this line".to_owned()),
                Some((file, line)) => {
                    let number = self.number();
                    let target = Target::Line { file, line };
                    self.lines.push((path.to_owned(), number, target));
                    Ok((number, Some(line)))
                }
            });
        }
        set
    }

    /// Sets those on functions, in the place of all that there were.
    pub(crate) fn set_functions(
        &mut self,
        explorer: &mut Explorer<'_>,
        names: &[String],
    ) -> Vec<Set> {
        self.functions.clear();
        let mut set = Vec::new();
        for name in names {
            let functions = explorer.index().functions().iter().zip(0_u32..);
            let exact = functions
                .clone()
                .filter(|(function, _)| function.name == *name);
            let found = exact.map(|(_, number)| number).next();
            set.push(match found {
                None => Err(format!("no function {name} ran")),
                Some(function) => {
                    let number = self.number();
                    self.functions.push((number, Target::Function(function)));
                    Ok((number, None))
                }
            });
        }
        set
    }

    /// Sets those on instructions, in the place of all that there were.
    pub(crate) fn set_instructions(&mut self, addresses: &[Option<u64>]) -> Vec<Set> {
        self.instructions.clear();
        let mut set = Vec::new();
        for address in addresses {
            set.push(match address {
                None => Err("not an address".to_owned()),
                Some(address) => {
                    let number = self.number();
                    self.instructions.push((number, Target::Ip(Ip(*address))));
                    Ok((number, None))
                }
            });
        }
        set
    }

    /// All of them, with why one would stop there.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, &Target, &'static str)> {
        let lines = self.lines.iter();
        let lines = lines.map(|(_, number, target)| (*number, target, "breakpoint"));
        let functions = self.functions.iter();
        let functions = functions.map(|(number, target)| (*number, target, "function breakpoint"));
        let instructions = self.instructions.iter();
        let instructions =
            instructions.map(|(number, target)| (*number, target, "instruction breakpoint"));
        let gaps = self.at_gaps.then_some((0, &Target::Gap, "exception"));
        lines.chain(functions).chain(instructions).chain(gaps)
    }
}
