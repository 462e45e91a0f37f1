//! Collectives, written once over an engine's transfers between pairs of ranks.

use std::{mem::take, ops::Range};

use crate::error::CollectiveError;
use crate::limits::check_length;
use crate::tag::{Operation, Payload, Tag};
use crate::traffic::Traffic;

/// A vector that takes part in an ordered reduction.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// Position in the sum. Terms of equal position are added by rank.
    pub order: u32,
    /// Values, as many as in every other term.
    pub values: Vec<f32>,
}

/// One rank of a run. Rank 0 leads.
///
/// All ranks call the same collectives in the same order. Messages carry a tag, so a rank that
/// calls another collective is detected.
///
/// A rank that ends or stays silent ends every call of the others with an error, at the latest
/// after the timeout of the engine. After an error the collective cannot be used.
pub trait Collective {
    /// Returns the rank of this process, from 0.
    fn rank(&self) -> u32;

    /// Returns the number of ranks, at least 1.
    fn n_ranks(&self) -> u32;

    /// Returns the number of ranks on this machine, which share its cores. By default all ranks.
    fn n_local(&self) -> u32 {
        self.n_ranks()
    }

    /// Returns the bytes sent so far.
    fn traffic(&mut self) -> &mut Traffic;

    /// Sends one message to each rank of `sends` and receives one from each rank of `receives`, all
    /// concurrently. A list has no rank twice, and never this rank. A received message replaces the
    /// contents of its vector, whose memory is reused.
    fn transfer(
        &mut self,
        tag: Tag,
        sends: &[(u32, &[u8])],
        receives: &mut [(u32, Vec<u8>)],
    ) -> Result<(), CollectiveError>;

    /// Returns `error`, which this rank found outside a transfer. Other ranks may wait for this
    /// one, so an engine whose ranks end only together ends them here.
    fn raise(&mut self, error: CollectiveError) -> CollectiveError {
        error
    }

    /// Sends `outgoing[r]` to each rank r and fills `incoming[r]` with the message of rank r to
    /// this one. A message has any number of whole rows of `row_bytes`.
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

    /// Fills `all` with the bytes of every rank, by rank. Lengths may differ.
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

    /// Returns once every rank has called it.
    fn barrier(&mut self) -> Result<(), CollectiveError> {
        let outgoing = vec![&[][..]; self.n_ranks() as usize];
        exchange(self, Tag::barrier(), 1, &outgoing, &mut Vec::new())
    }

    /// Sends a message to one rank, which calls [`Self::receive`]. Two ranks that send long
    /// messages to each other before they receive block forever; [`Self::all_to_all`] does not.
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

    /// Replaces each of `values` by the sum of its values in all ranks, modulo 2⁶⁴. All ranks have
    /// the same number of values.
    fn all_reduce(&mut self, values: &mut [u64]) -> Result<(), CollectiveError> {
        let n_bytes = size_of_val(values);
        let mine: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let outgoing = vec![&mine[..]; self.n_ranks() as usize];
        let mut all = Vec::new();
        let tag = Tag::new(Operation::AllReduce, Payload::Control);
        exchange(self, tag, 1, &outgoing, &mut all)?;
        for (rank, bytes) in (0..).zip(&all) {
            if rank == self.rank() {
                continue;
            }
            self.expect_bytes(rank, bytes, n_bytes)?;
            for (value, other) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = value.wrapping_add(u64::from_le_bytes(*other));
            }
        }
        Ok(())
    }

    /// Returns the sum of the terms of all ranks, of `len` values each; zeros if there are none. A
    /// rank may have any number of terms, or none.
    ///
    /// Terms are added one by one in their order, whichever rank has them. So the bits of the sum
    /// do not depend on how terms are distributed over ranks. Each rank adds its share of the
    /// values, then sends the sums to all. It sends about `len` values for each of its terms, and
    /// `len` for the sum.
    ///
    /// # Panics
    ///
    /// When a term has not `len` values.
    fn reduce_ordered(
        &mut self,
        payload: Payload,
        terms: Vec<Term>,
        len: usize,
    ) -> Result<Vec<f32>, CollectiveError> {
        assert!(terms.iter().all(|term| term.values.len() == len), "terms of {len} values");
        let n_ranks = self.n_ranks();
        if n_ranks == 1 {
            return Ok(sum_terms(terms, len));
        }
        let mut outgoing = Vec::with_capacity(n_ranks as usize);
        for rank in 0..n_ranks {
            outgoing.push(encode_terms(&terms, share(len, rank, n_ranks)));
        }
        let outgoing: Vec<&[u8]> = outgoing.iter().map(|bytes| &bytes[..]).collect();
        let n_own = share(len, self.rank(), n_ranks).len();
        let mut all = Vec::new();
        let tag = Tag::new(Operation::ReduceScatter, payload);
        exchange(self, tag, ORDER_BYTES + 4 * n_own, &outgoing, &mut all)?;

        let sum = sum_encoded(&all, n_own);
        let outgoing = vec![bytemuck::cast_slice(&sum); n_ranks as usize];
        exchange(self, Tag::new(Operation::AllGather, payload), 1, &outgoing, &mut all)?;
        let mut sums = Vec::with_capacity(len);
        for (rank, bytes) in (0..).zip(&all) {
            self.expect_bytes(rank, bytes, 4 * share(len, rank, n_ranks).len())?;
            sums.extend(floats(bytes));
        }
        Ok(sums)
    }

    /// Fails, and raises the error, unless the message `bytes` from `rank` has `n_bytes` bytes.
    fn expect_bytes(
        &mut self,
        rank: u32,
        bytes: &[u8],
        n_bytes: usize,
    ) -> Result<(), CollectiveError> {
        if bytes.len() == n_bytes {
            return Ok(());
        }
        let expected = format!("{n_bytes} bytes");
        let found = format!("{} bytes", bytes.len());
        Err(self.raise(CollectiveError::out_of_step(rank, expected, found)))
    }
}

