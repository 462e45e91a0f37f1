//! Processes of one machine, through a piece of memory that all of them map.
//!
//! The memory has two slots for each process, of [`SLOT_WORDS`] words after a head of two: the number of
//! the round, and how many words the process has to give in all. A round goes so: each writes its slot
//! of that round's parity, all meet, each reads the slots of all. While some still read, others may
//! write for the next round, but into the other slots; and nobody is two rounds ahead, since all meet
//! in between. Lists longer than a slot take several rounds, as many as the longest asks for.
//!
//! They meet through sockets: each process writes a byte to the leader, who answers when it has one from
//! each. The system closes the sockets of a process that dies, whatever killed it, so that nobody waits
//! for the dead: the leader's read ends, the leader gives up, and with its own sockets closed everybody
//! else does too. A process that hangs keeps its sockets: each is waited for as long as the leader's
//! patience, counted from when the leader itself came. The others wait twice as long for the leader, who
//! may have come late and then wait for one that hangs, so that it is the leader who says which.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::{PeerError, Peers, map::SharedWords};

/// Words that a process gives in one round: 1 MiB.
const SLOT_WORDS: usize = 1 << 18;
/// Number of the round, and words in all: low, high.
const HEAD_WORDS: usize = 3;

/// Of waiting for others, the longest piece that is counted at once.
const SLICE: Duration = Duration::from_millis(100);

/// The memory of a run's processes: a file without a name.
#[derive(Debug)]
pub struct SharedMemory(File);

impl SharedMemory {
    /// Memory for `n_ranks` processes, of which pages are taken as they are used. Its descriptor passes
    /// on to processes that this one starts, and they find it under the same number.
    pub fn new(n_ranks: u32) -> Result<Self, PeerError> {
        let failed = |error: rustix::io::Errno| PeerError::Memory {
            action: "make",
            source: io::Error::from(error),
        };
        let fd = memfd_create("lode-train", MemfdFlags::ALLOW_SEALING).map_err(failed)?;
        ftruncate(&fd, 4 * n_words(n_ranks) as u64).map_err(failed)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals).map_err(failed)?;
        Ok(Self(File::from(fd)))
    }

    /// The memory under a descriptor that this process was started with.
    pub fn inherited(fd: i32) -> Result<Self, PeerError> {
        let opened = File::options().read(true).write(true).open(format!("/proc/self/fd/{fd}"));
        opened.map(Self).map_err(|source| PeerError::Memory { action: "open", source })
    }

    /// Its descriptor.
    #[must_use]
    pub fn fd(&self) -> i32 {
        std::os::fd::AsRawFd::as_raw_fd(&self.0)
    }
}

/// One process of several on this machine.
#[derive(Debug)]
pub struct SharedPeers {
    rank: u32,
    n_ranks: u32,
    memory: SharedWords,
    /// Of the leader: to each other process by rank. Of another one: to the leader.
    sockets: Vec<UnixStream>,
    /// How long the others are waited for in one exchange.
    patience: Duration,
    round: u32,
}

impl SharedPeers {
    /// The leader; `others` has a socket to each process from rank 1 on. It waits for them for
    /// `patience`.
    pub fn leader(
        memory: &SharedMemory,
        others: Vec<UnixStream>,
        patience: Duration,
    ) -> Result<Self, PeerError> {
        Self::new(memory, [0, others.len() as u32 + 1], others, patience)
    }

    /// The process of `rank`, from 1, with its socket to the leader, whom it waits for for twice
    /// `patience`.
    pub fn follower(
        memory: &SharedMemory,
        ranks: [u32; 2],
        leader: OwnedFd,
        patience: Duration,
    ) -> Result<Self, PeerError> {
        Self::new(memory, ranks, vec![UnixStream::from(leader)], 2 * patience)
    }

    fn new(
        memory: &SharedMemory,
        [rank, n_ranks]: [u32; 2],
        sockets: Vec<UnixStream>,
        patience: Duration,
    ) -> Result<Self, PeerError> {
        let mapped = SharedWords::of(&memory.0, n_words(n_ranks));
        let memory = mapped.map_err(|source| PeerError::Memory { action: "map", source })?;
        Ok(Self { rank, n_ranks, memory, sockets, patience, round: 0 })
    }

    /// Returns when all processes have come so far.
    fn meet(&mut self) -> Result<(), PeerError> {
        let (is_leader, mut left) = (self.rank == 0, self.patience);
        for (socket, rank) in self.sockets.iter_mut().zip(1..) {
            let rank = if is_leader { rank } else { 0 };
            if !is_leader {
                socket.write_all(&[0]).map_err(|_| PeerError::Gone { rank })?;
            }
            match heard(socket, &mut left) {
                Ok(true) => {}
                Ok(false) => return Err(PeerError::Silent { rank, waited: self.patience }),
                Err(_) => return Err(PeerError::Gone { rank }),
            }
        }
        if is_leader {
            for (socket, rank) in self.sockets.iter_mut().zip(1..) {
                // A byte a round, and nobody is two rounds ahead: there is room for it.
                socket.write_all(&[0]).map_err(|_| PeerError::Gone { rank })?;
            }
        }
        Ok(())
    }

