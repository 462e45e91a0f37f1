//! The sources under a device's tier: the host's, and that of rows that neither has.

use std::sync::Arc;

use crate::aged::Evicted;
use crate::directory::Placement;
use crate::shared::{Above, BatchAccess, SharedTier};

use super::Inclusion;

/// A machine's host tier, as one worker uses it.
pub(super) struct HostLevel {
    host: Arc<SharedTier>,
    inclusion: Inclusion,
    access: BatchAccess,
    /// For each row that the batch looks up here: whether it is on the device from this batch on,
    /// and whether the host has it.
    has: Vec<bool>,
    is_found: Vec<bool>,
    /// The ids of a piece, and what of it has to be fetched.
    ids: Vec<u32>,
    missing: Vec<u32>,
    rows: Vec<u8>,
    /// Bytes of the rows that leave the device, back to back.
    pub(super) evicted_rows: Vec<u8>,
    /// Removals from the host that the device has applied.
    pub(super) n_removals: u64,
    pub(super) n_promoted: u64,
    pub(super) n_demoted: u64,
}

impl HostLevel {
    pub(super) fn new(host: Arc<SharedTier>, inclusion: Inclusion) -> Self {
        // A device without any row is as good as up to date.
        let n_removals = host.n_removals();
        Self {
            host,
            inclusion,
            access: BatchAccess::default(),
            has: Vec::new(),
            is_found: Vec::new(),
            ids: Vec::new(),
            missing: Vec::new(),
            rows: Vec::new(),
            evicted_rows: Vec::new(),
            n_removals,
            n_promoted: 0,
            n_demoted: 0,
        }
    }

    pub(super) fn host(&self) -> &SharedTier {
        &self.host
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.inclusion == Inclusion::Exclusive
    }

    /// Begins a batch. `has` says for each row that is to come from here whether the device has it
    /// from now on.
    pub(super) fn begin(&mut self, has: impl Iterator<Item = bool>) {
        self.has.clear();
        self.has.extend(has);
        self.is_found.clear();
        self.evicted_rows.clear();
        if self.has.is_empty() {
            // A batch, all the same: policies of the host count them.
            self.host.lookup(&[], &mut [], &mut self.access);
        }
    }

    /// Brings rows of a batch, where `begin` has received those after the `first`. Returns how many
    /// of them the host has.
    pub(super) fn bring<E>(
        &mut self,
        ids: impl Iterator<Item = u32>,
        first: usize,
        rows: &mut [u8],
        evicted: &[Evicted],
        fetch: &mut impl FnMut(&[u32], &mut [u8]) -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut piece = std::mem::take(&mut self.ids);
        piece.clear();
        piece.extend(ids);
        let filled = self.fill(&piece, rows, fetch);
        self.ids = piece;
        let n_found = filled?;
        let end = first + self.ids.len();
        self.is_found.resize(end, true);
        for &at in self.access.misses() {
            self.is_found[first + at as usize] = false;
        }
        if self.is_exclusive() {
            // What leaves the device goes down with the first piece.
            let evicted = if first == 0 { evicted } else { &[] };
            let evicted_rows = if first == 0 { &self.evicted_rows[..] } else { &[] };
            let has = &self.has[first..end];
            let above = Above { has, evicted, rows: evicted_rows, n_removals: self.n_removals };
            self.n_demoted += self.host.exchange(&self.ids, rows, &mut self.access, above);
        } else {
            self.host.admit(&self.ids, rows, &mut self.access);
        }
        Ok(n_found)
    }

    /// Fills `rows` with what the host has, and fetches the rest.
    fn fill<E>(
        &mut self,
        ids: &[u32],
        rows: &mut [u8],
        fetch: &mut impl FnMut(&[u32], &mut [u8]) -> Result<(), E>,
    ) -> Result<u64, E> {
        let Self { host, access, missing, rows: fetched, .. } = self;
        host.lookup(ids, rows, access);
        let misses = access.misses();
        if misses.len() == ids.len() {
            fetch(ids, rows)?;
        } else if !misses.is_empty() {
            let row_bytes = host.row_bytes();
            missing.clear();
            missing.extend(misses.iter().map(|&at| ids[at as usize]));
            fetched.resize(missing.len() * row_bytes, 0);
            fetch(missing, fetched)?;
            for (row, &at) in fetched.chunks_exact(row_bytes).zip(misses) {
                rows[at as usize * row_bytes..][..row_bytes].copy_from_slice(row);
            }
        }
        Ok((ids.len() - misses.len()) as u64)
    }

    /// Returns the times at which the rows that were brought last were right.
    pub(super) fn stamps(&self) -> impl Iterator<Item = u32> {
        self.access.stamps().iter().copied()
    }

    /// Counts rows of `misses` that the device has kept and the host had.
    pub(super) fn count_promotions(&mut self, misses: &[u32], placements: &[Placement]) {
        let was_found = |placed: &&Placement| {
            misses.binary_search(&placed.position).is_ok_and(|at| self.is_found[at])
        };
        self.n_promoted += placements.iter().filter(was_found).count() as u64;
    }
}
