//! `cofi archive --into`: many recordings share their code, read as what they were, and go when they are old; and nothing in them is trusted.

mod common;

use common::{DYNAMIC, Ran, Scratch, cofi, record, run};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

fn archive(into: &Path, more: &[&str]) -> Ran {
    run(cofi().arg("archive").arg("--into").arg(into).args(more))
}

fn add(into: &Path, file: &Path) -> Ran {
    archive(into, &[file.to_str().unwrap()])
}

fn objects(ran: &Ran) -> Vec<Value> {
    let text = ran.text();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The recordings of a catalogue, and the summary.
fn list(into: &Path) -> (Vec<Value>, Value) {
    let ran = archive(into, &["--list", "--json"]);
    assert_eq!((ran.code(), &*ran.stderr), (0, ""));
    let mut objects = objects(&ran);
    let summary = objects.pop().unwrap()["summary"].take();
    (objects, summary)
}

/// All regular files below a folder; none of one that is not there (any more).
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let entries = entries.filter_map(|it| Some(it.ok()?.path()));
    let (folders, mut all): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|it| it.is_dir());
    all.extend(folders.iter().flat_map(|folder| files(folder)));
    all.sort();
    all
}

/// A program that is linked with libraries, recorded with this argument.
fn recorded(scratch: &Scratch, program: &Path, argument: &str) -> PathBuf {
    let data = scratch.path(&format!("run-{argument}.data"));
    let ran = run(record(&data, None).arg("--").arg(program).arg(argument));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    data
}

fn program(scratch: &Scratch) -> Option<PathBuf> {
    let source = scratch.write(
        "program.c",
        "#include <stdlib.h>\n#include <unistd.h>\n__attribute__((noinline)) static int work(int n) { return n < 2 ? n : work(n - 1) + 1; }\n\
         int main(int argc, char **argv) { return work(atoi(argv[argc - 1])) == getpid(); }\n",
    );
    scratch.compile(&source, DYNAMIC)
}

/// What commands say of a recording.
fn told(file: &Path) -> Vec<(i32, String)> {
    let commands: [&[&str]; 7] = [
        &["report"],
        &["report", "--json"],
        &[
            "insn",
            "--json",
            "--time",
            "--symbols",
            "--source",
            "--disasm",
        ],
        &["calls"],
        &["calls", "--json", "--inline"],
        &["check", "--json"],
        &["dump", "--json"],
    ];
    let ran = commands.map(|words| run(cofi().args(words).arg(file)));
    ran.iter().map(|ran| (ran.code(), ran.text())).collect()
}

/// The recordings of which everything is compared.
const TOLD: [u32; 3] = [1, 3, 10];