    /// The slot of `rank` in the present round.
    fn slot(&self, rank: u32) -> &[AtomicU32] {
        let slot = (2 * rank + self.round % 2) as usize;
        &self.memory.words()[slot * (HEAD_WORDS + SLOT_WORDS)..][..HEAD_WORDS + SLOT_WORDS]
    }

    fn write(&self, piece: &[u32], n_all: usize) {
        let (head, slot) = self.slot(self.rank).split_at(HEAD_WORDS);
        for (word, &value) in slot.iter().zip(piece) {
            word.store(value, Ordering::Relaxed);
        }
        head[1].store(n_all as u32, Ordering::Relaxed);
        head[2].store((n_all as u64 >> 32) as u32, Ordering::Relaxed);
        // Whoever sees the round's number sees the words.
        head[0].store(self.round, Ordering::Release);
    }

    /// Adds what `rank` gives in this round to `list`; true if it has more.
    fn read(&self, rank: u32, list: &mut Vec<u32>) -> Result<bool, PeerError> {
        let (head, slot) = self.slot(rank).split_at(HEAD_WORDS);
        let found = head[0].load(Ordering::Acquire);
        if found != self.round {
            let expected = format!("round {}", self.round);
            return Err(PeerError::OutOfStep { rank, expected, found: format!("round {found}") });
        }
        let [low, high] = [1, 2].map(|at| u64::from(head[at].load(Ordering::Relaxed)));
        let left = (low | high << 32).saturating_sub(list.len() as u64);
        let n_here = left.min(SLOT_WORDS as u64) as usize;
        list.extend(slot[..n_here].iter().map(|word| word.load(Ordering::Relaxed)));
        Ok(left > SLOT_WORDS as u64)
    }
}

impl Peers for SharedPeers {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn n_ranks(&self) -> u32 {
        self.n_ranks
    }

    fn n_here(&self) -> u32 {
        self.n_ranks
    }

    fn exchange(&mut self, mine: &[u32], all: &mut Vec<Vec<u32>>) -> Result<(), PeerError> {
        all.resize_with(self.n_ranks as usize, Vec::new);
        all.iter_mut().for_each(Vec::clear);
        let mut rest = mine;
        loop {
            self.round = self.round.wrapping_add(1);
            let (piece, later) = rest.split_at(rest.len().min(SLOT_WORDS));
            self.write(piece, mine.len());
            self.meet()?;
            let mut has_more = false;
            for (list, rank) in all.iter_mut().zip(0..) {
                has_more |= self.read(rank, list)?;
            }
            if !has_more {
                return Ok(());
            }
            rest = later;
        }
    }
}

