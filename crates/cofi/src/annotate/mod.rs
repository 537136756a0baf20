//! `cofi annotate`: the source and the instructions of a function side by side, with how often each ran.

mod text;

use crate::Ended;
use crate::args::AnnotateArgs;
use crate::coverage::counting::Counted;
use crate::function_names::{is_named, of_stub};
use crate::output::{is_coloured, stdout, tell};
use crate::source_text::SourceText;
use crate::table::width_of;
use anyhow::{Result, bail};
use cofi_analysis::{FileCode, FunctionCover, InsnCount, SourceCover, SourceLines};
use cofi_insn::{Class, MAX_INSN_LEN, decode};
use cofi_packet::{ExecMode, Ip};
use cofi_session::compact;
use cofi_text::Line;
use console::Term;
use std::collections::HashMap;
use std::io::Write;
use std::rc::Rc;

/// How many functions of a name like the one that is looked for are named.
const NEAR: usize = 5;

/// Runs the command.
pub(crate) fn run(args: &AnnotateArgs) -> Result<Ended> {
    let counted = Counted::of(&args.counting, None)?;
    let wanted = &args.function;
    let mut out = stdout();
    let mut near: Vec<String> = Vec::new();
    let mut shown = 0;
    let mut texts = SourceText::default();
    for code in &counted.files {
        // Where functions begin that have the name, though another one is shown.
        let mut others: Vec<u64> = Vec::new();
        code.file().for_each_other_name(|other, _, offset| {
            if is_named(&cofi_image::demangle(other), wanted) {
                others.push(offset);
            }
        });
        let mut starts = others.clone();
        code.file().for_each_function(|name, offset| {
            let name = cofi_image::demangle(name);
            if is_named(&name, wanted) {
                starts.push(offset);
            }
            if name.contains(wanted.as_str()) && !near.contains(&name) {
                near.push(name);
            }
        });
        if starts.is_empty() {
            continue;
        }
        let cover = cover_of(code, &starts);
        let functions = cover.functions.iter();
        let functions = functions.filter(|function| {
            is_named(&function.name, wanted) || others.contains(&function.start)
        });
        let mut functions: Vec<&FunctionCover> = functions.collect();
        // A linker puts the cold parts of functions before them.
        compact::sort_by_key(&mut functions, |function| function.name.contains(".cold"));
        for function in functions {
            let listing = Listing::of(code, &cover, function);
            if args.json {
                json(&listing, &mut out)?;
            } else {
                if shown > 0 {
                    writeln!(out)?;
                }
                let style = text::Style {
                    is_coloured: is_coloured(args.color),
                    width: width_of(&Term::stdout()),
                };
                text::print(
                    &listing,
                    counted.instructions(),
                    &mut texts,
                    style,
                    &mut out,
                )?;
            }
            shown += 1;
        }
    }
    out.flush()?;
    if shown == 0 {
        if let Some(function) = of_stub(wanted) {
            bail!(
                "{wanted} is a stub, of which `cofi top --of instructions` lists what ran; it leads to {function}"
            );
        }
        compact::sort_by_key(&mut near, String::len);
        near.truncate(NEAR);
        match near.is_empty() {
            true => bail!(
                "no file whose code ran has a function {wanted} (where it was inlined, its lines are in its callers)"
            ),
            false => bail!(
                "no file whose code ran has a function {wanted}; near to it: {}",
                near.join(", ")
            ),
        }
    }
    if counted.gaps() > 0 {
        let gaps = cofi_text::digits::counted(counted.gaps(), "gap");
        tell(format_args!("{gaps}: what ran there is not counted"));
    }
    Ok(match counted.has_errors {
        true => Ended::WithErrors,
        false => Ended::Well,
    })
}

/// An instruction of a function.
struct Row {
    /// Where it stands, in the file's own terms.
    address: u64,
    text: String,
    count: InsnCount,
    /// File and line of the source.
    line: Option<(Rc<str>, u32)>,
    /// Where a direct branch goes.
    target: Option<u64>,
    /// What stands there, if that is not in the function.
    to: Option<String>,
}

/// A function and its instructions.
struct Listing<'a> {
    code: &'a FileCode,
    cover: &'a SourceCover,
    function: &'a FunctionCover,
    rows: Vec<Row>,
}

