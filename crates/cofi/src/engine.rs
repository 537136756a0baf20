//! `--engine auto`: which engine records, and why.

use cofi_capture::hardware::{self, HardwareError};
use cofi_capture::ptrace::{self, Command, Stops, Target};
use cofi_capture::qemu::machine::MachineQemu;
use cofi_capture::qemu::{Qemu, QemuError};
use cofi_perf::{PtConfig, TraceConfig};

/// An engine that records, with what it needs.
#[derive(Debug)]
pub(crate) enum Chosen<Q = Qemu> {
    /// Stops at branches, or single steps, through ptrace.
    Ptrace,
    /// QEMU's user mode.
    Qemu(Q),
    /// QEMU's system emulation.
    Machine(MachineQemu),
    /// The processors' own trace units.
    Hardware,
}

impl<Q> Chosen<Q> {
    /// Its name on the command line.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Ptrace => "ptrace",
            Self::Qemu(_) => "qemu",
            Self::Machine(_) => "qemu-system",
            Self::Hardware => "hardware",
        }
    }
}

/// Chooses; what was chosen and why, in words. `beyond` is what is asked for that hardware cannot do, if anything is.
pub(crate) fn auto(
    target: &Target,
    config: &TraceConfig,
    beyond: Option<&str>,
) -> (Chosen, String) {
    let (chosen, why) = choose(target, || hardware(config, beyond), suits, find);
    let words = format!("recording with {} ({why})", chosen.name());
    (chosen, words)
}

/// Which engine it is, and by what it works here. `stops` are those asked for.
pub(crate) fn in_words(engine: &Chosen, stops: Stops) -> String {
    match engine {
        Chosen::Ptrace => match ptrace::possible_stops(stops) {
            Stops::Branches => "ptrace, by stops at branches".into(),
            Stops::Instructions => "ptrace, by single steps".into(),
        },
        Chosen::Qemu(qemu) => format!("qemu, {}", qemu.path().display()),
        Chosen::Machine(_) => "qemu-system".into(),
        Chosen::Hardware => "hardware".into(),
    }
}

/// The engine and the reason. `hardware` tells why it does not record, in words if it is there; `suits` tells why QEMU
/// cannot run a program, `find` finds QEMU and says which, or why there is none; each is asked only if it matters.
fn choose<Q>(
    target: &Target,
    hardware: impl FnOnce() -> Result<String, Option<String>>,
    suits: impl FnOnce(&Command) -> Result<(), String>,
    find: impl FnOnce() -> Result<(Q, String), String>,
) -> (Chosen<Q>, String) {
    let unused = match hardware() {
        Ok(which) => return (Chosen::Hardware, which),
        Err(unused) => unused,
    };
    let (chosen, why) = match target {
        Target::Attach(_) => (Chosen::Ptrace, "the process runs already".into()),
        Target::Launch(program) => match suits(program).and_then(|()| find()) {
            Ok((qemu, which)) => (Chosen::Qemu(qemu), which),
            Err(why) => (Chosen::Ptrace, why),
        },
    };
    match unused {
        Some(unused) => (chosen, format!("{why}; not with hardware: {unused}")),
        None => (chosen, why),
    }
}

/// Whether there is hardware, used or not.
pub(crate) fn has_hardware() -> bool {
    !matches!(
        hardware::probe(PtConfig::default()),
        Err(HardwareError::Absent { .. })
    )
}

/// Whether the hardware records. Why not is worth words only where it is there.
pub(crate) fn hardware(
    config: &TraceConfig,
    beyond: Option<&str>,
) -> Result<String, Option<String>> {
    let pt = match config {
        TraceConfig::Pt(config) => *config,
        TraceConfig::Rtit(_) => return Err(None),
    };
    match hardware::probe(pt) {
        Err(HardwareError::Absent { .. }) => Err(None),
        Err(error) => Err(Some(error.to_string())),
        Ok(()) => match beyond {
            Some(option) => Err(Some(format!("it has no {option}"))),
            None => Ok("the processors' Intel PT".into()),
        },
    }
}

fn suits(program: &Command) -> Result<(), String> {
    Qemu::suits(program).map_err(|unfit| unfit.to_string())
}

