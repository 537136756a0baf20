//! Programs in C and C++ use the library, as it is built beside this test.

use cofi_c::{event, flow, packets, recording, unit, vmx};
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let folder = test.parent().expect("it lies in a folder").to_owned();
    assert!(
        folder.join("libcofi_c.so").is_file(),
        "the library is not beside the test"
    );
    folder
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Compiles a program with the library, and runs it; what it printed. `None` if it cannot be compiled here, which has been said.
fn run(name: &str, flags: &[&str], before: &[&str]) -> Option<String> {
    let libraries = folder();
    let beside = tempfile::tempdir().expect("a folder");
    let program = beside.path().join("program");
    let include = format!("-I{}", source("include").display());
    let link = format!("-L{}", libraries.display());
    let path = format!("-Wl,-rpath,{}", libraries.display());
    let mut all = vec!["-Wall", "-Wextra", "-Werror", &include, &link, &path];
    all.extend(flags);
    all.push("-lcofi_c");
    if !cofi_test::compile(&source(name), &program, &all) {
        return None;
    }
    let mut command = match before.split_first() {
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(&program);
            command
        }
        None => Command::new(&program),
    };
    // (What it may write into.)
    command.arg(beside.path());
    let output = command.output().expect("it runs");
    assert!(
        output.status.success(),
        "{name}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn every_function_does_what_the_header_says() {
    run("tests/c/everything.c", &["-std=c99", "-O1"], &[]);
}

#[test]
fn nothing_is_leaked_or_read_amiss() {
    if !cofi_test::has_program("valgrind") {
        return cofi_test::skip("there is no valgrind");
    }
    let valgrind = [
        "valgrind",
        "--quiet",
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
    ];
    run("tests/c/everything.c", &["-std=c99", "-g"], &valgrind);
}

#[test]
fn the_address_sanitizer_finds_nothing() {
    let flags = ["-std=c99", "-g", "-fsanitize=address,undefined"];
    run("tests/c/everything.c", &flags, &[]);
}

#[test]
fn the_header_serves_cpp() {
    run("tests/c/from_cpp.cpp", &["-std=c++11", "-lstdc++"], &[]);
}

#[test]
fn the_header_has_the_structures_that_the_library_has() {
    let Some(said) = run("tests/c/sizes.c", &["-std=c99"], &[]) else {
        return;
    };
    let said: Vec<usize> = said
        .split_whitespace()
        .map(|word| word.parse().expect("a number"))
        .collect();
    let mut known = packets::layout().to_vec();
    known.extend(unit::layout());
    known.extend(event::layout());
    known.extend(vmx::layout());
    known.extend(recording::layout());
    known.extend(flow::layout());
    assert_eq!(said, known);
}

/// Each function of the header is there and has a version, and the library has no other.
#[test]
fn header_library_and_version_script_have_the_same_functions() {
    let header = std::fs::read_to_string(source("include/cofi.h")).expect("the header");
    let code = header
        .split("#include <stddef.h>")
        .nth(1)
        .expect("its code");
    let mut declared: Vec<&str> = code
        .lines()
        .filter(|line| {
            line.contains('(')
                && !line.starts_with([' ', '/', '#', '*'])
                && !line.starts_with("typedef")
        })
        .filter_map(|line| line.split('(').next()?.split([' ', '*']).next_back())
        .filter(|name| name.starts_with("cofi_"))
        .collect();
    declared.sort_unstable();
    let symbols = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(folder().join("libcofi_c.so"))
        .output();
    let Ok(symbols) = symbols else {
        return cofi_test::skip("there is no nm");
    };
    let symbols = String::from_utf8_lossy(&symbols.stdout).into_owned();
    let names = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().last());
    let mut defined: Vec<&str> = names.filter(|name| name.starts_with("cofi_")).collect();
    defined.sort_unstable();
    assert_eq!(declared, defined);
    assert!(declared.len() > 30);
    // Each has a version in the library that is installed.
    let script = std::fs::read_to_string(source("cofi.map")).expect("the version script");
    let mut versioned: Vec<&str> = script
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .filter(|name| name.starts_with("cofi_"))
        .collect();
    versioned.sort_unstable();
    assert_eq!(declared, versioned);
}
