//! What the kernel allows: perf events and ptrace; and whether its block step and breakpoints work.

use super::{Finding, Status};
use cofi_capture::ptrace::{self, BlockStep, BreakpointStop};
use std::fs;
use std::io;
use std::process::Command;
use std::time::Duration;

const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;

fn number(path: &str) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The effective capabilities of this process that count for the whole machine: none in a user namespace of its own.
fn capabilities() -> u64 {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    effective(&read("/proc/self/status"), &read("/proc/self/uid_map"))
}

fn effective(status: &str, uid_map: &str) -> u64 {
    // The first namespace maps every number to itself; a kernel without user namespaces has no such file.
    let map: Vec<_> = uid_map.split_whitespace().collect();
    if !map.is_empty() && map != ["0", "0", "4294967295"] {
        return 0;
    }
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
        .unwrap_or(0)
}

const fn has(capabilities: u64, capability: u32) -> bool {
    capabilities >> capability & 1 == 1
}

pub(super) fn perf_event_paranoid() -> Finding {
    let capabilities = capabilities();
    let is_privileged = has(capabilities, CAP_PERFMON) || has(capabilities, CAP_SYS_ADMIN);
    judge_paranoid(number(PARANOID), is_privileged)
}

fn judge_paranoid(value: Option<i64>, is_privileged: bool) -> Finding {
    let make = |status, says: String| {
        Finding::new("perf_event_paranoid", "perf_event_paranoid", status, says)
            .fact("value", value)
            .fact("privileged", is_privileged)
    };
    let Some(value) = value else {
        return make(Status::Missing, format!("there is no {PARANOID}")).hint(
            "the kernel is built without CONFIG_PERF_EVENTS, or hides it from this container",
        );
    };
    let allows = match value {
        ..0 => "everything, to everyone",
        0 => "processes and whole CPUs, the kernel included",
        1 => "one's own processes, the kernel included",
        2 => "one's own processes, user space only",
        3.. => "nothing without CAP_PERFMON (Debian, Ubuntu)",
    };
    if is_privileged {
        let says = format!(
            "{value}: allows {allows}; but this process is privileged and may do everything"
        );
        make(Status::Ok, says)
    } else if value < 3 {
        make(Status::Ok, format!("{value}: allows {allows}"))
    } else {
        make(Status::Limited, format!("{value}: allows {allows}")).hint(
            "sudo sysctl kernel.perf_event_paranoid=2 (1 to see the kernel too); recording with ptrace and qemu needs \
             no perf events",
        )
    }
}

pub(super) fn ptrace_scope() -> Finding {
    judge_scope(number(SCOPE), has(capabilities(), CAP_SYS_PTRACE))
}

fn judge_scope(value: Option<i64>, is_privileged: bool) -> Finding {
    let make = |status, says: String| {
        Finding::new("ptrace_scope", "ptrace scope", status, says)
            .fact("value", value)
            .fact("privileged", is_privileged)
    };
    match (value, is_privileged) {
        (None, _) => make(
            Status::Ok,
            "no Yama here: one's own processes may be traced".into(),
        ),
        (Some(value @ ..1), _) => make(
            Status::Ok,
            format!("{value}: one's own processes may be traced"),
        ),
        (Some(value @ 1..=2), true) => make(
            Status::Ok,
            format!("{value}: but this process is privileged and may trace every process"),
        ),
        (Some(1), false) => make(
            Status::Limited,
            "1: programs that Cofi starts may be traced, running ones (-p PID) not".into(),
        )
        .hint("for -p: sudo sysctl kernel.yama.ptrace_scope=0, or run cofi as root"),
        (Some(2), false) => make(Status::Missing, "2: only the privileged may trace".into())
            .hint("sudo sysctl kernel.yama.ptrace_scope=1, or run cofi as root; --engine qemu follows programs with ptrace too"),
        (Some(value @ 3..), _) => make(Status::Missing, format!("{value}: nobody may trace"))
            .hint(
                "it can only be changed in /etc/sysctl.d (kernel.yama.ptrace_scope=1) and by booting again; --engine \
                 qemu follows programs with ptrace too",
            ),
    }
}

/// How long the test of the block step may take.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn block_step() -> Finding {
    // This very program is there for sure, and `dump` reads its standard input to the end.
    let tried = std::env::current_exe().and_then(|cofi| {
        let mut waiting = Command::new(cofi);
        waiting.args(["dump", "--format", "pt", "-"]);
        ptrace::block_step(&mut waiting, PATIENCE)
    });
    judge_block_step(&tried)
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported
    )
}

fn judge_block_step(tried: &io::Result<BlockStep>) -> Finding {
    let (status, says) = match tried {
        Ok(BlockStep::Works) => (Status::Ok, "ptrace can step from branch to branch".into()),
        Ok(BlockStep::IsSingleStep) => (
            Status::Limited,
            "ptrace takes the request, but stops at every instruction".into(),
        ),
        Ok(BlockStep::Unknown) => (
            Status::Missing,
            "ptrace refuses the request, or its effect cannot be told".into(),
        ),
        Err(error) if is_refusal(error) => (
            Status::Missing,
            format!("a process of our own cannot be traced: {error}"),
        ),
        Err(error) => (Status::Missing, format!("it cannot be tried: {error}")),
    };
    let finding = Finding::new("block_step", "block step", status, says)
        .fact("traced", tried.is_ok())
        .fact(
            "works",
            *tried.as_ref().unwrap_or(&BlockStep::Unknown) == BlockStep::Works,
        );
    match tried {
        Ok(BlockStep::Works) => finding,
        Ok(_) => finding.hint(
            "it needs a processor's DEBUGCTL.BTF, which hypervisors often leave without effect; this version does not \
             use it",
        ),
        Err(error) if !is_refusal(error) => finding.hint("try again; this version does not use it"),
        Err(_) => finding.hint(
            "--engine ptrace will not work: see the ptrace scope, and whether a container's seccomp profile forbids ptrace \
             (docker run --cap-add SYS_PTRACE)",
        ),
    }
}