/// Bytes of a term's order, in front of its values.
const ORDER_BYTES: usize = 4;

/// Returns the range of `len` values that `rank` of `n_ranks` adds.
fn share(len: usize, rank: u32, n_ranks: u32) -> Range<usize> {
    let rank = rank as usize;
    let n_ranks = n_ranks as usize;
    len * rank / n_ranks..len * (rank + 1) / n_ranks
}

/// Returns a range of the values of each term, behind its order.
fn encode_terms(terms: &[Term], range: Range<usize>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(terms.len() * (ORDER_BYTES + 4 * range.len()));
    for term in terms {
        bytes.extend_from_slice(&term.order.to_ne_bytes());
        bytes.extend_from_slice(bytemuck::cast_slice(&term.values[range.clone()]));
    }
    bytes
}

/// Adds terms in their order.
fn sum_terms(mut terms: Vec<Term>, len: usize) -> Vec<f32> {
    terms.sort_by_key(|term| term.order);
    let mut terms = terms.into_iter();
    let Some(first) = terms.next() else { return vec![0.0; len] };
    let mut sum = first.values;
    for term in terms {
        for (sum, value) in sum.iter_mut().zip(&term.values) {
            *sum += value;
        }
    }
    sum
}

/// Adds encoded terms of `len` values, in their order and then by rank.
fn sum_encoded(of_ranks: &[Vec<u8>], len: usize) -> Vec<f32> {
    let mut terms: Vec<(u32, &[u8])> = Vec::new();
    for bytes in of_ranks {
        for row in bytes.chunks_exact(ORDER_BYTES + 4 * len) {
            if let Some((order, values)) = row.split_first_chunk() {
                terms.push((u32::from_ne_bytes(*order), values));
            }
        }
    }
    terms.sort_by_key(|(order, _)| *order);
    let mut terms = terms.into_iter();
    let Some((_, first)) = terms.next() else { return vec![0.0; len] };
    let mut sum: Vec<f32> = floats(first).collect();
    for (_, values) in terms {
        for (sum, value) in sum.iter_mut().zip(floats(values)) {
            *sum += value;
        }
    }
    sum
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|value| f32::from_ne_bytes(*value))
}

/// Exchanges a message with every rank, and copies the message of this rank to itself.
fn exchange<C: Collective + ?Sized>(
    collective: &mut C,
    tag: Tag,
    row_bytes: usize,
    outgoing: &[&[u8]],
    incoming: &mut Vec<Vec<u8>>,
) -> Result<(), CollectiveError> {
    let own = collective.rank();
    let n_ranks = collective.n_ranks();
    assert_eq!(outgoing.len(), n_ranks as usize, "a message for each rank");
    incoming.resize_with(n_ranks as usize, Vec::new);
    let mut sends = Vec::with_capacity(n_ranks as usize);
    let mut receives = Vec::with_capacity(n_ranks as usize);
    for rank in (0..n_ranks).filter(|&rank| rank != own) {
        sends.push((rank, outgoing[rank as usize]));
        receives.push((rank, take(&mut incoming[rank as usize])));
    }
    send_with(collective, tag, &sends, &mut receives)?;
    incoming[own as usize].clear();
    incoming[own as usize].extend_from_slice(outgoing[own as usize]);
    for (rank, bytes) in receives {
        if !bytes.len().is_multiple_of(row_bytes) {
            let expected = format!("rows of {row_bytes} bytes");
            let found = format!("{} bytes", bytes.len());
            return Err(collective.raise(CollectiveError::out_of_step(rank, expected, found)));
        }
        incoming[rank as usize] = bytes;
    }
    Ok(())
}

/// Checks the lengths of messages, transfers them and counts their bytes.
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
    let n_bytes = sends.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    collective.traffic().add(tag.payload, n_bytes);
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
