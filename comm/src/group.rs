//! Processes that exchange messages until one of them fails or the leader ends the run.
//!
//! Each exchange begins with a status. A failed process sends its error instead of its message, and
//! the leader announces the end of the run. All processes receive either at the same point.

use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;

use crate::collective::{Collective, Term};
use crate::error::CollectiveError;
use crate::tag::Payload;
use crate::traffic::Traffic;

/// The run continues.
const CONTINUE: u8 = 0;
/// The leader has ended the run; nothing follows.
const ENDED: u8 = 1;
/// The process has failed; its error follows.
const FAILED: u8 = 2;

/// Reason for a failed exchange.
#[derive(Debug, Error)]
pub enum GroupError {
    /// The processes can no longer communicate.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The leader ended the run.
    #[error("the first process has ended the run")]
    Ended,
    /// Another process failed.
    #[error("process {rank} of the run: {message}")]
    Peer {
        /// Its rank.
        rank: u32,
        /// Its error.
        message: String,
    },
}

/// One process of a run, with its connections to the others.
pub struct Group<'c> {
    collective: &'c mut dyn Collective,
    /// Whether all processes know that the run ended or failed. None communicates afterwards.
    is_over: bool,
}

impl<'c> Group<'c> {
    /// Returns the process of `collective`'s rank.
    pub fn new(collective: &'c mut dyn Collective) -> Self {
        Self { collective, is_over: false }
    }

    /// Returns the rank of this process.
    pub fn rank(&self) -> u32 {
        self.collective.rank()
    }

    /// Returns whether this process leads.
    pub fn leads(&self) -> bool {
        self.rank() == 0
    }

    /// Returns the number of processes.
    pub fn n_ranks(&self) -> u32 {
        self.collective.n_ranks()
    }

    /// Returns the number of processes that share this machine's cores.
    pub fn n_local(&self) -> u32 {
        self.collective.n_local()
    }

    /// Returns the collective, for transfers without a status.
    pub fn collective(&mut self) -> &mut dyn Collective {
        self.collective
    }

    /// Returns the messages of all processes, by rank.
    ///
    /// # Errors
    ///
    /// The leader ended the run, a process failed, or a message is not an `M`.
    pub fn exchange<M: Serialize + DeserializeOwned>(
        &mut self,
        message: &M,
    ) -> Result<Vec<M>, GroupError> {
        let bytes = serde_json::to_vec(message);
        let bytes = bytes.map_err(|error| self.raise(malformed(self.rank(), &error)))?;
        let mut messages = Vec::new();
        for (rank, bytes) in (0..).zip(self.exchange_status(CONTINUE, &bytes)?) {
            let message = serde_json::from_slice(bytes.get(1..).unwrap_or_default());
            messages.push(message.map_err(|error| self.raise(malformed(rank, &error)))?);
        }
        Ok(messages)
    }

    /// Returns the message of the leader.
    ///
    /// # Errors
    ///
    /// As [`Self::exchange`].
    pub fn exchange_with_leader<M: Serialize + DeserializeOwned>(
        &mut self,
        message: &M,
    ) -> Result<M, GroupError> {
        Ok(self.exchange(message)?.swap_remove(0))
    }

    /// Exchanges statuses alone, before transfers of rows or sums.
    ///
    /// # Errors
    ///
    /// The leader ended the run, or a process failed.
    pub fn check_status(&mut self) -> Result<(), GroupError> {
        self.exchange_status(CONTINUE, &[]).map(drop)
    }

    /// Exchanges whole rows of `row_bytes` as [`Collective::all_to_all`] does.
    pub fn all_to_all(
        &mut self,
        payload: Payload,
        row_bytes: usize,
        outgoing: &[&[u8]],
        incoming: &mut Vec<Vec<u8>>,
    ) -> Result<(), CollectiveError> {
        let moved = self.collective.all_to_all(payload, row_bytes, outgoing, incoming);
        moved.inspect_err(|_| self.is_over = true)
    }

    /// Adds terms as [`Collective::reduce_ordered`] does.
    pub fn reduce_ordered(
        &mut self,
        payload: Payload,
        terms: Vec<Term>,
        len: usize,
    ) -> Result<Vec<f32>, CollectiveError> {
        let sum = self.collective.reduce_ordered(payload, terms, len);
        sum.inspect_err(|_| self.is_over = true)
    }

