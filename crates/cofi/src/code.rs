//! Where code comes from, on the command line.

use clap::Args;
use cofi_image::Places;
use cofi_session::CodeOptions;
use std::path::{Path, PathBuf};

/// What `--help` puts above these options.
const HEADING: &str = "Where code comes from";

/// Where code is looked for, besides at the paths that a trace names.
#[derive(Args, Clone, Default, Debug)]
pub(crate) struct CodeArgs {
    /// Look for the files that the trace names below DIR, a copy of the traced machine's file system, and not at their own paths.
    #[arg(long, help_heading = HEADING, value_name = "DIR")]
    pub(crate) symfs: Option<PathBuf>,
    /// perf's cache of files by build id; ~/.debug if left out.
    #[arg(long, help_heading = HEADING, value_name = "DIR")]
    pub(crate) buildid_dir: Option<PathBuf>,
    /// Use what stands at a path although its build id is not the one that was traced, or the file was deleted while it was
    /// traced. Wrong code gives wrong instructions.
    #[arg(long, help_heading = HEADING)]
    pub(crate) ignore_build_ids: bool,
    /// The traced kernel's memory: a copy by `perf record --kcore` or `perf buildid-cache --kcore` (the folder with kcore and
    /// kallsyms, or the file kcore), or /proc/kcore. Found by itself in a perf.data that is a folder, where `cofi record` puts it (FILE.code), in perf's cache, and on
    /// this machine while the same kernel runs.
    #[arg(long, help_heading = HEADING, value_name = "PATH", conflicts_with = "vmlinux")]
    pub(crate) kcore: Option<PathBuf>,
    /// The file that the traced kernel was linked to. Less good than --kcore: a kernel changes its code when it boots, and a
    /// vmlinux holds no modules.
    #[arg(long, help_heading = HEADING, value_name = "FILE")]
    pub(crate) vmlinux: Option<PathBuf>,
    /// Code that a process generated, as it told perf (jit-PID.dump). Those that the trace names are read without the option.
    #[arg(long, help_heading = HEADING, value_name = "FILE")]
    pub(crate) jitdump: Vec<PathBuf>,
}

impl CodeArgs {
    /// For the trace at `file`.
    pub(crate) fn options(&self, file: &Path) -> CodeOptions {
        let mut places = Places::of_environment();
        places.symfs.clone_from(&self.symfs);
        if let Some(folder) = &self.buildid_dir {
            places.build_ids = Some(folder.clone());
        }
        places.ignore_build_ids = self.ignore_build_ids;
        // In perf's folder, or in the one that `cofi record` makes beside the file.
        let mut saved = file.as_os_str().to_owned();
        saved.push(".code/kcore_dir");
        let saved = [file.join("kcore_dir"), saved.into()];
        let beside = saved
            .into_iter()
            .find(|folder| self.vmlinux.is_none() && folder.is_dir());
        {
            let mut code = CodeOptions::default();
            code.places = places;
            code.kcore = self.kcore.clone().or(beside);
            code.vmlinux = self.vmlinux.clone();
            code.jitdumps = self.jitdump.clone();
            code
        }
    }
}
