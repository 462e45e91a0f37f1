//! A tier on a device before a source: rows that a worker reuses stay where it computes.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lodestore_cache::TwoLevelTier;
use lodestore_cache::device::{BatchTensor, GatherError};
use lodestore_cache::shared::Invalidation;
use lodestore_cache::two_level::TwoLevelStats;
use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::{NodeId, PartitionBook};

use crate::error::ClientError;
use crate::source::{PullKind, PullStats, RowSource, TensorInfo, VersionTag};

/// A source whose rows of one tensor pass through one worker's [`TwoLevelTier`]: the tier of its
/// device, over the tier that the workers of its machine share, if there is one. These are the
/// local and the global cache of CaPGNN, section 4.2.
///
/// A worker that computes on the device gathers batches with [`DeviceSource::gather`], which leaves
/// them there. As a [`RowSource`] it copies them back to host memory.
///
/// The source serves a row as it was when it was pulled. Pin `inner`, or call
/// [`DeviceSource::forget`] on the changed rows after each commit. Otherwise the tiers may mix rows
/// of several versions, within their bound on the age. One pull runs at a time; others wait for it.
/// In a forked child, which has no device, pulls fail with [`ClientError::Forked`].
pub struct DeviceSource {
    inner: Arc<dyn RowSource>,
    tensor: TensorInfo,
    state: PerProcess<Mutex<State>>,
}

struct State {
    levels: TwoLevelTier,
    /// Memory for batches that are copied back.
    batch: BatchTensor,
}

impl DeviceSource {
    /// Puts `levels` before the rows of `tensor` from `inner`; other tensors bypass them.
    ///
    /// Fails if there is no such tensor, the tiers are for rows of another length, or the device
    /// fails.
    pub fn new(
        inner: Arc<dyn RowSource>,
        tensor: &str,
        levels: TwoLevelTier,
    ) -> Result<Self, ClientError> {
        let tensor = inner.tensor(tensor)?;
        ClientError::check_tier(&tensor.name, tensor.row_bytes(), levels.device().row_bytes())?;
        let batch = levels.tensor(0)?;
        let state = PerProcess::with(Mutex::new(State { levels, batch }));
        Ok(Self { inner, tensor, state })
    }

    /// Returns a tensor on the tier's device with room for batches of up to `n_rows` ids.
    ///
    /// Fails if the device has no memory for it.
    pub fn batch_tensor(&self, n_rows: usize) -> Result<BatchTensor, ClientError> {
        Ok(self.lock()?.levels.tensor(n_rows)?)
    }

    /// Gathers the rows of `ids` into `batch`, in their order, and returns the stats of the pulled
    /// rows; see [`TwoLevelTier::gather`].
    ///
    /// Fails if the pull or the device does, or `batch` is too small or on another device.
    pub fn gather(
        &self,
        ids: &[NodeId],
        batch: &mut BatchTensor,
        kind: PullKind,
    ) -> Result<PullStats, ClientError> {
        self.gather_with(&mut self.lock()?.levels, ids, batch, kind, &mut || ())
    }

    /// Removes changed rows from the device tier: later pulls request them again. This is for rows
    /// that the caller changes. Waits for the pull in flight. A host tier must forget first, and
    /// `below` is what it returned: see [`TwoLevelTier::remove`].
    pub fn forget(&self, ids: &[NodeId], below: Option<Invalidation>) {
        if let Ok(mut state) = self.lock() {
            state.levels.remove(bytemuck::cast_slice(ids), below);
        }
    }

    /// Returns the name of the device in reports: `host` if there is none.
    #[must_use]
    pub fn device(&self) -> String {
        let name = |state: MutexGuard<'_, State>| state.levels.device().device().to_string();
        self.lock().map_or_else(|error| error.to_string(), name)
    }

    /// Returns the number of rows that fit.
    #[must_use]
    pub fn n_slots(&self) -> u32 {
        self.lock().map_or(0, |state| state.levels.device().directory().n_slots())
    }

    /// Returns the counters of the tiers, in rows. Those of the host tier are for all of its
    /// workers.
    #[must_use]
    pub fn stats(&self) -> TwoLevelStats {
        self.lock().map_or_else(|_| TwoLevelStats::default(), |state| state.levels.stats())
    }

    fn gather_with(
        &self,
        levels: &mut TwoLevelTier,
        ids: &[NodeId],
        batch: &mut BatchTensor,
        kind: PullKind,
        work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        let (start, mut fetching) = (Instant::now(), Duration::ZERO);
        let mut pulled = PullStats::default();
        // Once, though missing rows may be fetched in several pieces.
        let mut work = Some(work);
        let mut once = || {
            if let Some(work) = work.take() {
                work();
            }
        };
        let fetch = |missing: &[u32], rows: &mut [u8]| {
            let start = Instant::now();
            let missing = bytemuck::cast_slice(missing);
            pulled +=
                self.inner.pull_overlapped(&self.tensor.name, missing, rows, kind, &mut once)?;
            fetching += start.elapsed();
            Ok(())
        };
        match levels.gather(bytemuck::cast_slice(ids), batch, fetch) {
            Ok(found) => {
                pulled.lookup += start.elapsed().saturating_sub(fetching);
                pulled.found.device += found.device;
                pulled.found.host += found.host;
                Ok(pulled)
            }
            Err(GatherError::Device(error)) => Err(error.into()),
            Err(GatherError::Fetch(error)) => Err(error),
        }
    }

    /// Locks the tier, also after a panic of another thread. The panic leaves an unread batch, and
    /// perhaps an admission without its rows, which the tier reverts before the next batch.
    fn lock(&self) -> Result<MutexGuard<'_, State>, ClientError> {
        let state = self.state.get().ok_or(ClientError::Forked { what: "device's tier" })?;
        Ok(state.lock().ignore_poison())
    }
}

impl RowSource for DeviceSource {
    fn book(&self) -> &PartitionBook {
        self.inner.book()
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        self.inner.tensor(name)
    }

    fn pinned_version(&self) -> Option<VersionTag> {
        self.inner.pinned_version()
    }

    /// Pulls like any source. The stats count the rows that the tier lacked.
    fn pull_overlapped(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        if tensor != self.tensor.name {
            return self.inner.pull_overlapped(tensor, ids, out, kind, work);
        }
        ClientError::check_buffer(tensor, ids.len(), self.tensor.row_bytes(), out.len())?;
        let State { levels, batch } = &mut *self.lock()?;
        if batch.capacity_bytes() < out.len() {
            *batch = levels.tensor(ids.len().next_power_of_two())?;
        }
        let mut pulled = self.gather_with(levels, ids, batch, kind, work)?;
        let start = Instant::now();
        batch.read(out)?;
        pulled.copy += start.elapsed();
        Ok(pulled)
    }
}

#[cfg(test)]
mod tests;
