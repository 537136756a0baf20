//! The instructions, or conditional branches, that ran most often.

use super::callees::{Callees, Caller, Ran, count};
use super::{MOST, share};
use crate::Ended;
use crate::args::{TopArgs, TopOf, TopOrder};
use crate::coverage::counting::Counted;
use crate::coverage::percent;
use crate::output::{Stdout, stdout};
use crate::report::file_name;
use crate::table::{Column, fitted, width_of};
use anyhow::{Result, bail};
use cofi_analysis::{FileCode, InsnCount, SourceLines};
use cofi_insn::{MAX_INSN_LEN, decode};
use cofi_packet::Ip;
use cofi_session::compact;
use cofi_text::Line;
use cofi_text::digits::grouped;
use console::Term;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

/// An instruction that ran.
struct Row<'a> {
    code: &'a FileCode,
    count: &'a InsnCount,
    callees: Option<Callees>,
}

impl Row<'_> {
    /// With what it called.
    fn insns(&self) -> Option<u64> {
        // What of it ran within its own calls is in them.
        let of = |callees: Callees| self.count.times.saturating_sub(callees.nested) + callees.insns;
        self.callees.map(of)
    }

    fn key(&self, by: TopOrder) -> u64 {
        match by {
            TopOrder::Own | TopOrder::Calls => self.count.times,
            TopOrder::Total => self.insns().unwrap_or(0),
        }
    }

    fn place(&self) -> (&Path, u64) {
        (self.code.path(), self.count.offset)
    }
}

/// What is said of an instruction beside its counts.
struct Told {
    /// In the file's own terms.
    address: Option<u64>,
    text: String,
    target: Option<u64>,
    /// The function, and how far into it the instruction stands.
    function: Option<(String, u64)>,
    line: Option<(String, u32)>,
}

impl Told {
    fn of(row: &Row<'_>, lines: Option<&SourceLines>) -> Self {
        let (file, offset) = (row.code.file(), row.count.offset);
        let address = file.address_of_offset(offset);
        let ip = Ip(address.unwrap_or(offset));
        let mut bytes = [0; MAX_INSN_LEN];
        let len = file.read_at(offset, &mut bytes);
        let bytes = bytes.get(..len).unwrap_or_default();
        let symbol = file.symbol_at(offset).or_else(|| file.stub_at(offset));
        let line = address.and_then(|address| lines?.at(address));
        Self {
            address,
            text: cofi_insn::text(bytes, ip, row.count.mode),
            target: decode(bytes, ip, row.count.mode)
                .ok()
                .and_then(|insn| Some(insn.target?.0)),
            function: symbol.map(|symbol| (symbol.demangled(), symbol.offset)),
            line: line.map(|(file, line)| (file.to_owned(), line)),
        }
    }
}

/// Runs the command.
pub(super) fn run(args: &TopArgs) -> Result<Ended> {
    let of_branches = args.of == TopOf::Branches;
    if of_branches && args.by == TopOrder::Total {
        bail!("a conditional branch calls nothing: sort branches by self");
    }
    let Ran {
        counted, callees, ..
    } = count(args, false)?;
    let mut rows = Vec::new();
    for code in &counted.files {
        let wanted = code
            .insns()
            .iter()
            .filter(|insn| insn.times > 0 && (!of_branches || insn.is_conditional()));
        rows.extend(wanted.map(|count| Row {
            code,
            count,
            callees: callees.as_ref().map(|callees| {
                let caller = Caller::Insn(code.key().clone(), count.offset);
                callees.get(&caller).copied().unwrap_or_default()
            }),
        }));
    }
    compact::sort_by(&mut rows, |a, b| {
        let keys = b.key(args.by).cmp(&a.key(args.by));
        keys.then_with(|| a.place().cmp(&b.place()))
    });
    let mut out = stdout();
    let all = rows.len();
    let shown = args.number.unwrap_or(match args.json {
        true => usize::MAX,
        false => MOST,
    });
    rows.truncate(shown);
    let lines = Lines::of(&rows);
    if args.json {
        for row in &rows {
            json(row, &lines.tell(row), of_branches, &mut out)?;
        }
    } else {
        let told: Vec<Told> = rows.iter().map(|row| lines.tell(row)).collect();
        match of_branches {
            true => branches(&rows, &told, &mut out)?,
            false => instructions(&rows, &told, &counted, &mut out)?,
        }
        let what = match of_branches {
            true => ["branch", "branches"],
            false => ["instruction", "instructions"],
        };
        super::more(all, rows.len(), what, &mut out)?;
    }
    out.flush()?;
    Ok(match counted.has_errors {
        true => Ended::WithErrors,
        false => Ended::Well,
    })
}

