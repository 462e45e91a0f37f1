//! Which rows were asked for, batch by batch: what policies are compared on.

mod records;

use thiserror::Error;

pub use records::{RecordError, RecordFormat, read_records};

/// Batches of ids in the order in which they were asked for, cut into epochs. An id is in a batch
/// at most once, since a source brings each row of a batch once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    ids: Vec<u32>,
    /// Batch `i` is `ids[bounds[i]..bounds[i + 1]]`.
    bounds: Vec<usize>,
    /// First batch of each epoch, ascending; at least one epoch, whose first batch is 0.
    epochs: Vec<u32>,
    id_space: u32,
    /// Ascending: where ids are too sparse to be indices, the given id of each.
    given: Option<Vec<u32>>,
    n_distinct: u32,
    n_repeats: u64,
}

/// Takes a trace batch by batch.
#[derive(Debug)]
pub struct TraceBuilder {
    ids: Vec<u32>,
    bounds: Vec<usize>,
    epochs: Vec<u32>,
}

/// The trace is longer than what is kept in memory.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TraceError {
    /// Too many accesses.
    #[error("the trace has more than {} accesses; replay its first part", Trace::MAX_IDS)]
    Ids,
    /// Too many batches.
    #[error("the trace has more than {} batches; replay its first part", Trace::MAX_BATCHES)]
    Batches,
}

/// Id spaces up to this many times the length of a trace are tables; others are made dense.
const MAX_IDS_PER_ACCESS: usize = 16;
/// Id spaces up to this are tables for any trace.
const SMALL_ID_SPACE: usize = 1 << 20;

impl Trace {
    /// Most accesses of a trace: 1 GiB of ids.
    pub const MAX_IDS: usize = 1 << 28;
    /// Most batches of a trace.
    pub const MAX_BATCHES: usize = Self::MAX_IDS;

    /// Returns the number of accesses.
    #[must_use]
    pub fn n_ids(&self) -> usize {
        self.ids.len()
    }

    /// Returns the ids of all batches, one after the other; all are below [`Trace::id_space`].
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Returns where batches start in [`Trace::ids`], then where the last one ends.
    #[must_use]
    pub fn bounds(&self) -> &[usize] {
        &self.bounds
    }

    /// Returns the number of batches.
    #[must_use]
    pub fn n_batches(&self) -> u32 {
        (self.bounds.len() - 1) as u32
    }

    /// Returns the positions in [`Trace::ids`] of one batch.
    ///
    /// # Panics
    ///
    /// When there is no such batch.
    #[must_use]
    pub fn range(&self, batch: u32) -> std::ops::Range<usize> {
        self.bounds[batch as usize]..self.bounds[batch as usize + 1]
    }

    /// Returns the first batch of each epoch, ascending from 0.
    #[must_use]
    pub fn epochs(&self) -> &[u32] {
        &self.epochs
    }

    /// Returns the accesses of one epoch.
    ///
    /// # Panics
    ///
    /// When there is no such epoch.
    #[must_use]
    pub fn epoch_ids(&self, epoch: usize) -> &[u32] {
        let end = self.epochs.get(epoch + 1).map_or(self.ids.len(), |&b| self.bounds[b as usize]);
        &self.ids[self.bounds[self.epochs[epoch] as usize]..end]
    }

    /// Returns a number above all ids.
    #[must_use]
    pub fn id_space(&self) -> u32 {
        self.id_space
    }

    /// Returns the number of different ids.
    #[must_use]
    pub fn n_distinct(&self) -> u32 {
        self.n_distinct
    }

    /// Returns the number of positions that were left out because their batch had the id already.
    #[must_use]
    pub fn n_repeats(&self) -> u64 {
        self.n_repeats
    }

    /// Returns the number of ids of the longest batch.
    #[must_use]
    pub fn longest_batch(&self) -> usize {
        self.bounds.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0)
    }

    /// Returns the different ids, ascending.
    #[must_use]
    pub fn distinct(&self) -> Vec<u32> {
        let mut ids = self.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Returns the id that was given to the builder for an id of this trace. Sparse ids are
    /// replaced by dense ones in the same order, so that no table follows the largest id.
    ///
    /// # Panics
    ///
    /// May, when the id is not below [`Trace::id_space`].
    #[must_use]
    pub fn given(&self, id: u32) -> u32 {
        self.given.as_ref().map_or(id, |given| given[id as usize])
    }
}

