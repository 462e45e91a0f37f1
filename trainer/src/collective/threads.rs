//! Ranks that are threads of one process: a channel for each pair.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::{Duration, Instant},
};

use super::{
    Collective, CollectiveError, Tag, Traffic,
    error::{FAULT, time_to_wait},
};

/// One of several ranks in one process, or the only one of a run.
#[derive(Debug)]
pub struct ThreadCollective {
    rank: u32,
    /// By rank; this one's is never used. Empty after an error.
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
        let (links, timeout) = (Vec::new(), Duration::ZERO);
        Self { rank: 0, links, n_ranks: 1, timeout, traffic: Traffic::default() }
    }

    /// Returns `n_ranks` collectives, one for each thread, by rank. Rank 0 waits for others for
    /// `timeout`, the others for twice as long.
    #[must_use]
    pub fn group(n_ranks: u32, timeout: Duration) -> Vec<Self> {
        let mut receivers: Vec<Vec<Receiver<Message>>> = Vec::new();
        let mut senders: Vec<Vec<Sender<Message>>> = (0..n_ranks).map(|_| Vec::new()).collect();
        for _ in 0..n_ranks {
            let (to_rank, from_others) = (0..n_ranks).map(|_| channel()).unzip();
            let to_rank: Vec<Sender<Message>> = to_rank;
            senders.iter_mut().zip(to_rank).for_each(|(of_rank, sender)| of_rank.push(sender));
            receivers.push(from_others);
        }
        let ranks = (0..).zip(senders.into_iter().zip(receivers));
        ranks
            .map(|(rank, (senders, receivers))| {
                let links = senders.into_iter().zip(receivers);
                let links =
                    links.map(|(sender, receiver)| ChannelPair { sender, receiver }).collect();
                let timeout = time_to_wait(rank, timeout);
                Self { rank, links, n_ranks, timeout, traffic: Traffic::default() }
            })
            .collect()
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
            // A rank that is gone has perhaps said why, or shows when nothing comes from it.
            let message = Message { tag: tag.number(), bytes: bytes.to_vec() };
            if self.link(rank)?.sender.send(message).is_err() && receives.is_empty() {
                return Err(self.last_fault(rank));
            }
        }
        let mut left = self.timeout;
        for (rank, bytes) in receives {
            let (rank, start) = (*rank, Instant::now());
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

    /// Returns what `rank` said last, which is gone.
    fn last_fault(&self, rank: u32) -> CollectiveError {
        let said = self.links.get(rank as usize).map(|link| link.receiver.try_iter());
        let fault = said.into_iter().flatten().find_map(|message| message.fault());
        fault.unwrap_or(CollectiveError::Gone { rank })
    }
}

impl Message {
    fn fault(&self) -> Option<CollectiveError> {
        let fault = self.bytes.first_chunk();
        fault.filter(|_| self.tag == FAULT).map(|fault| CollectiveError::from_fault(*fault))
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
                    // A rank that is gone needs to know nothing.
                    let _ = link.sender.send(message);
                }
            }
        }
        moved
    }
}
