//! The ptrace engine tells what ran: without gaps, and exactly as many instructions as can be counted by hand.

use cofi_capture::ptrace::{self, Command, Options, Outcome, Target};
use cofi_capture::{Entry, Mapping, Observer, Pid, ProcessCause, SavedCode};
use cofi_insn::{Class, Insn};
use cofi_packet::{ExecMode, Ip};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// What is known of a thread between two calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Kernel,
    /// In user space, with this instruction to run next.
    User(Ip, ExecMode),
}

/// Checks the law of continuity: each call about a thread begins where the last one left it.
#[derive(Default)]
struct Law {
    threads: BTreeMap<Pid, Place>,
    /// Every address that ran, of all threads.
    executed: Vec<Ip>,
    entries: u64,
    system_calls: u64,
    far: u64,
    processes: Vec<ProcessCause>,
    started: usize,
    broken: Vec<String>,
}

impl Law {
    fn expect(&mut self, tid: Pid, ip: Ip, what: &str) {
        match self.threads.get(&tid) {
            Some(Place::User(expected, _)) if *expected == ip => {}
            other => self.broken.push(format!(
                "{what} at {ip} of thread {tid}, which is {other:?}"
            )),
        }
    }

    fn mode(&self, tid: Pid) -> ExecMode {
        match self.threads.get(&tid) {
            Some(Place::User(_, mode)) => *mode,
            _ => ExecMode::Bits64,
        }
    }
}

impl Observer for Law {
    fn process(&mut self, _: Pid, _: Option<Pid>, cause: ProcessCause, _: &str) {
        self.processes.push(cause);
    }

    fn thread_start(&mut self, _: Pid, tid: Pid, _: Option<Pid>) {
        self.started += 1;
        if let Some(place) = self.threads.insert(tid, Place::Kernel) {
            self.broken
                .push(format!("thread {tid} begins while it is {place:?}"));
        }
    }

    fn thread_exit(&mut self, _: Pid, tid: Pid) {
        if self.threads.remove(&tid).is_none() {
            self.broken.push(format!("thread {tid} ends twice"));
        }
    }

    fn comm(&mut self, _: Pid, _: Pid, _: &str) {}

    fn mapped(&mut self, _: Pid, _: Pid, mappings: &[Mapping]) {
        for mapping in mappings {
            if mapping.start >= mapping.end {
                self.broken.push(format!("{mapping:?}"));
            }
        }
    }

    fn code(&mut self, _: Pid, _: Pid, code: SavedCode<'_>) {
        if code.bytes.is_empty() {
            self.broken.push(format!("no code at {:#x}", code.start));
        }
    }

    fn resume_user(&mut self, tid: Pid, ip: Ip, mode: ExecMode) {
        let before = self.threads.insert(tid, Place::User(ip, mode));
        if before != Some(Place::Kernel) {
            self.broken.push(format!(
                "thread {tid} goes on at {ip} while it is {before:?}"
            ));
        }
    }

    fn retired(&mut self, tid: Pid, ip: Ip, insn: &Insn, next: Ip) {
        self.expect(tid, ip, "an instruction");
        let mode = self.mode(tid);
        let after = insn.next_ip(ip, mode);
        let explained = match insn.class {
            Class::Conditional => next == after || Some(next) == insn.target,
            Class::DirectJump | Class::DirectCall => Some(next) == insn.target,
            Class::IndirectJump | Class::IndirectCall | Class::Return => true,
            class if class.is_far() => false,
            _ => next == after,
        };
        if !explained {
            self.broken
                .push(format!("{insn:?} at {ip} cannot lead to {next}"));
        }
        self.executed.push(ip);
        self.threads.insert(tid, Place::User(next, mode));
    }

    fn far_branch(&mut self, tid: Pid, ip: Ip, insn: &Insn, next: Ip, mode: ExecMode) {
        self.expect(tid, ip, "a far branch");
        if !insn.class.is_far() {
            self.broken.push(format!("{insn:?} at {ip} is not far"));
        }
        self.far += 1;
        self.executed.push(ip);
        self.threads.insert(tid, Place::User(next, mode));
    }

    fn enter_kernel(&mut self, tid: Pid, entry: Entry) {
        match entry {
            Entry::Instruction { ip, insn } => {
                self.expect(tid, ip, "a system call");
                if insn.class != Class::Syscall {
                    self.broken.push(format!("{insn:?} at {ip} is no call"));
                }
                self.executed.push(ip);
                self.system_calls += 1;
            }
            Entry::SoftwareInterrupt { ip: from, .. } | Entry::Event { from } => {
                self.expect(tid, from, "an event")
            }
        }
        self.entries += 1;
        self.threads.insert(tid, Place::Kernel);
    }
}

