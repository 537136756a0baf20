//! The processor of a machine: a generation, and what is said to be otherwise.

use anyhow::{Context, Result, bail};
use cofi_unit::{Capabilities, Generation, Implementation, SettingError, rtit};

/// Capabilities that are not to be chosen: of the processor that QEMU emulates, or of what there is none in the machine.
const FIXED: [(&str, &str); 6] = [
    (
        "supported",
        "without it the machine would be QEMU alone: run that",
    ),
    ("transport", "nothing but memory takes output in a machine"),
    ("vmx", "the machine's processors have no virtualization"),
    ("excludes_lbr", "it follows from family and model"),
    ("max_phys_addr", "QEMU's processors have 40 bits"),
    ("max_linear_addr", "QEMU's processors have 48 bits"),
];

/// Processors that have RTIT in place of Intel PT.
const RTIT: [&str; 2] = ["silvermont", "airmont"];

/// What the plugin is told of the processors.
#[derive(Debug)]
pub(super) struct Processor {
    /// The generation's name.
    pub(super) name: String,
    /// Settings, as `caps.NAME=VALUE` and `unit.NAME=VALUE`.
    pub(super) settings: Vec<String>,
}

impl Processor {
    /// A generation with other capabilities (`NAME=VALUE` each), and choices of its unit, of which nothing contradicts another.
    pub(super) fn new(name: &str, caps: &[String], choices: &[String]) -> Result<Self> {
        let mut settings = Vec::new();
        if RTIT.contains(&name) {
            if let Some(word) = caps.first() {
                bail!("--caps {word}: a processor with RTIT enumerates no capabilities ({name})");
            }
            let mut chosen = rtit::Implementation::default();
            let names = rtit::Implementation::NAMES;
            choose(choices, &mut settings, names, |name, value| {
                chosen.set(name, value)
            })?;
        } else {
            let generation: Generation = name.parse().with_context(|| {
                format!(
                    "--processor {name}: `cofi unit generations` lists those with Intel PT; RTIT have {}",
                    RTIT.join(" and ")
                )
            })?;
            enumerate(generation, caps, &mut settings)?;
            let mut chosen = Implementation::default();
            let names = Implementation::NAMES;
            choose(choices, &mut settings, names, |name, value| {
                chosen.set(name, value)
            })?;
        }
        Ok(Self {
            name: name.into(),
            settings,
        })
    }
}

/// Settings that are other capabilities than a generation's.
fn enumerate(generation: Generation, words: &[String], settings: &mut Vec<String>) -> Result<()> {
    let mut caps = generation.capabilities();
    for word in words {
        let (name, value) = parts("--caps", word)?;
        if let Some((_, why)) = FIXED.iter().find(|(fixed, _)| *fixed == name) {
            bail!("--caps {word}: that is not to be chosen: {why}");
        }
        caps.set(name, value)
            .with_context(|| format!("--caps {word} (the names are {})", capabilities()))?;
        settings.push(format!("caps.{name}={value}"));
    }
    // (What the machine's processors lack anyway is no output scheme.)
    caps.transport = false;
    let words = words.join(",");
    caps.validate()
        .with_context(|| format!("--caps {words}: there is no such processor"))
}

/// Settings that are choices of a unit, of which there are these.
fn choose(
    words: &[String],
    settings: &mut Vec<String>,
    names: &[&str],
    mut set: impl FnMut(&str, &str) -> Result<(), SettingError>,
) -> Result<()> {
    for word in words {
        let (name, value) = parts("--unit-option", word)?;
        set(name, value).with_context(|| {
            format!("--unit-option {word} (the names are {})", names.join(", "))
        })?;
        settings.push(format!("unit.{name}={value}"));
    }
    Ok(())
}

/// The names of capabilities that can be chosen.
fn capabilities() -> String {
    let names = Capabilities::CPUID.iter().map(|field| field.name);
    let names = names.filter(|name| FIXED.iter().all(|(fixed, _)| fixed != name));
    names.collect::<Vec<_>>().join(", ")
}

/// A name and a value.
fn parts<'w>(option: &str, word: &'w str) -> Result<(&'w str, &'w str)> {
    word.split_once('=')
        .with_context(|| format!("{option} {word}: it takes NAME=VALUE"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn refused(name: &str, caps: &[&str], choices: &[&str]) -> String {
        let error = Processor::new(name, &words(caps), &words(choices)).unwrap_err();
        format!("{error:#}")
    }

    #[test]
    fn settings_are_handed_on() {
        let caps = words(&["ptwrite=1", "cycle_thresholds=0x3f"]);
        let processor = Processor::new("skylake", &caps, &words(&["tnt=long"])).unwrap();
        assert_eq!(processor.name, "skylake");
        assert_eq!(
            processor.settings,
            [
                "caps.ptwrite=1",
                "caps.cycle_thresholds=0x3f",
                "unit.tnt=long"
            ]
        );
    }

    #[test]
    fn rtit_has_choices_and_no_capabilities() {
        let choices = words(&["errata=E1+E2"]);
        let processor = Processor::new("silvermont", &[], &choices).unwrap();
        assert_eq!(processor.settings, ["unit.errata=E1+E2"]);
        let text = refused("airmont", &["mtc=0"], &[]);
        assert!(
            text.contains("--caps mtc=0: a processor with RTIT"),
            "{text}"
        );
        let text = refused("airmont", &[], &["tnt=long"]);
        assert!(text.contains("psb_effect_delay"), "{text}");
    }

    #[test]
    fn what_no_processor_can_be_is_refused_with_the_word() {
        for (caps, said) in [
            (&["ip_filter=0"][..], "address ranges without IP filtering"),
            (&["topa=0"], "ToPA tables of several entries without ToPA"),
            (
                &["mtc_periods=2"],
                "not among the supported ones of MTCFreq",
            ),
            (
                &["topa=0", "topa_multiple=0", "single_range=0"],
                "no output scheme",
            ),
            (&["vmx=1"], "no virtualization"),
            (&["transport=1"], "nothing but memory takes output"),
            (&["colour=1"], "nothing of this name"),
            (&["mtc"], "it takes NAME=VALUE"),
            (&["mtc=2"], "a number from 0 to 0x1"),
        ] {
            let text = refused("skylake", caps, &[]);
            assert!(text.contains(said) && text.contains(caps[0]), "{text}");
        }
        let text = refused("skylake", &[], &["tnt=middle"]);
        assert!(
            text.contains("tnt=middle") && text.contains("short, long or both"),
            "{text}"
        );
        assert!(refused("z80", &[], &[]).contains("--processor z80"));
        // Broadwell has no clock for MTC.
        let text = refused("broadwell", &["mtc=1", "mtc_periods=1"], &[]);
        assert!(text.contains("without the crystal clock's ratio"), "{text}");
    }
}
