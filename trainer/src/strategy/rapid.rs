//! RapidGNN (algorithm 1): batches from a schedule on disk, rows from a steady cache.

use std::{sync::Arc, thread::Scope};

use lodestore_cache::HotSet;
use lodestore_client::{BatchLoader, BatchSource, ClientError, SteadyCache};
use lodestore_graph::{
    batch::Batch,
    schedule::{Schedule, hot_set},
};

/// A worker's batches as scheduled, with the hot set of their epoch.
pub(crate) struct Rapid<'scope> {
    schedule: &'scope Schedule,
    worker: u32,
    steady: SteadyCache<'scope>,
}

impl<'scope> Rapid<'scope> {
    /// Pulls the hot set of `first_epoch`, of at most `n_hot` rows; the others follow in the
    /// background.
    pub(crate) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        worker: u32,
        schedule: &'scope Schedule,
        loader: &BatchLoader,
        n_hot: usize,
        first_epoch: u32,
    ) -> Result<Self, ClientError> {
        let of_loader = loader.clone();
        let choose = Arc::new(move |epoch| {
            let is_remote = |node| of_loader.is_remote(node);
            Ok(hot_set(schedule, worker, epoch, n_hot, &is_remote)?)
        });
        let steady =
            SteadyCache::start(scope, loader, first_epoch..schedule.spec().epochs, choose)?;
        Ok(Self { schedule, worker, steady })
    }

    /// The hot sets.
    pub(crate) fn steady(&self) -> &SteadyCache<'scope> {
        &self.steady
    }
}

impl BatchSource for Rapid<'_> {
    fn n_batches(&self) -> u32 {
        self.schedule.n_batches(self.worker).saturating_mul(self.schedule.spec().epochs)
    }

    fn batch(&self, index: u32) -> Result<(Batch, Arc<HotSet>), ClientError> {
        let per_epoch = self.schedule.n_batches(self.worker);
        let (epoch, position) = (index / per_epoch, index % per_epoch);
        let hot = self.steady.for_epoch(epoch)?;
        Ok((self.schedule.get(self.worker, epoch, position)?, hot))
    }
}
