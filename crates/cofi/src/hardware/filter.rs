//! `--filter`: address filters, written as for perf, in the kernel's form: functions become offsets in their files.

use anyhow::{Context, Result, bail, ensure};
use cofi_image::{FileStore, Kallsyms};
use cofi_session::compact;
use std::fmt::Write;
use std::ops::Range;
use std::path::Path;

/// What is done with a range of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    /// Only it is traced (with the others of this kind).
    Filter,
    /// Tracing stops for good where it is entered.
    Stop,
}

/// A filter as it was written.
#[derive(PartialEq, Eq, Debug)]
struct Filter<'t> {
    action: Action,
    start: Place<'t>,
    /// How long it is; if not said, as long as the function.
    end: Option<Place<'t>>,
    /// In which file; if not said, in the kernel.
    file: Option<&'t str>,
}

/// An address, or what has one.
#[derive(PartialEq, Eq, Debug)]
enum Place<'t> {
    Number(u64),
    /// A function; of several of this name the one with this number, counted from 1 by their addresses.
    Function(&'t str, Option<usize>),
    /// All of a file.
    All,
}

/// Reads the text, and looks the functions up.
pub(super) fn resolve(text: &str) -> Result<String> {
    let mut resolved = String::new();
    for filter in parse(text).with_context(|| format!("--filter {text:?}"))? {
        let range = filter.range()?;
        let action = match filter.action {
            Action::Filter => "filter",
            Action::Stop => "stop",
        };
        let (start, len) = (range.start, range.end - range.start);
        let gap = if resolved.is_empty() { "" } else { "," };
        write!(resolved, "{gap}{action} {start:#x}/{len:#x}")?;
        if let Some(file) = filter.file {
            write!(resolved, "@{}", absolute(file)?)?;
        }
    }
    Ok(resolved)
}

/// A path as the kernel, which reads words, takes it.
fn absolute(file: &str) -> Result<String> {
    let path = Path::new(file)
        .canonicalize()
        .with_context(|| format!("--filter: {file}"))?;
    let path = path.to_string_lossy().into_owned();
    ensure!(
        !path.contains([' ', ',', '\n', '@']),
        "--filter: the kernel takes no path with a space or a comma in it: {path}"
    );
    Ok(path)
}

fn parse(text: &str) -> Result<Vec<Filter<'_>>> {
    let mut rest = Rest(text);
    let mut filters = Vec::new();
    while let Some(word) = rest.word(is_gap) {
        let action = match word {
            "filter" => Action::Filter,
            "stop" | "tracestop" => Action::Stop,
            "start" => {
                bail!("Intel PT has no start: it traces a range (filter), or up to one (tracestop)")
            }
            word => bail!("{word:?} is none of filter and tracestop"),
        };
        let start = rest
            .place()
            .context("a function or an address is missing")?;
        let end = match rest.mark('/') {
            true => Some(rest.place().context("behind / the length is missing")?),
            false => None,
        };
        let file = match rest.mark('@') {
            true => Some(rest.word(is_gap).context("behind @ the file is missing")?),
            false => None,
        };
        filters.push(Filter {
            action,
            start,
            end,
            file,
        });
    }
    ensure!(!filters.is_empty(), "it is empty");
    Ok(filters)
}

fn is_gap(character: char) -> bool {
    character.is_whitespace() || character == ','
}

/// What has not been read yet.
struct Rest<'t>(&'t str);