/// The lines of what is shown of each file.
struct Lines<'a>(HashMap<&'a Path, Option<SourceLines>>);

impl<'a> Lines<'a> {
    fn of(rows: &[Row<'a>]) -> Self {
        let mut files: HashMap<&Path, (&FileCode, Vec<u64>)> = HashMap::new();
        for row in rows {
            let file = files.entry(row.code.path());
            let (code, addresses) = file.or_insert_with(|| (row.code, Vec::new()));
            addresses.extend(code.file().address_of_offset(row.count.offset));
        }
        let read = |(path, (code, mut addresses)): (&'a Path, (&FileCode, Vec<u64>))| {
            addresses.sort_unstable();
            (path, SourceLines::of_code(code.file(), &addresses))
        };
        Self(files.into_iter().map(read).collect())
    }

    fn tell(&self, row: &Row<'a>) -> Told {
        let lines = self.0.get(row.code.path());
        Told::of(row, lines.and_then(Option::as_ref))
    }
}

fn json(row: &Row<'_>, told: &Told, of_branches: bool, out: &mut Stdout) -> Result<()> {
    let mut line = Line::default();
    line.begin();
    match &told.function {
        Some((name, offset)) => line
            .text("function", name)
            .number("function_offset", *offset),
        None => line.null("function"),
    };
    line.text("file", &row.code.path().to_string_lossy())
        .hex_or_null("address", told.address)
        .text("disasm", &told.text)
        .number("count", row.count.times);
    if let (Some(callees), Some(insns)) = (row.callees, row.insns()) {
        line.number("callee_insns", callees.insns)
            .number("insns", insns);
    }
    if of_branches {
        line.hex_or_null("target", told.target)
            .number("taken", row.count.taken)
            .number("not_taken", row.count.not_taken())
            .number("unknown", row.count.unknown);
        match known(row.count) {
            0 => line.null("taken_rate"),
            known => line.real("taken_rate", row.count.taken as f64 / known as f64),
        };
    }
    if let Some((source, number)) = &told.line {
        line.text("source", source).number("line", *number);
    }
    out.write_all(line.end())?;
    Ok(())
}

/// How often it is known where a branch went.
const fn known(count: &InsnCount) -> u64 {
    count.taken + count.not_taken()
}

fn function_of(row: &Row<'_>, told: &Told) -> String {
    match &told.function {
        Some((name, 0)) => name.clone(),
        Some((name, offset)) => format!("{name}+{offset:#x}"),
        None => file_name(row.code.path()),
    }
}

fn line_of(told: &Told) -> String {
    let line = told.line.as_ref();
    let text = line.map(|(file, line)| format!("{}:{line}", file_name(Path::new(file))));
    text.unwrap_or_default()
}

fn instructions(
    rows: &[Row<'_>],
    told: &[Told],
    counted: &Counted,
    out: &mut Stdout,
) -> Result<()> {
    let has_callees = rows.iter().any(|row| row.callees.is_some());
    let mut columns = vec![Column::number("times"), Column::number("share")];
    if has_callees {
        columns.push(Column::number("with callees"));
    }
    columns.extend([
        Column::name("instruction"),
        Column::name("function"),
        Column::name("line"),
    ]);
    let all = counted.instructions();
    let shown = rows.iter().zip(told).map(|(row, told)| {
        let mut cells = vec![grouped(row.count.times), share(row.count.times, all)];
        if has_callees {
            cells.push(row.insns().map(grouped).unwrap_or_default());
        }
        cells.extend([told.text.clone(), function_of(row, told), line_of(told)]);
        cells
    });
    print(&columns, shown.collect(), out)
}

fn branches(rows: &[Row<'_>], told: &[Told], out: &mut Stdout) -> Result<()> {
    let columns = [
        Column::number("times"),
        Column::number("taken"),
        Column::number("%"),
        Column::words("instruction"),
        Column::name("function"),
        Column::name("line"),
    ];
    let shown = rows.iter().zip(told).map(|(row, told)| {
        vec![
            grouped(row.count.times),
            grouped(row.count.taken),
            percent(row.count.taken, known(row.count)),
            told.text.clone(),
            function_of(row, told),
            line_of(told),
        ]
    });
    print(&columns, shown.collect(), out)
}

fn print(columns: &[Column], rows: Vec<Vec<String>>, out: &mut Stdout) -> Result<()> {
    let width = width_of(&Term::stdout());
    writeln!(out, "{}", fitted(columns, &rows, width))?;
    Ok(())
}