impl<'a> Listing<'a> {
    fn of(code: &'a FileCode, cover: &'a SourceCover, function: &'a FunctionCover) -> Self {
        let mut listing = Self {
            code,
            cover,
            function,
            rows: Vec::new(),
        };
        let ran = code.between(function.start, function.end);
        // What runs in one function runs in one mode; in a function that never ran, it is that of the file.
        let mode = ran.first().or(code.insns().first());
        let mode = mode.map_or(ExecMode::Bits64, |insn| insn.mode);
        let mut names: HashMap<u32, Rc<str>> = HashMap::new();
        let mut offset = function.start;
        let mut next = ran.iter().copied().peekable();
        while offset < function.end {
            // Where what ran does not begin with what stands before it, both are listed.
            let known = next.next_if(|insn| insn.offset <= offset);
            let Some(row) = listing.row(offset, known, mode, &mut names) else {
                break;
            };
            let after = row.count.end();
            listing.rows.push(row);
            offset = match next.peek() {
                Some(insn) if insn.offset < after => insn.offset,
                _ => after,
            };
        }
        // Behind a function there may be padding up to the next: without a line, or with that of the last instruction.
        while let [.., before, last] = listing.rows.as_slice()
            && last.count.times == 0
            && (last.line.is_none() || last.line == before.line)
            && (last.text.starts_with("nop") || last.text == "int3")
        {
            listing.rows.pop();
        }
        listing
    }

    fn row(
        &self,
        offset: u64,
        known: Option<InsnCount>,
        mode: ExecMode,
        names: &mut HashMap<u32, Rc<str>>,
    ) -> Option<Row> {
        let file = self.code.file();
        let address = file.address_of_offset(offset)?;
        let mut bytes = [0; MAX_INSN_LEN];
        let len = file.read_at(offset, &mut bytes);
        let bytes = bytes.get(..len)?;
        let decoded = decode(bytes, Ip(address), mode).ok()?;
        let count =
            known.unwrap_or_else(|| InsnCount::never(offset, decoded.len, mode, decoded.class));
        let line = self.cover.line_at(address).and_then(|(file, line)| {
            let name = self.cover.files.get(file as usize)?;
            let name = names.entry(file).or_insert_with(|| name.as_str().into());
            Some((name.clone(), line))
        });
        let target = decoded.target.map(|target| target.0);
        let inside = |target: u64| {
            let offset = file.offset_of_address(target);
            offset.is_some_and(|at| (self.function.start..self.function.end).contains(&at))
        };
        let to = target.filter(|target| !inside(*target) || decoded.class == Class::DirectCall);
        let to = to.and_then(|target| {
            let offset = file.offset_of_address(target)?;
            let symbol = file.symbol_at(offset).or_else(|| file.stub_at(offset))?;
            let name = symbol.demangled();
            Some(match symbol.offset {
                0 => name,
                offset => format!("{name}+{offset:#x}"),
            })
        });
        Some(Row {
            address,
            text: cofi_insn::text(bytes, Ip(address), mode),
            count,
            line,
            target,
            to,
        })
    }
}

/// What of a file ran, with all lines of the functions that begin at these offsets: of a large program that is much less to read than all lines.
fn cover_of(code: &FileCode, starts: &[u64]) -> SourceCover {
    /// Of larger functions all is read.
    const MOST: u64 = 1 << 18;
    let file = code.file();
    // How often a line ran is counted wherever it stands.
    let mut addresses = code.addresses();
    let mut size: u64 = 0;
    file.for_each_function_range(|_, range| {
        if starts.contains(&range.start) {
            size = size.saturating_add(range.end.saturating_sub(range.start));
            if size <= MOST {
                addresses.extend(range.filter_map(|offset| file.address_of_offset(offset)));
            }
        }
    });
    if size > MOST {
        return SourceCover::of(code);
    }
    addresses.sort_unstable();
    match SourceLines::of_code_and_functions(file, &addresses) {
        Some(lines) => SourceCover::of_ran_and_functions(code, lines),
        None => SourceCover::of(code),
    }
}

/// Prints a function as JSON Lines.
fn json(listing: &Listing<'_>, out: &mut impl Write) -> Result<()> {
    let Listing {
        code,
        cover,
        function,
        rows,
    } = listing;
    let mut line = Line::default();
    line.begin()
        .text("function", &function.name)
        .text("file", &code.path().to_string_lossy())
        .number("calls", function.calls)
        .number("insns", function.insns);
    if let Some((file, number)) = function.declared
        && let Some(file) = cover.files.get(file as usize)
    {
        line.text("source", file).number("line", number);
    }
    out.write_all(line.end())?;
    for row in rows {
        line.begin()
            .hex("address", row.address)
            .text("disasm", &row.text)
            .number("count", row.count.times);
        if row.count.is_conditional() {
            line.number("taken", row.count.taken)
                .number("not_taken", row.count.not_taken())
                .number("unknown", row.count.unknown);
        }
        if let Some(target) = row.target {
            line.hex("target", target);
        }
        if let Some((file, number)) = &row.line {
            line.text("source", file).number("line", *number);
        }
        out.write_all(line.end())?;
    }
    Ok(())
}
