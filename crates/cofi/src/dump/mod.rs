//! `cofi dump`: the packets of a trace, in order.

mod filter;
pub(crate) mod known;
pub(crate) mod objects;
mod stats;
pub(crate) mod text;

use crate::args::{DumpArgs, Format as FileFormat};
use crate::digits::counted;
use crate::json::Line;
use crate::output::{Stdout, is_coloured, stdout, tell};
use crate::{Ended, input};
use anyhow::Result;
use cofi_archive::BareArgs;
use cofi_flow::TraceFormat;
use cofi_packet::intel::IntelPt;
use cofi_packet::rtit::Rtit;
use cofi_packet::{Listing, StreamItem, extent};
use cofi_session::{Session, Stream};
use filter::Filter;
use known::Known;
use stats::Stats;
use std::io::Write;
use text::Text;

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
        let filter = Filter::new::<F>(&self.args.filter)?;
        self.errors = input::report(session);
        let is_one = session.streams().len() <= 1;
        let errata = session.flow_config().errata;
        for stream in session.streams() {
            let bytes = stream.bytes();
            // No packet is made of two halves between which something is missing.
            let packets = stream.parts().flat_map(|part| {
                let upto = usize::try_from(part.end.0).unwrap_or(usize::MAX);
                let bytes = bytes.get(..upto).unwrap_or(bytes);
                F::packets(bytes, part.start, outside, &errata)
            });
            self.stream(packets, bytes, &filter, stream, is_one)?;
        }
        Ok(())
    }

    /// Prints one stream, which may be the only one.
    fn stream<F: Known>(
        &mut self,
        packets: impl Iterator<Item = StreamItem<F>>,
        bytes: &[u8],
        filter: &Filter,
        stream: &Stream<'_>,
        is_one: bool,
    ) -> Result<()> {
        if !is_one && !self.args.json {
            writeln!(self.out, "; {}", input::title(stream))?;
        }
        if self.args.stats {
            self.stats(packets, stream, is_one)
        } else {
            self.list(packets, bytes, filter, stream)
        }
    }

    fn list<F: Known>(
        &mut self,
        packets: impl Iterator<Item = StreamItem<F>>,
        bytes: &[u8],
        filter: &Filter,
        stream: &Stream<'_>,
    ) -> Result<()> {
        let from = self.args.offset.unwrap_or(0);
        let mut left = self.args.count.unwrap_or(u64::MAX);
        let mut listing = Listing::<F>::new();
        let mut memory = F::Memory::default();
        for item in packets {
            if left == 0 {
                break;
            }
            // What is not printed has its effect on what comes after it all the same.
            let listed = listing.item(&item);
            let name = listed
                .as_ref()
                .and_then(|listed| F::name(&mut memory, listed.packet()));
            let is_wanted = listed
                .as_ref()
                .is_some_and(|listed| filter.has::<F>(listed.raw().kind()))
                || item.is_err() && filter.has_errors();
            let is_shown = is_wanted && extent(&item).0.0 >= from;
            if item.is_err() {
                self.errors = true;
                self.hidden += u64::from(!is_shown);
            }
            if !is_shown {
                continue;
            }
            left -= 1;
            if self.args.json {
                objects::describe(&item, listed.as_ref(), name, &mut self.line);
                input::tag(stream, &mut self.line);
                self.out.write_all(self.line.end())?;
            } else {
                self.text
                    .item(&item, listed.as_ref(), name, bytes, &mut self.out)?;
            }
        }
        Ok(())
    }

    fn stats<F: Known>(
        &mut self,
        packets: impl Iterator<Item = StreamItem<F>>,
        stream: &Stream<'_>,
        is_one: bool,
    ) -> Result<()> {
        let mut stats = Stats::<F>::new();
        for item in packets {
            self.errors |= item.is_err();
            stats.add(&item);
        }
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
