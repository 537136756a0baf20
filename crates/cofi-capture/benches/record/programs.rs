//! What is measured: programs of this system, and some that are compiled from a text here.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Threads of the program that has several.
pub(crate) const THREADS: usize = 4;
/// How many files `make` compiles.
const FILES: usize = 8;
/// Functions in the source that compilers are measured with: a third of a second, natively.
const FUNCTIONS: usize = 60;
/// The same in each of the files of `make`.
const FUNCTIONS_OF_FILE: usize = 10;

/// Has so many threads, as its argument says, which share nothing and take about a third of a second each. Of each round's two
/// branches nobody can predict the first, and the second calls through a pointer.
const BUSY: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
typedef unsigned long number;
static __attribute__((noinline)) number up(number x) { return x * 5 + 1; }
static __attribute__((noinline)) number down(number x) { return x ^ x >> 7; }
static number (*const steps[])(number) = { up, down, up, up };
static void *work(void *argument)
{
    number state = (number)argument * 2 + 1, sum = 0;
    for (int i = 0; i < 36000000; i++) {
        state ^= state << 13; state ^= state >> 7; state ^= state << 17;
        if (state & 1) { sum += state; __asm__ volatile(""); } else { sum ^= state; __asm__ volatile("" : "+r"(sum)); }
        if (i % 3 == 0) sum = steps[i / 3 & 3](sum);
    }
    return (void *)sum;
}
int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 1;
    pthread_t threads[16];
    number sum = 0;
    for (int i = 0; i < count; i++) if (pthread_create(&threads[i], 0, work, (void *)(number)i)) return 1;
    for (int i = 0; i < count; i++) { void *result; pthread_join(threads[i], &result); sum += (number)result; }
    return printf("%lu\n", sum) < 0;
}
"#;

/// Compiles everything in its folder, run with `-B`. `UNDER` and `WRAPPER` are empty, or have compilers run by QEMU.
const MAKEFILE: &str = "\
OBJECTS := $(patsubst %.c,%.o,$(wildcard *.c))
all: $(OBJECTS)
%.o: %.c
\t$(UNDER) $(CC) $(WRAPPER) -O2 -c $< -o $@
";

/// How a program's children come to be run by QEMU where nobody makes them: `exec` under QEMU's user mode runs natively.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Children {
    /// It has none.
    None,
    /// It is gcc, which takes a wrapper.
    Compiler,
    /// It is make, with the Makefile above.
    Make,
}

/// A program.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) args: Vec<String>,
    /// Arguments with which it does its work in one thread only.
    pub(crate) single: Option<Vec<String>>,
    children: Children,
}

impl Program {
    fn new(name: &'static str, path: impl Into<PathBuf>, args: &[&str]) -> Self {
        Self {
            name,
            path: path.into(),
            args: args.iter().map(|word| (*word).to_owned()).collect(),
            single: None,
            children: Children::None,
        }
    }

    fn with_children(self, children: Children) -> Self {
        Self { children, ..self }
    }

    /// The command that runs it as it is.
    pub(crate) fn native(&self) -> Command {
        self.command(&[])
    }

    /// The command of which QEMU is to run the program: what it starts is run by `under`, a script for the shell that runs QEMU.
    pub(crate) fn for_qemu(&self, under: &Path) -> Command {
        let under = under.display();
        match self.children {
            Children::None => self.command(&[]),
            Children::Compiler => self.command(&["-wrapper", &format!("/bin/sh,{under}")]),
            Children::Make => self.command(&[
                &format!("UNDER=/bin/sh {under}"),
                &format!("WRAPPER=-wrapper /bin/sh,{under}"),
            ]),
        }
    }

    fn command(&self, first: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command
            .args(first)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }
}

/// What can run here of the programs that are asked for, with what they read in a folder.
pub(crate) fn programs(folder: &Path, is_asked: impl Fn(&str) -> bool) -> Vec<Program> {
    let mut all = of_system(folder);
    all.extend(compilers(folder));
    all.extend(threads(folder));
    all.retain(|program| is_asked(program.name));
    let (there, missing): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|program| program.path.is_file());
    for program in missing {
        println!(
            "{}: SKIPPED, as there is no {:?} here",
            program.name, program.path
        );
    }
    there
}

/// Writes the script for [`Program::for_qemu`]. (QEMU looks for no program along PATH.)
pub(crate) fn write_under(folder: &Path, qemu: &Path) -> PathBuf {
    let path = folder.join("under");
    let qemu = qemu.display();
    let text = format!("program=$(command -v \"$1\")\nshift\nexec '{qemu}' \"$program\" \"$@\"\n");
    write(&path, text);
    path
}

