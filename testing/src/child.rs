//! Processes that give up rights or resources, and then do something.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use seccompiler::{SeccompAction, SeccompFilter};

/// Rights that a child process drops, and its later actions.
const SCENARIO: &str = "LODE_TEST_SCENARIO";
/// Folder that it works in.
const FOLDER: &str = "LODE_TEST_FOLDER";

/// Returns the scenario of this process and its folder, if it is a child.
pub fn own() -> Option<(String, PathBuf)> {
    Some((std::env::var(SCENARIO).ok()?, std::env::var_os(FOLDER)?.into()))
}

/// Runs a scenario in a process of its own; it must succeed.
pub fn child(scenario: &str, dir: &Path) -> Output {
    let output = run(&mut Command::new(std::env::current_exe().unwrap()), scenario, dir);
    check(&output);
    output
}

pub fn run(command: &mut Command, scenario: &str, dir: &Path) -> Output {
    let args = ["scenario", "--exact", "--ignored", "--nocapture", "--test-threads=1"];
    command.args(args).env(SCENARIO, scenario).env(FOLDER, dir).output().unwrap()
}

pub fn check(output: &Output) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let ran = output.status.success() && stdout.contains("1 passed");
    assert!(ran, "{}: {stdout}\n{}", output.status, stderr(output));
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Makes system calls of this process fail from now on.
pub fn refuse(calls: &[libc::c_long], errno: i32) {
    let rules: BTreeMap<i64, _> = calls.iter().map(|&call| (call, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let on_match = SeccompAction::Errno(errno as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, on_match, arch).unwrap();
    let program: seccompiler::BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter_all_threads(&program).unwrap();
}

pub fn limit(resource: Resource, to: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(to), maximum }).unwrap();
    assert_eq!(getrlimit(resource).current, Some(to));
}
