//! Forks in the midst of gathers: children and parent read right rows, and no child hangs.
//!
//! Each scenario runs in a process of its own, this program again, so that a child inherits only
//! what the scenario has open.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "forked/prefetching.rs"]
mod prefetching;
#[path = "forked/reading.rs"]
mod reading;
#[path = "forked/writing.rs"]
mod writing;

use std::process::{Command, Stdio};
use std::time::Duration;

use testing::process::finish;

/// Longest time for a scenario, whose children have 20 s each.
const SCENARIO_DEADLINE: Duration = Duration::from_secs(120);

/// Runs a scenario in a process of its own.
fn run(scenario: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["process_under_test", "--exact", "--ignored", "--nocapture"]);
    command.env("LODE_TEST_SCENARIO", scenario).env("LODE_TEST_FOLDER", dir.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let finished = finish(command.spawn().unwrap(), SCENARIO_DEADLINE).succeeded();
    assert!(finished.stdout.contains("1 passed"), "{finished:?}");
    assert!(!finished.stderr.contains("panicked"), "{finished:?}");
}

/// Not a test of its own: what the processes of the other tests do.
#[test]
#[ignore = "the others run it, each in a process of its own"]
fn process_under_test() {
    let Some((scenario, _)) = testing::child::own() else { return };
    match scenario.split_once(' ') {
        Some(("gather", way)) => reading::forks_while_it_gathers(way),
        Some(("lock", way)) => reading::forks_while_locks_are_held(way),
        Some(("leave", way)) => reading::leaves_in_a_child(way),
        _ if scenario == "write" => writing::forks_while_it_writes(),
        _ if scenario == "close" => writing::closes_while_a_child_lives(),
        _ if scenario == "put" => writing::puts_in_children(),
        _ if scenario == "prefetch" => prefetching::forks_while_batches_come(),
        _ => panic!("no scenario {scenario}"),
    }
}

#[test]
fn rows_of_a_mapped_reader_are_right_in_parent_and_child() {
    run("gather mapped");
}

#[test]
fn rows_of_a_direct_reader_are_right_in_parent_and_child() {
    run("gather direct");
}

#[test]
fn rows_of_a_pread_reader_are_right_in_parent_and_child() {
    run("gather pread");
}

#[test]
fn rows_of_a_server_are_right_in_parent_and_child() {
    run("gather tcp");
}

#[test]
fn rows_under_tls_are_right_in_parent_and_child() {
    run("gather tls");
}

#[test]
fn rows_through_shared_memory_are_right_in_parent_and_child() {
    run("gather unix");
}

#[test]
fn no_child_waits_for_a_lock_of_a_thread_that_it_does_not_have() {
    run("lock mapped");
    run("lock tcp");
}

#[test]
fn a_child_ends_no_connection_of_its_parent_and_keeps_none_of_them_open() {
    for way in ["tcp", "tls", "unix"] {
        run(&format!("leave {way}"));
    }
}

#[test]
fn a_writer_refuses_in_a_child_and_continues_in_its_parent() {
    run("write");
}

#[test]
fn a_writer_that_is_closed_can_be_opened_again_while_a_child_lives() {
    run("close");
}

#[test]
fn what_has_threads_or_turns_is_an_error_in_a_child() {
    run("prefetch");
}

#[test]
fn children_of_one_thread_put_under_numbers_of_their_own() {
    run("put");
}
