//! A reader of RTIT made from its programming reference and objdump's listing alone: the stranger that RTIT has not got.
//!
//! On purpose the plainest way there is. It reads what `cofi record --config rtit` makes of a program whose code stands in its ELF
//! file and stays there: user space without filters, so nothing but system calls, faults and interrupts ends tracing.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::build;
use super::flows::{Flows, hex};
use super::packets::plain_rtit;

/// What an instruction does to the flow (Table 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Conditional(u64),
    Jump(u64),
    Call(u64),
    IndirectJump,
    IndirectCall,
    Return,
    Far,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Insn {
    next: u64,
    way: Way,
}

/// So many instructions may run without a packet: programs that wait in a loop are none of the exam's.
const LONGEST_RUN: u32 = 1 << 22;

/// The flow of the thread whose bare packets are in `raw`, with the code of `program`.
pub(crate) fn read(program: &Path, raw: &Path, cycle_accurate: bool) -> Result<Flows> {
    let listing = build::tool(
        std::process::Command::new("objdump")
            .args(["-d", "-w", "-M", "att"])
            .arg(program),
    )?;
    let code = code(&String::from_utf8_lossy(&listing));
    let bytes = fs::read(raw).with_context(|| format!("reading {}", raw.display()))?;
    let mut flows = Flows::default();
    let mut ips = Vec::new();
    if let Err(error) = Reader::new(&bytes, cycle_accurate).walk(&code, &mut ips) {
        flows.complain(&format!("after {} instructions: {error}", ips.len()));
    }
    flows.threads.insert(0, ips);
    Ok(flows)
}

/// Lines such as `  401000:\t75 fd \tjne    400fff <name>`.
fn code(listing: &str) -> HashMap<u64, Insn> {
    let mut code = HashMap::new();
    for line in listing.lines() {
        let mut columns = line.split('\t');
        let (Some(address), Some(bytes), Some(text)) =
            (columns.next(), columns.next(), columns.next())
        else {
            continue;
        };
        let Some(ip) = address.trim().strip_suffix(':').and_then(hex) else {
            continue;
        };
        let next = ip + bytes.split_whitespace().count() as u64;
        code.insert(
            ip,
            Insn {
                next,
                way: way(text),
            },
        );
    }
    code
}

/// The class of an instruction, as objdump writes it.
fn way(text: &str) -> Way {
    let prefixes = [
        "bnd", "notrack", "data16", "addr32", "cs", "ds", "es", "ss", "fs", "gs", "rep", "repz",
        "repnz", "lock",
    ];
    let mut words = text
        .split_whitespace()
        .skip_while(|word| prefixes.contains(word) || word.starts_with("rex"));
    let name = words.next().unwrap_or_default();
    let name = name.split(',').next().unwrap_or_default();
    let operand = words.next().unwrap_or_default();
    let target = hex(operand);
    match (name, target) {
        ("jmp" | "jmpq", Some(to)) => Way::Jump(to),
        ("call" | "callq", Some(to)) => Way::Call(to),
        ("jmp" | "jmpq", None) => Way::IndirectJump,
        ("call" | "callq", None) => Way::IndirectCall,
        ("ret" | "retq", _) => Way::Return,
        (
            "syscall" | "sysenter" | "int" | "int3" | "into" | "iret" | "iretq" | "lcall" | "ljmp"
            | "lret",
            _,
        ) => Way::Far,
        (name, Some(to)) if name.starts_with('j') || name.starts_with("loop") => {
            Way::Conditional(to)
        }
        _ => Way::Plain,
    }
}

/// What concerns the flow: a name, and an address.
type Packet = (String, Option<u64>);

struct Reader {
    packets: VecDeque<Packet>,
    /// Results of branches, the oldest first.
    results: VecDeque<bool>,
    /// RTIT_LAST_CALL_NLIP.
    last_call: Option<u64>,
    packet: Option<Packet>,
}

impl Reader {
    fn new(bytes: &[u8], cycle_accurate: bool) -> Self {
        let mut packets = VecDeque::new();
        for entry in plain_rtit(bytes, cycle_accurate) {
            match entry.name() {
                "psb" | "mtc" | "sts" | "fup.pcc" => {}
                "tnt" => {
                    let bits = entry
                        .field("bits")
                        .and_then(Value::as_str)
                        .unwrap_or_default();
                    packets.push_back((format!("tnt {bits}"), None));
                }
                name => {
                    let ip = entry.field("ip").and_then(Value::as_str).and_then(hex);
                    packets.push_back((name.to_owned(), ip));
                }
            }
        }
        let mut reader = Self {
            packets,
            results: VecDeque::new(),
            last_call: None,
            packet: None,
        };
        reader.refill();
        reader
    }

