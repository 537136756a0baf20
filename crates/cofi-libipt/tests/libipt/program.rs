//! A program in C, and the two libraries on which it runs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The folder in which tests and libraries are built.
pub(crate) fn built() -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let library = test.parent().expect("a folder").join("libcofi_libipt.so");
    assert!(library.is_file(), "the library is not beside the test");
    library
}

/// A program, and the library that it is to run on.
pub(crate) struct Program {
    folder: TempDir,
}

impl Program {
    /// `None` if it cannot be compiled here, which has been said.
    pub(crate) fn new(source: &str, flags: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let mut all = vec![
            "-std=c99",
            "-D_DEFAULT_SOURCE",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
        ];
        all.extend(flags);
        all.push("-lipt");
        if !cofi_test::compile(&source, &folder.path().join("program"), &all) {
            return None;
        }
        fs::create_dir(folder.path().join("lib")).expect("a folder");
        symlink(built(), folder.path().join("lib/libipt.so.2")).expect("a link");
        Some(Self { folder })
    }

    pub(crate) fn path(&self, name: &str) -> String {
        let path = self.folder.path().join(name);
        path.to_str().expect("an ordinary name").to_owned()
    }

    /// What it prints on this library, and on the one that it was compiled against.
    pub(crate) fn both(&self, arguments: &[String]) -> [String; 2] {
        [&["env", "-u", "LD_LIBRARY_PATH"][..], &[]].map(|before| self.run(before, arguments))
    }

    /// What it prints, run by a command that stands before it; on this library unless that says otherwise.
    pub(crate) fn run(&self, before: &[&str], arguments: &[String]) -> String {
        let program = self.path("program");
        let mut words: Vec<&str> = before.to_vec();
        words.push(&program);
        words.extend(arguments.iter().map(String::as_str));
        let output = Command::new(words[0])
            .args(&words[1..])
            .env("LD_LIBRARY_PATH", self.path("lib"))
            .output()
            .expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let code = output.status.code().expect("no signal");
        // (1 is what the exam's programs return where they found errors in a stream.)
        assert!(code <= 1, "{words:?}: {code}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What both print.
    pub(crate) fn same(&self, arguments: &[String]) -> String {
        let [theirs, ours] = self.both(arguments);
        let differs = theirs
            .lines()
            .zip(ours.lines())
            .find(|(their, our)| their != our);
        assert!(theirs == ours, "{arguments:?}: {differs:?}");
        assert!(!theirs.is_empty(), "{arguments:?}: nothing");
        ours
    }
}

pub(crate) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
