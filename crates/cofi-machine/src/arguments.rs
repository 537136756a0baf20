//! QEMU's arguments: what is added so that the guest has the processors that the plugin completes.

use crate::MachineError;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The processor, where none is named.
const MODEL: &str = "max";
/// What is said of any. The plugin answers CPUID up to leaf 15H as Intel's processors do. There is no x2APIC, by one of whose
/// registers the plugin has accesses fault, no nested virtualization, and no XSAVES, of which the plugin sees nothing.
const PROPERTIES: &str =
    "vendor=GenuineIntel,family=6,level=21,-x2apic,-svm,-vmx,-xsaves,-tsc-deadline";

/// What QEMU takes at most behind `-icount shift=`.
const MOST_SHIFT: u32 = 10;

/// The arguments with a processor that the plugin completes.
pub(crate) fn with_processor(given: &[OsString]) -> Result<Vec<OsString>, MachineError> {
    let (mut arguments, mut has_processor) = (Vec::new(), false);
    let mut given = given.iter();
    while let Some(argument) = given.next() {
        if accelerates(argument, given.clone().next()) {
            return Err(MachineError::Accelerated {
                argument: argument.clone(),
            });
        }
        if ["-loadvm", "--loadvm", "-incoming", "--incoming"]
            .iter()
            .any(|word| argument == word)
        {
            return Err(MachineError::Saved {
                argument: argument.clone(),
            });
        }
        arguments.push(argument.clone());
        if argument == "-cpu" || argument == "--cpu" {
            let mut model = given.next().ok_or(MachineError::NoProcessor)?.clone();
            model.push(",");
            model.push(PROPERTIES);
            arguments.push(model);
            has_processor = true;
        }
    }
    if !has_processor {
        arguments.extend(["-cpu".into(), format!("{MODEL},{PROPERTIES}").into()]);
    }
    Ok(arguments)
}

/// Whether several processors are to be run by one thread, as `-icount` and `thread=single` have it.
pub(crate) fn share_a_thread(given: &[OsString]) -> bool {
    let mut words = given.iter().map(|word| word.to_str().unwrap_or_default());
    let (mut has_one_thread, mut has_several) = (false, false);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        match word.trim_start_matches('-') {
            "icount" if word.starts_with('-') => has_one_thread = true,
            "accel" if word.starts_with('-') => {
                has_one_thread |= value().split(',').any(|word| word == "thread=single");
            }
            // Anything but a number of one: cores, threads or sockets may make several.
            "smp" if word.starts_with('-') => {
                has_several = value()
                    .split(',')
                    .any(|word| !matches!(word.rsplit('=').next(), Some("1")));
            }
            _ => {}
        }
    }
    has_one_thread && has_several
}

/// How many nanoseconds an instruction takes, as a power of two, if `-icount` has QEMU's own clock run by instructions.
pub(crate) fn shift(given: &[OsString]) -> Result<Option<u32>, MachineError> {
    let at = given
        .iter()
        .position(|word| word == "-icount" || word == "--icount");
    let Some(value) = at.and_then(|at| given.get(at + 1)) else {
        return Ok(None);
    };
    let words = value.to_str().unwrap_or_default().split(',');
    let word = words
        .filter_map(|word| match word.split_once('=') {
            Some(("shift", value)) => Some(value),
            Some(_) => None,
            None => Some(word),
        })
        .next();
    match word.map(str::parse) {
        Some(Ok(shift @ 0..=MOST_SHIFT)) => Ok(Some(shift)),
        _ => Err(MachineError::NoShift {
            argument: value.clone(),
        }),
    }
}

/// A value as it stands in QEMU's options, which commas end.
pub(crate) fn value(plain: &OsStr) -> OsString {
    let bytes = plain.as_bytes().split(|byte| *byte == b',');
    OsString::from_vec(bytes.collect::<Vec<_>>().join(&b",,"[..]))
}

/// Whether an argument lets something else than QEMU's own translation run the machine.
fn accelerates(argument: &OsStr, next: Option<&OsString>) -> bool {
    let Some(argument) = argument.to_str() else {
        return false;
    };
    let next = next.and_then(|next| next.to_str()).unwrap_or_default();
    let is_other = |name: &str| !name.is_empty() && name != "tcg";
    match argument.trim_start_matches('-') {
        "enable-kvm" => argument.starts_with('-'),
        "accel" => {
            let name = next.split(',').next().unwrap_or_default();
            is_other(name.strip_prefix("accel=").unwrap_or(name))
        }
        "machine" | "M" => next
            .split(',')
            .filter_map(|word| word.strip_prefix("accel="))
            // (Several may be named, in the order of preference.)
            .any(|names| names.split(':').any(is_other)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn commas_are_doubled() {
        assert_eq!(value(OsStr::new("/a,b/,")), "/a,,b/,,");
        assert_eq!(value(OsStr::new("")), "");
    }

    #[test]
    fn the_length_of_an_instruction_is_found() {
        assert_eq!(shift(&words("-m 512")).unwrap(), None);
        assert_eq!(shift(&words("-icount 3 -m 1")).unwrap(), Some(3));
        assert_eq!(shift(&words("-icount sleep=off,shift=0")).unwrap(), Some(0));
        for line in ["-icount auto", "-icount shift=11", "-icount sleep=off"] {
            assert!(
                matches!(shift(&words(line)), Err(MachineError::NoShift { .. })),
                "{line}"
            );
        }
    }

    #[test]
    fn several_processors_in_one_thread_are_found() {
        for line in [
            "-smp 2 -icount shift=0",
            "-icount 3 -smp cpus=4",
            "-accel tcg,thread=single -smp 1,cores=2",
        ] {
            assert!(share_a_thread(&words(line)), "{line}");
        }
        for line in [
            "-smp 2",
            "-icount 3",
            "-icount 3 -smp 1",
            "-smp cpus=1 -accel tcg,thread=single",
            "-smp 2 -accel tcg,thread=multi",
        ] {
            assert!(!share_a_thread(&words(line)), "{line}");
        }
    }

    #[test]
    fn a_processor_is_named_once() {
        let ours = format!("-m 512 -cpu max,{PROPERTIES}");
        assert_eq!(with_processor(&words("-m 512")).unwrap(), words(&ours));
        let theirs = format!("-cpu Skylake-Client,-avx2,{PROPERTIES} -m 512");
        assert_eq!(
            with_processor(&words("-cpu Skylake-Client,-avx2 -m 512")).unwrap(),
            words(&theirs)
        );
        assert!(matches!(
            with_processor(&words("-m 512 -cpu")),
            Err(MachineError::NoProcessor)
        ));
    }

    #[test]
    fn what_runs_beside_the_plugin_is_refused() {
        for line in [
            "-enable-kvm",
            "--enable-kvm",
            "-accel kvm",
            "-accel accel=kvm,thread=multi",
            "-machine q35,accel=kvm:tcg",
            "-M accel=hvf",
        ] {
            assert!(
                matches!(
                    with_processor(&words(line)),
                    Err(MachineError::Accelerated { .. })
                ),
                "{line}"
            );
        }
        assert!(matches!(
            with_processor(&words("-m 512 -loadvm first")),
            Err(MachineError::Saved { .. })
        ));
        for line in [
            "-accel tcg,thread=multi",
            "-machine q35,accel=tcg",
            "-append -enable",
            "-kernel accel",
        ] {
            assert!(with_processor(&words(line)).is_ok(), "{line}");
        }
    }
}
