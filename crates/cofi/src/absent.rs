//! The commands that a build which only reads does not have: known, so that they say why.

use crate::Ended;
use anyhow::{Result, bail};
use clap::Args;
use std::ffi::OsString;

/// Whatever stands behind such a command.
#[derive(Args, Debug)]
pub(crate) struct AbsentArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    rest: Vec<OsString>,
}

/// Says why it cannot be done here.
pub(crate) fn run(command: &str) -> Result<Ended> {
    let why = match cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        true => "it was built to read recordings alone",
        false => "what records runs on x86-64 Linux alone",
    };
    bail!("`cofi {command}` is not in this build of cofi: {why}");
}

#[cfg(test)]
mod tests {
    use crate::args::{Cli, Command};
    use clap::{CommandFactory, Parser};

    #[test]
    fn what_records_is_known_and_says_why_it_cannot() {
        let words = [
            "cofi", "record", "--engine", "qemu", "-o", "x", "--", "ls", "-l",
        ];
        let cli = Cli::try_parse_from(words).expect("a command that is known");
        assert!(matches!(cli.command, Command::Record(_)), "{cli:?}");
        for command in ["record", "trace", "machine", "doctor"] {
            assert!(Cli::try_parse_from(["cofi", command]).is_ok(), "{command}");
            let said = super::run(command)
                .expect_err("it cannot be done")
                .to_string();
            assert!(
                said.contains(command) && said.contains("not in this build"),
                "{said}"
            );
            assert!(!said.contains(". "), "one sentence: {said}");
        }
    }

    #[test]
    fn help_promises_no_recording() {
        let help = Cli::command().render_long_help().to_string();
        assert!(help.starts_with("Read "), "{help}");
        let names = help
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        let names: Vec<&str> = names.collect();
        assert!(
            names.contains(&"report") && !names.contains(&"record"),
            "{help}"
        );
    }
}
