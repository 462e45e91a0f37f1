//! A process of an MPI job that panics ends the job.

#![cfg(feature = "mpi")]
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::{
    env,
    process::{Command, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use lodestore_trainer::{MpiPeers, Peers};

/// In the place of a process of the job, where this is set: `1` if the second of them is to panic.
const IN_JOB: &str = "LODE_TEST_PANICS";

#[test]
fn a_panic_of_one_process_ends_all() {
    if let Some(panics) = env::var_os(IN_JOB) {
        let mut peers = MpiPeers::start().unwrap();
        assert_eq!(peers.n_ranks(), 2);
        assert!(peers.rank() != 1 || panics != "1", "as the test wants it");
        // Waits for the one that has panicked.
        peers.exchange(&[1], &mut Vec::new()).unwrap();
        return;
    }
    // A job that fails whatever happens would tell nothing.
    assert!(status_of("0").is_some_and(|status| status.success()), "no job succeeds here");
    let status = status_of("1");
    assert!(status.is_some_and(|status| !status.success()), "the job waits for ever: {status:?}");
}

/// Runs this test as a job of two processes; none: it did not end.
fn status_of(panics: &str) -> Option<ExitStatus> {
    let mut job = Command::new("mpirun");
    job.args(["--allow-run-as-root", "--oversubscribe", "-n", "2"])
        .arg(env::current_exe().unwrap());
    job.args(["--exact", "a_panic_of_one_process_ends_all"]).env(IN_JOB, panics);
    let mut job =
        job.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    loop {
        if let Some(status) = job.try_wait().unwrap() {
            break Some(status);
        }
        if start.elapsed() > Duration::from_secs(60) {
            job.kill().unwrap();
            job.wait().unwrap();
            break None;
        }
        sleep(Duration::from_millis(20));
    }
}
