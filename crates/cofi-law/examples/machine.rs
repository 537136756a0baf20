//! Writes traces of random machines with the truth beside them, for decoders that know nothing of this project.
//!
//! ```text
//! machine FIRST COUNT STEPS FOLDER [WITHOUT]...
//! ```
//!
//! For each seed from FIRST on, a folder of that name: `trace.pt`, the packets; `code-ADDRESS.bin`, each program; and `record.txt`,
//! a line for everything else that must be known. A line of it is one of
//!
//! ```text
//! code ADDRESS BITS FILE      a program
//! step ADDRESS BITS TX        an executed instruction that the trace must show; TX: 1 in a transaction
//! resumed ON OFF              an overflow, and the step that the trace shows first after it, if tracing was on then or off
//! cut NAME N                  somebody may be lost from this step on, for this reason
//! told KIND WORDS             what else the trace must tell
//! setup WORDS                 how the machine was traced, to be read by people
//! ```
//!
//! WITHOUT names what is kept out of it: a kind of event or a choice of the processor (see `NAMES` and `CHOICES`). The rest of what
//! a seed gives stays the same.

use cofi_law::Rng;
use cofi_law::machine::{Code, Features, Insn, Kind, Record, Setup, Step, run};
use cofi_packet::ExecMode;
use cofi_unit::{
    Capabilities, Ctl, GuestTsc, Implementation, InternalBuffer, IpCompression, ReturnStack,
    TntForm,
};
use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// All instructions, with their programs.
type Insns<'r> = HashMap<u64, (&'r Code, Insn)>;

/// What happens on a machine.
const NAMES: [(&str, Features); 16] = [
    ("interrupts", Features::INTERRUPTS),
    ("toggles", Features::TOGGLES),
    ("spaces", Features::SPACES),
    ("transactions", Features::TRANSACTIONS),
    ("power", Features::POWER),
    ("ptwrite", Features::PTWRITE),
    ("pebs", Features::PEBS),
    ("vmx", Features::VMX),
    ("smm", Features::SMM),
    ("enclaves", Features::ENCLAVES),
    ("init", Features::INIT),
    ("acm", Features::ACM),
    ("ranges", Features::RANGES),
    ("overflow", Features::OVERFLOW),
    ("flags", Features::FLAGS),
    ("modes", Features::MODES),
];

/// Takes something out of a setup.
type Take = fn(&mut Setup);

/// What the processor may choose or have, and how to take it away.
const CHOICES: [(&str, Take); 8] = [
    ("ret-compression", |setup| {
        setup.ctl = setup.ctl.with_dis_retc(true);
        // A machine that is configured anew may turn it on.
        let anew = [
            Features::TOGGLES,
            Features::RANGES,
            Features::ACM,
            Features::VMX,
        ];
        setup.features.0 &= !anew.iter().fold(0, |all, feature| all | feature.0);
    }),
    ("event-trace", |setup| {
        setup.caps.event_trace = false;
        setup.ctl = setup.ctl.with_event_en(false);
    }),
    ("compressed-after-overflow", |setup| {
        if setup.choices.buffer.is_some() {
            setup.choices.ip_compression = IpCompression::Off;
        }
    }),
    ("deferred-tips", |setup| setup.choices.deferred_tips = false),
    ("long-tnt", |setup| setup.choices.tnt = TntForm::Short),
    ("cr3-filter", |setup| {
        setup.ctl = setup.ctl.with_cr3_filter(false);
    }),
    ("cycles", |setup| setup.ctl = setup.ctl.with_cyc_en(false)),
    ("inject", |setup| setup.caps.psb_pmi_preservation = false),
];

/// The step from which on a decoder may be lost that pops its stack of return addresses only for compressed RETs, and not for all.
fn pops(insns: &Insns<'_>, truth: &[Step]) -> Option<usize> {
    let mut stack = ReturnStack::new();
    let mut differs = false;
    for (at, step) in truth.iter().enumerate() {
        let (code, insn) = insns[&step.ip.0];
        let next = insn.ip.wrapping_add(insn.len.into());
        match insn.kind {
            Kind::Call(to) if code.insns[to].ip == next => {}
            Kind::Call(_) | Kind::IndirectCall => stack.push(next),
            Kind::Return => {
                let expected = stack.pop();
                if differs && expected.is_some() {
                    return Some(at + 1);
                }
                // It went elsewhere, or to where an interrupt was taken at once.
                let target = truth.get(at + 1).map(|step| step.ip);
                differs |= expected.is_some() && expected != target;
            }
            _ => {}
        }
    }
    None
}

