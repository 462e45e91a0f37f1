//! The tier in host memory under a device's.

use std::convert::Infallible;

use crate::arena::Arena;
use crate::directory::{Directory, Placement, TierStats};
use crate::index::NO_SLOT;
use crate::stamped::{Evicted, StampedDirectory};

use super::{LevelsError, LevelsSpec};

/// Slots in host memory. Positions are those of the whole batch; rows that it keeps are decided
/// on before they have come.
pub(super) struct HostLevel {
    residents: StampedDirectory,
    rows: Arena,
    /// Positions that hit, ascending, and the slot of each position.
    pub(super) hits: Vec<u32>,
    slots: Vec<u32>,
    /// Positions that neither tier has, ascending.
    pub(super) misses: Vec<u32>,
    /// Rows to be kept when they come, by position; those before `n_kept` have.
    placements: Vec<Placement>,
    n_kept: usize,
    ids: Vec<u32>,
    found: Vec<u32>,
    positions: Vec<u32>,
    evicted: Vec<Evicted>,
}

impl HostLevel {
    pub(super) fn new(spec: &LevelsSpec) -> Result<Self, LevelsError> {
        let max_age_epochs = spec.settings.max_age_epochs;
        let residents = StampedDirectory::new(
            spec.host_rows,
            spec.id_space,
            &spec.host_policy,
            max_age_epochs,
        )?;
        let rows = Arena::new(residents.directory().n_slots(), spec.row_bytes)?;
        Ok(Self {
            residents,
            rows,
            hits: Vec::new(),
            slots: Vec::new(),
            misses: Vec::new(),
            placements: Vec::new(),
            n_kept: 0,
            ids: Vec::new(),
            found: Vec::new(),
            positions: Vec::new(),
            evicted: Vec::new(),
        })
    }

    /// Looks up what the device misses. A row that hits has the stamp that it has here.
    pub(super) fn begin(&mut self, ids: &[u32], device_misses: &[u32], stamps: &mut [u32]) {
        self.ids.clear();
        self.ids.extend(device_misses.iter().map(|&position| ids[position as usize]));
        self.residents.lookup(&self.ids, &mut self.found);
        self.slots.clear();
        self.slots.resize(ids.len(), NO_SLOT);
        self.hits.clear();
        self.misses.clear();
        for (&position, &slot) in device_misses.iter().zip(&self.found) {
            if slot == NO_SLOT {
                self.misses.push(position);
            } else {
                self.hits.push(position);
                self.slots[position as usize] = slot;
                stamps[position as usize] = self.residents.stamp(slot);
            }
        }
    }

    /// So many rows come that were not looked up.
    pub(super) fn begin_offer(&mut self, n_rows: usize) {
        self.slots.clear();
        self.slots.resize(n_rows, NO_SLOT);
        self.hits.clear();
        self.misses.clear();
        self.misses.extend(0..n_rows as u32);
    }

    pub(super) fn is_hit(&self, position: u32) -> bool {
        self.slots[position as usize] != NO_SLOT
    }

    /// Copies the rows of positions that hit.
    pub(super) fn copy(&self, positions: &[u32], out: &mut [u8]) -> Result<(), Infallible> {
        for (&position, out) in positions.iter().zip(out.chunks_exact_mut(self.rows.row_bytes())) {
            out.copy_from_slice(self.rows.row(self.slots[position as usize]));
        }
        Ok(())
    }

    /// Decides which of the misses stay, among those whose ids are `offered`.
    pub(super) fn admit(&mut self, ids: &[u32], stamps: &[u32], offered: impl Fn(u32) -> bool) {
        self.positions.clear();
        let offered = |position: &&u32| offered(ids[**position as usize]);
        self.positions.extend(self.misses.iter().filter(offered));
        let rows = (ids, stamps);
        self.residents.admit(rows, &self.positions, &mut self.placements, &mut self.evicted);
        self.placements.sort_unstable_by_key(|placed| placed.position);
        self.n_kept = 0;
    }

    /// The rows at `positions`, which ascend from call to call, have come.
    pub(super) fn keep(&mut self, positions: &[u32], rows: &[u8]) {
        let row_bytes = self.rows.row_bytes();
        for (&position, row) in positions.iter().zip(rows.chunks_exact(row_bytes)) {
            if let Some(placed) = self.placements.get(self.n_kept)
                && placed.position == position
            {
                self.rows.row_mut(placed.slot).copy_from_slice(row);
                self.n_kept += 1;
            }
        }
    }

    /// The rows of all positions have come.
    pub(super) fn keep_all(&mut self, rows: &[u8]) {
        let row_bytes = self.rows.row_bytes();
        for placed in &self.placements[self.n_kept..] {
            let row = &rows[placed.position as usize * row_bytes..][..row_bytes];
            self.rows.row_mut(placed.slot).copy_from_slice(row);
        }
        self.n_kept = self.placements.len();
    }

    /// Takes back what was decided on and has not come.
    pub(super) fn retract(&mut self) {
        self.residents.retract(&self.placements[self.n_kept..]);
    }

    /// Offers rows that the device evicts; gives how many are kept.
    pub(super) fn take(&mut self, evicted: &[Evicted], rows: &[u8]) -> u64 {
        self.ids.clear();
        self.ids.extend(evicted.iter().map(|evicted| evicted.id));
        self.found.clear();
        self.found.extend(evicted.iter().map(|evicted| evicted.stamp));
        self.positions.clear();
        self.positions.extend(0..evicted.len() as u32);
        let offered = (&self.ids[..], &self.found[..]);
        self.residents.admit(offered, &self.positions, &mut self.placements, &mut self.evicted);
        self.n_kept = 0;
        self.keep_all(rows);
        self.placements.len() as u64
    }

    pub(super) fn refresh(&mut self, ids: &[u32], rows: &[u8]) {
        self.residents.refresh(ids, &mut self.placements);
        self.n_kept = 0;
        self.keep_all(rows);
    }

    pub(super) fn remove(&mut self, ids: &[u32]) {
        self.residents.remove(ids);
    }

    pub(super) fn retarget(&mut self, ids: &[u32]) {
        self.residents.lookup(&[], &mut self.found);
        self.residents.directory_mut().retarget(ids);
    }

    pub(super) fn begin_epoch(&mut self, epoch: u32) {
        self.residents.begin_epoch(epoch);
    }

    pub(super) fn directory(&self) -> &Directory {
        self.residents.directory()
    }

    pub(super) fn bytes(&self) -> usize {
        self.rows.bytes() + self.residents.bytes()
    }

    pub(super) fn stats(&self) -> TierStats {
        self.residents.stats()
    }

    pub(super) fn n_stale(&self) -> u64 {
        self.residents.n_stale()
    }
}
