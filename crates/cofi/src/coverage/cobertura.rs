//! Cobertura's XML, as its DTD 04 has it.

use super::sources::{Source, Sources};
use super::{Share, Totals, outcomes};
use cofi_session::compact;
use std::io::{Result, Write};

/// Writes all source files: each is a class of the package of its folder.
pub(super) fn write(sources: &Sources, out: &mut impl Write) -> Result<()> {
    let mut all = Totals::default();
    for source in &sources.list {
        all.join(Totals::of(source));
    }
    writeln!(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
    writeln!(
        out,
        "<!DOCTYPE coverage SYSTEM \"http://cobertura.sourceforge.net/xml/coverage-04.dtd\">"
    )?;
    let (lines, branches) = (all.lines, all.outcomes);
    writeln!(
        out,
        "<coverage line-rate=\"{}\" branch-rate=\"{}\" lines-covered=\"{}\" lines-valid=\"{}\" branches-covered=\"{}\" \
         branches-valid=\"{}\" complexity=\"0\" version=\"cofi {}\" timestamp=\"0\">",
        rate(lines),
        rate(branches),
        lines.ran,
        lines.all,
        branches.ran,
        branches.all,
        env!("CARGO_PKG_VERSION")
    )?;
    writeln!(out, "<sources><source>/</source></sources>\n<packages>")?;
    let folder = |source: &Source| {
        let path = source.path.rsplit_once('/');
        path.map_or(String::new(), |(folder, _)| folder.to_owned())
    };
    let mut list: Vec<(String, &Source)> = sources
        .list
        .iter()
        .map(|source| (folder(source), source))
        .collect();
    compact::sort_by(&mut list, |a, b| (&a.0, &a.1.path).cmp(&(&b.0, &b.1.path)));
    for package in list.chunk_by(|a, b| a.0 == b.0) {
        let mut totals = Totals::default();
        for (_, source) in package {
            totals.join(Totals::of(source));
        }
        let name = package.first().map_or("", |(folder, _)| folder.as_str());
        writeln!(
            out,
            "<package name=\"{}\" line-rate=\"{}\" branch-rate=\"{}\" complexity=\"0\">\n<classes>",
            escaped(name.trim_start_matches('/')),
            rate(totals.lines),
            rate(totals.outcomes)
        )?;
        for (_, source) in package {
            write_source(source, out)?;
        }
        writeln!(out, "</classes>\n</package>")?;
    }
    writeln!(out, "</packages>\n</coverage>")
}

fn write_source(source: &Source, out: &mut impl Write) -> Result<()> {
    let totals = Totals::of(source);
    let name = source.path.rsplit('/').next().unwrap_or_default();
    writeln!(
        out,
        "<class name=\"{}\" filename=\"{}\" line-rate=\"{}\" branch-rate=\"{}\" complexity=\"0\">\n<methods>",
        escaped(name),
        escaped(source.path.trim_start_matches('/')),
        rate(totals.lines),
        rate(totals.outcomes)
    )?;
    for function in &source.functions {
        let rate = if function.calls > 0 { "1" } else { "0" };
        writeln!(
            out,
            "<method name=\"{}\" signature=\"\" line-rate=\"{rate}\" branch-rate=\"{rate}\" complexity=\"0\"><lines>\
             <line number=\"{}\" hits=\"{}\" branch=\"false\"/></lines></method>",
            escaped(&function.name),
            function.line,
            function.calls
        )?;
    }
    writeln!(out, "</methods>\n<lines>")?;
    for (number, line) in &source.lines {
        let mut share = Share::default();
        for outcome in line.branches.iter().flat_map(outcomes) {
            share.add(outcome > 0);
        }
        write!(out, "<line number=\"{number}\" hits=\"{}\"", line.count)?;
        match (share.ran * 100).checked_div(share.all) {
            Some(percent) => write!(
                out,
                " branch=\"true\" condition-coverage=\"{percent}% ({}/{})\"",
                share.ran, share.all
            )?,
            None => write!(out, " branch=\"false\"")?,
        }
        writeln!(out, "/>")?;
    }
    writeln!(out, "</lines>\n</class>")
}

fn rate(share: Share) -> String {
    match share.all {
        0 => "1".into(),
        all => format!("{:.4}", share.ran as f64 / all as f64),
    }
}

/// A text as an attribute's value.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML has no other control characters.
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn names_of_cpp() {
        let name = "std::operator<< <char>(\"a\" & b)\u{1}";
        let wanted = "std::operator&lt;&lt; &lt;char&gt;(&quot;a&quot; &amp; b) ";
        assert_eq!(escaped(name), wanted);
    }
}