fn find() -> Result<(Qemu, String), String> {
    match Qemu::find() {
        Ok(qemu) => {
            let (path, version) = (qemu.path().display(), qemu.plugin_version());
            let which = format!("{path}, plugin interface {version}");
            Ok((qemu, which))
        }
        Err(QemuError::Missing) => {
            Err("there is no qemu-x86_64: `cofi doctor` says what to install".into())
        }
        Err(QemuError::NoPlugins { path, .. }) => Err(format!(
            "{} takes no plugins: `cofi doctor` says what to install",
            path.display()
        )),
        Err(QemuError::AddressSpace { limit }) => Err(format!(
            "the address space is limited to {} KiB, too little for QEMU: see ulimit -v",
            limit / 1024
        )),
        Err(QemuError::NoRoom { looked, .. }) => {
            Err(format!("there is no room for QEMU's memory in {looked}"))
        }
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Chosen, choose, find, suits};
    use cofi_capture::ptrace::{Command, Target};
    use std::cell::Cell;
    use std::os::unix::fs::PermissionsExt;

    fn launch(program: impl Into<std::ffi::OsString>) -> Target {
        Target::Launch(Command {
            program: program.into(),
            args: Vec::new(),
        })
    }

    fn there() -> Result<(u8, String), String> {
        Ok((7, "QEMU seven".into()))
    }

    fn absent() -> Result<String, Option<String>> {
        Err(None)
    }

    fn never<T>() -> Result<T, String> {
        panic!("asked without need")
    }

    #[test]
    fn qemu_is_chosen_where_it_can_run_the_program() {
        let (chosen, why) = choose(&launch("x"), absent, |_| Ok(()), there);
        assert!(matches!(chosen, Chosen::Qemu(7)));
        assert_eq!(why, "QEMU seven");
    }

    #[test]
    fn hardware_comes_first_and_where_it_cannot_the_reason_is_said() {
        let which = || Ok("its Intel PT".into());
        let (chosen, why) = choose::<u8>(&launch("x"), which, |_| never(), never);
        assert!(matches!(chosen, Chosen::Hardware));
        assert_eq!(why, "its Intel PT");
        let forbidden = || Err(Some("it is forbidden".into()));
        let (chosen, why) = choose(&launch("x"), forbidden, |_| Ok(()), there);
        assert!(matches!(chosen, Chosen::Qemu(7)));
        assert_eq!(why, "QEMU seven; not with hardware: it is forbidden");
    }

    #[test]
    fn a_running_process_is_for_ptrace() {
        let target = Target::Attach(1);
        let (chosen, why) = choose::<u8>(&target, absent, |_| never(), never);
        assert!(matches!(chosen, Chosen::Ptrace));
        assert!(why.contains("runs already"), "{why}");
    }

    #[test]
    fn what_qemu_cannot_run_is_for_ptrace_and_qemu_is_not_looked_for() {
        let looked = Cell::new(false);
        let look = || {
            looked.set(true);
            there()
        };
        let (chosen, why) = choose(&launch("x"), absent, |_| Err("unfit".into()), look);
        assert!(matches!(chosen, Chosen::Ptrace));
        assert_eq!(why, "unfit");
        assert!(!looked.get());
    }

    #[test]
    fn without_qemu_it_is_ptrace() {
        let none = || Err("none here".into());
        let (chosen, why) = choose::<u8>(&launch("x"), absent, |_| Ok(()), none);
        assert!(matches!(chosen, Chosen::Ptrace));
        assert_eq!(why, "none here");
    }

    /// Programs as they are found: the beginning of a file decides.
    #[test]
    fn elf_files_and_scripts_are_told_apart() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut elf_64 = [0; 64];
        elf_64[..5].copy_from_slice(b"\x7fELF\x02");
        elf_64[18] = 62;
        let mut elf_32 = elf_64;
        (elf_32[4], elf_32[18]) = (1, 3);
        let mut arm = elf_64;
        arm[18] = 183;
        let judge = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("a file");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("its mode");
            let Target::Launch(program) = launch(&path) else {
                unreachable!("a program")
            };
            suits(&program)
        };
        assert_eq!(judge("elf64", &elf_64), Ok(()));
        let script_of = |name: &str| format!("#!{}\n", folder.path().join(name).display());
        assert_eq!(judge("script", script_of("elf64").as_bytes()), Ok(()));
        let refused = Err("qemu runs 64-bit x86 programs only".to_owned());
        assert_eq!(judge("elf32", &elf_32), refused);
        assert_eq!(judge("script32", script_of("elf32").as_bytes()), refused);
        assert_eq!(judge("arm", &arm), refused);
        for (name, bytes) in [("text", b"no program".as_slice()), ("empty", b"")] {
            let why = judge(name, bytes).expect_err(name);
            assert!(why.contains(name), "{why}");
        }
        let judge_mode = |name: &str, mode| {
            let path = folder.path().join(name);
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("its mode");
            let Target::Launch(program) = launch(&path) else {
                unreachable!("a program")
            };
            suits(&program)
        };
        // One's own programs may have the bit: it changes nothing.
        assert_eq!(judge_mode("elf64", 0o4755), Ok(()));
        if std::os::unix::fs::chown(folder.path().join("elf64"), Some(1), Some(1)).is_ok() {
            assert_eq!(judge_mode("elf64", 0o755), Ok(()));
            for mode in [0o4755, 0o2755] {
                let why = judge_mode("elf64", mode).expect_err("another user's");
                assert!(why.contains("another user"), "{why}");
            }
            assert_eq!(
                judge("script2", script_of("elf64").as_bytes()),
                judge_mode("elf64", 0o2755)
            );
        }
        let Target::Launch(nothing) = launch("no-such-program-anywhere") else {
            unreachable!("a program")
        };
        assert!(suits(&nothing).is_err());
    }

    #[test]
    fn the_reason_is_one_line() {
        let why = match find() {
            Ok((_, which)) => which,
            Err(why) => why,
        };
        assert_eq!(why.lines().count(), 1, "{why}");
    }
}
