//! Training that is killed with SIGKILL, again and again, and continues from its checkpoint.

use std::{
    fs,
    path::Path,
    process::Child,
    thread::sleep,
    time::{Duration, SystemTime},
};

use serde_json::Value;
use testing::graph::generated;
use testing::process::{command, lode_line};

/// Longest time in which a run makes its next checkpoint.
const DEADLINE: Duration = Duration::from_secs(60);

fn start(line: &str) -> Child {
    command(line.split_whitespace()).spawn().unwrap()
}

fn written(checkpoint: &Path) -> Option<SystemTime> {
    fs::metadata(checkpoint).and_then(|metadata| metadata.modified()).ok()
}

/// Waits until `run` has replaced its checkpoint this many times, then a little, and kills it.
/// False if it ended before.
fn kill(mut run: Child, checkpoint: &Path, n_checkpoints: u32, then_us: u64) -> bool {
    let (start, mut last) = (SystemTime::now(), written(checkpoint));
    for _ in 0..n_checkpoints {
        loop {
            if run.try_wait().unwrap().is_some() {
                return false;
            }
            let now = written(checkpoint);
            if now != last {
                last = now;
                break;
            }
            assert!(start.elapsed().unwrap() < DEADLINE, "no checkpoint came");
            sleep(Duration::from_micros(200));
        }
    }
    sleep(Duration::from_micros(then_us));
    let is_running = run.try_wait().unwrap().is_none();
    run.kill().unwrap();
    run.wait().unwrap();
    is_running
}

/// Returns what was computed: losses and rates as they were printed, every bit of them, and
/// parameters.
fn computed(report: &Value) -> Vec<String> {
    let mut all: Vec<String> = report["epochs"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|epoch| ["steps", "loss", "accuracy", "test_accuracy"].map(|key| &epoch[key]))
        .map(Value::to_string)
        .collect();
    for key in ["step_losses", "parameters_digest", "best_parameters_digest", "best_epoch"] {
        assert!(!report[key].is_null(), "{key}");
        all.push(report[key].to_string());
    }
    all
}

#[test]
fn a_run_killed_again_and_again_ends_with_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let graph = generated(dir.path());
    for workers in [1, 4] {
        let settings = format!(
            "train --graph {graph} --workers {workers} --epochs 6 --batch 64 --fanout 5,5 \
             --hidden 16 --seed 9 --json"
        );
        let plain = lode_line(&format!("{settings} --strategy ondemand")).succeeded().json();
        let hop = lode_line(&format!("{settings} --strategy hop")).succeeded().json();
        let paper = format!("{settings} --strategy hop --migration paper");
        let paper = lode_line(&paper).succeeded().json();
        let sdt = lode_line(&format!("{settings} --strategy sdt")).succeeded().json();
        let rarely = "sdt --average-every 2 --optimizer-state local";
        let apart = lode_line(&format!("{settings} --strategy {rarely}")).succeeded().json();
        for (strategy, plain) in [
            ("ondemand", &plain),
            ("rapid", &plain),
            ("rapid --policy frequency", &plain),
            ("massive", &plain),
            ("hop", &hop),
            ("hop --fetch rapid", &hop),
            ("hop --migration paper", &paper),
            ("sdt", &sdt),
            (rarely, &apart),
        ] {
            let of_run = dir.path().join(format!("{strategy}-{workers}").replace(' ', ""));
            let line = format!(
                "{settings} --strategy {strategy} --checkpoint {} --checkpoint-every 3 --resume",
                of_run.display()
            );
            let checkpoint = of_run.join("checkpoint");
            let points = [(1, 0), (2, 1500), (1, 4000), (3, 300)];
            let n_killed = points
                .into_iter()
                .filter(|&(n, then_us)| kill(start(&line), &checkpoint, n, then_us))
                .count();
            let what = format!("{strategy}, {workers} workers, killed {n_killed} times");
            assert!(n_killed >= 2, "{what}");
            let report = lode_line(&line).succeeded().json();
            assert!(report["resumed_at"]["epoch"].is_u64(), "{what}");
            assert_eq!(computed(&report), computed(plain), "{what}");
        }
    }
}

#[test]
fn a_damaged_checkpoint_ends_the_run_with_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let graph = generated(dir.path());
    let of_run = dir.path().join("run");
    let line = format!(
        "train --graph {graph} --batch 500 --fanout 2 --strategy ondemand --checkpoint {} --epochs",
        of_run.display()
    );
    lode_line(&format!("{line} 1")).succeeded();
    lode_line(&format!("{line} 1")).failed(1, &["resume to continue from it, or remove it"]);
    let path = of_run.join("checkpoint");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let name = path.display().to_string();
    lode_line(&format!("{line} 1 --resume")).failed(1, &["damaged: its digest is", &name]);
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let found = lode_line(&format!("{line} 2 --resume --hidden 8"));
    found.failed(1, &["hidden = 64, this one has hidden = 8"]);
    lode_line(&format!("{line} 2 --resume")).succeeded();
}

