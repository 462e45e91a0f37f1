//! Ranks that die, hang, or do something else.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    thread::{sleep, spawn},
    time::{Duration, Instant},
};

use lodestore_comm::collective::{Collective, Term};
use lodestore_comm::error::CollectiveError;
use lodestore_comm::limits::MAX_MESSAGE_BYTES;
use lodestore_comm::sockets::SocketCollective;
use lodestore_comm::tag::{Payload, Tag};
use lodestore_comm::threads::ThreadCollective;
use lodestore_comm::traffic::Traffic;

use super::{ENGINES, Rank, TIMEOUT, in_all};

/// Returns a call that needs all ranks.
type Call = fn(&mut dyn Collective) -> Result<(), CollectiveError>;

const CALLS: [Call; 5] = [
    |c| c.barrier(),
    |c| c.all_gather(Payload::Control, &[1; 300_000], &mut Vec::new()),
    |c| {
        let to_each = vec![&[2; 400_000][..]; c.n_ranks() as usize];
        c.all_to_all(Payload::Rows, 4, &to_each, &mut Vec::new())
    },
    |c| c.all_reduce(&mut [1]),
    |c| {
        let terms = vec![Term { order: c.rank(), values: vec![1.0; 1000] }];
        c.reduce_ordered(Payload::Gradients, terms, 1000).map(|_| ())
    },
];

/// Returns the rank at fault, by the error.
fn blamed(error: &CollectiveError) -> Option<(u32, &'static str)> {
    match error {
        CollectiveError::Gone { rank } => Some((*rank, "gone")),
        CollectiveError::Silent { rank, .. } => Some((*rank, "silent")),
        _ => None,
    }
}

#[test]
fn all_ranks_name_the_one_that_died_in_any_call() {
    for (name, engine) in ENGINES {
        for (n, call) in CALLS.into_iter().enumerate() {
            for dead in 0..4 {
                let start = Instant::now();
                let found = in_all(engine(4, TIMEOUT), move |mut rank: Rank| {
                    for round in 0.. {
                        if (rank.rank(), round) == (dead, 5) {
                            return None;
                        }
                        if let Err(error) = call(&mut *rank) {
                            return Some(error);
                        }
                    }
                    None
                });
                for (error, rank) in found.iter().zip(0..) {
                    let what = format!("{name}, call {n}, rank {rank}: {error:?}");
                    let expected = (rank != dead).then_some((dead, "gone"));
                    assert_eq!(error.as_ref().and_then(blamed), expected, "{what}");
                }
                assert!(start.elapsed() < TIMEOUT / 2, "they waited");
            }
        }
    }
}

#[test]
fn no_rank_waits_for_ever_for_one_that_hangs() {
    let timeout = Duration::from_millis(120);
    for (name, engine) in ENGINES {
        for (n, call) in CALLS.into_iter().enumerate() {
            for hanging in [0, 2] {
                let start = Instant::now();
                let found = in_all(engine(4, timeout), move |mut rank: Rank| {
                    if rank.rank() == hanging {
                        sleep(4 * timeout);
                        return None;
                    }
                    // They come at different times.
                    sleep(Duration::from_millis(30 * u64::from(3 - rank.rank())));
                    call(&mut *rank).err()
                });
                for (error, rank) in found.iter().zip(0..) {
                    let what = format!("{name}, call {n}, rank {rank}: {error:?}");
                    let expected = (rank != hanging).then_some((hanging, "silent"));
                    assert_eq!(error.as_ref().and_then(blamed), expected, "{what}");
                }
                assert!(start.elapsed() >= timeout);
            }
        }
    }
}

#[test]
fn ranks_that_call_different_collectives_are_out_of_step() {
    for (name, engine) in ENGINES {
        let found = in_all(engine(2, TIMEOUT), |mut rank| match rank.rank() {
            0 => rank.barrier().unwrap_err(),
            _ => rank.all_gather(Payload::Gradients, &[], &mut Vec::new()).unwrap_err(),
        });
        let message = found[0].to_string();
        let differs = "expected Barrier of Control, found AllGather of Gradients";
        let is_named = |error: &CollectiveError| matches!(error, CollectiveError::OutOfStep { .. });
        // The first to see it ends; the other sees the same, or that this one is gone.
        assert!(found.iter().any(is_named), "{name}: {found:?}");
        assert!(message.contains(differs) || message.contains("is gone"), "{name}: {message}");
        let error = in_all(engine(2, TIMEOUT), |mut rank| {
            let mut values = vec![0; 1 + rank.rank() as usize];
            rank.all_reduce(&mut values).unwrap_err().to_string()
        });
        assert!(error[0].contains("expected 8 bytes, found 16 bytes"), "{name}: {error:?}");
        let error = in_all(engine(2, TIMEOUT), |mut rank| {
            let rows = [[0; 6], [0; 6]];
            let outgoing: Vec<&[u8]> = rows.iter().map(|row| &row[..]).collect();
            rank.all_to_all(Payload::Rows, 4, &outgoing, &mut Vec::new()).unwrap_err().to_string()
        });
        assert!(error[1].contains("expected rows of 4 bytes, found 6 bytes"), "{name}: {error:?}");
    }
}

