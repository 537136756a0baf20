//! Names of kernel code, which no ELF file holds: `--kallsyms`, and the file of that name beside a trace.

mod common;

use common::{Ran, Scratch, cofi, run};
use std::path::{Path, PathBuf};

/// Five bytes of code at the kernel's base, run from the first byte and from the third, and once as a program's.
const PACKETS: &str = "\
psb
psbend
tip.pge 0xffffffff81000000
tip.pgd -
tip.pge 0xffffffff81000002
tip.pgd -
tip.pge 0x1000
tip.pgd -
";

/// As a serial port gives it.
const NAMES: &str = "\
0000000000000000 A fixed_percpu_data\r
ffffffff81000000 T _stext\r
ffffffff81000000 T entry\r
ffffffff81000002 t helper\t[mod]\r
ffffffff81000100 D data\r
";

struct Trace {
    scratch: Scratch,
    packets: PathBuf,
    raw: [String; 2],
}

impl Trace {
    fn new() -> Self {
        let scratch = Scratch::new();
        let packets = scratch.path("packets");
        let text = scratch.write("text", PACKETS);
        let ran = run(cofi().arg("asm").arg(&text).arg("-o").arg(&packets));
        assert_eq!(ran.code(), 0, "{}", ran.stderr);
        let code = scratch.write("memory.code", [0x90, 0x90, 0x90, 0x0f, 0x05]);
        let at = |base: &str| format!("{}:{base}", code.display());
        Self {
            raw: [at("0xffffffff81000000"), at("0x1000")],
            packets,
            scratch,
        }
    }

    fn run(&self, command: &str, names: Option<&Path>) -> Ran {
        let mut cofi = cofi();
        cofi.arg(command);
        for raw in &self.raw {
            cofi.args(["--raw", raw]);
        }
        if let Some(names) = names {
            cofi.arg("--kallsyms").arg(names);
        }
        run(cofi.arg(&self.packets))
    }

    fn beside(&self, text: &str) {
        let folder = self.scratch.path("packets.code");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("kallsyms"), text).expect("a file");
    }
}

/// The rows of the function table: instructions, function, file.
fn functions(report: &str) -> Vec<Vec<&str>> {
    report
        .lines()
        .skip_while(|line| !line.contains("function"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            vec![words[0], words[3], words[4]]
        })
        .collect()
}

#[test]
fn report_and_instructions_name_the_kernel() {
    let trace = Trace::new();
    let names = trace.scratch.write("names", NAMES);
    let code = trace.scratch.path("memory.code").display().to_string();
    let expected = [
        vec!["4", code.as_str(), "memory.code"],
        vec!["4", "helper", "[mod]"],
        vec!["2", "entry", "[kernel]"],
    ];

    let report = trace.run("report", Some(&names));
    assert_eq!(report.code(), 0, "{}", report.stderr);
    assert_eq!(functions(&report.text()), expected, "{}", report.text());

    let flow = trace.run("insn", Some(&names));
    assert_eq!(flow.code(), 0, "{}", flow.stderr);
    let text = flow.text();
    let places: Vec<_> = text
        .lines()
        .filter(|line| !line.contains(" -- "))
        .map(|line| line.split_whitespace().nth(1).unwrap_or_default())
        .collect();
    assert_eq!(
        places[..6],
        [
            "entry",
            "entry+0x1",
            "helper",
            "helper+0x1",
            "helper",
            "helper+0x1"
        ],
        "{text}"
    );
    assert!(places[6].ends_with("memory.code+0x0"), "{text}");

    // Without the option nothing names it; beside the trace, it is found.
    let text = trace.run("report", None).text();
    let [row] = &functions(&text)[..] else {
        panic!("{text}")
    };
    assert_eq!(row[0], "10");
    trace.beside(NAMES);
    let report = trace.run("report", None);
    assert_eq!(report.code(), 0, "{}", report.stderr);
    assert_eq!(functions(&report.text()), expected, "{}", report.text());
    // What the user gives counts more.
    let other = trace
        .scratch
        .write("System.map", "ffffffff80ffffff T other\n");
    let report = trace.run("report", Some(&other));
    assert!(report.text().contains("other"), "{}", report.text());
    assert!(!report.text().contains("helper"), "{}", report.text());
}

#[test]
fn names_that_cannot_be_used() {
    let trace = Trace::new();
    let hidden: String = NAMES
        .lines()
        .map(|line| format!("{}{}\n", "0".repeat(16), &line[16..]))
        .collect();
    for (text, wanted) in [
        ("", "empty"),
        (hidden.as_str(), "echo 0 > /proc/sys/kernel/kptr_restrict"),
        ("ffffffff81000000 T fine\nhello there\n", "line 2"),
        ("c0100000 T _stext\n", "kernel's half"),
    ] {
        let names = trace.scratch.write("names", text);
        for command in ["report", "insn"] {
            let ran = trace.run(command, Some(&names));
            assert_eq!(ran.code(), 2, "{wanted}");
            assert!(ran.stdout.is_empty());
            assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
            assert!(ran.stderr.contains(wanted), "{}", ran.stderr);
            assert!(ran.stderr.contains("--kallsyms"), "{}", ran.stderr);
        }
        // Beside the trace, it is said and not used.
        trace.beside(text);
        let ran = trace.run("report", None);
        assert_eq!(ran.code(), 0, "{}", ran.stderr);
        assert!(ran.stderr.contains(wanted), "{}", ran.stderr);
        assert!(ran.text().contains("No gaps"), "{}", ran.text());
    }
    let ran = trace.run("report", Some(Path::new("/no/such/file")));
    assert_eq!(ran.code(), 2);
    assert!(ran.stderr.contains("/no/such/file"), "{}", ran.stderr);
}
