//! Processes that `mpirun` has started, on one machine or several.

use std::{
    panic::{set_hook, take_hook},
    thread::current,
};

use mpi::{
    Count, Threading,
    datatype::PartitionMut,
    environment::Universe,
    topology::{Communicator, SimpleCommunicator},
    traits::CommunicatorCollectives,
};

use super::{PeerError, Peers};

/// One process of an MPI job.
pub struct MpiPeers {
    world: SimpleCommunicator,
    n_here: u32,
    counts: Vec<Count>,
    words: Vec<u32>,
    /// Ends MPI when it goes, after all else.
    _universe: Universe,
}

impl MpiPeers {
    /// Starts MPI; none if this process has started it before. Only the thread that calls this may
    /// use what comes back.
    #[must_use]
    pub fn start() -> Option<Self> {
        let (universe, _) = mpi::initialize_with_threading(Threading::Funneled)?;
        let world = universe.world();
        abort_on_panic();
        let n_here = world.split_shared(world.rank()).size().cast_unsigned();
        let counts = vec![0; world.size().cast_unsigned() as usize];
        Some(Self { world, n_here, counts, words: Vec::new(), _universe: universe })
    }
}

/// Ends the whole job when the thread that may call MPI panics. The others would wait for it: an MPI job
/// ends with a process that dies, not with one that unwinds and then waits for them in MPI's own end.
fn abort_on_panic() {
    let (mine, told) = (current().id(), take_hook());
    set_hook(Box::new(move |panic| {
        told(panic);
        if current().id() == mine {
            SimpleCommunicator::world().abort(1);
        }
    }));
}

impl Peers for MpiPeers {
    fn rank(&self) -> u32 {
        self.world.rank().cast_unsigned()
    }

    fn n_ranks(&self) -> u32 {
        self.world.size().cast_unsigned()
    }

    fn n_here(&self) -> u32 {
        self.n_here
    }

    fn exchange(&mut self, mine: &[u32], all: &mut Vec<Vec<u32>>) -> Result<(), PeerError> {
        // All see the same lengths, so that all fail or none.
        let n_mine = Count::try_from(mine.len()).unwrap_or(Count::MAX);
        self.world.all_gather_into(&n_mine, &mut self.counts[..]);
        let found: u64 = self.counts.iter().map(|&count| u64::from(count.cast_unsigned())).sum();
        let most = Count::MAX.cast_unsigned().into();
        if found >= most {
            return Err(PeerError::TooLong { found, most });
        }
        let mut end = 0;
        let mut start_of = |count: &Count| {
            let start = end;
            end += count;
            start
        };
        let starts: Vec<Count> = self.counts.iter().map(&mut start_of).collect();
        self.words.resize(found as usize, 0);
        let mut parts = PartitionMut::new(&mut self.words[..], &self.counts[..], &starts[..]);
        self.world.all_gather_varcount_into(mine, &mut parts);
        let mut rest = &self.words[..];
        all.resize_with(self.counts.len(), Vec::new);
        for (list, &count) in all.iter_mut().zip(&self.counts) {
            let (part, later) = rest.split_at(count.cast_unsigned() as usize);
            list.clear();
            list.extend_from_slice(part);
            rest = later;
        }
        Ok(())
    }
}
