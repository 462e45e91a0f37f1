//! A server where the system refuses io_uring, or memory for it: it needs both, and says so.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Resource;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use testing::child::{self, limit, refuse};
use testing::graph::Source;
use testing::process::{Finished, finish};

/// Runs `lode serve` in a process that has given something up, and waits for its end.
fn serve_after(scenario: &str, graph: &Path) -> Finished {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["without_rings::gives_up_something_and_serves", "--exact", "--ignored"]);
    command.args(["--nocapture", "--test-threads=1"]);
    command.env("LODE_TEST_SCENARIO", scenario).env("LODE_TEST_FOLDER", graph);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().unwrap(), Duration::from_secs(60))
}

/// Not a test of its own: what the processes of the other tests do.
#[test]
#[ignore = "the others run it, each in a process of its own"]
fn gives_up_something_and_serves() {
    let Some((scenario, graph)) = child::own() else { return };
    match scenario.as_str() {
        "setup refused" => refuse(&[libc::SYS_io_uring_setup], libc::EPERM),
        "setup unknown" => refuse(&[libc::SYS_io_uring_setup], libc::ENOSYS),
        "register refused" => refuse(&[libc::SYS_io_uring_register], libc::EPERM),
        "enter refused" => refuse(&[libc::SYS_io_uring_enter], libc::EPERM),
        "no locked memory" => {
            // Root gets it back when it starts a program, unless it can have it no more.
            let _ = remove_capability_from_bounding_set(CapabilitySet::IPC_LOCK);
            limit(Resource::Memlock, 0);
        }
        other => panic!("no scenario {other}"),
    }
    let mut serve = Command::new(env!("CARGO_BIN_EXE_lode"));
    let error = serve.arg("serve").arg(graph).args(["--listen", "127.0.0.1:0"]).exec();
    panic!("{error}");
}

/// Runs the scenario, and returns the one line that the server ends with.
fn last_words(scenario: &str, graph: &Path, parts: &[&str]) -> String {
    let finished = serve_after(scenario, graph).failed(1, parts);
    let mut lines = finished.stderr.lines().filter(|line| line.starts_with("lode: "));
    let line = lines.next().unwrap().to_owned();
    assert_eq!(lines.next(), None, "{scenario}: {}", finished.stderr);
    line
}

#[test]
fn a_server_under_a_seccomp_filter_names_the_call_and_the_profile_that_allows_it() {
    let source = Source::random(300, 900);
    let graph = source.import("graph", 2, "range");
    let scenarios = [
        ("setup refused", "io_uring_setup: Operation not permitted"),
        ("setup unknown", "io_uring_setup: Function not implemented"),
        ("register refused", "io_uring_register: Operation not permitted"),
        ("enter refused", "io_uring_enter: Operation not permitted"),
    ];
    for (scenario, call) in scenarios {
        let line = last_words(scenario, &graph, &[call]);
        assert!(line.contains("seccomp=seccomp.json` with deploy/seccomp.json"), "{line}");
    }
}

#[test]
fn a_server_without_locked_memory_says_how_much_it_needs() {
    let source = Source::random(300, 900);
    let graph = source.import("graph", 2, "range");
    last_words("no locked memory", &graph, &["io_uring", "512 KiB of locked memory"]);
}
