//! `cofi dump`: the packets of a trace, in order.

mod stats;

use crate::args::{DumpArgs, Format as FileFormat};
use crate::output::{Stdout, is_coloured, stdout, tell};
use crate::{Ended, input};
use anyhow::{Result, anyhow};
use cofi_archive::BareArgs;
use cofi_flow::TraceFormat;
use cofi_packet::intel::{IntelPt, SpoiltBy};
use cofi_packet::rtit::Rtit;
use cofi_session::{Session, Stream};
use cofi_text::Line;
use cofi_text::digits::counted;
use cofi_text::packets::{Filter, Known, PacketLines, PacketStream, Text};
use stats::Stats;
use std::io::Write;

/// Runs the command.
pub(crate) fn run(args: &DumpArgs) -> Result<Ended> {
    input::check_mode(
        args.cycle_accurate,
        args.input.format == Some(FileFormat::Rtit),
    );
    let mut dump = Dump {
        args,
        text: Text::new(is_coloured(args.color), args.bytes),
        line: Line::default(),
        out: stdout(),
        errors: false,
        hidden: 0,
    };
    let rtit = BareArgs {
        cycle_accurate: args.cycle_accurate,
        ..BareArgs::default()
    };
    let bytes = input::map(&args.input.file)?;
    let session = input::open(&args.input, &rtit, args.cpu.as_deref(), &bytes)?;
    match session.flow_config().format {
        TraceFormat::IntelPt => dump.session::<IntelPt>(&session, Default::default())?,
        TraceFormat::Rtit(config) => dump.session::<Rtit>(&session, config.cycles)?,
    }
    dump.out.flush()?;
    if dump.hidden > 0 {
        let errors = counted(dump.hidden, "error");
        tell(format_args!("{errors} in the trace, not listed"));
    }
    Ok(if dump.errors {
        Ended::WithErrors
    } else {
        Ended::Well
    })
}

/// A listing under way.
struct Dump<'a> {
    args: &'a DumpArgs,
    text: Text,
    line: Line,
    out: Stdout,
    /// Whether the input holds errors.
    errors: bool,
    /// How many of them were not wanted.
    hidden: u64,
}

impl Dump<'_> {
    /// Prints all streams. `outside` is what must be known beside the bytes where a stream begins.
    fn session<F: Known>(&mut self, session: &Session<'_>, outside: F::Context) -> Result<()> {
        let filter = Filter::new::<F>(&self.args.filter);
        let filter = filter.map_err(|error| anyhow!("--filter: {error}"))?;
        self.errors = input::report(session);
        let is_one = session.streams().len() <= 1;
        let errata = session.flow_config().errata;
        for stream in session.streams() {
            let packets = PacketStream {
                bytes: stream.bytes(),
                parts: stream.parts().collect(),
                spoilt_by: SpoiltBy {
                    skd007: errata.skd007,
                    skz84: errata.skz84,
                },
            };
            if !is_one && !self.args.json {
                writeln!(self.out, "; {}", input::title(stream))?;
            }
            if self.args.stats {
                self.stats::<F>(&packets, outside, stream, is_one)?;
            } else {
                self.list::<F>(&packets, outside, &filter, stream)?;
            }
        }
        Ok(())
    }

    fn list<F: Known>(
        &mut self,
        packets: &PacketStream<'_>,
        outside: F::Context,
        filter: &Filter,
        stream: &Stream<'_>,
    ) -> Result<()> {
        let mut tags = Line::default();
        input::tag(stream, tags.begin());
        let mut lines = PacketLines {
            filter,
            from: self.args.offset.unwrap_or(0),
            most: self.args.count.unwrap_or(u64::MAX),
            json: self.args.json.then(|| tags.members()),
            text: &mut self.text,
            errors: false,
            hidden: 0,
        };
        F::list(&mut lines, packets, outside, &mut self.out)?;
        self.errors |= lines.errors;
        self.hidden += lines.hidden;
        Ok(())
    }

    fn stats<F: Known>(
        &mut self,
        packets: &PacketStream<'_>,
        outside: F::Context,
        stream: &Stream<'_>,
        is_one: bool,
    ) -> Result<()> {
        let mut stats = Stats::<F>::new();
        F::each(packets, outside, &mut |item| {
            self.errors |= item.is_err();
            stats.add(item);
        });
        if self.args.json {
            stats.describe(&mut self.line);
            input::tag(stream, &mut self.line);
            self.out.write_all(self.line.end())?;
        } else {
            stats.print(&mut self.out)?;
            if !is_one {
                writeln!(self.out)?;
            }
        }
        Ok(())
    }
}