/// The machine that belongs to a seed.
fn setup(seed: u64, steps: usize) -> Setup {
    let mut rng = Rng::new(!seed);
    let mut features = Features::ALL;
    // Half of the machines do everything.
    if rng.one_in(2) {
        features.0 &= rng.next_u64() as u32;
    }
    if rng.one_in(2) {
        features.0 &= !Features::OVERFLOW.0;
    }
    let user = rng.one_in(2);
    let wide = rng.one_in(2);
    let mut flip = || rng.one_in(2);
    let mut ctl = Ctl(0)
        .with_os(flip() || !user)
        .with_user(user)
        .with_branch_en(true)
        .with_cyc_en(flip())
        .with_tsc_en(flip())
        .with_mtc_en(flip())
        .with_mtc_freq(3)
        .with_event_en(wide)
        .with_ptw_en(wide)
        .with_pwr_evt_en(wide)
        .with_cr3_filter(flip());
    let deferred_tips = flip();
    ctl = ctl.with_psb_freq(rng.index(3) as u64);
    let size = 64 + rng.index(400) as u32;
    let mut choices = Implementation::default();
    choices.tnt = [TntForm::Short, TntForm::Long, TntForm::Both][rng.index(3)];
    choices.deferred_tips = deferred_tips;
    choices.ip_compression = [
        IpCompression::Shortest,
        IpCompression::AgainstZero,
        IpCompression::Off,
    ][rng.index(3)];
    choices.cycle_counter_bits = rng.one_in(2).then(|| 6 + rng.index(14) as u8);
    choices.buffer = features.has(Features::OVERFLOW).then_some(InternalBuffer {
        size,
        drain_bytes: 1 + rng.index(8) as u32,
        drain_cycles: [300, 3000, 10_000, 30_000][rng.index(4)],
        resume_at: size / 2,
    });
    Setup {
        seed,
        steps,
        features,
        caps: Capabilities::default(),
        choices,
        ctl,
        start: None,
        guest_tsc: GuestTsc::default(),
        conceals: true,
        cs_base: 0,
    }
}

/// Takes something away; whether there is such a thing.
fn restrict(setup: &mut Setup, without: &str) -> bool {
    if let Some((_, feature)) = NAMES.iter().find(|(name, _)| *name == without) {
        setup.features.0 &= !feature.0;
        if *feature == Features::OVERFLOW {
            setup.choices.buffer = None;
        }
        return true;
    }
    let choice = CHOICES.iter().find(|(name, _)| *name == without);
    if let Some((_, take)) = choice {
        take(setup);
    }
    choice.is_some()
}

const fn bits(mode: ExecMode) -> u32 {
    match mode {
        ExecMode::Bits16 => 16,
        ExecMode::Bits32 => 32,
        ExecMode::Bits64 => 64,
    }
}

fn write(folder: &Path, setup: &Setup, record: &Record) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("trace.pt"), &record.trace)?;
    let mut text = format!(
        "setup {:?} {:?} {:?}\n",
        setup.features, setup.ctl, setup.choices
    );
    for code in &record.codes {
        let base = code.insns[0].ip;
        let file = format!("code-{:x}.bin", base.0);
        std::fs::write(folder.join(&file), code.bytes_at(base))?;
        writeln!(text, "code {:#x} {} {file}", base.0, bits(code.mode))?;
    }
    for step in &record.truth {
        let (ip, bits, tx) = (step.ip.0, bits(step.mode), u8::from(step.in_tx));
        writeln!(text, "step {ip:#x} {bits} {tx}")?;
    }
    let insns: Insns<'_> = record
        .codes
        .iter()
        .flat_map(|code| code.insns.iter().map(move |insn| (code, *insn)))
        .map(|(code, insn)| (insn.ip.0, (code, insn)))
        .collect();
    if let Some(at) = pops(&insns, &record.truth).filter(|_| !setup.ctl.dis_retc()) {
        writeln!(text, "cut uncompressed-ret {at}")?;
    }
    for (on, off) in &record.resumed {
        writeln!(text, "resumed {on} {off}")?;
    }
    for (kind, list) in &record.told {
        for words in list {
            writeln!(text, "told {kind} {words}")?;
        }
    }
    std::fs::write(folder.join("record.txt"), text)?;
    Ok(())
}

fn act(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [first, count, steps, folder, without @ ..] = arguments else {
        return Err("usage: machine FIRST COUNT STEPS FOLDER [WITHOUT]...".into());
    };
    let (first, count, steps): (u64, u64, usize) = (first.parse()?, count.parse()?, steps.parse()?);
    for seed in first..first + count {
        let mut setup = setup(seed, steps);
        for name in without {
            if !restrict(&mut setup, name) {
                return Err(format!("{name}: there is no such thing to leave out").into());
            }
        }
        let record = run(&setup);
        write(&Path::new(folder).join(seed.to_string()), &setup, &record)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match act(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("machine: {error}");
            ExitCode::from(2)
        }
    }
}
