//! A tier before a source: rows that were pulled stay for the batches to come.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lodestore_cache::{Tier, TierStats};
use lodestore_graph::{NodeId, PartitionBook};

use crate::scatter::scatter;
use crate::{ClientError, PullKind, PullStats, RowSource, TensorInfo};

/// A source whose rows of one tensor pass through a [`Tier`] under any policy.
///
/// A row is served from the tier as it was when it was pulled: for tensors that nobody changes,
/// for a pinned version, or together with [`TieredSource::forget`].
///
/// Any number of threads may pull. The tier's lock is held while rows are copied in memory, once
/// before and once after a pull, and never while rows travel.
pub struct TieredSource {
    inner: Arc<dyn RowSource>,
    tensor: TensorInfo,
    state: Mutex<State>,
}

struct State {
    tier: Tier,
    /// Calls of [`TieredSource::forget`]: rows that were pulled before one may be old after it.
    n_forgets: u64,
    /// Memory of pulls that are over, for those to come.
    spare: Vec<Scratch>,
}

/// What the rows that a tier lacks need on their way.
#[derive(Default)]
struct Scratch {
    positions: Vec<u32>,
    ids: Vec<NodeId>,
    rows: Vec<u8>,
}

impl TieredSource {
    /// Puts `tier` before the rows of `tensor` from `inner`; other tensors pass by it.
    ///
    /// Fails when there is no such tensor, or the tier is for rows of another length.
    pub fn new(inner: Arc<dyn RowSource>, tensor: &str, tier: Tier) -> Result<Self, ClientError> {
        let tensor = inner.tensor(tensor)?;
        if tier.row_bytes() != tensor.row_bytes() {
            return Err(ClientError::SourcesDiffer {
                tensor: tensor.name.clone(),
                local: tier.row_bytes(),
                remote: tensor.row_bytes(),
            });
        }
        Ok(Self {
            inner,
            tensor,
            state: Mutex::new(State { tier, n_forgets: 0, spare: Vec::new() }),
        })
    }

    /// Takes rows out of the tier, for they have changed: a pull that begins afterwards asks for
    /// them.
    pub fn forget(&self, ids: &[NodeId]) {
        let mut state = self.lock();
        state.n_forgets += 1;
        state.tier.remove(bytemuck::cast_slice(ids));
    }

    /// What the tier did, counted in rows.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        self.lock().tier.stats()
    }

    /// Memory of the tier with its bookkeeping, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.lock().tier.bytes()
    }

    /// A panic of another thread leaves a tier that decides worse and gives no wrong row: a slot is
    /// found only when its row is in it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fetches the rows at `scratch.positions` and writes them to their places in `out`.
    fn pull_missing(
        &self,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        scratch: &mut Scratch,
    ) -> Result<PullStats, ClientError> {
        let row_bytes = self.tensor.row_bytes();
        let Scratch { positions, ids: missing, rows } = scratch;
        missing.clear();
        missing.extend(positions.iter().map(|&position| ids[position as usize]));
        rows.resize(missing.len() * row_bytes, 0);
        let pulled = self.inner.pull(&self.tensor.name, missing, rows, kind)?;
        scatter(rows, row_bytes, positions, out);
        Ok(pulled)
    }
}

impl RowSource for TieredSource {
    fn book(&self) -> &PartitionBook {
        self.inner.book()
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        self.inner.tensor(name)
    }

    /// As of any source; the stats are of the rows that the tier lacked.
    fn pull(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
    ) -> Result<PullStats, ClientError> {
        if tensor != self.tensor.name || self.tensor.row_bytes() == 0 {
            return self.inner.pull(tensor, ids, out, kind);
        }
        ClientError::check_buffer(tensor, ids.len(), self.tensor.row_bytes(), out.len())?;
        let raw_ids = bytemuck::cast_slice(ids);
        let mut state = self.lock();
        let mut scratch = state.spare.pop().unwrap_or_default();
        state.tier.lookup(raw_ids, out, &mut scratch.positions);
        let n_forgets = state.n_forgets;
        drop(state);
        let pulled = match scratch.positions.is_empty() {
            true => Ok(PullStats::default()),
            false => self.pull_missing(ids, out, kind, &mut scratch),
        };
        let mut state = self.lock();
        if pulled.is_ok() && state.n_forgets == n_forgets {
            state.tier.admit(raw_ids, out, &scratch.positions);
        }
        state.spare.push(scratch);
        pulled
    }
}

#[cfg(test)]
mod tests;