impl<'t> Rest<'t> {
    /// The next word, which such a character ends.
    fn word(&mut self, ends: impl Fn(char) -> bool) -> Option<&'t str> {
        let text = self.0.trim_start_matches(is_gap);
        let (word, rest) = text.split_at(text.find(ends).unwrap_or(text.len()));
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }

    /// Whether this comes next: it is passed then.
    fn mark(&mut self, mark: char) -> bool {
        let rest = self.0.trim_start().strip_prefix(mark);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn place(&mut self) -> Option<Place<'t>> {
        let word = self.word(|end| is_gap(end) || matches!(end, '/' | '@' | '#'))?;
        if word == "*" {
            return Some(Place::All);
        }
        let number = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => word.parse().ok(),
        };
        if let Some(number) = number {
            return Some(Place::Number(number));
        }
        let which = match self.mark('#') {
            true => Some(self.word(|end| !end.is_ascii_digit())?.parse().ok()?),
            false => None,
        };
        Some(Place::Function(word, which))
    }
}

impl Filter<'_> {
    /// The addresses: in a file, offsets.
    fn range(&self) -> Result<Range<u64>> {
        let functions = Functions { file: self.file };
        let start = match &self.start {
            Place::Number(start) => *start..*start,
            Place::Function(name, which) => functions.find(name, *which)?,
            Place::All => functions.all()?,
        };
        let end = match &self.end {
            None => start.end,
            Some(Place::Number(len)) => start.start.saturating_add(*len),
            Some(Place::Function(name, which)) => functions.find(name, *which)?.end,
            Some(Place::All) => functions.all()?.end,
        };
        ensure!(
            end > start.start,
            "--filter: a range has a length: {:#x}/LENGTH, or the name of a function",
            start.start
        );
        Ok(start.start..end)
    }
}

/// The functions of a file, or of the kernel.
struct Functions<'t> {
    file: Option<&'t str>,
}

impl Functions<'_> {
    fn find(&self, name: &str, which: Option<usize>) -> Result<Range<u64>> {
        let place = self.file.unwrap_or("the kernel");
        let mut found = match self.file {
            Some(file) => in_file(file, name)?,
            None => in_kernel(name)?,
        };
        compact::sort_by_key(&mut found, |range| (range.start, range.end));
        found.dedup();
        match (which, found.as_slice()) {
            (_, []) => bail!("--filter: {place} has no function {name}"),
            (None, [range]) => Ok(range.clone()),
            (None, several) => {
                let mut list = String::new();
                for (number, range) in several.iter().enumerate() {
                    write!(list, " {name}#{} at {:#x}", number + 1, range.start)?;
                }
                bail!("--filter: {place} has several functions {name}:{list}")
            }
            (Some(number), several) => number
                .checked_sub(1)
                .and_then(|index| several.get(index))
                .cloned()
                .with_context(|| {
                    format!("--filter: {place} has {} functions {name}", several.len())
                }),
        }
    }

    fn all(&self) -> Result<Range<u64>> {
        let Some(file) = self.file else {
            bail!(
                "--filter: * is for a file; --privilege os traces all of the kernel, and nothing else"
            );
        };
        let len = std::fs::metadata(file)
            .with_context(|| format!("--filter: {file}"))?
            .len();
        Ok(0..len)
    }
}

/// The functions of this name, by offsets in the file.
fn in_file(path: &str, name: &str) -> Result<Vec<Range<u64>>> {
    let file = FileStore::new().named(Path::new(path));
    file.load()
        .map_err(|error| anyhow::anyhow!("--filter: {error}"))?;
    let mut found = Vec::new();
    file.for_each_function_range(|function, range| {
        if function == name {
            found.push(range);
        }
    });
    // A function may have several names, of which one is listed.
    let mut known = None;
    if found.is_empty() {
        file.for_each_other_name(|other, listed, start| {
            if other == name {
                known = Some((listed.to_owned(), start));
            }
        });
    }
    if let Some((listed, start)) = known {
        file.for_each_function_range(|function, range| {
            if function == listed && range.start == start {
                found.push(range);
            }
        });
    }
    Ok(found)
}

