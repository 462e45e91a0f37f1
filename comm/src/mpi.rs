//! Ranks that `mpirun` starts, on one machine or several.

use std::{
    panic::{set_hook, take_hook},
    thread::{current, sleep, yield_now},
    time::{Duration, Instant},
};

use mpi::{
    Threading,
    datatype::Equivalence,
    environment::Universe,
    request::{Request, Scope, scope},
    topology::{Communicator, Process, SimpleCommunicator},
    traits::{Destination, Source},
};

use crate::collective::Collective;
use crate::error::CollectiveError;
use crate::limits::{check_length, wait_limit};
use crate::tag::Tag;
use crate::traffic::Traffic;

/// Time that a waiting rank polls without sleeping.
const SPIN: Duration = Duration::from_millis(2);
/// Sleep between later polls.
const PAUSE: Duration = Duration::from_micros(50);

/// One process of an MPI job.
///
/// A job ends as a whole: when one process ends early, and when one process finds an error here,
/// which it prints first.
pub struct MpiCollective {
    world: SimpleCommunicator,
    n_local: u32,
    timeout: Duration,
    traffic: Traffic,
    /// Finalizes MPI when it is dropped, so it is the last field.
    _universe: Universe,
}

impl MpiCollective {
    /// Initializes MPI; none if this process has done so before. Only the calling thread may use
    /// the result. Rank 0 waits at most `timeout` for others, the others twice as long.
    #[must_use]
    pub fn start(timeout: Duration) -> Option<Self> {
        let (universe, _) = mpi::initialize_with_threading(Threading::Funneled)?;
        let world = universe.world();
        abort_on_panic();
        let n_local = world.split_shared(world.rank()).size().cast_unsigned();
        let timeout = wait_limit(world.rank().cast_unsigned(), timeout);
        Some(Self { world, n_local, timeout, traffic: Traffic::default(), _universe: universe })
    }

    fn process(&self, rank: u32) -> Process<'_> {
        self.world.process_at_rank(rank.cast_signed())
    }

    /// Receives a message of any length from `rank`.
    fn receive_message(
        &self,
        tag: Tag,
        rank: u32,
        bytes: &mut Vec<u8>,
        left: &mut Duration,
    ) -> Result<(), CollectiveError> {
        let process = self.process(rank);
        let probe = || process.immediate_matched_probe();
        let (message, status) = wait(probe, left).ok_or_else(|| self.silent(rank))?;
        tag.expect(rank, status.tag().cast_unsigned())?;
        let n_bytes = status.count(u8::equivalent_datatype());
        // MPI counts in signed numbers; the count of a longer message is negative.
        check_length(rank, u64::try_from(n_bytes).unwrap_or(u64::MAX))?;
        bytes.resize(n_bytes.cast_unsigned() as usize, 0);
        message.matched_receive_into(&mut bytes[..]);
        Ok(())
    }

    /// Prints the error and ends the job. It cannot return: messages in flight borrow memory.
    fn abort(&self, error: &CollectiveError) -> ! {
        eprintln!("lode: {error}");
        self.world.abort(1)
    }

    fn silent(&self, rank: u32) -> CollectiveError {
        CollectiveError::Silent { rank, waited: self.timeout }
    }
}

/// Ends the whole job when the thread that calls MPI panics. A process that unwinds finalizes MPI,
/// which waits for the other processes, so the job would not end.
fn abort_on_panic() {
    let mpi_thread = current().id();
    let report = take_hook();
    set_hook(Box::new(move |panic| {
        report(panic);
        if current().id() == mpi_thread {
            SimpleCommunicator::world().abort(1);
        }
    }));
}

/// Polls until there is an answer or no time is `left`.
fn wait<T>(mut poll: impl FnMut() -> Option<T>, left: &mut Duration) -> Option<T> {
    let start = Instant::now();
    loop {
        let answer = poll();
        let waited = start.elapsed();
        if answer.is_some() || waited >= *left {
            *left = left.saturating_sub(waited);
            return answer;
        }
        if waited < SPIN { yield_now() } else { sleep(PAUSE) }
    }
}

/// Waits until a message has been sent; false if no time is `left`.
fn wait_sent<'a, S: Scope<'a>>(request: Request<'a, [u8], S>, left: &mut Duration) -> bool {
    let mut request = Some(request);
    let test = || match request.take()?.test() {
        Ok(status) => Some(status),
        Err(unfinished) => {
            request = Some(unfinished);
            None
        }
    };
    let is_sent = wait(test, left).is_some();
    // An unfinished request is never completed: the job ends now. Dropping it would panic.
    std::mem::forget(request);
    is_sent
}

impl Collective for MpiCollective {
    fn rank(&self) -> u32 {
        self.world.rank().cast_unsigned()
    }

    fn n_ranks(&self) -> u32 {
        self.world.size().cast_unsigned()
    }

    fn n_local(&self) -> u32 {
        self.n_local
    }

    fn traffic(&mut self) -> &mut Traffic {
        &mut self.traffic
    }

    fn raise(&mut self, error: CollectiveError) -> CollectiveError {
        self.abort(&error)
    }

    fn transfer(
        &mut self,
        tag: Tag,
        sends: &[(u32, &[u8])],
        receives: &mut [(u32, Vec<u8>)],
    ) -> Result<(), CollectiveError> {
        let mut left = self.timeout;
        scope(|scope| {
            let mut requests = Vec::with_capacity(sends.len());
            for &(rank, bytes) in sends {
                let number = tag.number().cast_signed();
                let request = self.process(rank).immediate_send_with_tag(scope, bytes, number);
                requests.push((rank, request));
            }
            for (rank, bytes) in receives {
                if let Err(error) = self.receive_message(tag, *rank, bytes, &mut left) {
                    self.abort(&error);
                }
            }
            for (rank, request) in requests {
                if !wait_sent(request, &mut left) {
                    self.abort(&self.silent(rank));
                }
            }
        });
        Ok(())
    }
}
