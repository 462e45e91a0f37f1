//! Collective communication among the ranks of a run.
//!
//! An engine moves one message each between pairs of ranks ([`Collective::transfer`]): over
//! channels between threads, over sockets between processes of one machine, or over MPI. Every
//! collective is written once on top of that, so that all engines give the same bits. Ranks call
//! the same collectives in the same order; messages carry a tag by which a rank that does not is
//! recognised.

mod error;
#[cfg(feature = "mpi")]
mod mpi;
mod sockets;
mod tag;
mod threads;

use std::mem::take;

use bytemuck::{Pod, Zeroable};
use serde::Serialize;

pub use error::CollectiveError;
#[cfg(feature = "mpi")]
pub use mpi::MpiCollective;
pub use sockets::SocketCollective;
use tag::Operation;
pub use tag::{Payload, Tag};
pub use threads::ThreadCollective;

/// Longest message between two ranks: what MPI can count.
pub const MAX_MESSAGE_BYTES: u64 = i32::MAX as u64;

/// The bytes that ranks have sent to others, without headers, by what they carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Serialize, Zeroable)]
#[repr(C)]
pub struct Traffic {
    /// Rows of features.
    pub rows: u64,
    /// Gradients of parameters.
    pub gradients: u64,
    /// Parameters and states of optimisers.
    pub parameters: u64,
    /// Rows of hidden layers, and their gradients.
    pub embeddings: u64,
    /// Figures, settings and errors.
    pub control: u64,
}

/// A vector that takes part in an ordered reduction.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// Its place in the sum; terms of equal place are added by rank.
    pub order: u32,
    /// As many values as every other term has.
    pub values: Vec<f32>,
}

/// The ranks of a run, as one of them sees them. Rank 0 leads.
///
/// A rank that dies or stays silent ends every call of the others with an error, at the latest when
/// the engine's time is up. After an error the collective is of no more use.
pub trait Collective {
    /// Returns the rank of this process, from 0.
    fn rank(&self) -> u32;

    /// Returns the number of ranks, at least 1.
    fn n_ranks(&self) -> u32;

    /// Returns the number of ranks on this machine, which share its cores: all, unless an engine
    /// says otherwise.
    fn n_local(&self) -> u32 {
        self.n_ranks()
    }

    /// Returns the bytes sent so far.
    fn traffic(&mut self) -> &mut Traffic;

    /// Sends one message to each rank of `sends` and receives one from each rank of `receives`, all
    /// concurrently. No rank occurs twice in a list, nor this one at all. The previous contents of
    /// a vector are replaced, and its memory is reused.
    fn transfer(
        &mut self,
        tag: Tag,
        sends: &[(u32, &[u8])],
        receives: &mut [(u32, Vec<u8>)],
    ) -> Result<(), CollectiveError>;

    /// Returns `error`, which this rank has found beside a transfer. An engine whose ranks can only
    /// end together ends them here, as others may wait for this one.
    fn raise(&mut self, error: CollectiveError) -> CollectiveError {
        error
    }

    /// Sends `outgoing[r]` to each rank r and fills `incoming[r]` with what rank r sent to this
    /// one: whole rows of `row_bytes`, any number of them.
    ///
    /// # Panics
    ///
    /// When `outgoing` has not one entry per rank.
    fn all_to_all(
        &mut self,
        payload: Payload,
        row_bytes: usize,
        outgoing: &[&[u8]],
        incoming: &mut Vec<Vec<u8>>,
    ) -> Result<(), CollectiveError> {
        let tag = Tag::new(Operation::AllToAll, payload);
        exchange(self, tag, row_bytes, outgoing, incoming)
    }

    /// Fills `all` with the bytes of every rank, by rank; they may differ in length.
    fn all_gather(
        &mut self,
        payload: Payload,
        mine: &[u8],
        all: &mut Vec<Vec<u8>>,
    ) -> Result<(), CollectiveError> {
        let outgoing = vec![mine; self.n_ranks() as usize];
        exchange(self, Tag::new(Operation::AllGather, payload), 1, &outgoing, all)
    }

    /// Replaces `bytes` by those of rank `root`.
    fn broadcast(
        &mut self,
        payload: Payload,
        root: u32,
        bytes: &mut Vec<u8>,
    ) -> Result<(), CollectiveError> {
        let tag = Tag::new(Operation::Broadcast, payload);
        if self.rank() != root {
            return receive_with(self, tag, root, bytes);
        }
        let others = (0..self.n_ranks()).filter(|&rank| rank != root);
        let sends: Vec<(u32, &[u8])> = others.map(|rank| (rank, &bytes[..])).collect();
        send_with(self, tag, &sends, &mut [])
    }

