//! A server where the kernel gives it no io_uring, or no memory for one: it needs both, and says so.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Resource;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use crate::child::{self, limit, refuse};
use crate::support::graph::Source;
use crate::support::process::{Finished, finish};

/// Runs `lode serve` in a process that has given something up, and waits for its end.
fn serve_after(scenario: &str, graph: &Path) -> Finished {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["without_rings::gives_something_up_and_serves", "--exact", "--ignored"]);
    command.args(["--nocapture", "--test-threads=1"]);
    command.env("LODE_TEST_SCENARIO", scenario).env("LODE_TEST_FOLDER", graph);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().unwrap(), Duration::from_secs(60))
}

/// Not a test of its own: what the processes of the other tests do.
#[test]
#[ignore = "the others run it, each in a process of its own"]
fn gives_something_up_and_serves() {
    let Some((scenario, graph)) = child::own() else { return };
    match scenario.as_str() {
        "setup refused" => refuse(&[libc::SYS_io_uring_setup], libc::EPERM),
        "setup unknown" => refuse(&[libc::SYS_io_uring_setup], libc::ENOSYS),
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

#[test]
fn a_server_that_gets_no_ring_ends_and_says_what_it_needs() {
    let source = Source::random(300, 900);
    let graph = source.import("graph", 2, "range");
    for scenario in ["setup refused", "setup unknown", "no locked memory"] {
        let finished = serve_after(scenario, &graph);
        let told = finished.failed(1, &["io_uring", "512 KiB of locked memory"]);
        let lines: Vec<&str> =
            told.stderr.lines().filter(|line| line.starts_with("lode: ")).collect();
        assert_eq!(lines.len(), 1, "{scenario}: {}", told.stderr);
    }
}