    /// Replaces `bytes` by those of the leader, of the same length. `buffer` is scratch memory.
    pub fn broadcast_from_leader(
        &mut self,
        payload: Payload,
        bytes: &mut [u8],
        buffer: &mut Vec<u8>,
    ) -> Result<(), CollectiveError> {
        buffer.clear();
        if self.leads() {
            buffer.extend_from_slice(bytes);
        }
        let sent = self.collective.broadcast(payload, 0, buffer);
        sent.inspect_err(|_| self.is_over = true)?;
        self.expect_bytes(0, buffer, bytes.len())?;
        bytes.copy_from_slice(buffer);
        Ok(())
    }

    /// Sends a message to the leader, which calls [`Self::receive`].
    pub fn send_to_leader(
        &mut self,
        payload: Payload,
        bytes: &[u8],
    ) -> Result<(), CollectiveError> {
        let sent = self.collective.send(0, payload, bytes);
        sent.inspect_err(|_| self.is_over = true)
    }

    /// Replaces `bytes` by the message of rank `from`, of the same length.
    pub fn receive(
        &mut self,
        from: u32,
        payload: Payload,
        bytes: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let mut message = Vec::new();
        let received = self.collective.receive(from, payload, &mut message);
        received.inspect_err(|_| self.is_over = true)?;
        self.expect_bytes(from, &message, bytes.len())?;
        bytes.copy_from_slice(&message);
        Ok(())
    }

    /// Fails unless the message `bytes` from `rank` has `n_bytes` bytes.
    pub fn expect_bytes(
        &mut self,
        rank: u32,
        bytes: &[u8],
        n_bytes: usize,
    ) -> Result<(), CollectiveError> {
        let expected = self.collective.expect_bytes(rank, bytes, n_bytes);
        expected.inspect_err(|_| self.is_over = true)
    }

    /// Returns `error`, which this process found outside a transfer; the others may not find it.
    pub fn raise(&mut self, error: CollectiveError) -> CollectiveError {
        self.is_over = true;
        self.collective.raise(error)
    }

    /// Ends a run without errors: the leader announces the end, the others wait for it. Returns the
    /// bytes that all processes sent.
    ///
    /// # Errors
    ///
    /// A process failed, or expects another step.
    pub fn end(&mut self) -> Result<Traffic, GroupError> {
        let status = if self.leads() { ENDED } else { CONTINUE };
        if self.n_ranks() > 1 && !self.is_over {
            match self.exchange_status(status, &[]) {
                Err(GroupError::Ended) => {}
                Err(error) => return Err(error),
                Ok(_) => {
                    let error = CollectiveError::out_of_step(0, "the end of the run", "a step");
                    return Err(self.raise(error).into());
                }
            }
        }
        let mut sums = *self.collective.traffic();
        self.collective.all_reduce(bytemuck::cast_mut::<_, [u64; 5]>(&mut sums))?;
        Ok(sums)
    }

    /// Reports an error of this process to the others, unless the run is over. Their next exchange
    /// fails with [`GroupError::Peer`].
    pub fn fail(&mut self, message: &str) {
        if self.n_ranks() > 1 && !self.is_over {
            // If the others cannot be reached, their own exchange fails.
            let _ = fail_before_start(self.collective, message);
        }
    }

    /// Exchanges statuses with messages behind them. Returns those of all processes.
    fn exchange_status(&mut self, status: u8, message: &[u8]) -> Result<Vec<Vec<u8>>, GroupError> {
        let mut all = Vec::new();
        let mine = [&[status], message].concat();
        let gathered = self.collective.all_gather(Payload::Control, &mine, &mut all);
        gathered.inspect_err(|_| self.is_over = true)?;
        for (rank, bytes) in (0..).zip(&all) {
            if let [FAILED, message @ ..] = &bytes[..] {
                self.is_over = true;
                let message = String::from_utf8_lossy(message).into_owned();
                return Err(GroupError::Peer { rank, message });
            }
        }
        if all[0].first() == Some(&ENDED) {
            self.is_over = true;
            return Err(GroupError::Ended);
        }
        Ok(all)
    }
}

/// Reports to the other processes that this one failed before its first exchange. Their first
/// exchange fails with [`GroupError::Peer`].
pub fn fail_before_start(
    collective: &mut dyn Collective,
    message: &str,
) -> Result<(), CollectiveError> {
    let bytes = [&[FAILED], message.as_bytes()].concat();
    collective.all_gather(Payload::Control, &bytes, &mut Vec::new())
}

fn malformed(rank: u32, error: &serde_json::Error) -> CollectiveError {
    CollectiveError::out_of_step(rank, "a message of this step", error.to_string())
}
