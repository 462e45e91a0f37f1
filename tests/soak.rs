//! Several servers under load while faults come at random. No pull returns a wrong row, no
//! acknowledged row is lost, and no call outlasts its deadline. A server that lives through all of
//! it takes no more memory and descriptors than it should.
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
#[path = "soak/error_counts.rs"]
mod error_counts;
#[path = "soak/faults.rs"]
mod faults;
#[path = "soak/growth.rs"]
mod growth;
#[path = "soak/monitor.rs"]
mod monitor;
#[path = "soak/moves.rs"]
mod moves;
#[path = "soak/relay.rs"]
mod relay;
#[path = "soak/report.rs"]
mod report;
#[path = "soak/verdict.rs"]
mod verdict;
#[path = "soak/visits.rs"]
mod visits;

use std::fmt::Debug;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clients::{CallCounts, Clients, Habit, N_READERS};
use cluster::{Cluster, ON_DISK, STEADY};
use error_counts::{ErrorCounts, Kind};
use faults::{Faults, Scene};
use growth::Growth;
use monitor::{Monitor, READERS, TEST, WRITERS};
use report::Report;
use testing::workload::{EndOnDrop, N_WRITERS, Workload};

/// Nodes of the graph.
const N_NODES: u32 = 6000;
/// Deadline of each call of a client that waits as long as a trainer would.
const DEADLINE: Duration = Duration::from_secs(10);
/// Deadline of a client that gives up while a link stalls or a server is stopped.
const DEADLINE_OF_STALLS: Duration = Duration::from_secs(2);
/// Deadline of a client that does not wait.
const DEADLINE_SHORT: Duration = Duration::from_millis(500);
/// Allowance for a thread that is woken late; a short run is one of many tests that share the
/// machine.
const LATE_MAX: Duration = Duration::from_secs(1);
const LATE_MAX_IN_SHORT: Duration = Duration::from_secs(3);
/// Longest time for all that is checked at the end.
const END_MAX: Duration = Duration::from_secs(600);
/// Longest pause between two faults.
const PAUSE_MAX_MS: u32 = 400;
/// A short run waits as much less for everything.
const SHORT_PACE: f64 = 0.2;

/// Reads a variable of the environment; the test fails if it is no number.
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

/// Returns the clients that put. One stays; one comes and goes, and often does not learn the result
/// of its put; one comes and goes by Unix sockets.
fn writers(far: &str, near: &str) -> [Habit; N_WRITERS as usize] {
    [
        Habit::new(WRITERS, far, DEADLINE, None),
        Habit::new(WRITERS + 1, far, DEADLINE_OF_STALLS, Some(200)),
        Habit::new(WRITERS + 2, near, DEADLINE, Some(400)),
    ]
}

/// Returns the clients that pull. One stays; one comes and goes, and waits for nothing long; one
/// has rows by shared memory where there is some.
fn readers(far: &str, near: &str) -> [Habit; N_READERS] {
    [
        Habit::new(READERS, far, DEADLINE, None),
        Habit::new(READERS + 1, far, DEADLINE_SHORT, Some(100)),
        Habit::new(READERS + 2, near, DEADLINE, Some(2000)),
    ]
}

#[test]
fn faults_at_random_cost_time_and_nothing_else() {
    let (duration, seed) = (duration(), seed());
    println!(
        "{} s of faults; LODE_SOAK_SEED={seed} repeats the same kinds in the same order",
        duration.as_secs()
    );
    let (monitor, load) = (Monitor::new(), Workload::new(N_NODES));
    thread::scope(|scope| {
        let _end = monitor.end_on_drop();
        scope.spawn(|| monitor.look(&load));
        run(duration, seed, &monitor, &load);
    });
}

fn run(duration: Duration, seed: u64, monitor: &Monitor, load: &Workload) {
    let is_short = duration < Duration::from_secs(60);
    let pace = if is_short { SHORT_PACE } else { 1.0 };
    let mut cluster = Cluster::start(N_NODES);
    let errors = ErrorCounts::new(&cluster.folders[ON_DISK]);
    let counts = CallCounts::default();
    let clients = &Clients { load, errors: &errors, monitor, seed, counts };
    let (mut faults, mut growth) = (Faults::new(seed, pace), Growth::default());
    let start = Instant::now();
    growth.sample(cluster.servers[STEADY].as_ref().unwrap());
    thread::scope(|scope| {
        let (far, near) = (cluster.far(), cluster.near());
        for (writer, habit) in (0..).zip(writers(&far, &near)) {
            scope.spawn(move || clients.write(writer, &habit));
        }
        for (reader, habit) in readers(&far, &near).into_iter().enumerate() {
            scope.spawn(move || clients.read(reader, &habit));
        }
        let _end = EndOnDrop(load);
        while (start.elapsed() < duration || !faults.had_all()) && !load.is_over() {
            faults.next(&mut Scene { cluster: &mut cluster, clients });
            growth.sample(cluster.servers[STEADY].as_ref().unwrap());
            faults.sleep(PAUSE_MAX_MS);
        }
        cluster.heal();
        cluster.relays.iter().for_each(relay::Relay::mend);
    });
    let elapsed = start.elapsed();
    let has_disk = cluster.disk.is_some();
    let whole = monitor.during(TEST, END_MAX, || {
        cluster.check_idle();
        growth.sample(cluster.servers[STEADY].as_ref().unwrap());
        cluster.end(load, faults.committed)
    });
    let (faults, growth) = (&faults, &growth);
    Report { seed, has_disk, elapsed, faults, clients, growth, whole }.print();

    growth.check(elapsed);
    faults.check(has_disk);
    clients.check(if is_short { LATE_MAX_IN_SHORT } else { LATE_MAX });
    assert!(errors.count(Kind::WritesStopped) > 0 || !has_disk, "no put found the disk full");
}