#[test]
fn ten_recordings_of_a_program_take_its_code_once() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    let into = scratch.path("catalogue");
    let mut told_before = Vec::new();
    for number in 1..=10 {
        let data = recorded(&scratch, &program, &number.to_string());
        // (All commands on all of them would take minutes.)
        if TOLD.contains(&number) {
            told_before.push(told(&data));
        }
        let ran = archive(&into, &["--json", data.to_str().unwrap()]);
        assert_eq!(ran.code(), 0, "{}", ran.stderr);
        let added = &objects(&ran)[0];
        let (all, new) = (&added["code_files"], &added["new_code_files"]);
        // The program, the C library, the dynamic linker, and the vDSO if it ran.
        assert!(all.as_u64() >= Some(3), "{added}");
        let wanted = if number == 1 { all.as_u64() } else { Some(0) };
        assert_eq!(new.as_u64(), wanted, "{added}");
    }
    let (recordings, summary) = list(&into);
    assert_eq!((recordings.len(), &summary["recordings"]), (10, &10.into()));
    let kept = files(&into.join("code"));
    assert_eq!(summary["code_files"], kept.len());
    assert_eq!(summary["unused_code_files"], 0);
    for recording in &recordings {
        assert_eq!(recording["code_files"], kept.len());
        assert_eq!(recording["code_bytes"], summary["code_bytes"]);
        assert_eq!(recording["shared_bytes"], summary["code_bytes"]);
        assert!(
            recording["instructions"].as_u64() > Some(1000),
            "{recording}"
        );
        assert_eq!(recording["missing_files"], 0);
        // The folder of a file of code is named by its build id.
        for id in recording["build_ids"].as_array().unwrap() {
            assert!(into.join("code").join(id.as_str().unwrap()).is_dir());
        }
    }
    // Of the last one, `calls` has more than of the first.
    assert_ne!(told_before[0], told_before[2]);
    // Everything else goes, and another program gets the name.
    for number in 1..=10 {
        let data = scratch.path(&format!("run-{number}.data"));
        fs::remove_file(&data).unwrap();
        fs::remove_dir_all(scratch.path(&format!("run-{number}.data.code"))).ok();
    }
    fs::write(&program, "#!/bin/sh\n").unwrap();
    // The catalogue may be moved, and entered.
    let moved = scratch.path("moved");
    fs::rename(&into, &moved).unwrap();
    for (number, before) in TOLD.into_iter().zip(&told_before) {
        let kept = moved.join(format!("recordings/run-{number}.cofi"));
        assert!(told(&kept) == *before, "{number}: {:?}", told(&kept));
    }
    let mut inside = cofi();
    inside.current_dir(moved.join("recordings"));
    let ran = run(inside.args(["report", "run-1.cofi"]));
    assert_eq!((ran.code(), ran.text()), told_before[0][0]);
    // Packed again it is an archive that needs no catalogue.
    let alone = scratch.path("alone.cofi");
    let kept = moved.join("recordings/run-3.cofi");
    let ran = run(cofi().arg("archive").arg("-o").arg(&alone).arg(&kept));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    // Outside, a recording is not taken for one that has no code.
    let outside = scratch.path("outside.cofi");
    fs::copy(&kept, &outside).unwrap();
    fs::remove_dir_all(&moved).unwrap();
    assert!(told(&alone) == told_before[1]);
    let ran = run(cofi().arg("insn").arg(&outside));
    assert_eq!((ran.code(), &*ran.text()), (2, ""));
    assert!(
        ran.stderr.contains("is read in its place there"),
        "{}",
        ran.stderr
    );
}

/// The recorded time of adding, set back to 2001.
fn make_old(recording: &Path) {
    let mut bytes = fs::read(recording).unwrap();
    let key = b"\"added\": ";
    let at = bytes.windows(key.len()).position(|it| it == key).unwrap() + key.len();
    bytes[at..at + 10].copy_from_slice(b"1000000000");
    fs::write(recording, bytes).unwrap();
}

/// Bare packets with code of their own: a trace, and what must be said of it.
fn bare(scratch: &Scratch, name: &str, nops: usize) -> (PathBuf, String) {
    let text = scratch.write("packets.txt", "psb\npsbend\ntip.pge 0x401000\ntip.pgd -\n");
    let packets = scratch.path(&format!("{name}.pt"));
    let made = run(cofi().arg("asm").arg(&text).arg("-o").arg(&packets));
    assert_eq!(made.code(), 0, "{}", made.stderr);
    let code = scratch.write(
        &format!("{name}.bin"),
        [&vec![0x90; nops][..], &[0x0f, 0x05]].concat(),
    );
    (packets, format!("{}:0x401000", code.display()))
}

fn add_bare(scratch: &Scratch, into: &Path, name: &str, nops: usize) -> Ran {
    let (packets, raw) = bare(scratch, name, nops);
    let ran = archive(into, &["--raw", &raw, packets.to_str().unwrap()]);
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    ran
}