/// Builds `source` in `folder`; skipped where the compiler does not take these flags.
#[track_caller]
fn build(folder: &Path, source: &Path, flags: &[&str]) -> Option<PathBuf> {
    let program = folder.join(source.file_stem().expect("a name"));
    cofi_test::compile(source, &program, flags).then_some(program)
}

fn follow(program: &Path) -> (Outcome, Law) {
    let mut law = Law::default();
    let stop = AtomicBool::new(false);
    let outcome = ptrace::run(
        Target::Launch(Command {
            program: program.into(),
            args: Vec::new(),
        }),
        Options::new(&stop),
        &mut law,
    )
    .expect("the program starts");
    assert!(law.threads.is_empty(), "{:?}", law.threads);
    law.broken.truncate(10);
    assert_eq!(law.broken, [""; 0], "{}", program.display());
    (outcome, law)
}

const ASM: &[&str] = &["-nostdlib", "-static", "-no-pie"];
const STATIC: &[&str] = &["-O1", "-static", "-pthread"];

/// Follows one of the exam's programs; it must end with `status`.
fn lawful(file: &str, flags: &[&str], status: i32) -> Option<Law> {
    let folder = tempfile::tempdir().expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../exam/programs")
        .join(file);
    let program = build(folder.path(), &source, flags)?;
    let (outcome, law) = follow(&program);
    assert_eq!(outcome, Outcome::Exited(status), "{file}");
    Some(law)
}

#[test]
fn branches() {
    lawful("branches.S", ASM, 42);
}

#[test]
fn far_branches() {
    if let Some(law) = lawful("far.S", ASM, 16) {
        // RETF, IRET, a far call and back, a far jump, and three times into 32-bit code and back.
        assert_eq!(law.far, 11);
    }
}

#[test]
fn code_of_32_bits() {
    if let Some(law) = lawful(
        "m32_int80.S",
        &["-m32", "-nostdlib", "-static", "-no-pie"],
        23,
    ) {
        // INT 0x80 is no system call instruction of the flow but an event: six times getpid, a write, an exit.
        assert_eq!((law.entries, law.system_calls), (8, 0));
    }
}

#[test]
fn signals() {
    lawful("signals.c", STATIC, 0);
}

#[test]
fn repeated_strings() {
    lawful("rep.c", STATIC, 0);
}

#[test]
fn jumps_out() {
    lawful("longjmp.c", STATIC, 0);
}

#[test]
fn code_that_changes() {
    lawful("smc.c", STATIC, 0);
    lawful("jit_rwx.c", STATIC, 0);
}

#[test]
fn threads() {
    if let Some(law) = lawful("threads.c", STATIC, 0) {
        assert!(law.started > 4, "{} threads", law.started);
        assert_eq!(law.processes, [ProcessCause::Launch]);
    }
}

#[test]
fn processes() {
    if let Some(law) = lawful("processes.c", STATIC, 0) {
        assert_eq!(law.processes[0], ProcessCause::Launch);
        assert!(law.processes.contains(&ProcessCause::Fork));
        assert!(law.processes.contains(&ProcessCause::Exec));
    }
}

/// Each line says how often it runs.
const COUNTED: &str = "
        .globl _start
        .text
_start: mov     $100, %ecx              # 1
1:      dec     %ecx                    # 100
        jnz     1b                      # 100
        call    leaf                    # 1
        lea     buffer(%rip), %rdi      # 1
        mov     $37, %ecx               # 1
        rep stosb                       # 1, however many rounds
        xor     %ecx, %ecx              # 1
        rep stosb                       # 1, although there is no round
        mov     $3, %ebx                # 1
2:      mov     $39, %eax               # 3
        syscall                         # 3
        dec     %ebx                    # 3
        jnz     2b                      # 3
        jmp     3f                      # 1
        ud2
3:      mov     $60, %eax               # 1
        xor     %edi, %edi              # 1
        syscall                         # 1
        ud2
leaf:   push    %rbx                    # 1
        nop                             # 1
        pop     %rbx                    # 1
        ret                             # 1
        .bss
buffer: .skip   64
        .section .note.GNU-stack, \"\", @progbits
";

#[test]
fn counted_by_hand() {
    let by_hand: usize = COUNTED
        .lines()
        .filter_map(|line| {
            let count = line.split_once("# ")?.1;
            let digits = count.split(',').next().expect("a number");
            Some(digits.parse::<usize>().expect("a number"))
        })
        .sum();
    assert_eq!(by_hand, 228);
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("counted.S");
    std::fs::write(&source, COUNTED).expect("the source");
    let Some(program) = build(folder.path(), &source, ASM) else {
        return;
    };
    let (outcome, law) = follow(&program);
    assert_eq!(outcome, Outcome::Exited(0));
    assert_eq!(law.executed.len(), by_hand);
    assert_eq!((law.entries, law.system_calls), (4, 4));
    assert_eq!((law.started, law.far), (1, 0));
    assert_eq!(law.processes, [ProcessCause::Launch]);
}
