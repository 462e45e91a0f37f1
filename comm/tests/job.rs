//! The same body in an MPI job, which ends with a process that panics, fails or hangs.

use std::{
    env,
    process::{Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use lodestore_comm::collective::Collective;
use lodestore_comm::limits::MAX_MESSAGE_BYTES;
use lodestore_comm::mpi::MpiCollective;
use lodestore_comm::tag::Payload;

use super::{TIMEOUT, calls};

/// Variable that names the task of a process of the job.
const IN_JOB: &str = "LODE_TEST_JOB";

#[test]
fn every_collective_returns_what_it_should_in_a_job_that_ends_as_a_whole() {
    if let Ok(does) = env::var(IN_JOB) {
        let timeout = if does == "hang" { Duration::from_millis(500) } else { TIMEOUT };
        let mut rank = MpiCollective::start(timeout).unwrap();
        calls::all(&mut rank).unwrap();
        let is_second = rank.rank() == 1;
        assert!(!is_second || does != "panic", "as the test wants it");
        if is_second && does == "hang" {
            sleep(TIMEOUT);
        }
        if is_second && does == "long" {
            let bytes = vec![0; MAX_MESSAGE_BYTES as usize + 1];
            rank.send(0, Payload::Rows, &bytes).unwrap_err();
            return;
        }
        rank.barrier().unwrap();
        return;
    }
    for n_ranks in [1, 2, 3, 5] {
        let job = job(n_ranks, "call").expect("a job that ends");
        assert!(job.status.success(), "{n_ranks}: {}", String::from_utf8_lossy(&job.stderr));
    }
    let panicked = job(2, "panic").expect("a job that ends with its process");
    assert!(!panicked.status.success());
    let long = job(2, "long").expect("a job that ends with an error of one process");
    let said = String::from_utf8_lossy(&long.stderr);
    assert!(!long.status.success());
    assert!(said.contains("a message of 2147483648 bytes"), "{said}");
    let hung = job(3, "hang").expect("a job that ends when its time is up");
    let said = String::from_utf8_lossy(&hung.stderr);
    assert!(!hung.status.success());
    assert!(said.contains("process 1 of the run is there and has not answered"), "{said}");
}

/// Runs this test as a job of `n_ranks` processes; none: it did not end.
fn job(n_ranks: u32, does: &str) -> Option<Output> {
    let mut job = Command::new("mpirun");
    job.args(["--allow-run-as-root", "--oversubscribe", "-n", &n_ranks.to_string()])
        .arg(env::current_exe().unwrap());
    job.args([
        "--exact",
        "--nocapture",
        "job::every_collective_returns_what_it_should_in_a_job_that_ends_as_a_whole",
    ]);
    job.env(IN_JOB, does).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut job = job.spawn().unwrap();
    let start = Instant::now();
    while job.try_wait().unwrap().is_none() {
        if start.elapsed() > TIMEOUT {
            job.kill().unwrap();
            job.wait().unwrap();
            return None;
        }
        sleep(Duration::from_millis(20));
    }
    Some(job.wait_with_output().unwrap())
}