/// The functions of the kernel of this name, by address.
fn in_kernel(name: &str) -> Result<Vec<Range<u64>>> {
    const LIST: &str = "/proc/kallsyms";
    let text = std::fs::read(LIST).with_context(|| format!("--filter: {LIST}"))?;
    let list = Kallsyms::parse(&text).with_context(|| format!("--filter: {LIST}"))?;
    let mut starts = Vec::new();
    let mut found = Vec::new();
    list.for_each_function(|function, start| {
        starts.push(start);
        if function == name {
            found.push(start);
        }
    });
    starts.sort_unstable();
    let end = |start: u64| {
        let next = starts.partition_point(|other| *other <= start);
        starts.get(next).copied().unwrap_or(start | 0xfff)
    };
    Ok(found.into_iter().map(|start| start..end(start)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read_as_perf_reads_them() {
        let file = Some("/bin/x");
        let function = |name| Place::Function(name, None);
        assert_eq!(
            parse("filter main @ /bin/x,tracestop exit_group / 0x20 filter f#2/g@/bin/x").unwrap(),
            [
                Filter {
                    action: Action::Filter,
                    start: function("main"),
                    end: None,
                    file,
                },
                Filter {
                    action: Action::Stop,
                    start: function("exit_group"),
                    end: Some(Place::Number(0x20)),
                    file: None,
                },
                Filter {
                    action: Action::Filter,
                    start: Place::Function("f", Some(2)),
                    end: Some(function("g")),
                    file,
                },
            ]
        );
        let all = parse("filter * @/bin/x").unwrap();
        assert_eq!((&all[0].start, all[0].file), (&Place::All, file));
        for bad in [
            "",
            "main",
            "start main",
            "filter",
            "filter main @",
            "filter f /",
            "filter f#x",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn functions_become_offsets() {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("p.c"), folder.path().join("p"));
        let text = "int first(int n) { return n + 1; }\nint second(int n) { return n * 3; }\n\
                    int main(int n, char **w) { return first(n) + second(n); }\n";
        std::fs::write(&source, text).unwrap();
        if !cofi_test::compile(&source, &program, &["-O0"]) {
            return;
        }
        let path = program.canonicalize().unwrap();
        let range = |filter: &str| {
            let resolved = resolve(&format!("{filter} @ {}", program.display())).unwrap();
            let (action, rest) = resolved.split_once(' ').unwrap();
            let (numbers, file) = rest.split_once('@').unwrap();
            assert_eq!(Path::new(file), path);
            let (start, len) = numbers.split_once('/').unwrap();
            let hex = |word: &str| u64::from_str_radix(&word[2..], 16).unwrap();
            (action.to_owned(), hex(start), hex(len))
        };
        let file = FileStore::new().named(&program);
        let (action, start, len) = range("tracestop second");
        assert_eq!(action, "stop");
        for (at, offset) in [(start, 0), (start + len - 1, len - 1)] {
            let symbol = file.symbol_at(at).unwrap();
            assert_eq!((symbol.name, symbol.offset), ("second", offset));
        }
        // From the one to the end of the other.
        let both = range("filter first / second");
        let first = range("filter first#1");
        assert_eq!(both, ("filter".into(), first.1, start + len - first.1));
        assert_eq!(range("filter first / 2"), ("filter".into(), first.1, 2));
        let size = std::fs::metadata(&program).unwrap().len();
        assert_eq!(range("filter *"), ("filter".into(), 0, size));
        for (bad, words) in [
            ("third", "has no function third"),
            ("first#2", "has 1 functions first"),
        ] {
            let error = resolve(&format!("filter {bad} @ {}", program.display())).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn what_is_no_range_is_refused() {
        let error = resolve("filter 0x10").unwrap_err().to_string();
        assert!(error.contains("a range has a length"), "{error}");
        assert_eq!(resolve("filter 0x10/0x20").unwrap(), "filter 0x10/0x20");
        let error = resolve("filter main @ /no/such").unwrap_err();
        assert!(format!("{error:#}").contains("/no/such"), "{error:#}");
        assert!(resolve("filter * ").is_err());
    }
}
