//! A tier before a source: pulled rows are kept for later batches.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use lodestore_cache::memory_budget::{MemoryRequest, shares};
use lodestore_cache::shared::{BatchAccess, Invalidation, SharedSettings};
use lodestore_cache::{PolicySpec, SharedTier};
use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::{NodeId, PartitionBook};

use crate::error::ClientError;
use crate::source::{PullKind, PullStats, RowSource, TensorInfo, VersionTag, pull_and_scatter};

/// A source whose rows of one tensor pass through a [`SharedTier`] under any policy.
///
/// The tier serves a row as it was when it was pulled. Pin `inner`, or call
/// [`TieredSource::forget`] on the changed rows after each commit. Otherwise the tier may mix rows
/// of several versions, within its bound on their age. Age is counted in pulls of the source that
/// has made most. If each worker has a source over one tier, these are the batches of the worker
/// that is ahead.
///
/// Any number of threads may pull, and any number of sources may share the tier, for example the
/// workers of a machine. Rows that one of them has pulled are hits for the others. No lock is held
/// while rows are copied or in transit. Besides the tier, a pull takes the memory that
/// [`RowSource::pull_at`] of `inner` takes for the rows that the tier lacks. In a forked child,
/// whose parent's threads may use the tier, pulls fail with [`ClientError::Forked`].
pub struct TieredSource {
    inner: Arc<dyn RowSource>,
    tensor: TensorInfo,
    tier: Arc<SharedTier>,
    n_pulls: AtomicU32,
    /// Memory of ended pulls, for later ones.
    spare: PerProcess<Mutex<Vec<Scratch>>>,
}

/// Tiers before the rows of several tensors, within one memory budget.
pub struct TieredTensors {
    source: Arc<dyn RowSource>,
    tiers: Vec<Arc<SharedTier>>,
}

/// Working memory of a pull.
#[derive(Default)]
struct Scratch {
    access: BatchAccess,
    /// The rows that the tier lacks.
    ids: Vec<NodeId>,
}

impl TieredSource {
    /// Puts `tier` before the rows of `tensor` from `inner`; other tensors bypass it.
    ///
    /// Fails if there is no such tensor, or the tier is for rows of another length.
    pub fn new(
        inner: Arc<dyn RowSource>,
        tensor: &str,
        tier: Arc<SharedTier>,
    ) -> Result<Self, ClientError> {
        let tensor = inner.tensor(tensor)?;
        ClientError::check_tier(&tensor.name, tensor.row_bytes(), tier.row_bytes())?;
        let (n_pulls, spare) = (AtomicU32::new(0), PerProcess::with(Mutex::default()));
        Ok(Self { inner, tensor, tier, n_pulls, spare })
    }

    /// Removes changed rows from the tier: later pulls request them again. This is for rows that
    /// the caller changes; changes by others need a bound on the age. Of tiers in front of each
    /// other the lowest must forget first, since a higher one could fill itself from it. The higher
    /// one receives the returned invalidation: see [`crate::source::device::DeviceSource::forget`].
    pub fn forget(&self, ids: &[NodeId]) -> Invalidation {
        self.tier.remove(bytemuck::cast_slice(ids))
    }

    /// Returns the tier, with its counters and its memory.
    #[must_use]
    pub fn tier(&self) -> &SharedTier {
        &self.tier
    }

    /// Returns the memory of ended pulls; fails in a forked child, whose parent owns it.
    fn spare(&self) -> Result<MutexGuard<'_, Vec<Scratch>>, ClientError> {
        let spare = self.spare.get().ok_or(ClientError::Forked { what: "tier" })?;
        Ok(spare.lock().ignore_poison())
    }

    /// Pulls the rows that the tier lacks, and writes them to their places in `out`.
    fn pull_missing(
        &self,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        work: &mut dyn FnMut(),
        scratch: &mut Scratch,
    ) -> Result<PullStats, ClientError> {
        let Scratch { access, ids: missing } = scratch;
        let positions = access.misses();
        if positions.is_empty() {
            return Ok(PullStats::default());
        }
        missing.clear();
        missing.extend(positions.iter().map(|&position| ids[position as usize]));
        self.inner.pull_at(&self.tensor.name, missing, positions, out, kind, work)
    }
}