    /// Returns once every rank has come here.
    fn barrier(&mut self) -> Result<(), CollectiveError> {
        let outgoing = vec![&[][..]; self.n_ranks() as usize];
        exchange(self, Tag::barrier(), 1, &outgoing, &mut Vec::new())
    }

    /// Sends a message to one rank, which calls [`Self::receive`]. Two ranks that send long
    /// messages to each other before either receives wait for ever; [`Self::all_to_all`] does not.
    fn send(&mut self, to: u32, payload: Payload, bytes: &[u8]) -> Result<(), CollectiveError> {
        let tag = Tag::new(Operation::PointToPoint, payload);
        send_with(self, tag, &[(to, bytes)], &mut [])
    }

    /// Replaces `bytes` by the message that rank `from` sends to this one.
    fn receive(
        &mut self,
        from: u32,
        payload: Payload,
        bytes: &mut Vec<u8>,
    ) -> Result<(), CollectiveError> {
        receive_with(self, Tag::new(Operation::PointToPoint, payload), from, bytes)
    }

    /// Replaces each of `values` by the sum of its values in all ranks, modulo 2⁶⁴. All have as
    /// many.
    fn all_reduce(&mut self, values: &mut [u64]) -> Result<(), CollectiveError> {
        let (mut all, n_bytes) = (Vec::new(), size_of_val(values));
        let mine: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let outgoing = vec![&mine[..]; self.n_ranks() as usize];
        let tag = Tag::new(Operation::AllReduce, Payload::Control);
        exchange(self, tag, 1, &outgoing, &mut all)?;
        let own = self.rank();
        for (rank, bytes) in (0..).zip(&all).filter(|&(rank, _)| rank != own) {
            let expected = CollectiveError::expect_bytes(rank, bytes, n_bytes);
            expected.map_err(|error| self.raise(error))?;
            for (value, other) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = value.wrapping_add(u64::from_le_bytes(*other));
            }
        }
        Ok(())
    }

    /// Returns the sum of the terms of all ranks, of `len` values each; zeros if there are none. A
    /// rank may have any number of terms, also none.
    ///
    /// Terms are added one after the other by their place, whichever rank has them. So the sum has
    /// the same bits however terms are distributed over ranks. Each rank adds its share of the
    /// values and passes the sums on. It sends about `len` values for each of its terms and once
    /// for the sum.
    ///
    /// # Panics
    ///
    /// When a term has not `len` values.
    fn reduce_ordered(
        &mut self,
        payload: Payload,
        mut terms: Vec<Term>,
        len: usize,
    ) -> Result<Vec<f32>, CollectiveError> {
        assert!(terms.iter().all(|term| term.values.len() == len), "terms of {len} values");
        if self.n_ranks() == 1 {
            terms.sort_by_key(|term| term.order);
            let mut terms = terms.into_iter().map(|term| term.values);
            let sum = terms.next().unwrap_or_else(|| vec![0.0; len]);
            return Ok(terms.fold(sum, |mut sum, values| {
                sum.iter_mut().zip(&values).for_each(|(sum, value)| *sum += value);
                sum
            }));
        }
        let n_ranks = self.n_ranks() as usize;
        let share = |rank: usize| len * rank / n_ranks..len * (rank + 1) / n_ranks;
        let to_rank = |rank| {
            let mut bytes = Vec::with_capacity(terms.len() * (4 + 4 * share(rank).len()));
            for term in &terms {
                bytes.extend_from_slice(&term.order.to_ne_bytes());
                bytes.extend_from_slice(bytemuck::cast_slice(&term.values[share(rank)]));
            }
            bytes
        };
        let outgoing: Vec<Vec<u8>> = (0..n_ranks).map(to_rank).collect();
        let outgoing: Vec<&[u8]> = outgoing.iter().map(|bytes| &bytes[..]).collect();
        let own = share(self.rank() as usize);
        let (row_bytes, mut all) = (4 + 4 * own.len(), Vec::new());
        let tag = Tag::new(Operation::ReduceScatter, payload);
        exchange(self, tag, row_bytes, &outgoing, &mut all)?;
        let sum = sum_by_order(&all, own.len());
        let tag = Tag::new(Operation::AllGather, payload);
        exchange(self, tag, 1, &vec![bytemuck::cast_slice(&sum); n_ranks], &mut all)?;
        let mut sums = Vec::with_capacity(len);
        for (rank, bytes) in all.iter().enumerate() {
            let n_bytes = 4 * share(rank).len();
            let expected = CollectiveError::expect_bytes(rank as u32, bytes, n_bytes);
            expected.map_err(|error| self.raise(error))?;
            sums.extend(floats(bytes));
        }
        Ok(sums)
    }
}

