//! The calls of a machine, with its kernel's: what must hold of them, whatever ran.

use std::collections::{BTreeMap, HashMap};
use std::io::BufRead;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// An object of `cofi calls --json`.
#[derive(Debug)]
struct Call {
    name: String,
    kind: String,
    has_from: bool,
    depth: u64,
    insns: u64,
    self_insns: u64,
    left: String,
    /// Processor, thread and stack.
    on: [u64; 3],
}

impl Call {
    fn parse(line: &str) -> Result<Self> {
        let object: Value =
            serde_json::from_str(line).with_context(|| format!("{line:?} is no call"))?;
        let number = |key: &str| object[key].as_u64().with_context(|| format!("no {key}"));
        let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
        let on = ["cpu", "tid", "stack"].map(|key| object[key].as_u64().unwrap_or(0));
        Ok(Self {
            name: text("call"),
            kind: text("kind"),
            has_from: object["from"].is_string(),
            depth: number("depth")?,
            insns: number("insns")?,
            self_insns: number("self_insns")?,
            left: text("left"),
            on,
        })
    }
}

/// An open call: its name, its depth, and what may still be said of it.
#[derive(Debug)]
struct Open {
    name: String,
    depth: u64,
    /// Its instructions, and those of itself and of the calls in it so far.
    insns: u64,
    sum: u64,
    /// It is an entry of the kernel, or what has taken the place of one.
    is_entry: bool,
    /// It was left by a jump: the next call takes its place.
    by_tail: bool,
}

/// What the calls of a recording, or of a part of it, come to.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Calls and instructions of each function.
    pub(super) functions: BTreeMap<String, (u64, u64)>,
    /// Entries of the kernel.
    pub(super) entries: BTreeMap<String, u64>,
    pub(super) insns: u64,
    pub(super) stacks: usize,
    /// The functions of those that were jumped past.
    unwound: BTreeMap<String, u64>,
    lost: u64,
    /// How many entries were not left to where the kernel was entered.
    pub(super) led_away: u64,
}

/// Where the kernel goes back to programs.
const WAYS_OUT: [&str; 2] = ["syscall_return_via_sysret", "native_irq_return_iret"];

/// Who calls a function that handles entries of the kernel.
fn entered_by(name: &str) -> Option<Vec<String>> {
    let of_interrupt =
        name == "common_interrupt" || name.starts_with("exc_") || name.starts_with("sysvec_");
    match name {
        "do_syscall_64" => Some(vec![
            "entry_SYSCALL_64".to_owned(),
            "entry_SYSCALL_64_after_hwframe".to_owned(),
        ]),
        _ if of_interrupt => Some(vec![format!("asm_{name}")]),
        _ => None,
    }
}

/// Whether the kernel is entered at a symbol.
fn is_entry(name: &str) -> bool {
    name.starts_with("asm_")
        || name.starts_with("entry_")
        || matches!(
            name,
            "irq_entries_start" | "spurious_entries_start" | "early_idt_handler_array"
        )
}

impl Calls {
    /// Reads the output of `cofi calls --json`, and sees whether calls nest, and entries are left as they should be.
    pub(super) fn read(lines: impl BufRead) -> Result<Self> {
        let mut calls = Self::default();
        let mut stacks: HashMap<[u64; 3], Vec<Open>> = HashMap::new();
        for line in lines.lines() {
            let line = line.context("reading what cofi calls prints")?;
            let call = Call::parse(&line)?;
            let stack = stacks.entry(call.on).or_default();
            calls.take(call, stack).with_context(|| line.clone())?;
        }
        calls.stacks = stacks.len();
        for mut stack in stacks.into_values() {
            close(&mut stack, 0)?;
        }
        Ok(calls)
    }

