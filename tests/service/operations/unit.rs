//! The systemd unit, where systemd's own check is installed.

use std::process::{Command, Stdio};
use std::time::Duration;

use testing::process::finish;

#[test]
fn systemd_finds_no_fault_in_the_unit() {
    let unit = include_str!("../../../docs/lode.service");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lode.service");
    let installed = "ExecStart=/usr/local/bin/lode ";
    assert!(unit.contains(installed));
    let here = format!("ExecStart={} ", env!("CARGO_BIN_EXE_lode"));
    std::fs::write(&file, unit.replace(installed, &here)).unwrap();
    let mut command = Command::new("systemd-analyze");
    command.arg("verify").arg(&file).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(check) = command.spawn() else {
        eprintln!("SKIPPED: no systemd-analyze; `apt-get install systemd` brings it");
        return;
    };
    let finished = finish(check, Duration::from_secs(60)).succeeded();
    let faults: Vec<&str> =
        finished.stderr.lines().filter(|line| line.contains("lode.service")).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}