#[test]
fn what_is_old_goes_with_the_code_that_nobody_else_needs() {
    let scratch = Scratch::new();
    let into = scratch.path("catalogue");
    for (name, nops) in [("first", 3), ("second", 3), ("third", 7)] {
        add_bare(&scratch, &into, name, nops);
    }
    let recording = |name: &str| into.join(format!("recordings/{name}.cofi"));
    // Without build ids files are known by what they hold.
    let (recordings, summary) = list(&into);
    assert_eq!(summary["code_files"], 2);
    let shared: Vec<_> = recordings
        .iter()
        .map(|it| it["shared_bytes"].clone())
        .collect();
    assert_eq!(shared, [5, 5, 0]);
    assert!(
        recordings
            .iter()
            .all(|it| it["build_ids"] == serde_json::json!([]))
    );
    let nothing = archive(&into, &["--prune", "1d", "--json"]);
    assert_eq!(objects(&nothing)[0]["summary"]["left"], 3);
    make_old(&recording("first"));
    make_old(&recording("third"));
    let pruned = objects(&archive(&into, &["--prune", "1d", "--json"]));
    assert_eq!(
        [&pruned[0]["removed"], &pruned[1]["removed"]],
        ["first", "third"]
    );
    let summary = &pruned[2]["summary"];
    assert_eq!(
        (&summary["removed"], &summary["left"]),
        (&2.into(), &1.into())
    );
    assert_eq!(
        (&summary["code_files"], &summary["code_bytes"]),
        (&1.into(), &9.into())
    );
    // What the second one shared with the first is there.
    let ran = run(cofi().args(["insn", "--json"]).arg(recording("second")));
    assert_eq!(common::addresses(&ran.stdout).len(), 4, "{}", ran.stderr);
    assert_eq!(
        (list(&into).0.len(), files(&into.join("code")).len()),
        (1, 1)
    );
    // All of it.
    assert_eq!(archive(&into, &["--prune", "0s"]).code(), 0);
    let marker = into.join("cofi-catalogue");
    assert_eq!(files(&into), [marker]);
    assert_eq!(fs::read_dir(into.join("code")).unwrap().count(), 0);
}

#[test]
fn names_are_given_once_and_the_same_recording_is_added_once() {
    let scratch = Scratch::new();
    let into = scratch.path("catalogue");
    add_bare(&scratch, &into, "run", 3);
    let again = add_bare(&scratch, &into, "run", 3);
    assert!(
        again.stderr.contains("was there before"),
        "{}",
        again.stderr
    );
    // Another trace of that name.
    add_bare(&scratch, &into, "run", 5);
    let names = |into: &Path| -> Vec<Value> {
        let (recordings, _) = list(into);
        recordings
            .iter()
            .map(|it| it["recording"].clone())
            .collect()
    };
    assert_eq!(names(&into), ["run", "run-2"]);
    let (packets, raw) = bare(&scratch, "run", 5);
    let packets = packets.to_str().unwrap();
    let ran = archive(
        &into,
        &["--raw", &raw, "--name", "../../out/of it", packets],
    );
    assert_eq!(ran.code(), 2, "{}", ran.stderr);
    assert_eq!(names(&into), ["run", "run-2"]);
    assert!(!scratch.path("out").exists());
}

/// Who is killed while adding leaves nothing that lists, and what is left goes with the next pruning.
#[test]
fn an_interrupted_adding_leaves_nothing_that_lists() {
    let scratch = Scratch::new();
    let into = scratch.path("catalogue");
    add_bare(&scratch, &into, "kept", 3);
    let (recordings, _) = list(&into);
    // As it is when it was killed before the recording was put into its place: code that nobody names, and half a file.
    add_bare(&scratch, &into, "killed", 1000);
    let half = fs::read(into.join("recordings/killed.cofi")).unwrap();
    fs::write(into.join("incoming/.tmpA"), &half[..half.len() / 2]).unwrap();
    fs::remove_file(into.join("recordings/killed.cofi")).unwrap();
    let (after, summary) = list(&into);
    assert_eq!(after, recordings);
    assert_eq!(
        (&summary["unused_code_files"], &summary["unused_code_bytes"]),
        (&1.into(), &1002.into())
    );
    let pruned = objects(&archive(&into, &["--prune", "1d", "--json"]));
    let summary = &pruned[0]["summary"];
    assert_eq!(
        (
            &summary["left"],
            &summary["code_files"],
            &summary["unfinished_files"]
        ),
        (&1.into(), &1.into(), &1.into())
    );
    assert_eq!(list(&into).1["unused_code_files"], 0);
    // Killed before it was a catalogue.
    let fresh = scratch.path("fresh");
    fs::create_dir(&fresh).unwrap();
    fs::write(fresh.join("cofi-catalogue"), "").unwrap();
    add_bare(&scratch, &fresh, "first", 3);
    assert_eq!(list(&fresh).0.len(), 1);
}