    fn take(&mut self, call: Call, stack: &mut Vec<Open>) -> Result<()> {
        let name = call.name;
        let replaced = stack.iter().rfind(|open| open.depth == call.depth);
        let is_tail = call.kind == "tail";
        let replaces = is_tail && replaced.is_some_and(|open| open.by_tail);
        ensure!(
            !is_tail || replaces,
            "it takes the place of a call that was not left for it"
        );
        let is_entered = call.kind == "entry" && call.has_from;
        let of_entry = is_entered || replaces && replaced.is_some_and(|open| open.is_entry);
        close(stack, call.depth)?;
        if is_entered {
            ensure!(is_entry(&name), "the kernel is not entered there");
            *self.entries.entry(name.clone()).or_default() += 1;
        }
        if let Some(callers) = entered_by(&name)
            && call.kind == "call"
        {
            let caller = stack.last().map_or("nobody", |open| open.name.as_str());
            let is_right = callers.iter().any(|wanted| wanted == caller);
            ensure!(is_right, "called by {caller}");
        }
        let is_over = matches!(call.left.as_str(), "return" | "tail" | "end");
        // It leads to a handler of a signal, or another program: not back to where the kernel was entered.
        let leads_away = of_entry && call.left == "unwound" && WAYS_OUT.contains(&name.as_str());
        ensure!(!of_entry || is_over || leads_away, "so no entry is left");
        self.led_away += u64::from(leads_away);
        if call.left == "unwound" && !leads_away {
            *self.unwound.entry(name.clone()).or_default() += 1;
        }
        self.lost += u64::from(call.left == "gap");
        self.insns += call.self_insns;
        if let Some(around) = stack.last_mut() {
            around.sum += call.insns;
        }
        let function = self.functions.entry(name.clone()).or_default();
        function.0 += 1;
        function.1 += call.self_insns;
        stack.push(Open {
            name,
            depth: call.depth,
            insns: call.insns,
            sum: call.self_insns,
            is_entry: of_entry,
            by_tail: call.left == "tail",
        });
        Ok(())
    }

    /// Sees that nothing was lost, and no more calls than these were left by a jump past them; how many were.
    pub(super) fn all_left(&self, may_be_unwound: u64) -> Result<u64> {
        ensure!(self.lost == 0, "{} calls are left by a gap", self.lost);
        let unwound = &self.unwound;
        let count = unwound.values().sum();
        ensure!(count <= may_be_unwound, "left by unwinding: {unwound:?}");
        Ok(count)
    }
}

/// The calls from `depth` on are over: their instructions are their own and those of what they called.
fn close(stack: &mut Vec<Open>, depth: u64) -> Result<()> {
    while let Some(open) = stack.pop_if(|open| open.depth >= depth) {
        ensure!(
            open.sum == open.insns,
            "{} at depth {} has {} instructions, but with its callees {}",
            open.name,
            open.depth,
            open.insns,
            open.sum
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Calls;

    fn call(name: &str, kind: &str, depth: u64, insns: u64, own: u64, left: &str) -> String {
        let from = if kind == "assumed" { "null" } else { "\"0x1\"" };
        format!(
            "{{\"call\":\"{name}\",\"kind\":\"{kind}\",\"from\":{from},\"depth\":{depth},\"insns\":{insns},\"self_insns\":{own},\
             \"left\":\"{left}\",\"tid\":1}}\n"
        )
    }

    #[test]
    fn what_holds() {
        let list = [
            call("main", "assumed", 0, 30, 10, "end"),
            call("entry_SYSCALL_64", "entry", 1, 5, 5, "tail"),
            call("entry_SYSCALL_64_after_hwframe", "tail", 1, 10, 3, "tail"),
            call("do_syscall_64", "call", 2, 7, 7, "return"),
            call("syscall_return_via_sysret", "tail", 1, 5, 5, "return"),
        ];
        let calls = Calls::read(list.concat().as_bytes()).expect("calls that hold");
        assert_eq!((calls.insns, calls.stacks), (30, 1));
        assert_eq!(calls.entries["entry_SYSCALL_64"], 1);
        assert_eq!(calls.all_left(0).expect("all left"), 0);
    }

    #[test]
    fn what_does_not() {
        let main = call("main", "assumed", 0, 20, 10, "end");
        for (wrong, why) in [
            (
                call("asm_x", "entry", 1, 10, 10, "unwound"),
                "no entry is left",
            ),
            (call("g", "entry", 1, 10, 10, "return"), "not entered there"),
            (
                call("g", "tail", 1, 10, 10, "return"),
                "was not left for it",
            ),
            (
                call("do_syscall_64", "call", 1, 10, 10, "return"),
                "by main",
            ),
            (
                call("g", "call", 1, 9, 9, "return"),
                "but with its callees 19",
            ),
        ] {
            let error = Calls::read([main.clone(), wrong].concat().as_bytes());
            let error = format!("{:#}", error.expect_err("a mistake"));
            assert!(error.contains(why), "{error}");
        }
        let unwound = call("g", "call", 1, 10, 10, "unwound");
        let calls = Calls::read([main, unwound].concat().as_bytes()).expect("calls");
        assert!(calls.all_left(0).is_err());
        assert_eq!(calls.all_left(1).expect("one may be"), 1);
    }
}