/// Adds terms of `len` values, each behind its place, in the order of places and then of ranks.
fn sum_by_order(of_ranks: &[Vec<u8>], len: usize) -> Vec<f32> {
    let rows = of_ranks.iter().flat_map(|bytes| bytes.chunks_exact(4 + 4 * len));
    let mut terms: Vec<(u32, &[u8])> = rows
        .filter_map(|row| row.split_first_chunk())
        .map(|(order, values)| (u32::from_ne_bytes(*order), values))
        .collect();
    terms.sort_by_key(|(order, _)| *order);
    let mut terms = terms.into_iter().map(|(_, values)| values);
    let mut sum: Vec<f32> = terms.next().map_or_else(|| vec![0.0; len], |of| floats(of).collect());
    for values in terms {
        sum.iter_mut().zip(floats(values)).for_each(|(sum, value)| *sum += value);
    }
    sum
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|value| f32::from_ne_bytes(*value))
}

/// Exchanges a message with every rank, and keeps the one to this rank.
fn exchange<C: Collective + ?Sized>(
    collective: &mut C,
    tag: Tag,
    row_bytes: usize,
    outgoing: &[&[u8]],
    incoming: &mut Vec<Vec<u8>>,
) -> Result<(), CollectiveError> {
    let (own, n_ranks) = (collective.rank(), collective.n_ranks());
    assert_eq!(outgoing.len(), n_ranks as usize, "a message for each rank");
    incoming.resize_with(n_ranks as usize, Vec::new);
    let others = || (0..n_ranks).filter(|&rank| rank != own);
    let sends: Vec<_> = others().map(|rank| (rank, outgoing[rank as usize])).collect();
    let mut receives: Vec<_> =
        others().map(|rank| (rank, take(&mut incoming[rank as usize]))).collect();
    send_with(collective, tag, &sends, &mut receives)?;
    incoming[own as usize].clear();
    incoming[own as usize].extend_from_slice(outgoing[own as usize]);
    for (rank, bytes) in receives {
        if !bytes.len().is_multiple_of(row_bytes) {
            let (expected, found) = (format!("rows of {row_bytes} bytes"), bytes.len());
            let error = CollectiveError::out_of_step(rank, expected, format!("{found} bytes"));
            return Err(collective.raise(error));
        }
        incoming[rank as usize] = bytes;
    }
    Ok(())
}

/// Transfers messages that are short enough, and counts their bytes.
fn send_with<C: Collective + ?Sized>(
    collective: &mut C,
    tag: Tag,
    sends: &[(u32, &[u8])],
    receives: &mut [(u32, Vec<u8>)],
) -> Result<(), CollectiveError> {
    for (rank, bytes) in sends {
        check_length(*rank, bytes.len() as u64).map_err(|error| collective.raise(error))?;
    }
    collective.transfer(tag, sends, receives)?;
    let n_bytes: u64 = sends.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    *collective.traffic().of(tag.payload) += n_bytes;
    Ok(())
}

fn receive_with<C: Collective + ?Sized>(
    collective: &mut C,
    tag: Tag,
    from: u32,
    bytes: &mut Vec<u8>,
) -> Result<(), CollectiveError> {
    let mut receives = [(from, take(bytes))];
    collective.transfer(tag, &[], &mut receives)?;
    *bytes = take(&mut receives[0].1);
    Ok(())
}

/// Fails for a message that is too long, from or to `rank`.
fn check_length(rank: u32, found: u64) -> Result<(), CollectiveError> {
    let most = MAX_MESSAGE_BYTES;
    if found <= most { Ok(()) } else { Err(CollectiveError::TooLong { rank, found, most }) }
}

impl Traffic {
    fn of(&mut self, payload: Payload) -> &mut u64 {
        match payload {
            Payload::Rows => &mut self.rows,
            Payload::Gradients => &mut self.gradients,
            Payload::Parameters => &mut self.parameters,
            Payload::Embeddings => &mut self.embeddings,
            Payload::Control => &mut self.control,
        }
    }
}
