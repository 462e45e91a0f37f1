//! RapidGNN (algorithm 1): batches from a schedule on disk, rows from a steady cache.

use std::{sync::Arc, thread::Scope};

use lodestore_cache::HotSet;
use lodestore_client::{BatchLoader, BatchSource, ClientError, SteadyCache};
use lodestore_graph::{
    batch::Batch,
    schedule::{Schedule, hot_set},
};

use super::Share;

/// A worker's batches as scheduled, with the hot set of their epoch.
pub(crate) struct Rapid<'scope> {
    schedule: &'scope Schedule,
    worker: u32,
    per_epoch: u32,
    n_epochs: u32,
    steady: SteadyCache<'scope>,
}

impl<'scope> Rapid<'scope> {
    /// Pulls the first hot set; the others follow in the background.
    pub(crate) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        share: Share<'_>,
        schedule: &'scope Schedule,
        loader: &BatchLoader,
    ) -> Result<Self, ClientError> {
        let (worker, n_epochs) = (share.worker, share.config.epochs);
        let per_epoch = u32::try_from(share.batches(0).len()).unwrap_or(u32::MAX);
        let n_hot = share.config.n_hot;
        let of_loader = loader.clone();
        let choose = Arc::new(move |epoch| {
            let is_remote = |node| of_loader.is_remote(node);
            Ok(hot_set(schedule, worker, epoch, n_hot, &is_remote)?)
        });
        let steady = SteadyCache::start(scope, loader, n_epochs, choose)?;
        Ok(Self { schedule, worker, per_epoch, n_epochs, steady })
    }

    /// The hot sets.
    pub(crate) fn steady(&self) -> &SteadyCache<'scope> {
        &self.steady
    }
}

impl BatchSource for Rapid<'_> {
    fn n_batches(&self) -> u32 {
        self.per_epoch.saturating_mul(self.n_epochs)
    }

    fn batch(&self, index: u32) -> Result<(Batch, Arc<HotSet>), ClientError> {
        let (epoch, position) = (index / self.per_epoch, index % self.per_epoch);
        let hot = self.steady.for_epoch(epoch)?;
        Ok((self.schedule.get(self.worker, epoch, position)?, hot))
    }
}