/// Returns epoch, step and worker of each line of a log.
fn steps_in(log: &Path) -> Vec<[u64; 3]> {
    let of_line = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        ["epoch", "step", "worker"].map(|key| line[key].as_u64().unwrap())
    };
    fs::read_to_string(log).unwrap().lines().map(of_line).collect()
}

#[test]
fn a_log_outlives_refused_runs_and_grows_when_a_run_continues() {
    let dir = tempfile::tempdir().unwrap();
    let graph = generated(dir.path());
    let (of_run, log) = (dir.path().join("run"), dir.path().join("log.jsonl"));
    let line = format!(
        "train --graph {graph} --workers 2 --batch 300 --fanout 2 --hidden 8 --strategy ondemand \
         --checkpoint {} --log {} --epochs",
        of_run.display(),
        log.display()
    );
    lode_line(&format!("{line} 1")).succeeded();
    let first = fs::read(&log).unwrap();
    let name = log.display().to_string();
    // Another run of the same line, while the first is under way: what counts is its lock.
    let lock = fs::File::open(of_run.join("lock")).unwrap();
    lock.lock().unwrap();
    lode_line(&format!("{line} 2 --resume")).failed(1, &["in use by another run"]);
    drop(lock);
    lode_line(&format!("{line} 2 --resume --lr 0.5")).failed(1, &["learning_rate = 0.01"]);
    fs::remove_file(of_run.join("checkpoint")).unwrap();
    lode_line(&format!("{line} 2")).failed(1, &["has lines already", &name]);
    assert_eq!(fs::read(&log).unwrap(), first);
    // It has half a line when it is killed, and continues from the start.
    fs::write(&log, [&first[..], &first[..40]].concat()).unwrap();
    lode_line(&format!("{line} 2 --resume")).succeeded();
    let (n_first, steps) = (first.split(|&byte| byte == b'\n').count() - 1, steps_in(&log));
    assert!(fs::read(&log).unwrap().starts_with(&first));
    assert_eq!(steps[..n_first], steps[n_first..2 * n_first]);
    assert!(steps[2 * n_first..].iter().all(|&[epoch, ..]| epoch == 1));
    assert_eq!(steps.len(), 3 * n_first);
    // The table has its head where it begins with a later epoch too.
    let found = lode_line(&format!("{line} 3 --resume")).succeeded().stdout;
    assert!(found.trim_start().starts_with("epoch "), "{found}");
    // A file of something else is left alone.
    fs::write(&log, "my notes").unwrap();
    lode_line(&format!("{line} 4 --resume")).failed(1, &["does not end as a log", &name]);
    assert_eq!(fs::read(&log).unwrap(), b"my notes");
}

#[test]
fn flags_of_checkpoints_without_a_folder_are_refused() {
    for flag in ["--resume", "--checkpoint-every 3"] {
        lode_line(&format!("train --graph g {flag}")).failed(2, &["--checkpoint DIR"]);
    }
}

#[test]
fn the_schedule_of_a_killed_run_goes_with_the_next_run() {
    let dir = tempfile::tempdir().unwrap();
    let (graph, tmp) = (generated(dir.path()), dir.path().join("tmp"));
    fs::create_dir(&tmp).unwrap();
    let line =
        format!("train --graph {graph} --batch 64 --fanout 5,5 --hidden 16 --evaluate-every 0");
    let begin = |epochs: u32| {
        let mut run = command(line.split_whitespace().chain(["--epochs", &epochs.to_string()]));
        run.env("TMPDIR", &tmp).spawn().unwrap()
    };
    let schedules = || {
        let folders = fs::read_dir(&tmp).unwrap().map(|entry| entry.unwrap().path());
        folders.filter(|folder| folder.join("schedule").exists()).count()
    };
    let (mut killed, start) = (begin(1000), SystemTime::now());
    while schedules() == 0 {
        assert!(start.elapsed().unwrap() < DEADLINE, "no schedule came");
        sleep(Duration::from_millis(1));
    }
    // Another run, meanwhile, leaves it alone.
    assert!(begin(1).wait().unwrap().success());
    assert_eq!(schedules(), 1);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(schedules(), 1);
    assert!(begin(1).wait().unwrap().success());
    assert_eq!(fs::read_dir(&tmp).unwrap().count(), 0);
}