fn write(path: &Path, text: impl AsRef<[u8]>) -> String {
    std::fs::write(path, text).expect("a file");
    path.to_string_lossy().into_owned()
}

fn of_system(folder: &Path) -> Vec<Program> {
    let text = write(&folder.join("text"), words());
    let zipped = Command::new("gzip").args(["-kf", &text]).status();
    assert!(
        zipped.is_ok_and(|status| status.success()),
        "gzip works here"
    );
    let zipped = format!("{text}.gz");
    let mut unzip = vec!["-dc"];
    unzip.extend([zipped.as_str(); 60]);
    vec![
        Program::new("gzip -9", "/usr/bin/gzip", &["-9c", &text]),
        Program::new("gzip -d", "/usr/bin/gzip", &unzip),
        Program::new(
            "python3",
            "/usr/bin/python3",
            &[
                "-S",
                "-c",
                "s = 0\nfor i in range(600000):\n    s += i * i % 7",
            ],
        ),
        Program::new(
            "perl",
            "/usr/bin/perl",
            &[
                "-e",
                "my %h; $h{$_ % 5003} .= chr(65 + $_ % 26) for 1..200000; print length(join '', sort values %h)",
            ],
        ),
        Program::new(
            "sqlite3",
            "/usr/bin/sqlite3",
            &[
                ":memory:",
                "with recursive n(i) as (select 1 union all select i+1 from n where i<200000) select sum(i*i%7) from n",
            ],
        ),
    ]
}

/// Words that repeat, in an order that does not.
fn words() -> String {
    const WORDS: [&str; 8] = [
        "packet",
        "branch",
        "trace ",
        "unit ",
        "0x401000 ",
        "\n",
        "return",
        "call ",
    ];
    let mut state = 1_u64;
    let mut words = String::new();
    while words.len() < 500_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        words += WORDS[(state >> 61) as usize];
    }
    words
}

fn compilers(folder: &Path) -> [Program; 3] {
    let source = write(&folder.join("source.c"), functions(FUNCTIONS));
    let object = folder.join("source.o").to_string_lossy().into_owned();
    let tree = folder.join("tree");
    std::fs::create_dir_all(&tree).expect("a folder");
    for number in 0..FILES {
        let path = tree.join(format!("part{number}.c"));
        write(&path, functions(FUNCTIONS_OF_FILE));
    }
    write(&tree.join("Makefile"), MAKEFILE);
    let tree = tree.to_string_lossy().into_owned();
    let asked = Command::new("gcc").arg("-print-prog-name=cc1").output();
    let cc1 = asked.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    );
    let gcc = "/usr/bin/gcc";
    // Without gcc there is nothing for make to do.
    let make = if Path::new(gcc).is_file() {
        "/usr/bin/make"
    } else {
        gcc
    };
    [
        Program::new(
            "cc1 -O2",
            cc1,
            &["-quiet", "-O2", &source, "-o", "/dev/null"],
        ),
        Program::new("gcc -O2 -c", gcc, &["-O2", "-c", &source, "-o", &object])
            .with_children(Children::Compiler),
        Program::new(
            "make -j2",
            make,
            &["-s", "-B", "-j2", "-C", &tree, &format!("CC={gcc}")],
        )
        .with_children(Children::Make),
    ]
}

/// A text in C of so many functions.
fn functions(count: usize) -> String {
    (0..count).fold(String::new(), |mut code, number| {
        writeln!(
            code,
            "int f{number}(int a, int b) {{ int s = 0; for (int i = a; i < b; i++) if (i % {}) s += i * b; else s ^= a - i; return s; }}",
            number + 2
        )
        .expect("memory");
        code
    })
}

/// The program with threads, if it can be compiled: else its file is not there.
fn threads(folder: &Path) -> Option<Program> {
    let source = write(&folder.join("busy.c"), BUSY);
    let path = folder.join("busy");
    let compiled = Command::new("gcc")
        .args(["-O1", "-pthread", &source, "-o"])
        .arg(&path)
        .status();
    let is_good = |status: std::io::Result<ExitStatus>| status.is_ok_and(|status| status.success());
    // (With no thread it ends at once.)
    let mut nothing = Command::new(&path);
    nothing.arg("0").stdout(Stdio::null());
    if !is_good(compiled) || !is_good(nothing.status()) {
        println!("{THREADS} threads: SKIPPED, as gcc makes no program here");
        return None;
    }
    let program = Program::new("4 threads", path, &[&THREADS.to_string()]);
    Some(Program {
        single: Some(vec!["1".to_owned()]),
        ..program
    })
}
