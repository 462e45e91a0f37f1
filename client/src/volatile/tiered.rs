//! A tier of host memory before volatile tensors: rows that were pulled stay as long as their
//! stamps will do.

use std::sync::{Arc, Mutex};

use lodestore_cache::SharedTier;
use lodestore_cache::shared::BatchAccess;
use lodestore_graph::NodeId;
use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;

use super::{
    NO_STAMP, StampWanted, VolatileInfo, VolatilePublisher, VolatilePulled, VolatileSource,
};
use crate::buffer::scatter;
use crate::error::ClientError;

/// A source whose rows of one volatile tensor pass through a [`SharedTier`] that keeps their
/// stamps.
///
/// A row is served from the tier if the stamp that it had when it was pulled will do, and pulled
/// again if not. Stamps are all that is compared: a hit asks no server, so that a tier cannot learn
/// of a later claim. After a renewed claim begins with a lower stamp, have the tier
/// [`TieredVolatile::forget`] its rows. One that continues with higher stamps needs nothing, as
/// older rows miss.
///
/// Any number of threads may pull, and any number of sources share the tier. No lock is held while
/// rows are copied or travel. Not for a forked child: there pulls fail with
/// [`ClientError::Forked`].
pub struct TieredVolatile {
    inner: Arc<dyn VolatileSource>,
    info: VolatileInfo,
    tier: Arc<SharedTier>,
    /// Memory of pulls that are over.
    spare: PerProcess<Mutex<Vec<BatchAccess>>>,
}

impl TieredVolatile {
    /// Puts `tier` before the rows of `tensor` from `inner`; other tensors pass by it.
    ///
    /// Fails when there is no such tensor, or the tier is for rows of another length or keeps no
    /// stamps.
    pub fn new(
        inner: Arc<dyn VolatileSource>,
        tensor: &str,
        tier: Arc<SharedTier>,
    ) -> Result<Self, ClientError> {
        let info = inner.volatile(tensor)?;
        info.check_tier(tier.row_bytes(), tier.keeps_stamps())?;
        Ok(Self { inner, info, tier, spare: PerProcess::with(Mutex::default()) })
    }

    /// Takes rows out of the tier: a pull that begins afterwards asks for them.
    pub fn forget(&self, ids: &[NodeId]) {
        self.tier.remove(bytemuck::cast_slice(ids));
    }

    /// Returns the tier: what it did, and its memory.
    #[must_use]
    pub fn tier(&self) -> &SharedTier {
        &self.tier
    }

    fn spare(&self) -> Result<&Mutex<Vec<BatchAccess>>, ClientError> {
        self.spare.get().ok_or(ClientError::Forked { what: "tier" })
    }

    fn pull_through(
        &self,
        ids: &[NodeId],
        wanted: StampWanted,
        out: &mut [u8],
        access: &mut BatchAccess,
    ) -> Result<VolatilePulled, ClientError> {
        let (raw_ids, row_bytes) = (bytemuck::cast_slice(ids), self.info.tensor.row_bytes());
        self.tier.lookup_since(raw_ids, wanted.min_stamp, out, access);
        let mut stamps = access.stamps().to_vec();
        let n_found = (ids.len() - access.misses().len()) as u64;
        if !access.misses().is_empty() {
            let missing: Vec<NodeId> = access.misses().iter().map(|&at| ids[at as usize]).collect();
            let mut rows = vec![0; missing.len() * row_bytes];
            let name = &self.info.tensor.name;
            let pulled = self.inner.pull_volatile(name, &missing, wanted, &mut rows)?;
            scatter(&rows, row_bytes, access.misses(), out);
            for (&at, stamp) in access.misses().iter().zip(pulled.stamps) {
                stamps[at as usize] = stamp;
            }
            self.tier.admit_stamped(raw_ids, out, &stamps, access);
        }
        debug_assert!(stamps.iter().all(|&it| it == NO_STAMP || it >= wanted.min_stamp));
        Ok(VolatilePulled { stamps, n_found })
    }
}

impl VolatileSource for TieredVolatile {
    fn volatile(&self, name: &str) -> Result<VolatileInfo, ClientError> {
        self.inner.volatile(name)
    }

    fn declare(&self, info: &VolatileInfo) -> Result<(), ClientError> {
        self.inner.declare(info)
    }

    fn pull_volatile(
        &self,
        tensor: &str,
        ids: &[NodeId],
        wanted: StampWanted,
        out: &mut [u8],
    ) -> Result<VolatilePulled, ClientError> {
        if tensor != self.info.tensor.name {
            return self.inner.pull_volatile(tensor, ids, wanted, out);
        }
        ClientError::check_buffer(tensor, ids.len(), self.info.tensor.row_bytes(), out.len())?;
        let spare = self.spare()?;
        let taken = spare.lock().ignore_poison().pop();
        let mut access = taken.unwrap_or_default();
        let pulled = self.pull_through(ids, wanted, out, &mut access);
        spare.lock().ignore_poison().push(access);
        pulled
    }

    fn publisher(&self) -> Box<dyn VolatilePublisher + '_> {
        self.inner.publisher()
    }
}
