//! Rows of a run are of one version: that of its files and of its servers.

use std::io::{BufRead, BufReader, Read};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::*;
use testing::process::signal;

const DIM: u64 = 16;

/// Returns a generated graph in two partitions.
fn made(dir: &Path) -> String {
    let flags = "--nodes 1500 --degree 8 --dim 16 --classes 4 --community 150 --hub-share 0.2 \
                 --hub-power 4 --train 0.2";
    generated_as(dir, flags, 2)
}

/// Returns a copy of a graph's folder.
fn copied(graph: &str, name: &str) -> String {
    let copy = Path::new(graph).with_file_name(name);
    let done = std::process::Command::new("cp").arg("-r").arg(graph).arg(&copy).status().unwrap();
    assert!(done.success());
    copy.display().to_string()
}

/// Puts zeros in the place of all features, and commits.
fn put_zeros(dir: &Path, to: &str) {
    let [ids, rows] = ["ids.npy", "zeros.npy"].map(|name| dir.join(name));
    let all: Vec<u32> = (0..1500).collect();
    write_npy(&ids, NpyType::U32, &[1500], &all);
    write_npy(&rows, NpyType::F32, &[1500, DIM], &vec![0.0_f32; 1500 * DIM as usize]);
    let (ids, rows) = (ids.display(), rows.display());
    lode_line(&format!("put {to} --tensor feat --ids {ids} --rows {rows} --commit")).succeeded();
}

fn train(graph: &str, strategy: &str, more: &str) -> Finished {
    let shape = "--epochs 2 --evaluate-every 0 --no-test --json";
    lode_line(&format!("train --graph {graph} --workers 2 --strategy {strategy} {shape} {more}"))
}

/// Returns the losses of all steps.
fn step_losses(finished: &Finished) -> Value {
    finished.json()["step_losses"].clone()
}

#[test]
fn own_rows_and_those_of_servers_are_of_one_version() {
    let dir = tempfile::tempdir().unwrap();
    let g = made(dir.path());
    let changed = copied(&g, "changed");
    let before = Serving::start(Path::new(&g), "--listen 127.0.0.1:0 --shards 1");
    let after = Serving::start(
        Path::new(&changed),
        "--listen 127.0.0.1:0 --shards 1 --writable --insecure",
    );
    put_zeros(dir.path(), &format!("--connect {}", after.address));
    let [at_before, at_after] =
        [&before, &after].map(|server| format!("--connect {}", server.address));
    for strategy in ["ondemand", "rapid --hot 200", "massive", "hop", "sdt", "full --layers 2"] {
        train(&g, strategy, &at_after)
            .failed(1, &["at version 1", "its servers at 2", "--pin", "--mixed-versions"]);
        train(&g, strategy, &format!("{at_after} --pin")).failed(1, &["no version 2"]);
    }
    let alone = train(&g, "ondemand", "").succeeded();
    let zeros = train(&changed, "ondemand", &at_after).succeeded();
    assert_ne!(step_losses(&alone), step_losses(&zeros));
    let of = |report: &Value, rows: &str| report["versions"][rows]["number"].as_u64();
    for (finished, version) in [(&alone, 1), (&zeros, 2)] {
        let report = finished.json();
        assert_eq!([of(&report, "own"), of(&report, "remote")], [Some(version); 2]);
    }
    // The copy has version 1 still: that of these servers, and of no row after it.
    train(&changed, "ondemand", &at_before).failed(1, &["at version 2", "its servers at 1"]);
    let pinned = train(&changed, "ondemand", &format!("{at_before} --pin")).succeeded();
    assert_eq!(step_losses(&pinned), step_losses(&alone));
    assert_eq!(of(&pinned.json(), "own"), Some(1));
    let log = dir.path().join("log.jsonl");
    let more = format!("{at_after} --mixed-versions --log {}", log.display());
    let mixed = train(&g, "ondemand", &more).succeeded();
    assert!(
        step_losses(&mixed) != step_losses(&alone) && step_losses(&mixed) != step_losses(&zeros)
    );
    assert_eq!([of(&mixed.json(), "own"), of(&mixed.json(), "remote")], [Some(1), Some(2)]);
    for line in std::fs::read_to_string(&log).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!([of(&line, "own"), of(&line, "remote")], [Some(1), Some(2)]);
    }
    let line = format!("train --graph {g} --workers 2 --epochs 1 {at_after} --mixed-versions");
    let text = lode_line(&line).succeeded().stdout;
    assert!(text.contains("version 1 for own rows, version 2"), "{text}");
    train(&g, "ondemand", &format!("{at_after} --mixed-versions --pin")).failed(2, &["--pin"]);
    train(&g, "ondemand --tier 1MiB", &format!("{at_before} --max-age 2"))
        .failed(2, &["--mixed-versions"]);
    before.stop();
    after.stop();
}

#[test]
fn a_run_resumes_on_the_version_of_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let g = made(dir.path());
    let checkpoint = format!("--checkpoint {}", dir.path().join("c").display());
    train(&g, "rapid --hot 200", &checkpoint).succeeded();
    put_zeros(dir.path(), &format!("--graph {g}"));
    let more = format!("{checkpoint} --resume --epochs 3");
    let run = |more: &str| {
        lode_line(&format!(
            "train --graph {g} --workers 2 --strategy rapid --hot 200 \
             --evaluate-every 0 --no-test --json {more}"
        ))
    };
    run(&more).failed(1, &["made with rows of version 1", "this run reads version 2"]);
    let mixed = run(&format!("{more} --mixed-versions")).succeeded().json();
    assert_eq!(mixed["resumed_at"]["epoch"], 2);
    assert_eq!(mixed["versions"]["own"]["number"], 2);
}

#[test]
fn a_run_keeps_to_its_version_and_says_that_its_servers_have_committed() {
    let dir = tempfile::tempdir().unwrap();
    let g = made(dir.path());
    let server =
        Serving::start(Path::new(&g), "--listen 127.0.0.1:0 --shards 1 --writable --insecure");
    let line = format!(
        "train --graph {g} --workers 2 --strategy ondemand --batch 100 --epochs 1000000 \
         --evaluate-every 0 --no-test --connect {}",
        server.address
    );
    let mut child = command(line.split(' ')).spawn().unwrap();
    let mut epochs = BufReader::new(child.stdout.take().unwrap());
    epochs.read_line(&mut String::new()).unwrap();
    // It has pinned its version by now.
    let drained = thread::spawn(move || {
        let mut text = String::new();
        epochs.read_to_string(&mut text).map(|_| text)
    });
    put_zeros(dir.path(), &format!("--connect {}", server.address));
    let told = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut told = told.filter(|line| line.contains("committed version 2"));
    let told = told.next().expect("a line of the commit");
    assert!(told.contains("this run keeps to version 1"), "{told}");
    signal(&child, Signal::INT);
    assert_eq!(wait(&mut child, Duration::from_secs(60)), Some(130));
    let text = drained.join().unwrap().unwrap();
    assert!(text.contains("version 1"), "{text}");
    server.stop();
}
