//! `cofi unit generations` and `cofi unit cpuid`: the processors whose units a scenario can have.

use crate::Ended;
use crate::args::{UnitCpuidArgs, UnitGenerationsArgs};
use crate::output::stdout;
use anyhow::{Result, bail};
use cofi_text::Line;
use cofi_unit::spec::CpuidField;
use cofi_unit::{Capabilities, CpuidLeaf, Generation};
use std::io::Write;

/// The leaves and sub-leaves that tell of Intel PT (33.3.1).
const LEAVES: [(u32, u32); 5] = [(0x07, 0), (0x14, 0), (0x14, 1), (0x15, 0), (0x8000_0008, 0)];

/// Lists the generations.
pub(crate) fn generations(args: &UnitGenerationsArgs) -> Result<Ended> {
    let mut out = stdout();
    let mut line = Line::default();
    for generation in Generation::ALL {
        let (caps, signature) = (generation.capabilities(), generation.signature());
        let (family, model) = (signature.display_family(), signature.display_model());
        if args.json {
            line.begin()
                .text("generation", generation.name())
                .number("family", family)
                .number("model", model);
            for field in Capabilities::CPUID {
                match value(&caps, field).0 {
                    bit if is_flag(field) => line.flag(field.name, bit == 1),
                    number => line.number(field.name, number),
                };
            }
            line.flag("vmx", caps.vmx)
                .flag("excludes_lbr", caps.excludes_lbr);
            out.write_all(line.end())?;
        } else {
            let name = generation.name();
            writeln!(
                out,
                "{name:<16} {family:X}/{model:02X}  {}",
                features(&caps)
            )?;
        }
    }
    out.flush()?;
    Ok(Ended::Well)
}

/// Prints the leaves of generations.
pub(crate) fn cpuid(args: &UnitCpuidArgs) -> Result<Ended> {
    let mut named = Vec::new();
    for name in &args.names {
        let caps = match name.parse::<Generation>() {
            Ok(generation) => generation.capabilities(),
            Err(_) if name == "everything" => Capabilities::default(),
            Err(_) => bail!("there is no generation {name:?}; `cofi unit generations` lists them"),
        };
        named.push((name, caps));
    }
    let mut out = stdout();
    let mut line = Line::default();
    for (at, (name, caps)) in named.iter().enumerate() {
        if args.json {
            for (leaf, subleaf) in LEAVES {
                let words = caps.leaf(leaf, subleaf).unwrap_or_default();
                line.begin()
                    .text("generation", name)
                    .hex("leaf", leaf.into())
                    .number("subleaf", subleaf);
                for (register, word) in registers(words) {
                    line.hex(register, word.into());
                }
                out.write_all(line.end())?;
            }
            continue;
        }
        let gap = if at == 0 { "" } else { "\n" };
        writeln!(out, "{gap}{name}")?;
        for (leaf, subleaf) in LEAVES {
            let words = caps.leaf(leaf, subleaf).unwrap_or_default();
            write!(out, "  {leaf:08x}.{subleaf}")?;
            for (register, word) in registers(words) {
                write!(out, "  {register} {word:08x}")?;
            }
            writeln!(out)?;
            for field in Capabilities::CPUID {
                if (field.leaf, field.subleaf) == (leaf, subleaf) {
                    let (value, place) = value(caps, field);
                    writeln!(out, "    {place:<10} {} = {value:#x}", field.name)?;
                }
            }
        }
        // Two capabilities stand elsewhere.
        let (vmx, lbr) = (u8::from(caps.vmx), u8::from(caps.excludes_lbr));
        writeln!(out, "  IA32_VMX_MISC[14]  vmx = {vmx}")?;
        writeln!(out, "  family and model   excludes_lbr = {lbr}")?;
    }
    out.flush()?;
    Ok(Ended::Well)
}

/// The registers of a leaf by name.
fn registers(words: CpuidLeaf) -> [(&'static str, u32); 4] {
    let CpuidLeaf { eax, ebx, ecx, edx } = words;
    [("eax", eax), ("ebx", ebx), ("ecx", ecx), ("edx", edx)]
}

/// A field of one bit is a flag.
fn is_flag(field: &CpuidField) -> bool {
    let masks = registers(field.mask);
    masks.iter().map(|(_, mask)| mask.count_ones()).sum::<u32>() == 1
}

/// What a field holds, and its place in the leaf: `ebx[31:16]`.
fn value(caps: &Capabilities, field: &CpuidField) -> (u32, String) {
    let words = caps.leaf(field.leaf, field.subleaf).unwrap_or_default();
    let masks = registers(field.mask);
    let found = registers(words)
        .into_iter()
        .zip(masks)
        .find(|(_, mask)| mask.1 != 0);
    let Some(((register, word), (_, mask))) = found else {
        return (0, String::new());
    };
    let (low, high) = (mask.trailing_zeros(), 31 - mask.leading_zeros());
    let place = if low == high {
        format!("{register}[{low}]")
    } else {
        format!("{register}[{high}:{low}]")
    };
    ((word & mask) >> low, place)
}

/// The features of a generation: the flags that a scenario's `[capabilities]` have, too.
fn features(caps: &Capabilities) -> String {
    // Whether there is Intel PT at all nobody asks here.
    let flags = Capabilities::CPUID
        .iter()
        .filter(|field| is_flag(field) && field.name != "supported" && value(caps, field).0 == 1);
    let mut names: Vec<_> = flags.map(|field| field.name).collect();
    names.extend(caps.vmx.then_some("vmx"));
    names.extend(caps.excludes_lbr.then_some("excludes_lbr"));
    names.join(" ")
}