pub(super) fn breakpoints() -> Finding {
    judge_breakpoints(&ptrace::breakpoint_stop())
}

fn judge_breakpoints(tried: &io::Result<BreakpointStop>) -> Finding {
    let (status, says) = match tried {
        Ok(BreakpointStop::Works) => (
            Status::Ok,
            "they work: --engine ptrace stops at every few branches".into(),
        ),
        Ok(BreakpointStop::Refused) => (
            Status::Limited,
            "the kernel refuses them: --engine ptrace stops at every instruction".into(),
        ),
        Ok(BreakpointStop::Silent) => (
            Status::Limited,
            "they are taken, but do not stop a program as they should: --engine ptrace stops at every instruction".into(),
        ),
        Err(error) => (
            Status::Missing,
            format!("a process of our own cannot be traced: {error}"),
        ),
    };
    let finding = Finding::new("breakpoints", "debug registers", status, says)
        .fact("works", matches!(tried, Ok(BreakpointStop::Works)));
    match tried {
        Ok(BreakpointStop::Works) => finding,
        Ok(BreakpointStop::Refused) => finding.hint(
            "perf events of the kind mem: take the registers too; a kernel without CONFIG_HAVE_HW_BREAKPOINT has none",
        ),
        Ok(BreakpointStop::Silent) => finding.hint("the hypervisor does not provide them; the trace is the same without"),
        Err(_) => finding.hint("see the ptrace scope and the block step"),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Status, effective, judge_block_step, judge_breakpoints, judge_paranoid, judge_scope,
    };
    use cofi_capture::ptrace::{BlockStep, BreakpointStop};
    use std::io::ErrorKind;

    #[test]
    fn capabilities_count_in_the_first_namespace_only() {
        let status = "Name:\tcofi\nCapPrm:\t0000000000000001\nCapEff:\t000001ffffffffff\n";
        let first = "         0          0 4294967295\n";
        assert_eq!(effective(status, first), 0x1ff_ffff_ffff);
        assert_eq!(effective(status, ""), 0x1ff_ffff_ffff);
        assert_eq!(effective(status, "0 1000 1\n"), 0);
        assert_eq!(effective("", first), 0);
    }

    #[test]
    fn paranoid_levels() {
        let status = |value, is_privileged| judge_paranoid(value, is_privileged).status;
        for value in -1..=2 {
            assert_eq!(status(Some(value), false), Status::Ok, "{value}");
        }
        assert_eq!(status(Some(3), false), Status::Limited);
        assert_eq!(status(Some(i64::MAX), false), Status::Limited);
        assert_eq!(status(Some(i64::MIN), false), Status::Ok);
        assert_eq!(status(Some(4), true), Status::Ok);
        assert_eq!(status(None, true), Status::Missing);
        assert!(judge_paranoid(Some(4), false).hint.is_some());
    }

    #[test]
    fn scopes_of_ptrace() {
        let status = |value, is_privileged| judge_scope(value, is_privileged).status;
        assert_eq!(status(None, false), Status::Ok);
        assert_eq!(status(Some(0), false), Status::Ok);
        assert_eq!(status(Some(1), false), Status::Limited);
        assert_eq!(status(Some(1), true), Status::Ok);
        assert_eq!(status(Some(2), false), Status::Missing);
        assert_eq!(status(Some(2), true), Status::Ok);
        assert_eq!(status(Some(3), true), Status::Missing);
        assert!(judge_scope(Some(2), false).hint.is_some());
    }

    #[test]
    fn block_steps() {
        let status = |tried| judge_block_step(&tried).status;
        assert_eq!(status(Ok(BlockStep::Works)), Status::Ok);
        assert_eq!(status(Ok(BlockStep::IsSingleStep)), Status::Limited);
        assert_eq!(status(Ok(BlockStep::Unknown)), Status::Missing);
        let status = |tried| judge_breakpoints(&tried).status;
        assert_eq!(status(Ok(BreakpointStop::Works)), Status::Ok);
        assert_eq!(status(Ok(BreakpointStop::Refused)), Status::Limited);
        assert_eq!(status(Ok(BreakpointStop::Silent)), Status::Limited);
        let refused = judge_breakpoints(&Err(ErrorKind::PermissionDenied.into()));
        assert_eq!(refused.status, Status::Missing);
        let late = judge_block_step(&Err(ErrorKind::TimedOut.into()));
        assert!(late.says.contains("tried"), "{}", late.says);
        let refused = judge_block_step(&Err(ErrorKind::PermissionDenied.into()));
        assert_eq!(refused.status, Status::Missing);
        assert!(refused.hint.is_some_and(|hint| hint.contains("seccomp")));
    }
}
