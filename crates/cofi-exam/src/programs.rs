//! What is recorded: the programs, the configurations, and what each of the other decoders is known not to manage.

/// How a program gets onto the machine.
#[derive(Debug, Clone, Copy)]
pub enum Origin {
    /// Compiled from `exam/programs/` with these compiler options.
    Source {
        /// The file's name.
        file: &'static str,
        /// The options after the common ones.
        flags: &'static [&'static str],
    },
    /// Installed with the system.
    System(&'static str),
}

/// A decoder other than Cofi's. Only theirs are known differences: `cofi record` and `cofi insn` have no excuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// `perf script --itrace=i1i`.
    Perf,
    /// libipt's instruction decoder.
    Libipt,
}

/// A known difference, with the argument why. The comparison is still made and its verdict printed.
#[derive(Debug, Clone, Copy)]
pub struct Quirk {
    /// Whose.
    pub peer: Peer,
    /// In which configurations, all if empty.
    pub configs: &'static [&'static str],
    /// Why that decoder is in the wrong, or cannot know better.
    pub why: &'static str,
}

/// One program of the exam.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// Its name in the table.
    pub name: &'static str,
    /// Where it comes from.
    pub origin: Origin,
    /// What it is run with; `@PROGRAMS` stands for the folder of the programs' sources.
    pub arguments: &'static [&'static str],
    /// What is known not to work with it, in other decoders.
    pub quirks: &'static [Quirk],
    /// Why QEMU's user mode does not run it as the processor does.
    pub not_for_qemu: Option<&'static str>,
    /// Why the plain reader of bare RTIT packets cannot tell what it does.
    pub not_for_plain: Option<&'static str>,
}

/// A named value for `cofi record --config`.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Its name in the table.
    pub name: &'static str,
    /// The option's value; none leaves the option away.
    pub value: Option<&'static str>,
    /// What runs the program.
    pub engine: &'static str,
    /// Whether it is RTIT, and if so whether with cycle counts.
    pub rtit: Option<bool>,
}

impl Config {
    const fn ptrace(name: &'static str, value: Option<&'static str>) -> Self {
        Self {
            name,
            value,
            engine: "ptrace",
            rtit: None,
        }
    }

    const fn rtit(
        name: &'static str,
        value: &'static str,
        engine: &'static str,
        cycles: bool,
    ) -> Self {
        Self {
            name,
            value: Some(value),
            engine,
            rtit: Some(cycles),
        }
    }
}

impl Program {
    /// Whether all code that runs stands in the program's own file.
    pub fn has_all_code(&self) -> bool {
        match self.origin {
            Origin::Source { file, flags } => {
                flags.contains(&"-static")
                    && !["jit_wx.c", "jit_rwx.c", "smc.c", "vdso.c", "m32.c"].contains(&file)
            }
            Origin::System(_) => false,
        }
    }
}

/// The configurations every program is recorded with.
pub const CONFIGS: &[Config] = &[
    Config::ptrace("default", None),
    Config::ptrace("noretcomp", Some("noretcomp")),
    Config::ptrace("timed", Some("tsc,mtc,cyc")),
    Config::ptrace("small", Some("psb_period=0")),
    Config::ptrace("timeless", Some("tsc=0,mtc=0")),
    Config {
        name: "qemu",
        value: None,
        engine: "qemu",
        rtit: None,
    },
    Config::rtit("rtit", "rtit", "ptrace", false),
    Config::rtit(
        "rtit-cyc",
        "rtit,cyc,psb_period=0,noretcomp",
        "ptrace",
        true,
    ),
    Config::rtit("rtit-qemu", "rtit", "qemu", false),
];

const STATIC: &[&str] = &["-O1", "-static"];
const ASM: &[&str] = &["-nostdlib", "-static", "-no-pie"];