impl Default for TraceBuilder {
    fn default() -> Self {
        Self { ids: Vec::new(), bounds: vec![0], epochs: vec![0] }
    }
}

impl TraceBuilder {
    /// Returns the number of accesses so far, repeats in a batch included.
    #[must_use]
    pub fn n_ids(&self) -> usize {
        self.ids.len()
    }

    /// Adds a batch, which may be empty.
    pub fn push_batch(&mut self, ids: &[u32]) -> Result<(), TraceError> {
        if self.bounds.len() > Trace::MAX_BATCHES {
            return Err(TraceError::Batches);
        }
        if ids.len() > Trace::MAX_IDS - self.ids.len() {
            return Err(TraceError::Ids);
        }
        self.ids.extend_from_slice(ids);
        self.bounds.push(self.ids.len());
        Ok(())
    }

    /// Begins another epoch with the batches to come. Epochs without batches are dropped.
    pub fn begin_epoch(&mut self) {
        let first = (self.bounds.len() - 1) as u32;
        if self.epochs.last() != Some(&first) {
            self.epochs.push(first);
        }
    }

    /// Returns the trace. With `n_ids` all ids are said to be below it, and stay as they are.
    ///
    /// # Panics
    ///
    /// When one is not.
    #[must_use]
    pub fn finish(mut self, n_ids: Option<u32>) -> Trace {
        // An epoch that was begun and got no batch.
        let n_batches = (self.bounds.len() - 1) as u32;
        if self.epochs.len() > 1 && self.epochs.last() == Some(&n_batches) {
            self.epochs.pop();
        }
        let space = self.ids.iter().max().map_or(0, |&max| max as usize + 1);
        let is_sparse = n_ids.is_none() && space > largest_table(self.ids.len());
        let given = is_sparse.then(|| make_dense(&mut self.ids));
        let id_space = match (n_ids, &given) {
            (Some(n_ids), _) => n_ids,
            (None, Some(given)) => given.len() as u32,
            (None, None) => space as u32,
        };
        let (n_distinct, n_repeats) = drop_repeats(&mut self.ids, &mut self.bounds, id_space);
        let (ids, bounds, epochs) = (self.ids, self.bounds, self.epochs);
        Trace { ids, bounds, epochs, id_space, given, n_distinct, n_repeats }
    }
}

/// Returns the largest id space for which a trace of this many accesses has a table. No table has
/// all ids: their number is not one of an id's 32 bits.
fn largest_table(n_accesses: usize) -> usize {
    let limit = n_accesses.saturating_mul(MAX_IDS_PER_ACCESS).max(SMALL_ID_SPACE);
    limit.min(u32::MAX as usize)
}

/// Replaces ids by their ranks; returns the id of each rank.
fn make_dense(ids: &mut [u32]) -> Vec<u32> {
    let mut given = ids.to_vec();
    given.sort_unstable();
    given.dedup();
    given.shrink_to_fit();
    for id in ids {
        // Every id is there.
        *id = given.partition_point(|&other| other < *id) as u32;
    }
    given
}

/// Keeps the first position of each id in each batch. Returns the numbers of different ids and of
/// positions dropped.
fn drop_repeats(ids: &mut Vec<u32>, bounds: &mut [usize], id_space: u32) -> (u32, u64) {
    // The batch that had the id last, counted from 1.
    let mut last_batch = vec![0u32; id_space as usize];
    let (mut n_kept, mut n_distinct, mut start) = (0, 0, 0);
    for (batch, bound) in (1u32..).zip(bounds.iter_mut().skip(1)) {
        let end = *bound;
        for at in start..end {
            let id = ids[at];
            let last = std::mem::replace(&mut last_batch[id as usize], batch);
            n_distinct += u32::from(last == 0);
            ids[n_kept] = id;
            n_kept += usize::from(last != batch);
        }
        (start, *bound) = (end, n_kept);
    }
    let n_repeats = (ids.len() - n_kept) as u64;
    ids.truncate(n_kept);
    (n_distinct, n_repeats)
}

#[cfg(test)]
mod tests;