impl TieredTensors {
    /// Puts a tier before each of `tensors` from `inner`; together they stay within `memory_bytes`.
    ///
    /// All tiers have room for about the same number of nodes. Their rows have the version that
    /// `inner` is pinned to.
    ///
    /// # Errors
    /// [`ClientError::Unpinned`] if `inner` is not pinned; [`ClientError::UnknownTensor`];
    /// [`ClientError::Tier`] if the system refuses the memory.
    pub fn new(
        inner: Arc<dyn RowSource>,
        tensors: &[impl AsRef<str>],
        memory_bytes: u64,
    ) -> Result<Self, ClientError> {
        ClientError::check_pinned(&*inner, "memory for rows of tensors")?;
        let (spec, n_nodes) = (PolicySpec::Sieve, inner.book().n_nodes());
        let settings = SharedSettings::default();
        let infos = tensors.iter().map(|name| inner.tensor(name.as_ref()));
        let infos = infos.collect::<Result<Vec<_>, _>>()?;
        let claim = |info: &TensorInfo| {
            let claim =
                MemoryRequest::of_shared_tier(info.row_bytes(), n_nodes, &spec, settings, 0);
            MemoryRequest { weight: u32::try_from(claim.slot_bytes).unwrap_or(u32::MAX), ..claim }
        };
        let claims: Vec<MemoryRequest> = infos.iter().map(claim).collect();
        let rows = shares(memory_bytes, &claims);
        let (mut source, mut tiers) = (inner, Vec::with_capacity(infos.len()));
        for ((info, claim), n_rows) in infos.iter().zip(&claims).zip(rows) {
            let n_bytes = claim.slot_bytes.saturating_mul(u64::from(n_rows));
            let n_bytes = usize::try_from(n_bytes).unwrap_or(usize::MAX);
            let tier = SharedTier::new(n_bytes, info.row_bytes(), n_nodes, &spec, settings)?;
            let tier = Arc::new(tier);
            source = Arc::new(TieredSource::new(source, &info.name, Arc::clone(&tier))?);
            tiers.push(tier);
        }
        Ok(Self { source, tiers })
    }

    /// Returns the source with the tiers; other tensors bypass them.
    #[must_use]
    pub fn source(&self) -> &Arc<dyn RowSource> {
        &self.source
    }

    /// Returns the hits and the misses of the tiers, in rows.
    #[must_use]
    pub fn hits_and_misses(&self) -> (u64, u64) {
        let stats = self.tiers.iter().map(|tier| tier.stats());
        stats.fold((0, 0), |(hits, misses), of| (hits + of.hits, misses + of.misses))
    }

    /// Returns the most bytes of memory that the tiers take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tiers.iter().map(|tier| tier.bytes()).sum()
    }
}

impl RowSource for TieredSource {
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
        let mut scratch = self.spare()?.pop().unwrap_or_default();
        let raw_ids = bytemuck::cast_slice(ids);
        let start = Instant::now();
        self.tier.advance(self.n_pulls.fetch_add(1, Ordering::Relaxed).saturating_add(1));
        self.tier.lookup(raw_ids, out, &mut scratch.access);
        let (lookup, n_missing) = (start.elapsed(), scratch.access.misses().len());
        let mut pulled = self.pull_missing(ids, out, kind, work, &mut scratch);
        if let Ok(pulled) = &mut pulled {
            let start = Instant::now();
            self.tier.admit(raw_ids, out, &mut scratch.access);
            pulled.lookup += lookup;
            pulled.copy += start.elapsed();
            pulled.found.host += (ids.len() - n_missing) as u64;
        }
        self.spare()?.push(scratch);
        pulled
    }

    fn pull_at(
        &self,
        tensor: &str,
        ids: &[NodeId],
        at: &[u32],
        out: &mut [u8],
        kind: PullKind,
        work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        if tensor != self.tensor.name {
            return self.inner.pull_at(tensor, ids, at, out, kind, work);
        }
        pull_and_scatter(self, tensor, ids, at, out, kind, work)
    }
}

#[cfg(test)]
mod tests;
