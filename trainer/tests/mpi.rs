//! A process of an MPI job that panics ends the job.

#![cfg(feature = "mpi")]
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::{
    env,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use lodestore_trainer::{MpiPeers, Peers};

/// In the place of a process of the job, where this is set.
const IN_JOB: &str = "LODE_TEST_PANICS";

#[test]
fn a_panic_of_one_process_ends_all() {
    if env::var_os(IN_JOB).is_some() {
        let mut peers = MpiPeers::start().unwrap();
        assert_ne!(peers.rank(), 1, "as the test wants it");
        // Waits for the one that has panicked.
        peers.exchange(&[1], &mut Vec::new()).unwrap();
        return;
    }
    let mut job = Command::new("mpirun");
    job.args(["--allow-run-as-root", "--oversubscribe", "-n", "2"])
        .arg(env::current_exe().unwrap());
    job.args(["--exact", "a_panic_of_one_process_ends_all"]).env(IN_JOB, "1");
    let mut job =
        job.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = job.try_wait().unwrap() {
            break Some(status);
        }
        if start.elapsed() > Duration::from_secs(60) {
            job.kill().unwrap();
            job.wait().unwrap();
            break None;
        }
        sleep(Duration::from_millis(20));
    };
    assert!(status.is_some_and(|status| !status.success()), "the job waits for ever: {status:?}");
}
