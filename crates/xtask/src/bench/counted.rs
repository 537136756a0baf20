//! Instructions counted by callgrind: what does not depend on how busy the machine is.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// What valgrind says at its end: the instructions that it counted.
fn collected(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Runs `command` under callgrind: what it printed, and how many instructions it took.
pub(super) fn run(command: &Command) -> Result<(String, u64)> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(command.get_program())
        .args(command.get_args())
        .output()
        .context("running valgrind")?;
    let [out, err] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    ensure!(output.status.success(), "{}", err.trim());
    let count = collected(&err).context("callgrind has counted nothing")?;
    Ok((out, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_callgrind_says() {
        let text = "==12== Events    : Ir\n==12== Collected : 10698292\n==12== \n";
        assert_eq!(collected(text), Some(10_698_292));
        assert_eq!(collected("valgrind: no such file"), None);
    }
}
