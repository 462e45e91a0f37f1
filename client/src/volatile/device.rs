//! A tier on a device before volatile tensors.

use std::sync::{Arc, Mutex, MutexGuard};

use lodestore_cache::DeviceTier;
use lodestore_cache::device::{BatchTensor, GatherError};
use lodestore_cache::directory::TierStats;
use lodestore_graph::NodeId;
use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;

use super::{StampWanted, VolatileInfo, VolatileSource};
use crate::error::ClientError;

/// Batches of one volatile tensor on a worker's device. Its rows pass through a [`DeviceTier`] that
/// keeps their stamps: the local cache of CaPGNN, section 4.2. Its global cache is a
/// [`crate::volatile::TieredVolatile`] as the source that rows are pulled from.
///
/// A row is served from the tier if the stamp that it had when it was pulled will do. One batch at
/// a time; others wait for it.
pub struct DeviceVolatile {
    inner: Arc<dyn VolatileSource>,
    info: VolatileInfo,
    tier: PerProcess<Mutex<DeviceTier>>,
}

impl DeviceVolatile {
    /// Puts `tier` before the rows of `tensor` from `inner`.
    ///
    /// Fails when there is no such tensor, or the tier is for rows of another length or keeps no
    /// stamps.
    pub fn new(
        inner: Arc<dyn VolatileSource>,
        tensor: &str,
        tier: DeviceTier,
    ) -> Result<Self, ClientError> {
        let info = inner.volatile(tensor)?;
        info.check_tier(tier.row_bytes(), tier.keeps_stamps())?;
        Ok(Self { inner, info, tier: PerProcess::with(Mutex::new(tier)) })
    }

    /// Returns a tensor on the tier's device with room for batches of up to `n_rows` ids.
    ///
    /// Fails when the device has no memory for it.
    pub fn batch_tensor(&self, n_rows: usize) -> Result<BatchTensor, ClientError> {
        Ok(self.lock()?.tensor(n_rows)?)
    }

    /// Puts the rows of `ids` into `batch`, in their order.
    ///
    /// Fails with [`ClientError::Lacking`] where rows do not have the stamp in time. Fails also
    /// when the pull or the device fails, or `batch` is too small or on another device.
    pub fn gather(
        &self,
        ids: &[NodeId],
        wanted: StampWanted,
        batch: &mut BatchTensor,
    ) -> Result<(), ClientError> {
        let fetch = |missing: &[u32], rows: &mut [u8], stamps: &mut [u32]| {
            let (name, missing) = (&self.info.tensor.name, bytemuck::cast_slice(missing));
            let pulled = self.inner.pull_volatile(name, missing, wanted, rows)?;
            if !pulled.is_whole() {
                return Err(ClientError::Lacking {
                    tensor: name.clone(),
                    n_lacking: pulled.lacking().len(),
                    min_stamp: wanted.min_stamp,
                });
            }
            stamps.copy_from_slice(&pulled.stamps);
            Ok(())
        };
        let mut tier = self.lock()?;
        match tier.gather_since(bytemuck::cast_slice(ids), wanted.min_stamp, batch, fetch) {
            Ok(()) => Ok(()),
            Err(GatherError::Device(error)) => Err(error.into()),
            Err(GatherError::Fetch(error)) => Err(error),
        }
    }

    /// Takes rows out of the tier: a batch that begins afterwards asks for them.
    pub fn forget(&self, ids: &[NodeId]) {
        if let Ok(mut tier) = self.lock() {
            tier.remove(bytemuck::cast_slice(ids));
        }
    }

    /// Returns what the tier did. A row that was too old is a miss.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        self.lock().map_or_else(|_| TierStats::default(), |tier| tier.stats())
    }

    /// Locks the tier, also after a panic of another thread. That leaves an admission whose rows
    /// did not come, which the tier takes back.
    fn lock(&self) -> Result<MutexGuard<'_, DeviceTier>, ClientError> {
        let tier = self.tier.get().ok_or(ClientError::Forked { what: "device's tier" })?;
        Ok(tier.lock().ignore_poison())
    }
}
