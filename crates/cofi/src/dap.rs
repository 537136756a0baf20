//! `cofi dap`: a recording in an editor.

use std::io::{BufReader, stdin, stdout};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use cofi_dap::{Recorded, run as talk};

use crate::args::{FlowInput, Names};
use crate::serve::{IndexArgs, open};
use crate::{Ended, with_causes};

/// Arguments of `cofi dap`.
#[derive(Args, Debug)]
pub(crate) struct DapArgs {
    /// Keeps no index beside the recording (FILE.index), and takes none that is there.
    #[arg(long)]
    pub(crate) no_index_file: bool,
    /// The recording, unless the editor names one (`recording` in its launch configuration); else cofi.data.
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &DapArgs) -> Result<Ended> {
    let index = IndexArgs {
        no_index_file: args.no_index_file,
        no_inline: false,
    };
    let opened = |file: &Path| {
        let opened = open(&FlowInput::of(file, Names::default()), file, index);
        let opened = opened.map_err(|error| with_causes(&error))?;
        Ok(Recorded {
            session: opened.session,
            bytes: opened.bytes,
            index: opened.index,
        })
    };
    talk(
        BufReader::new(stdin()),
        stdout(),
        args.file.clone(),
        &opened,
    )?;
    Ok(Ended::Well)
}