    /// Behind the results that are left stands a packet of another kind, or none.
    fn refill(&mut self) {
        while self.packet.is_none()
            && let Some((name, ip)) = self.packets.pop_front()
        {
            match name.strip_prefix("tnt ") {
                Some(bits) => self.results.extend(bits.chars().map(|bit| bit == 'T')),
                None => self.packet = Some((name, ip)),
            }
        }
    }

    /// The packet that comes next, if the results before it are used up.
    fn due(&self) -> Option<(&str, Option<u64>)> {
        let (name, ip) = self.packet.as_ref().filter(|_| self.results.is_empty())?;
        Some((name, *ip))
    }

    fn take(&mut self, wanted: &str) -> Result<u64, String> {
        match self.due() {
            Some((name, Some(ip))) if name == wanted => {
                self.packet = None;
                self.refill();
                Ok(ip)
            }
            other => Err(format!("{wanted} is due, and there is {other:?}")),
        }
    }

    fn result(&mut self) -> Result<bool, String> {
        self.results
            .pop_front()
            .ok_or_else(|| "a result is due, and there is none".to_owned())
    }

    fn walk(&mut self, code: &HashMap<u64, Insn>, ips: &mut Vec<u64>) -> Result<(), String> {
        while self.due().is_some() || !self.results.is_empty() {
            let mut ip = self.take("fup.pge")?;
            let mut run = 0;
            loop {
                // It happened before this instruction.
                if self.due() == Some(("fup.pgd", Some(ip))) {
                    self.take("fup.pgd")?;
                    break;
                }
                let insn = *code.get(&ip).ok_or_else(|| format!("no code at {ip:#x}"))?;
                let is_lost = self.due().is_none() && self.results.is_empty() || run == LONGEST_RUN;
                if is_lost {
                    return Err(format!("tracing does not end behind {ip:#x}"));
                }
                ips.push(ip);
                run = match insn.way {
                    Way::Plain | Way::Jump(_) | Way::Call(_) => run + 1,
                    _ => 0,
                };
                if matches!(insn.way, Way::Call(_) | Way::IndirectCall) {
                    self.last_call = Some(insn.next);
                }
                ip = match insn.way {
                    Way::Plain => insn.next,
                    Way::Jump(to) | Way::Call(to) => to,
                    Way::Conditional(to) => {
                        if self.result()? {
                            to
                        } else {
                            insn.next
                        }
                    }
                    Way::Return if !self.results.is_empty() => {
                        if !self.result()? {
                            return Err(format!("a return at {ip:#x} is not taken"));
                        }
                        self.last_call.ok_or("a return without a call")?
                    }
                    Way::IndirectJump | Way::IndirectCall | Way::Return => self.take("tip")?,
                    Way::Far => {
                        let from = self.take("fup.pgd")?;
                        if from != insn.next {
                            return Err(format!("tracing ends at {from:#x}, behind {ip:#x}"));
                        }
                        break;
                    }
                };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "\
0000000000001000 <_start>:
    1000:\t90                   \tnop
    1001:\te8 06 00 00 00       \tcall   100c <f>
    1006:\t75 f8                \tjne    1000 <_start>
    1008:\t0f 05                \tsyscall
    100a:\teb fe                \tjmp    100a
000000000000100c <f>:
    100c:\tf3 c3                \trepz ret
";

    fn flow(bytes: &[u8]) -> (Vec<u64>, Result<(), String>) {
        let mut ips = Vec::new();
        let result = Reader::new(bytes, false).walk(&code(LISTING), &mut ips);
        (ips, result)
    }

    #[test]
    fn classes() {
        assert_eq!(way("bnd jmp *0x8(%rax,%rbx,8)"), Way::IndirectJump);
        assert_eq!(way("notrack call *%rax"), Way::IndirectCall);
        assert_eq!(way("jne,pn 401000 <_start>"), Way::Conditional(0x40_1000));
        assert_eq!(way("loopne 10 <a>"), Way::Conditional(0x10));
        assert_eq!(way("rep stos %al,%es:(%rdi)"), Way::Plain);
        assert_eq!(way("int    $0x80"), Way::Far);
    }

    #[test]
    fn a_call_a_compressed_return_a_branch_and_a_system_call() {
        // PGE 1000, TNT TN, PGD 100a.
        let (ips, result) = flow(&[0x84, 0x00, 0x10, 0b110, 0x8c, 0x0a, 0x10]);
        assert_eq!(ips, [0x1000, 0x1001, 0x100c, 0x1006, 0x1008]);
        assert_eq!(result, Ok(()));
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        // PGE 1000, TIP 1006, TNT T and no more.
        let (ips, result) = flow(&[0x84, 0x00, 0x10, 0xb4, 0x06, 0x10, 0b11]);
        assert_eq!(ips, [0x1000, 0x1001, 0x100c, 0x1006]);
        assert!(result.is_err());
    }
}
