//! A trainer and the restart of its only server.

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use lodestore_client::ClientConfig;

use testing::graph::generated;
use testing::process::{Serving, command};

/// A process that ends with the test, however that does.
struct Trainer(Child);

impl Drop for Trainer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Trainer {
    fn assert_runs(&mut self) {
        let status = self.0.try_wait().unwrap();
        assert!(status.is_none(), "the trainer has ended: {status:?}");
    }

    /// Waits until the log has `n` more steps.
    fn wait_for_steps(&mut self, log: &Path, n: usize) {
        let n_lines = || std::fs::read_to_string(log).map_or(0, |text| text.lines().count());
        let end = n_lines() + n;
        while n_lines() < end {
            self.assert_runs();
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns the pause before the shipped unit starts a server again.
fn pause_of_unit() -> Duration {
    let unit = include_str!("../../docs/lode.service");
    let seconds = unit.lines().find_map(|line| line.strip_prefix("RestartSec=")).unwrap();
    Duration::from_secs(seconds.parse().unwrap())
}

#[test]
fn a_client_waits_several_times_as_long_as_the_unit_pauses() {
    assert!(ClientConfig::default().deadline >= 4 * pause_of_unit());
}

#[test]
fn a_trainer_outlives_the_restart_of_its_only_server() {
    let dir = tempfile::tempdir().unwrap();
    let graph = generated(dir.path());
    let log = dir.path().join("steps.jsonl");
    let server = Serving::start(Path::new(&graph), "--listen 127.0.0.1:0 --shards 2");
    let address = server.address.clone();
    let line = format!(
        "train --graph {graph} --connect {address} --workers 2 --strategy ondemand --fanout 5,5 \
         --batch 4 --epochs 4000 --evaluate-every 0 --log {}",
        log.display()
    );
    let mut trainer = Trainer(command(line.split_whitespace()).spawn().unwrap());
    trainer.wait_for_steps(&log, 20);
    server.kill();
    std::thread::sleep(pause_of_unit() + Duration::from_secs(1));
    trainer.assert_runs();
    let server = Serving::start(Path::new(&graph), &format!("--listen {address} --shards 2"));
    trainer.wait_for_steps(&log, 20);
    drop(trainer);
    server.stop();
}