/// Waits for a byte for what is `left`, less what it took; false if none has come. Time is counted in
/// slices, of which each counts for its length at most: when this process was stopped, or the machine
/// slept, the others may have been too, and have all but a slice of their time still.
fn heard(socket: &mut UnixStream, left: &mut Duration) -> io::Result<bool> {
    loop {
        // Not none: that would be no bound. Whoever is asked last has had the time of all before.
        let slice = SLICE.min(*left).max(Duration::from_millis(1));
        let start = Instant::now();
        socket.set_read_timeout(Some(slice))?;
        match socket.read_exact(&mut [0]) {
            Ok(()) => {
                *left = left.saturating_sub(start.elapsed().min(slice));
                return Ok(true);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                *left = left.saturating_sub(slice);
                if left.is_zero() {
                    return Ok(false);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Words of the memory of so many processes.
fn n_words(n_ranks: u32) -> usize {
    2 * n_ranks as usize * (HEAD_WORDS + SLOT_WORDS)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// So many peers, as they would be in processes of their own.
    fn peers(n_ranks: u32, patience: Duration) -> Vec<SharedPeers> {
        let memory = SharedMemory::new(n_ranks).unwrap();
        let inherited = || SharedMemory::inherited(memory.fd()).unwrap();
        let (ours, theirs): (Vec<_>, Vec<_>) =
            (1..n_ranks).map(|_| UnixStream::pair().unwrap()).unzip();
        let mut all = vec![SharedPeers::leader(&memory, ours, patience).unwrap()];
        all.extend(theirs.into_iter().zip(1..).map(|(socket, rank)| {
            SharedPeers::follower(&inherited(), [rank, n_ranks], socket.into(), patience).unwrap()
        }));
        all
    }

    /// What `rank` gives in exchange `n`: of any length, also over the end of a slot.
    fn given(rank: u32, n: u32) -> Vec<u32> {
        let lengths = [0, 1, 1000, SLOT_WORDS, SLOT_WORDS + 1, 2 * SLOT_WORDS + 7];
        let length = lengths[(n as usize + rank as usize * 5) % lengths.len()] as u32;
        (0..length).map(|i| i.wrapping_mul(2_654_435_761) ^ (rank << 16) ^ n).collect()
    }

    #[test]
    fn everybody_gets_everything_in_the_order_of_ranks() {
        for n_ranks in [1, 2, 5] {
            let threads = peers(n_ranks, PATIENCE).into_iter().map(|mut peers| {
                thread::spawn(move || {
                    let mut all = Vec::new();
                    for n in 0..40 {
                        peers.exchange(&given(peers.rank(), n), &mut all).unwrap();
                        assert_eq!(all.len(), n_ranks as usize);
                        for (found, rank) in all.iter().zip(0..) {
                            assert!(*found == given(rank, n), "exchange {n}, rank {rank}");
                        }
                    }
                })
            });
            threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        }
    }

    #[test]
    fn nobody_waits_for_a_process_that_is_gone() {
        for dead in 0..4 {
            let threads = peers(4, PATIENCE).into_iter().map(|mut peers| {
                thread::spawn(move || {
                    let mut all = Vec::new();
                    for n in 0.. {
                        if (peers.rank(), n) == (dead, 10) {
                            return None;
                        }
                        if let Err(error) = peers.exchange(&[n], &mut all) {
                            return Some(error);
                        }
                    }
                    None
                })
            });
            for (thread, rank) in threads.collect::<Vec<_>>().into_iter().zip(0..) {
                let error = thread.join().unwrap();
                match error {
                    None => assert_eq!(rank, dead),
                    // The leader knows who it was, the others that the leader has given up.
                    Some(PeerError::Gone { rank: gone }) => {
                        assert_eq!(gone, if rank == 0 { dead } else { 0 });
                    }
                    Some(other) => panic!("{other}"),
                }
            }
        }
    }

    #[test]
    fn nobody_waits_for_ever_for_a_process_that_hangs() {
        let patience = Duration::from_millis(300);
        for hanging in 0..4 {
            let start = Instant::now();
            let (hangs, awake): (Vec<_>, Vec<_>) =
                peers(4, patience).into_iter().partition(|peers| peers.rank() == hanging);
            // The others have come at different times.
            let threads = awake.into_iter().map(|mut peers| {
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(60 * u64::from(3 - peers.rank())));
                    (peers.rank(), peers.exchange(&[1], &mut Vec::new()).unwrap_err())
                })
            });
            for thread in threads.collect::<Vec<_>>() {
                match thread.join().unwrap() {
                    (0, PeerError::Silent { rank, waited }) => {
                        assert_eq!((rank, waited), (hanging, patience));
                    }
                    // The leader said which it was, and closed its sockets.
                    (_, PeerError::Gone { rank: 0 }) => assert_ne!(hanging, 0),
                    (_, PeerError::Silent { rank: 0, .. }) => assert_eq!(hanging, 0),
                    (rank, other) => panic!("{rank}: {other}"),
                }
            }
            assert!(start.elapsed() >= patience);
            drop(hangs);
        }
    }

    #[test]
    fn time_is_counted_in_slices_and_shared_by_all_that_are_waited_for() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut left, start) = (3 * SLICE, Instant::now());
        assert!(!heard(&mut ours, &mut left).unwrap());
        assert!(left.is_zero() && start.elapsed() >= 3 * SLICE);
        // Nothing is left, but who has come is heard.
        theirs.write_all(&[0]).unwrap();
        assert!(heard(&mut ours, &mut left).unwrap());
        // A late answer has used up some of the time.
        let (mut left, late) = (
            100 * SLICE,
            thread::spawn(move || {
                thread::sleep(SLICE + SLICE / 2);
                theirs.write_all(&[0]).unwrap();
            }),
        );
        assert!(heard(&mut ours, &mut left).unwrap() && left <= 99 * SLICE, "{left:?}");
        late.join().unwrap();
    }

    #[test]
    fn memory_that_is_too_small_is_refused() {
        let memory = SharedMemory::new(2).unwrap();
        let sockets = (0..2).map(|_| UnixStream::pair().unwrap().0).collect();
        let error = SharedPeers::leader(&memory, sockets, PATIENCE).unwrap_err();
        assert!(matches!(error, PeerError::Memory { action: "map", .. }), "{error}");
        assert!(memory.0.set_len(1 << 30).is_err(), "its size is sealed");
    }
}
