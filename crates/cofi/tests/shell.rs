//! What a package installs beside the program: completion scripts and manual pages know every command.

use std::process::{Command, Stdio};

fn cofi(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_cofi"))
        .args(words)
        .stdin(Stdio::null())
        .output()
        .expect("cofi runs");
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The names of all commands, as help lists them.
fn commands() -> Vec<String> {
    let help = cofi(&["--help"]);
    let (_, list) = help.split_once("Commands:\n").expect("a list");
    let names = list.lines().take_while(|line| line.starts_with("  "));
    let names: Vec<String> = names
        .filter(|line| !line.starts_with("    "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect();
    assert!(names.len() > 20, "{names:?}");
    names
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = cofi(&["completions", shell]);
        for name in commands() {
            assert!(script.contains(&name), "{shell}: {name}");
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("cofi.bash");
    std::fs::write(&script, cofi(&["completions", "bash"])).expect("written");
    let checked = Command::new("bash").arg("-n").arg(&script).status();
    assert!(checked.expect("bash runs").success());
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let pages = folder.path().join("pages");
    cofi(&["manual", &pages.display().to_string()]);
    for name in commands() {
        let page = pages.join(format!("cofi-{name}.1"));
        let text = std::fs::read_to_string(&page).expect("a page");
        assert!(text.contains(".TH"), "{name}: {text}");
        assert!(text.contains("SYNOPSIS"), "{name}");
    }
    assert!(pages.join("cofi.1").is_file());
}

#[test]
fn the_version_is_one_line_or_tells_more() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(cofi(&["-V"]), format!("cofi {version}\n"));
    let long = cofi(&["--version"]);
    let mut lines = long.lines();
    let first = lines.next().expect("a line");
    assert!(
        first == format!("cofi {version}")
            || first.starts_with(&format!("cofi {version} (commit ")),
        "{first}"
    );
    assert!(lines.any(|line| line.contains("qemu-system")), "{long}");
}
