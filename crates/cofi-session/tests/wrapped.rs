//! Traces of real processors, wrapped into perf.data by the project's own writer: what comes through the perf path is what the reference
//! decoder found, by instructions and by blocks.

use std::io::Cursor;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cofi_flow::Item;
use cofi_packet::StreamOffset;
use cofi_perf::{
    Feature, Mmap2, PerfTime, PtConfig, Subject, Task, TimeConv, Writer, WriterOptions,
};
use cofi_session::{Session, SessionOptions};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// A perf.data file of one process that has everything mapped that the case names.
fn wrap(folder: &Path, case: &Value) -> Vec<u8> {
    let mut options = WriterOptions::new(
        {
            let mut config = PtConfig::default();
            config.tsc = false;
            config.mtc = false;
            config
        }
        .into(),
        TimeConv {
            shift: 31,
            mult: 1 << 30,
            zero: 0,
        },
    );
    options.tsc_ctc_ratio = (80, 1);
    options.max_nonturbo_ratio = 20;
    options.command_line = vec!["wrapped".into()];
    options.subject = Subject::Processes;
    let (task, time) = (Task { pid: 1, tid: 1 }, PerfTime(1));
    let mut writer = Writer::new(Cursor::new(Vec::new()), options).expect("a writer");
    // All of these need the workarounds for PSB+ of this processor, or none.
    assert!(writer.describe(Feature::CPUID, "GenuineIntel,6,79,1"));
    writer.comm(task, b"wrapped", true, time).expect("written");
    let mut map = |file: &Path, start: u64, pgoff: u64, len: u64| {
        let map = Mmap2 {
            start,
            len,
            pgoff,
            device: (0, 0),
            inode: 0,
            prot: 5,
            path: file.as_os_str().as_bytes(),
        };
        writer.mmap2(task, &map, time).expect("written");
    };
    for image in case["images"].as_array().into_iter().flatten() {
        let file = folder.join(text(&image["file"]));
        let base = u64::from_str_radix(&text(&image["base"])[2..], 16).expect("an address");
        map(&file, base, 0, file.metadata().expect("the image").len());
    }
    if case["elf"].is_string() {
        // A program at its link address, of which the first segment holds the code.
        map(&folder.join(text(&case["elf"])), 0x40_0000, 0, 0x1000);
    }
    let trace = std::fs::read(folder.join(text(&case["trace"]))).expect("the trace");
    writer.itrace_start(task, time).expect("written");
    let (begin, len) = (StreamOffset(0), trace.len() as u64);
    writer.aux(task, begin, len, 0, time).expect("written");
    writer.auxtrace(0, 1, begin, 0, &trace).expect("written");
    writer.exit(task, time).expect("written");
    writer.finished_round().expect("written");
    writer.finish().expect("finished").into_inner()
}

/// Counts addresses and hashes them as the reference does.
#[derive(Default)]
struct List {
    count: u64,
    hash: Sha256,
}

impl List {
    fn push(&mut self, ip: u64) {
        let comma = if self.count == 0 { "" } else { "\n" };
        self.hash.update(format!("{comma}{ip:016x}"));
        self.count += 1;
    }

    fn finish(self) -> (u64, String) {
        let hash = self.hash.finalize();
        (
            self.count,
            hash.iter().map(|byte| format!("{byte:02x}")).collect(),
        )
    }
}

#[test]
fn real_traces_through_the_perf_path() {
    let Some(traces) = cofi_test::traces() else {
        return;
    };
    let mut decoded = 0;
    for entry in std::fs::read_dir(traces).expect("the traces") {
        let folder = entry.expect("an entry").path();
        let Ok(json) = std::fs::read(folder.join("case.json")) else {
            continue;
        };
        let case: Value = serde_json::from_slice(&json).expect("JSON");
        let Some(count) = case["instructions"].as_u64() else {
            continue;
        };
        let expected = (count, text(&case["ips_sha256"]).to_owned());
        let bytes = wrap(&folder, &case);
        let session = Session::new(&bytes, &SessionOptions::default()).expect("a session");
        assert_eq!(session.diagnostics(), [], "{}", folder.display());
        let [stream] = session.streams() else {
            panic!("one stream");
        };
        let (mut items, mut errors) = (List::default(), 0);
        for item in session.decode(stream) {
            match item {
                Item::Insn(insn) => items.push(insn.ip.0),
                Item::Error(error) => {
                    eprintln!("{}: {error}", folder.display());
                    errors += 1;
                }
                Item::Event(_) => {}
            }
        }
        let mut blocks = List::default();
        let mut flow = session.decode(stream);
        while flow
            .blocks(|block| block.for_each(|insn| blocks.push(insn.ip.0)))
            .is_some()
        {}
        assert_eq!(errors, 0, "{}", folder.display());
        assert_eq!(items.finish(), expected, "{}", folder.display());
        assert_eq!(blocks.finish(), expected, "{}", folder.display());
        decoded += 1;
    }
    assert!(decoded >= 8, "only {decoded} traces are there");
}
