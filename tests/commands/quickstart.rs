//! `lode quickstart` works, and leaves no process behind whatever ends it; `lode --version`.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use testing::names_in;
use testing::process::{
    children_of, command, finish, lode, lode_line, signal, wait, wait_until_gone,
};

const SMALL: &str = "quickstart --nodes 3000 --dim 16 --epochs 2";

#[test]
fn a_small_one_reports_what_scripts_rely_on() {
    let dir = tempfile::tempdir().unwrap();
    let line = format!("{SMALL} --dir {} --json", dir.path().display());
    let report = lode_line(&line).succeeded().json();
    assert_eq!(report["losses_identical"], true);
    assert_eq!(report["servers"].as_array().unwrap().len(), 2);
    assert_eq!(report["import"]["nodes"], 3000);
    assert_eq!(report["import"]["parts"].as_array().unwrap().len(), 4);
    for key in ["graph", "edges", "seconds", "peak_anonymous_bytes"] {
        assert!(!report["import"][key].is_null(), "import {key}");
    }
    for strategy in ["ondemand", "rapid"] {
        check_train_report(&report[strategy], strategy);
    }
    let bytes = |strategy: &str| report[strategy]["remote_bytes_per_step"].as_f64().unwrap();
    assert!(bytes("rapid") < bytes("ondemand"));
    let kept = ["graph", "raw", "server-0.log", "server-1.log"];
    assert_eq!(names_in(dir.path()), kept);
    lode_line(&format!("verify {}", dir.path().join("graph").display())).succeeded();
}

fn check_train_report(report: &Value, strategy: &str) {
    assert_eq!(report["strategy"], strategy);
    assert_eq!(report["model"], "sage");
    assert_eq!(report["rows_from"], "servers");
    assert_eq!(report["device"], "cpu");
    assert!(report["test_accuracy"].is_f64());
    assert!(report["peak_anonymous_bytes"].is_u64());
    let epochs = report["epochs"].as_array().unwrap();
    assert_eq!(epochs.len(), 2);
    for key in ["seconds", "loss", "accuracy", "wait_seconds"] {
        assert!(epochs[1][key].is_f64(), "{strategy} {key}");
    }
    assert_eq!(epochs[1]["hit_rate"].is_f64(), strategy != "ondemand", "it keeps nothing");
    for key in ["remote_rows", "remote_bytes", "pulls"] {
        assert!(epochs[1][key].is_u64(), "{strategy} {key}");
    }
}

#[test]
fn its_text_shows_how_to_repeat_it_and_cleanup_removes_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let line = format!("{SMALL} --dir {} --cleanup", dir.path().display());
    let finished = lode_line(&line).succeeded();
    assert_eq!(finished.stderr, "", "no progress without a terminal");
    for part in ["test accuracy", "bit-identical", "lode import --edges raw/edges.npy", "removed"] {
        assert!(finished.stdout.contains(part), "no `{part}` in {}", finished.stdout);
    }
    assert!(!dir.path().join("graph").exists() && !dir.path().join("raw").exists());
}

#[test]
fn the_commands_that_it_prints_do_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let line = format!("{SMALL} --dir {}", dir.path().display());
    let printed = lode_line(&line).succeeded().stdout;
    let script = printed.split_once("The same by hand:").unwrap().1;
    // Its ports may be taken here.
    let script = [(7171, free_port()), (7172, free_port())]
        .into_iter()
        .fold(script.to_owned(), |script, (printed, free)| {
            script.replace(&printed.to_string(), &free.to_string())
        });
    let mut bash = Command::new("bash");
    bash.args(["-e", "-c", &script]).env("TMPDIR", dir.path());
    let bash = bash.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let finished = finish(bash.spawn().unwrap(), Duration::from_secs(60)).succeeded();
    let accuracies: Vec<&str> =
        finished.stdout.lines().filter(|line| line.contains("test accuracy")).collect();
    assert_eq!(accuracies.len(), 2, "{finished:?}");
    assert_eq!(accuracies[0], accuracies[1], "{finished:?}");
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_killed_one_leaves_no_server() {
    for killer in [Signal::KILL, Signal::INT, Signal::TERM] {
        let dir = tempfile::tempdir().unwrap();
        let line = format!("quickstart --nodes 20000 --epochs 500 --dir {}", dir.path().display());
        let mut quickstart = command(line.split_whitespace()).spawn().unwrap();
        let servers = wait_for_servers(quickstart.id(), dir.path());
        signal(&quickstart, killer);
        let code = wait(&mut quickstart, Duration::from_secs(20));
        assert_ne!(code, Some(0), "{killer:?}");
        wait_until_gone(&servers);
    }
}

/// Returns both servers of a quickstart, once they run.
fn wait_for_servers(pid: u32, dir: &Path) -> Vec<u32> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let children = children_of(pid);
        if children.len() == 2 && dir.join("server-1.log").exists() {
            // Somewhere between their start and the training.
            sleep(Duration::from_millis(300));
            return children;
        }
        assert!(Instant::now() < end, "no servers appear");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_version_names_the_commit_of_the_checkout() {
    let told = lode(["--version"]).succeeded().stdout;
    let told = told.trim_end();
    let rest = told.strip_prefix(concat!("lode ", env!("CARGO_PKG_VERSION"))).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    if !root.join(".git").exists() && std::env::var_os("LODE_COMMIT").is_none() {
        return assert!(rest.is_empty() || rest.starts_with(" ("), "{told}");
    }
    let commit = rest.strip_prefix(" (").and_then(|rest| rest.strip_suffix(')'));
    let commit = commit.unwrap_or_else(|| panic!("no commit: {told}"));
    assert!(commit.len() == 12 && commit.bytes().all(|b| b.is_ascii_hexdigit()), "{told}");
    // A commit that is made while tests run makes another head, and this one stays.
    let known = Command::new("git").arg("-C").arg(root).args(["cat-file", "-e", commit]).status();
    assert!(known.map_or(true, |status| status.success()), "no commit of this tree: {told}");
}