/// A rank that counts the errors that are raised beside transfers.
struct Raising(ThreadCollective, u32);

impl Collective for Raising {
    fn rank(&self) -> u32 {
        self.0.rank()
    }

    fn n_ranks(&self) -> u32 {
        self.0.n_ranks()
    }

    fn n_local(&self) -> u32 {
        self.0.n_local()
    }

    fn traffic(&mut self) -> &mut Traffic {
        self.0.traffic()
    }

    fn raise(&mut self, error: CollectiveError) -> CollectiveError {
        self.1 += 1;
        error
    }

    fn transfer(
        &mut self,
        tag: Tag,
        sends: &[(u32, &[u8])],
        receives: &mut [(u32, Vec<u8>)],
    ) -> Result<(), CollectiveError> {
        self.0.transfer(tag, sends, receives)
    }
}

#[test]
fn errors_that_no_transfer_finds_are_raised() {
    let calls: [Call; 3] = [
        |c| c.all_reduce(&mut vec![0; 1 + c.rank() as usize]),
        |c| c.all_to_all(Payload::Rows, 4, &[&[0; 6], &[0; 6]], &mut Vec::new()),
        |c| {
            let terms = vec![Term { order: 0, values: vec![1.0; 8 * (1 + c.rank() as usize)] }];
            let len = terms[0].values.len();
            c.reduce_ordered(Payload::Gradients, terms, len).map(|_| ())
        },
    ];
    for call in calls {
        let ranks = ThreadCollective::group(2, TIMEOUT).into_iter();
        let start = |rank| {
            let mut rank = Raising(rank, 0);
            spawn(move || (call(&mut rank).unwrap_err(), rank.1))
        };
        let threads: Vec<_> = ranks.map(start).collect();
        for (error, n_raised) in threads.into_iter().map(|thread| thread.join().unwrap()) {
            match error {
                CollectiveError::OutOfStep { .. } => assert_eq!(n_raised, 1, "{error}"),
                // The other rank has ended first.
                error => assert!(matches!(error, CollectiveError::Gone { .. }), "{error}"),
            }
        }
    }
    let mut ranks = ThreadCollective::group(2, TIMEOUT).into_iter();
    let mut rank = Raising(ranks.next().unwrap(), 0);
    // Zeros that no one touches take no memory.
    let long = vec![0; MAX_MESSAGE_BYTES as usize + 1];
    let error = rank.send(1, Payload::Rows, &long).unwrap_err();
    assert!(matches!(error, CollectiveError::TooLong { rank: 1, .. }), "{error}");
    assert_eq!(rank.1, 1);
}

/// Returns a header: tag and length.
fn header(tag: u32, n_bytes: u64) -> Vec<u8> {
    [&tag.to_le_bytes()[..], &n_bytes.to_le_bytes()].concat()
}

#[test]
fn hostile_bytes_are_refused() {
    // The tag of a barrier, by what a rank sends.
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut honest = SocketCollective::leader(vec![ours], Duration::from_millis(1)).unwrap();
    honest.barrier().unwrap_err();
    let mut tag = [0; 4];
    theirs.read_exact(&mut tag).unwrap();
    let tag = u32::from_le_bytes(tag);
    let answer = |bytes: &[u8]| {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut leader = SocketCollective::leader(vec![ours], TIMEOUT).unwrap();
        theirs.write_all(bytes).unwrap();
        drop(theirs);
        leader.barrier().unwrap_err()
    };
    for found in [MAX_MESSAGE_BYTES + 1, 1 << 40, u64::MAX] {
        let error = answer(&header(tag, found));
        let is_refused =
            matches!(error, CollectiveError::TooLong { rank: 1, found: f, .. } if f == found);
        assert!(is_refused, "{error}");
    }
    let error = answer(&[&header(tag, MAX_MESSAGE_BYTES)[..], &[0; 1000]].concat());
    assert!(matches!(error, CollectiveError::Gone { rank: 1 }), "{error}");
    let error = answer(&header(0xdead, 4));
    assert!(error.to_string().contains("message of unknown tag 57005"), "{error}");
    for cut in 0..12 {
        let error = answer(&header(tag, 4)[..cut]);
        assert!(matches!(error, CollectiveError::Gone { rank: 1 }), "{cut}: {error}");
    }
    // A fault of a length that faults do not have.
    let error = answer(&[&header(u32::MAX, 3)[..], &[1; 3]].concat());
    assert!(matches!(error, CollectiveError::Gone { rank: 1 }), "{error}");
}