/// Killed at any time, by SIGKILL, while it adds.
#[test]
fn killed_at_any_time_it_is_whole_or_not_there() {
    let scratch = Scratch::new();
    let Some(program) = program(&scratch) else {
        return;
    };
    let data = recorded(&scratch, &program, "20");
    let into = scratch.path("catalogue");
    let whole = told(&data);
    // Each is killed as soon as so many files are there, whatever they are: the version, the code, what is being written.
    let mut between = 0;
    for wanted in 0..12 {
        let _ = fs::remove_dir_all(&into);
        let mut command = cofi();
        command.arg("archive").arg("--into").arg(&into).arg(&data);
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        while files(&into).len() < wanted && child.try_wait().unwrap().is_none() {
            std::hint::spin_loop();
        }
        let _ = child.kill();
        child.wait().unwrap();
        between +=
            usize::from(!files(&into).is_empty() && files(&into.join("recordings")).is_empty());
        if !into.join("cofi-catalogue").exists() {
            continue;
        }
        let ran = archive(&into, &["--list", "--json"]);
        if ran.code() == 2 {
            // It was killed before it had written the version.
            assert_eq!(fs::read(into.join("cofi-catalogue")).unwrap(), b"");
            continue;
        }
        assert_eq!((ran.code(), &*ran.stderr), (0, ""), "{wanted}");
        for recording in objects(&ran).iter().filter_map(|it| it["path"].as_str()) {
            assert!(told(Path::new(recording)) == whole, "{wanted}");
        }
    }
    assert!(between > 0, "none was killed before it had ended");
    assert_eq!(add(&into, &data).code(), 0);
    assert_eq!(archive(&into, &["--prune", "1d"]).code(), 0);
    let (recordings, summary) = list(&into);
    assert_eq!(
        (recordings.len(), &summary["unused_code_files"]),
        (1, &0.into())
    );
    assert!(files(&into.join("incoming")).is_empty());
}

