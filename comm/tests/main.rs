//! One body of tests for every engine: threads, processes of one machine, and an MPI job where that
//! is built in.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod calls;
mod faults;
mod group;
#[cfg(feature = "mpi")]
mod job;

use std::{os::unix::net::UnixStream, thread, time::Duration};

use lodestore_comm::collective::Collective;
use lodestore_comm::error::CollectiveError;
use lodestore_comm::sockets::SocketCollective;
use lodestore_comm::threads::ThreadCollective;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A rank that another thread may take.
type Rank = Box<dyn Collective + Send>;

/// Returns the ranks of an engine.
type Engine = fn(u32, Duration) -> Vec<Rank>;

const ENGINES: [(&str, Engine); 2] = [("threads", by_threads), ("sockets", by_sockets)];

fn by_threads(n_ranks: u32, timeout: Duration) -> Vec<Rank> {
    let group = ThreadCollective::group(n_ranks, timeout);
    group.into_iter().map(|rank| Box::new(rank) as Rank).collect()
}

/// Returns ranks with a socket for each pair, as processes have; each joins in a thread of its own.
fn by_sockets(n_ranks: u32, timeout: Duration) -> Vec<Rank> {
    let (ours, theirs): (Vec<_>, Vec<_>) =
        (1..n_ranks).map(|_| UnixStream::pair().unwrap()).unzip();
    let joining: Vec<_> = theirs
        .into_iter()
        .zip(1..)
        .map(|(socket, rank)| {
            thread::spawn(move || {
                SocketCollective::follower(rank, n_ranks, socket.into(), timeout).unwrap()
            })
        })
        .collect();
    let mut all: Vec<Rank> = vec![Box::new(SocketCollective::leader(ours, timeout).unwrap())];
    all.extend(joining.into_iter().map(|rank| Box::new(rank.join().unwrap()) as Rank));
    all
}

/// Runs `body` in every rank, each in a thread, and returns what it gave, by rank.
fn in_all<T: Send + 'static>(
    ranks: Vec<Rank>,
    body: impl Fn(Rank) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let start = |rank| {
        let body = body.clone();
        thread::spawn(move || body(rank))
    };
    let threads: Vec<_> = ranks.into_iter().map(start).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn every_collective_returns_what_it_should_over_threads_and_sockets() {
    for (name, engine) in ENGINES {
        for n_ranks in [1, 2, 3, 5] {
            let failed = in_all(engine(n_ranks, TIMEOUT), |mut rank| calls::all(&mut *rank));
            for (found, rank) in failed.into_iter().zip(0..) {
                found.unwrap_or_else(|error: CollectiveError| panic!("{name}, {rank}: {error}"));
            }
        }
    }
}

#[test]
fn a_rank_alone_needs_no_other() {
    calls::all(&mut ThreadCollective::alone()).unwrap();
}
