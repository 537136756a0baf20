//! A boot of Linux, by QEMU's system emulation alone and recorded.

use super::figures::{ALONE, Figures, RECORDED};
use super::measure::{forget_peak, peak, time};
use super::settings;
use cofi_capture::ptrace::{Options, Outcome};
use cofi_capture::qemu::machine::{self, MachineQemu};
use cofi_capture::record::Recorder;
use cofi_perf::Subject;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub(crate) const NAME: &str = "Linux boot";
/// What the guest's first program says once it runs.
const SAYS: &str = "the shell runs";
/// A boot that takes longer has gone wrong.
const MOST: Duration = Duration::from_secs(600);

/// A machine that boots, says so on its first serial line, and switches itself off.
#[derive(Debug)]
pub(crate) struct Boot {
    qemu: MachineQemu,
    args: Vec<OsString>,
    console: PathBuf,
}

impl Boot {
    /// If it can be done here: else a sentence says why not.
    pub(crate) fn find(
        kernel: Option<&Path>,
        initrd: Option<&Path>,
        folder: &Path,
    ) -> Result<Self, String> {
        let (Some(kernel), Some(initrd)) = (kernel, initrd) else {
            return Err("that takes --kernel, and --busybox or --initrd".into());
        };
        if let Some(none) = [kernel, initrd].into_iter().find(|path| !path.is_file()) {
            return Err(format!("there is no {none:?} here"));
        }
        let qemu = MachineQemu::find().map_err(|error| error.to_string())?;
        let console = folder.join("console");
        let mut args: Vec<OsString> = [
            "-display",
            "none",
            "-monitor",
            "none",
            "-net",
            "none",
            "-no-reboot",
            "-nodefaults",
            "-m",
            "256",
            "-smp",
            "1",
            "-append",
            "console=ttyS0 quiet",
            "-serial",
        ]
        .map(OsString::from)
        .into();
        args.push(format!("file:{}", console.display()).into());
        args.extend(["-kernel".into(), kernel.into()]);
        args.extend(["-initrd".into(), initrd.into()]);
        Ok(Self {
            qemu,
            args,
            console,
        })
    }

    /// Boots so often each way, in turn.
    pub(crate) fn measure(&self, rounds: usize, file: &Path) -> Figures {
        let mut figures = Figures {
            name: NAME,
            ..Figures::default()
        };
        for _ in 0..rounds {
            figures.runs[ALONE].push(time(|| {
                let mut alone = Command::new("timeout");
                alone
                    .arg(MOST.as_secs().to_string())
                    .arg(self.qemu.path())
                    .args(&self.args);
                assert!(alone.status().is_ok_and(|status| status.success()));
            }));
            self.check();
            forget_peak();
            figures.runs[RECORDED].push(time(|| {
                let subject = Subject::Guest {
                    os: true,
                    user: true,
                };
                let mut recorder =
                    Recorder::create(settings(file, subject, "qemu-system"), None).expect("a file");
                let stop = AtomicBool::new(false);
                let mut options = Options::new(&stop);
                options.duration = Some(MOST);
                let (outcome, _) = machine::run(&self.qemu, &self.args, options, &mut recorder)
                    .expect("it runs under QEMU");
                assert_eq!(outcome, Outcome::Exited(0), "{NAME}");
                let recorded = recorder.finish().expect("a recording");
                figures.trace_bytes = recorded.trace_bytes;
                figures.instructions = recorded.instructions;
            }));
            figures.peaks.extend(peak());
            self.check();
        }
        figures
    }

    /// The guest came to its shell.
    fn check(&self) {
        let said = std::fs::read_to_string(&self.console).unwrap_or_default();
        assert!(said.contains(SAYS), "the guest says {said:?}");
        std::fs::remove_file(&self.console).expect("a file to remove");
    }
}
