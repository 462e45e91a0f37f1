//! Ranks that are threads of one process, with a channel for each pair.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::{Duration, Instant},
};

use crate::collective::Collective;
use crate::error::CollectiveError;
use crate::header::FAULT;
use crate::limits::wait_limit;
use crate::tag::Tag;
use crate::traffic::Traffic;

/// One of several ranks in one process, or the only rank of a run.
#[derive(Debug)]
pub struct ThreadCollective {
    rank: u32,
    /// By rank; the link of this rank is unused. Empty after an error.
    links: Vec<ChannelPair>,
    n_ranks: u32,
    timeout: Duration,
    traffic: Traffic,
}

#[derive(Debug)]
struct ChannelPair {
    sender: Sender<Message>,
    receiver: Receiver<Message>,
}

#[derive(Debug)]
struct Message {
    tag: u32,
    bytes: Vec<u8>,
}

impl ThreadCollective {
    /// Returns a collective of one rank.
    #[must_use]
    pub fn alone() -> Self {
        Self {
            rank: 0,
            links: Vec::new(),
            n_ranks: 1,
            timeout: Duration::ZERO,
            traffic: Traffic::default(),
        }
    }

    /// Returns `n_ranks` collectives, one for each thread, by rank. Rank 0 waits at most `timeout`
    /// for others, the others twice as long.
    #[must_use]
    pub fn group(n_ranks: u32, timeout: Duration) -> Vec<Self> {
        // `senders[a][b]` sends from rank a to `receivers[b][a]`.
        let mut senders: Vec<Vec<Sender<Message>>> = (0..n_ranks).map(|_| Vec::new()).collect();
        let mut receivers: Vec<Vec<Receiver<Message>>> = Vec::new();
        for _ in 0..n_ranks {
            let mut from_others = Vec::new();
            for of_rank in &mut senders {
                let (sender, receiver) = channel();
                of_rank.push(sender);
                from_others.push(receiver);
            }
            receivers.push(from_others);
        }
        let mut ranks = Vec::new();
        for (rank, (senders, receivers)) in (0..).zip(senders.into_iter().zip(receivers)) {
            let pairs = senders.into_iter().zip(receivers);
            ranks.push(Self {
                rank,
                links: pairs.map(|(sender, receiver)| ChannelPair { sender, receiver }).collect(),
                n_ranks,
                timeout: wait_limit(rank, timeout),
                traffic: Traffic::default(),
            });
        }
        ranks
    }

    fn link(&self, rank: u32) -> Result<&ChannelPair, CollectiveError> {
        self.links.get(rank as usize).ok_or(CollectiveError::Gone { rank })
    }

    fn move_messages(
        &self,
        tag: Tag,
        sends: &[(u32, &[u8])],
        receives: &mut [(u32, Vec<u8>)],
    ) -> Result<(), CollectiveError> {
        for &(rank, bytes) in sends {
            // A rank that ended may have sent a fault first. With messages to receive, the loop
            // below finds that fault or the closed channel.
            let message = Message { tag: tag.number(), bytes: bytes.to_vec() };
            if self.link(rank)?.sender.send(message).is_err() && receives.is_empty() {
                return Err(self.last_fault(rank));
            }
        }
        let mut left = self.timeout;
        for (rank, bytes) in receives {
            let rank = *rank;
            let start = Instant::now();
            let message = match self.link(rank)?.receiver.recv_timeout(left) {
                Ok(message) => message,
                Err(RecvTimeoutError::Disconnected) => return Err(CollectiveError::Gone { rank }),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(CollectiveError::Silent { rank, waited: self.timeout });
                }
            };
            left = left.saturating_sub(start.elapsed());
            if let Some(fault) = message.fault() {
                return Err(fault);
            }
            tag.expect(rank, message.tag)?;
            *bytes = message.bytes;
        }
        Ok(())
    }

    /// Returns the fault that `rank` sent before it ended, else that it ended.
    fn last_fault(&self, rank: u32) -> CollectiveError {
        if let Some(link) = self.links.get(rank as usize)
            && let Some(fault) = link.receiver.try_iter().find_map(|message| message.fault())
        {
            return fault;
        }
        CollectiveError::Gone { rank }
    }
}

impl Message {
    fn fault(&self) -> Option<CollectiveError> {
        if self.tag != FAULT {
            return None;
        }
        self.bytes.first_chunk().copied().map(CollectiveError::from_fault)
    }
}

impl Collective for ThreadCollective {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn n_ranks(&self) -> u32 {
        self.n_ranks
    }

    fn traffic(&mut self) -> &mut Traffic {
        &mut self.traffic
    }

    fn transfer(
        &mut self,
        tag: Tag,
        sends: &[(u32, &[u8])],
        receives: &mut [(u32, Vec<u8>)],
    ) -> Result<(), CollectiveError> {
        let moved = self.move_messages(tag, sends, receives);
        if let Err(error) = &moved {
            for link in self.links.drain(..) {
                if let Some(fault) = error.to_fault() {
                    let message = Message { tag: FAULT, bytes: fault.to_vec() };
                    // Sending fails only if the rank has ended.
                    let _ = link.sender.send(message);
                }
            }
        }
        moved
    }
}
