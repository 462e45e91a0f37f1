//! Several servers under load while faults come at random: whatever happens, no pull gives a row that
//! it must not, no acknowledged row is lost, and no call outlasts its deadline.
//!
//! `LODE_SOAK_MINUTES` says for how long, `LODE_SOAK_SEED` with which faults; `./x soak` sets both.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "soak/cluster.rs"]
mod cluster;
#[path = "soak/faults.rs"]
mod faults;
mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cluster::Cluster;
use faults::{Fault, Faults};
use lodestore_client::ClientError;
use lodestore_schema::FailureCode;
use support::workload::{Counts, EndOnDrop, N_WRITERS, Workload};

/// Nodes of the graph.
const N_NODES: u32 = 6000;
const N_READERS: u64 = 3;
/// Of each call of a client; one second is for whoever is late.
const DEADLINE: Duration = Duration::from_secs(10);
/// Of so many faults of a kind one at least must have come to its end.
const TRIES_MIN: u64 = 8;
/// Longest pause between two faults.
const PAUSE_MAX_MS: u32 = 400;

fn number(name: &str) -> Option<f64> {
    std::env::var(name).ok()?.parse().ok()
}

fn duration() -> Duration {
    let usual = if std::env::var_os("LODE_LONG").is_some() { 3.0 } else { 0.15 };
    Duration::from_secs_f64(60.0 * number("LODE_SOAK_MINUTES").unwrap_or(usual))
}

fn seed() -> u64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_secs());
    number("LODE_SOAK_SEED").map_or_else(now, |seed| seed as u64)
}

/// Errors that a client may be told while servers come and go, by kind; any other fails the test.
#[derive(Default)]
struct Told([AtomicU64; 5]);

impl Told {
    const KINDS: [&'static str; 5] =
        ["connect", "unavailable", "deadline", "refused", "no holder, or holders differ"];

    fn note(&self, error: &ClientError) {
        let kind = match error {
            ClientError::Connect { .. } => 0,
            ClientError::Unavailable { .. } => 1,
            ClientError::Deadline { .. } => 2,
            ClientError::Refused { failure, .. } if is_of_a_fault(failure.code) => 3,
            ClientError::NoHolder { .. }
            | ClientError::LostHolder { .. }
            | ClientError::PutDiffers { .. }
            | ClientError::Map { .. } => 4,
            error => panic!("no fault of this test explains it: {error}"),
        };
        self.0[kind].fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether a server refuses because it has no room or time, or has ended, or given the partition up.
fn is_of_a_fault(code: FailureCode) -> bool {
    use FailureCode::{Deadline, Elsewhere, Overloaded, Stopping};
    matches!(code, Deadline | Elsewhere | Overloaded | Stopping)
}

#[test]
fn faults_at_random_cost_time_and_nothing_else() {
    let (duration, seed) = (duration(), seed());
    println!("{} s of faults; LODE_SOAK_SEED={seed} gives the same", duration.as_secs());
    let (mut cluster, load) = (Cluster::start(N_NODES), Workload::new(N_NODES));
    let (told, map) = (Told::default(), vec![cluster.map()]);
    let mut faults = Faults::new(seed);
    let start = Instant::now();
    thread::scope(|scope| {
        let (load, told, map) = (&load, &told, &map);
        for writer in 0..N_WRITERS {
            scope.spawn(move || {
                let Some(client) = load.client(map, DEADLINE) else { return };
                load.write(&client, writer, &|error| told.note(error));
            });
        }
        for reader in 0..N_READERS {
            scope.spawn(move || {
                let Some(client) = load.client(map, DEADLINE) else { return };
                load.read(&client, seed ^ reader, &|error| told.note(error));
            });
        }
        let end = EndOnDrop(load);
        while start.elapsed() < duration && !load.is_over() {
            let fault = faults.next(&mut cluster);
            faults.note(fault);
            thread::sleep(Duration::from_millis(faults.below(PAUSE_MAX_MS).into()));
        }
        cluster.heal();
        drop(end);
    });
    let client = Workload::new(N_NODES).client(&map, DEADLINE).unwrap();
    load.check_all(&client);
    drop(client);
    cluster.check_each(&load);
    let whole = cluster.stop_and_verify();
    report(seed, start.elapsed(), &faults, &load.counts, &told, &whole);
    let longest = Duration::from_millis(load.counts.longest_ms.load(Ordering::Relaxed));
    assert!(longest <= DEADLINE + Duration::from_secs(1), "a call took {longest:?}");
    let n_puts = load.counts.puts.load(Ordering::Relaxed);
    for (fault, (tried, done)) in Fault::ALL.iter().zip(faults.counts.iter().zip(&faults.done)) {
        assert!(*tried < TRIES_MIN || *done > 0, "no {} of {tried} came to its end", fault.name());
    }
    assert!(n_puts > 0 && load.counts.pulls.load(Ordering::Relaxed) > 0, "nothing was done");
}

/// All that was counted: lines for people, and one JSON object, also to `LODE_SOAK_JSON`.
fn report(
    seed: u64,
    elapsed: Duration,
    faults: &Faults,
    counts: &Counts,
    told: &Told,
    whole: &cluster::Whole,
) {
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut lines: Vec<(String, u64)> = vec![
        ("seconds".into(), elapsed.as_secs()),
        ("puts acknowledged".into(), of(&counts.puts)),
        ("rows of these".into(), of(&counts.rows_put)),
        ("puts that failed".into(), of(&counts.puts_failed)),
        ("pulls".into(), of(&counts.pulls)),
        ("rows compared".into(), of(&counts.rows_compared)),
        ("pulls that failed".into(), of(&counts.pulls_failed)),
        ("longest call, ms".into(), of(&counts.longest_ms)),
        ("wrong rows".into(), 0),
        ("versions committed".into(), whole.version.into()),
        ("bytes verified".into(), whole.bytes),
    ];
    for (kind, count) in Told::KINDS.iter().zip(&told.0) {
        lines.push((format!("errors told: {kind}"), of(count)));
    }
    for (fault, count) in Fault::ALL.iter().zip(&faults.counts) {
        lines.push((format!("fault: {}", fault.name()), *count));
        lines.push(("  of these to the end".into(), faults.done[*fault as usize]));
    }
    let mut json = serde_json::Map::new();
    json.insert("seed".into(), seed.into());
    for (name, count) in lines {
        println!("{name:40} {count:>12}");
        json.insert(name, count.into());
    }
    let json = serde_json::Value::Object(json).to_string();
    println!("{json}");
    if let Some(path) = std::env::var_os("LODE_SOAK_JSON") {
        std::fs::write(path, json).unwrap();
    }
}