#[test]
fn several_add_at_the_same_time() {
    let scratch = Scratch::new();
    let into = scratch.path("catalogue");
    let traces: Vec<_> = (0..8)
        .map(|number| bare(&scratch, "same", 3 + number))
        .collect();
    // They were all of one file of packets: the name is the same for all.
    let children: Vec<_> = traces
        .iter()
        .map(|(packets, _)| packets)
        .zip(0..8)
        .map(|(packets, number)| {
            let code = scratch.write(
                &format!("{number}.bin"),
                [&vec![0x90; number / 2][..], &[0x0f, 0x05]].concat(),
            );
            let mut command = cofi();
            command.arg("archive").arg("--into").arg(&into).arg("--raw");
            command
                .arg(format!("{}:0x401000", code.display()))
                .arg(packets);
            command
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let ran = common::wait(child);
        assert_eq!(ran.code(), 0, "{}", ran.stderr);
    }
    let (recordings, summary) = list(&into);
    // Two each have the same code, but by another path: eight recordings, four files.
    assert_eq!((recordings.len(), &summary["code_files"]), (8, &4.into()));
    let lens = recordings.iter().map(|it| {
        let ran = run(cofi()
            .args(["insn", "--json"])
            .arg(it["path"].as_str().unwrap()));
        common::addresses(&ran.stdout).len()
    });
    let mut lens: Vec<_> = lens.collect();
    lens.sort_unstable();
    assert_eq!(lens, [1, 1, 2, 2, 3, 3, 4, 4]);
}

#[test]
fn folders_that_are_no_catalogues_stay_as_they_are() {
    let scratch = Scratch::new();
    let (packets, raw) = bare(&scratch, "trace", 3);
    let other = scratch.path("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("letter"), "text").unwrap();
    let more = ["--raw", &raw, packets.to_str().unwrap()];
    for more in [&more[..], &["--list"], &["--prune", "0s"]] {
        let ran = archive(&other, more);
        assert_eq!(ran.code(), 2);
        assert!(ran.stderr.contains("is no catalogue"), "{}", ran.stderr);
    }
    assert_eq!(files(&other), [other.join("letter")]);
    assert_eq!(archive(&scratch.path("none"), &["--list"]).code(), 2);
    fs::write(other.join("cofi-catalogue"), "cofi catalogue 2\n").unwrap();
    let ran = archive(&other, &["--list"]);
    assert!(ran.stderr.contains("another version"), "{}", ran.stderr);
    // What does not go together.
    for wrong in [
        &["--list", "x.data"][..],
        &["--list", "--prune", "1d"],
        &["--prune", "1"],
        &["-o", "x"],
    ] {
        assert_eq!(archive(&other, wrong).code(), 2, "{wrong:?}");
    }
    assert_eq!(run(cofi().args(["archive", "--list"])).code(), 2);
    for wrong in [
        &["--list"][..],
        &["--prune", "1d"],
        &["--name", "x"],
        &["--json"],
    ] {
        let ran = run(cofi().args(["archive", "-o"]).arg(&other).args(wrong));
        assert_eq!(ran.code(), 2, "{wrong:?}");
        assert!(ran.stderr.contains("cannot be used with"), "{}", ran.stderr);
    }
    // Nothing is made for a trace that is not there.
    let none = scratch.path("none");
    assert_eq!(add(&none, &scratch.path("missing.data")).code(), 2);
    assert!(!none.exists());
}

/// A name that somebody chose is taken as it is, or refused.
#[test]
fn a_name_that_cannot_be_one_is_refused() {
    let scratch = Scratch::new();
    let into = scratch.path("catalogue");
    let (packets, code) = bare(&scratch, "run", 3);
    let named = |name: &str| {
        let mut command = cofi();
        command.arg("archive").arg("--into").arg(&into);
        run(command.args(["--name", name, "--raw", &code]).arg(&packets))
    };
    for wrong in ["", ".", "a/b", "ü", &"x".repeat(61)] {
        let ran = named(wrong);
        assert_eq!(ran.code(), 2, "{wrong}");
        assert!(ran.stderr.contains("would be one"), "{}", ran.stderr);
    }
    assert!(!into.exists());
    assert_eq!(named("a.b-c_d+1").code(), 0);
    assert!(into.join("recordings/a.b-c_d+1.cofi").exists());
}

/// What a writer or a disk has damaged does not spoil what is added later.
#[test]
fn damaged_code_is_written_anew() {
    let scratch = Scratch::new();
    let into = scratch.path("catalogue");
    add_bare(&scratch, &into, "run", 3);
    let recording = into.join("recordings/run.cofi");
    let whole = told(&recording);
    for file in files(&into.join("code")) {
        let len = fs::metadata(&file).unwrap().len() as usize;
        fs::write(&file, vec![0xcc; len]).unwrap();
    }
    assert!(told(&recording) != whole);
    add_bare(&scratch, &into, "run", 3);
    assert!(told(&recording) == whole);
}

/// Links in the place of a catalogue's own folders and files lead nowhere: nothing there is listed, written or removed.
#[test]
fn links_do_not_lead_out_of_a_catalogue() {
    let scratch = Scratch::new();
    let into = scratch.path("catalogue");
    let outside = scratch.path("outside");
    add_bare(&scratch, &into, "run", 3);
    fs::create_dir(&outside).unwrap();
    for name in ["incoming", "code", "recordings", "cofi-catalogue"] {
        let (place, kept) = (into.join(name), scratch.path("kept"));
        fs::rename(&place, &kept).unwrap();
        let precious = outside.join(".tmpthesis.cofi");
        fs::write(&precious, "").unwrap();
        let target = match name {
            "cofi-catalogue" => precious.clone(),
            _ => outside.clone(),
        };
        std::os::unix::fs::symlink(target, &place).unwrap();
        let ran = archive(&into, &["--prune", "0s"]);
        assert_eq!(ran.code(), 2, "{name}: {}", ran.stderr);
        assert!(ran.stderr.contains("is a link"), "{}", ran.stderr);
        assert_eq!(archive(&into, &["--list"]).code(), 2);
        let (packets, raw) = bare(&scratch, "other", 4);
        let ran = archive(&into, &["--raw", &raw, packets.to_str().unwrap()]);
        assert_eq!(ran.code(), 2, "{name}: {}", ran.stderr);
        assert_eq!(fs::read(&precious).unwrap(), b"");
        assert_eq!(files(&outside).len(), 1);
        fs::remove_file(&place).unwrap();
        fs::rename(&kept, &place).unwrap();
    }
    // Of what is being written, only what has such a name goes.
    fs::write(into.join("incoming/notes"), "").unwrap();
    fs::write(into.join("incoming/.tmpabc"), "").unwrap();
    let ran = archive(&into, &["--prune", "1d"]);
    assert_eq!(ran.code(), 0);
    assert!(
        ran.text().contains("1 file that nobody had finished"),
        "{}",
        ran.text()
    );
    assert_eq!(files(&into.join("incoming")), [into.join("incoming/notes")]);
}

/// A recording that was renamed by hand still needs its code, whatever it is called.
#[test]
fn a_renamed_recording_keeps_its_code() {
    use std::os::unix::ffi::OsStrExt;
    let scratch = Scratch::new();
    let into = scratch.path("catalogue");
    let names = [
        &b"kept.data"[..],
        b"\xff.cofi",
        b"\xfe.cofi",
        b"a\x1b[31m.cofi",
    ];
    let folder = into.join("recordings");
    let mut all = Vec::new();
    for (number, name) in names.into_iter().enumerate() {
        add_bare(&scratch, &into, "run", 3 + number);
        let path = folder.join(std::ffi::OsStr::from_bytes(name));
        fs::rename(folder.join("run.cofi"), &path).unwrap();
        all.push((told(&path), path));
    }
    let ran = archive(&into, &["--prune", "1d"]);
    assert_eq!((ran.code(), &*ran.stderr), (0, ""));
    let ran = archive(&into, &["--list"]);
    assert_eq!((ran.code(), &*ran.stderr), (0, ""));
    assert!(ran.text().contains("4 recordings"), "{}", ran.text());
    assert!(!ran.text().contains('\x1b'), "{}", ran.text());
    for (before, path) in all {
        assert!(told(&path) == before, "{}", path.display());
    }
}

/// A recording with this manifest and these packets.
fn hostile(into: &Path, name: &str, manifest: &str) -> PathBuf {
    let packets = [
        &[0x02, 0x82].repeat(8)[..],
        &[0x02, 0x23, 0x71, 0, 0x10, 0x40, 0, 0, 0, 0x01],
    ]
    .concat();
    let mut tar = tar::Builder::new(Vec::new());
    for (name, bytes) in [
        ("cofi-archive.json", manifest.as_bytes()),
        ("trace", &packets),
    ] {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, name, bytes).unwrap();
    }
    let path = into.join(format!("recordings/{name}.cofi"));
    fs::write(&path, tar.into_inner().unwrap()).unwrap();
    path
}

#[test]
fn nothing_outside_of_the_catalogue_is_read() {
    let scratch = Scratch::new();
    let into = scratch.path("catalogue");
    add_bare(&scratch, &into, "good", 3);
    let code = scratch.write("code.bin", [0x90, 0x90, 0x0f, 0x05]);
    let hash = "ab".repeat(32);
    let manifest = |member: &str, size: u64| {
        format!(
            "{{\"cofi_archive\": 2, \"trace\": \"trace\", \"format\": \"pt\", \"raw\": [\"/x:0x401000\"], \
             \"files\": [{{\"member\": \"{member}\", \"path\": \"/x\"}}], \
             \"kept\": {{\"added\": 1, \"shared\": [{{\"member\": \"{member}\", \"size\": {size}}}]}}}}"
        )
    };
    let names = [
        "../../code.bin",
        "/etc/passwd",
        "code/../../code.bin",
        "code/none/../x",
        "code//x",
    ];
    for name in names {
        let path = hostile(&into, "evil", &manifest(name, 4));
        let ran = run(cofi().arg("insn").arg(&path));
        assert_eq!((ran.code(), &*ran.text()), (2, ""), "{name}");
        assert!(ran.stderr.contains("name of no file"), "{}", ran.stderr);
        // It is not known what it needs.
        let ran = archive(&into, &["--list"]);
        assert_eq!(ran.code(), 1);
        assert!(
            ran.text().contains("good") && ran.stderr.contains("evil.cofi"),
            "{}",
            ran.stderr
        );
        let ran = archive(&into, &["--prune", "0s"]);
        assert_eq!(ran.code(), 2);
        assert!(ran.stderr.contains("no code is removed"), "{}", ran.stderr);
        assert!(into.join("recordings/good.cofi").exists());
    }
    // A link in the place of a file of code, and of its folder; and a file of another size.
    let member = format!("code/none/{hash}");
    let path = hostile(&into, "evil", &manifest(&member, 4));
    std::os::unix::fs::symlink(&code, into.join(&member)).unwrap();
    let refused = |path: &Path| {
        let ran = run(cofi().arg("insn").arg(path));
        assert_eq!((ran.code(), &*ran.text()), (2, ""));
        ran.stderr
    };
    assert!(refused(&path).contains("no file of 4 bytes"));
    fs::remove_file(into.join(&member)).unwrap();
    fs::write(into.join(&member), [0x90, 0x0f, 0x05]).unwrap();
    assert!(refused(&path).contains("no file of 4 bytes"));
    let missing = archive(&into, &["--list"]);
    assert_eq!(missing.code(), 1);
    assert!(
        missing.stderr.contains("1 file of its code is missing"),
        "{}",
        missing.stderr
    );
    let folder = scratch.path("folder");
    fs::create_dir(&folder).unwrap();
    fs::copy(&code, folder.join(&hash)).unwrap();
    let linked = format!("code/abcd/{hash}");
    std::os::unix::fs::symlink(&folder, into.join("code/abcd")).unwrap();
    assert!(
        refused(&hostile(&into, "evil", &manifest(&linked, 4))).contains("its folder is not there")
    );
    // Sizes that no file has add up to no more than they can.
    hostile(&into, "evil", &manifest(&member, u64::MAX));
    hostile(&into, "evil2", &manifest(&member, u64::MAX));
    let ran = archive(&into, &["--list", "--json"]);
    assert!(
        (ran.code(), ran.stderr.contains("panicked")) == (1, false),
        "{}",
        ran.stderr
    );
    // With the right size it is a recording like any other.
    let path = hostile(&into, "evil", &manifest(&member, 3));
    let ran = run(cofi().args(["insn", "--json"]).arg(path));
    assert_eq!(
        common::addresses(&ran.stdout),
        [0x401000, 0x401001],
        "{}",
        ran.stderr
    );
}

#[test]
fn a_recording_that_is_cut_off_or_damaged_is_told() {
    let scratch = Scratch::new();
    let into = scratch.path("catalogue");
    add_bare(&scratch, &into, "run", 3);
    let path = into.join("recordings/run.cofi");
    let whole = fs::read(&path).unwrap();
    let all = run(cofi().arg("insn").arg(&path)).text();
    // Whether reading it tells that something is wrong, or tells all.
    let is_told = |bytes: &[u8], at: usize| {
        fs::write(&path, bytes).unwrap();
        let insn = run(cofi().arg("insn").arg(&path));
        let listed = archive(&into, &["--list", "--json"]);
        let is_told = insn.code() != 0 || listed.code() != 0 || insn.text() == all;
        for ran in [listed, insn, archive(&into, &["--prune", "30000d"])] {
            assert!(
                (0..=2).contains(&ran.code()) && !ran.stderr.contains("panicked"),
                "{at}: {}",
                ran.stderr
            );
        }
        is_told
    };
    for at in [0, 1, 511, 512, 700, 1024, 1536, whole.len() / 2] {
        assert!(is_told(&whole[..at], at), "cut at {at}");
    }
    let damages = (0..2500).step_by(61).map(|at| {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        is_told(&damaged, at)
    });
    // Addresses and bytes of packets may be others without being wrong.
    let (told, silent): (Vec<bool>, Vec<bool>) = damages.partition(|told| *told);
    assert!(
        told.len() > 4 * silent.len(),
        "{} {}",
        told.len(),
        silent.len()
    );
}
