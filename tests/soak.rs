//! Several servers under load while faults come at random: whatever happens, no pull gives a row that
//! it must not, no acknowledged row is lost, no call outlasts its deadline, and a server that lives
//! through all of it takes no more memory and descriptors than it should.
//!
//! `LODE_SOAK_MINUTES` says for how long, `LODE_SOAK_SEED` with which faults; `./x soak` sets both.
//! Every kind of fault comes at least once.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "soak/clients.rs"]
mod clients;
#[path = "soak/cluster.rs"]
mod cluster;
#[path = "soak/disk.rs"]
mod disk;
#[path = "soak/ending.rs"]
mod ending;
#[path = "soak/faults.rs"]
mod faults;
#[path = "soak/growth.rs"]
mod growth;
#[path = "soak/moves.rs"]
mod moves;
#[path = "soak/relay.rs"]
mod relay;
#[path = "soak/report.rs"]
mod report;
mod support;
#[path = "soak/told.rs"]
mod told;
#[path = "soak/visits.rs"]
mod visits;

use std::fmt::Debug;
use std::str::FromStr;
use std::sync::RwLock;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clients::{Clients, Habit, N_READERS};
use cluster::{Cluster, ON_DISK, STEADY};
use faults::{Fault, Faults, Scene};
use growth::Growth;
use report::Report;
use support::workload::{EndOnDrop, N_WRITERS, Workload};
use told::{Kind, Told};

/// Nodes of the graph.
const N_NODES: u32 = 6000;
/// Of each call of a client that waits as long as a trainer would.
const DEADLINE: Duration = Duration::from_secs(10);
/// Of one that gives up while a link stands still or a server is stopped.
const DEADLINE_OF_STALLS: Duration = Duration::from_secs(2);
/// Of one that waits for nothing.
const DEADLINE_SHORT: Duration = Duration::from_millis(500);
/// For a thread that is woken late; a short run is one of many tests that share the machine.
const LATE_MAX: Duration = Duration::from_secs(1);
const LATE_MAX_IN_SHORT: Duration = Duration::from_secs(3);
/// Of so many faults of a kind one at least must have come to its end.
const TRIES_MIN: u64 = 8;
/// Longest pause between two faults.
const PAUSE_MAX_MS: u32 = 400;
/// A short run waits as much less for everything.
const SHORT_PACE: f64 = 0.2;

/// Of the environment; what is no number fails the test.
fn number<T: FromStr<Err: Debug>>(name: &str) -> Option<T> {
    let text = std::env::var_os(name)?.into_string().unwrap();
    Some(text.parse().unwrap_or_else(|error| panic!("{name} is {text:?}, no number: {error:?}")))
}

fn duration() -> Duration {
    let usual = if std::env::var_os("LODE_LONG").is_some() { 3.0 } else { 0.1 };
    Duration::from_secs_f64(60.0 * number("LODE_SOAK_MINUTES").unwrap_or(usual))
}

fn seed() -> u64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_secs());
    number("LODE_SOAK_SEED").unwrap_or_else(now)
}

fn habit(map: &str, deadline: Duration, calls_max: Option<u32>) -> Habit {
    Habit { map: map.to_owned(), deadline, calls_max }
}

/// Those who put: one keeps its client, one comes, goes, and often does not hear what became of its
/// put, one comes and goes by Unix sockets.
fn writers(far: &str, near: &str) -> [Habit; N_WRITERS as usize] {
    [
        habit(far, DEADLINE, None),
        habit(far, DEADLINE_OF_STALLS, Some(200)),
        habit(near, DEADLINE, Some(400)),
    ]
}

/// Those who pull: one keeps its client, one comes, goes, and waits for nothing long, one has rows by
/// shared memory where there is some.
fn readers(far: &str, near: &str) -> [Habit; N_READERS] {
    [
        habit(far, DEADLINE, None),
        habit(far, DEADLINE_SHORT, Some(100)),
        habit(near, DEADLINE, Some(2000)),
    ]
}

#[test]
fn faults_at_random_cost_time_and_nothing_else() {
    let (duration, seed) = (duration(), seed());
    println!("{} s of faults; LODE_SOAK_SEED={seed} gives the same", duration.as_secs());
    let is_short = duration < Duration::from_secs(60);
    let pace = if is_short { SHORT_PACE } else { 1.0 };
    let (mut cluster, load) = (Cluster::start(N_NODES, seed), Workload::new(N_NODES));
    let (told, gate) = (Told::new(&cluster.folders[ON_DISK]), RwLock::new(()));
    let clients =
        Clients { load: &load, told: &told, gate: &gate, seed, counts: Default::default() };
    let (far, near) = (cluster.far(), cluster.near());
    let (writers, readers) = (writers(&far, &near), readers(&far, &near));
    let (mut faults, mut growth) = (Faults::new(seed, pace), Growth::default());
    let start = Instant::now();
    growth.sample(cluster.servers[STEADY].as_ref().unwrap());
    thread::scope(|scope| {
        let clients = &clients;
        for (writer, habit) in (0..).zip(&writers) {
            scope.spawn(move || clients.write(writer, habit));
        }
        for (reader, habit) in (0..).zip(&readers) {
            scope.spawn(move || clients.read(reader, habit));
        }
        let end = EndOnDrop(&load);
        while (start.elapsed() < duration || !faults.had_all()) && !load.is_over() {
            faults.next(&mut Scene { cluster: &mut cluster, clients });
            growth.sample(cluster.servers[STEADY].as_ref().unwrap());
            faults.sleep(PAUSE_MAX_MS);
        }
        cluster.heal();
        cluster.relays.iter().for_each(relay::Relay::mend);
        drop(end);
    });
    let elapsed = start.elapsed();
    cluster.check_idle();
    growth.sample(cluster.servers[STEADY].as_ref().unwrap());
    let has_disk = cluster.disk.is_some();
    let whole = cluster.end(&load);
    let (faults, clients, growth) = (&faults, &clients, &growth);
    Report { seed, has_disk, elapsed, faults, clients, growth, whole }.print();

    growth.check();
    let late = Duration::from_millis(clients.counts.late_ms.load(Ordering::Relaxed));
    assert!(late <= if is_short { LATE_MAX_IN_SHORT } else { LATE_MAX }, "a call outlasted its deadline by {late:?}");
    for (fault, (tried, done)) in Fault::ALL.iter().zip(faults.counts.iter().zip(&faults.done)) {
        let can_be = has_disk || *fault != Fault::FullDisk;
        assert!(*tried < TRIES_MIN || *done > 0 || !can_be, "no {fault:?} of {tried} was done");
    }
    assert!(told.count(Kind::WritesStopped) > 0 || !has_disk, "no put found the disk full");
    let turns = load.finished();
    assert!(turns.iter().all(|turn| *turn > 0), "puts acknowledged, by writer: {turns:?}");
    let answered = clients.counts.answered.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert!(answered.iter().all(|count| *count > 0), "pulls answered, by reader: {answered:?}");
}
