//! `cofi serve`: a page that goes from the whole run to one instruction.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use cofi_index::{Index, IndexOptions};
use cofi_serve::{Opened, Recording, serve};
use cofi_session::Session;

use crate::args::FlowInput;
use crate::output::tell;
use crate::{Ended, input};

/// Arguments of `cofi serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// The port; without it, any that is free.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) port: u16,
    /// Opens no browser.
    #[arg(long)]
    pub(crate) no_open: bool,
    #[command(flatten)]
    pub(crate) index: IndexArgs,
    #[command(flatten)]
    pub(crate) flow: FlowInput,
    /// Another recording, to see both side by side where they part.
    #[arg(value_name = "OTHER")]
    pub(crate) other: Option<PathBuf>,
}

/// What becomes of the index of a recording.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct IndexArgs {
    /// Keeps no index beside the recording (FILE.index), and takes none that is there.
    #[arg(long)]
    pub(crate) no_index_file: bool,
    /// Without the functions that were inlined, of which the debugging information tells: the index is built faster.
    #[arg(long)]
    pub(crate) no_inline: bool,
}

impl IndexArgs {
    pub(crate) fn options(self) -> IndexOptions {
        let mut options = IndexOptions::default();
        options.inlined = !self.no_inline;
        options
    }
}

/// Runs the command.
pub(crate) fn run(args: &ServeArgs) -> Result<Ended> {
    let mut recordings = Vec::new();
    for file in std::iter::once(&args.flow.input.file).chain(&args.other) {
        let opened = open(&args.flow, file, args.index)?;
        recordings.push(Recording::open(opened, args.index.options())?);
    }
    let server = serve(recordings, args.port)
        .with_context(|| format!("cannot listen at port {}", args.port))?;
    println!("{}", server.address());
    if !args.no_open && open::that_detached(server.address()).is_err() {
        tell(format_args!(
            "no browser could be opened: open the address above"
        ));
    }
    server.run().context("the server broke")?;
    Ok(Ended::Well)
}

/// Opens a recording that stays open to the end of the process.
pub(crate) fn open(flow: &FlowInput, file: &Path, index: IndexArgs) -> Result<Opened> {
    if file == Path::new("-") && !index.no_index_file {
        bail!("what comes by standard input has no index beside it: say --no-index-file");
    }
    let mut flow = flow.clone();
    flow.input.file = file.to_owned();
    let bytes: &'static _ = Box::leak(Box::new(input::map(file)?));
    let packed = input::open_packed(&flow, bytes)?;
    // What an archive holds may come from elsewhere: so may an index beside it.
    let is_archive = !std::ptr::eq(packed.trace, &raw const **bytes);
    let session: &'static Session<'static> = Box::leak(Box::new(packed.session));
    input::require_trace(file, session)?;
    let rows = session.streams().len();
    if rows > Index::MOST_ROWS {
        let most = Index::MOST_ROWS;
        let file = file.display();
        bail!("{file} has packets of {rows} threads or processors; at most {most} can be shown");
    }
    input::report(session);
    let has_file = !index.no_index_file && !is_archive;
    Ok(Opened {
        name: file.display().to_string(),
        session,
        bytes,
        index: has_file.then(|| Index::path_beside(&cofi_file::inside(file))),
    })
}