const fn source(name: &'static str, file: &'static str, flags: &'static [&'static str]) -> Program {
    Program {
        name,
        origin: Origin::Source { file, flags },
        arguments: &[],
        quirks: &[],
        not_for_qemu: None,
        not_for_plain: None,
    }
}

const fn system(
    name: &'static str,
    path: &'static str,
    arguments: &'static [&'static str],
) -> Program {
    Program {
        name,
        origin: Origin::System(path),
        arguments,
        quirks: &[],
        not_for_qemu: None,
        not_for_plain: None,
    }
}

/// perf asks the ELF file whether code is 64-bit, never MODE.Exec: it reads 32-bit code in a 64-bit program as 64-bit code.
const PERF_TAKES_THE_MODE_FROM_THE_FILE: Quirk = Quirk {
    peer: Peer::Perf,
    configs: &[],
    why: "perf takes the execution mode from the binary's ELF class and passes over MODE.Exec",
};

/// What ties a change of code to a place in the stream is time, for a reader that does not follow the AUX records.
const CHANGING_CODE: &[Quirk] = &[
    Quirk {
        peer: Peer::Perf,
        configs: &["timeless"],
        why: "without times perf decodes a thread at its end, with the code that stood there last",
    },
    Quirk {
        peer: Peer::Libipt,
        configs: &["timeless"],
        why: "ptinsn is told of changes of code by the time stamp counter, which this stream does not have",
    },
];

const BITS_32: &str = "qemu-x86_64 runs 64-bit programs";

/// All programs, small ones first.
pub const PROGRAMS: &[Program] = &[
    source("branches", "branches.S", ASM),
    Program {
        quirks: &[PERF_TAKES_THE_MODE_FROM_THE_FILE],
        not_for_qemu: Some("its user mode has no 32-bit code segments for 64-bit programs"),
        not_for_plain: Some("no packet tells of 32-bit code in a 64-bit program"),
        ..source("far", "far.S", ASM)
    },
    Program {
        not_for_qemu: Some(BITS_32),
        ..source(
            "m32_int80",
            "m32_int80.S",
            &["-m32", "-nostdlib", "-static", "-no-pie"],
        )
    },
    Program {
        not_for_qemu: Some(BITS_32),
        ..source("m32", "m32.c", &["-m32", "-O1", "-static"])
    },
    Program {
        arguments: &["argument"],
        ..source("static", "static.c", STATIC)
    },
    source("tables", "tables.c", &["-O1", "-static", "-s"]),
    source("recursion", "recursion.c", STATIC),
    source("longjmp", "longjmp.c", STATIC),
    source("flags", "flags.c", STATIC),
    Program {
        not_for_qemu: Some("its processor has not the vector registers that the program looks for"),
        ..source("vectors", "vectors.c", STATIC)
    },
    source("vdso", "vdso.c", STATIC),
    source("rep", "rep.c", STATIC),
    source("signals", "signals.c", STATIC),
    source("killed", "killed.c", STATIC),
    Program {
        quirks: CHANGING_CODE,
        ..source("jit_wx", "jit_wx.c", STATIC)
    },
    Program {
        quirks: CHANGING_CODE,
        ..source("jit_rwx", "jit_rwx.c", STATIC)
    },
    Program {
        quirks: CHANGING_CODE,
        ..source("smc", "smc.c", STATIC)
    },
    source("stormed", "stormed.c", STATIC),
    source("processes", "processes.c", STATIC),
    source("threads", "threads.c", &["-O1", "-pthread"]),
    source(
        "exec_thread",
        "exec_thread.c",
        &["-O1", "-static", "-pthread"],
    ),
    source("trapflag", "trapflag.c", STATIC),
    source("dynamic", "dynamic.c", &["-O1"]),
    system("ls", "/bin/ls", &["-l", "@PROGRAMS"]),
    system("pipeline", "/bin/sh", &["-c", "ls @PROGRAMS | wc"]),
    system("gzip", "/bin/gzip", &["-c", "-n", "@PROGRAMS/far.S"]),
];
