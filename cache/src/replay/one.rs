//! One tier, without rows.

use crate::directory::{Directory, DirectoryError, Placement};
use crate::policy::PolicySpec;
use crate::slots::absent;

/// A directory, served as the owner of a tier does: a batch is looked up, and what it missed is
/// admitted.
pub(super) struct OneTier {
    pub(super) directory: Directory,
    slots: Vec<u32>,
    /// Positions of the last batch that missed.
    pub(super) misses: Vec<u32>,
    wanted: Vec<u32>,
    positions: Vec<u32>,
    placements: Vec<Placement>,
}

impl OneTier {
    pub(super) fn new(
        n_rows: u32,
        id_space: u32,
        spec: &PolicySpec,
    ) -> Result<Self, DirectoryError> {
        Ok(Self {
            directory: Directory::new(n_rows, id_space, spec)?,
            slots: Vec::new(),
            misses: Vec::new(),
            wanted: Vec::new(),
            positions: Vec::new(),
            placements: Vec::new(),
        })
    }

    pub(super) fn serve(&mut self, ids: &[u32], next_uses: Option<&[u32]>) {
        if let Some(next_uses) = next_uses {
            self.directory.announce(next_uses);
        }
        self.directory.lookup(ids, &mut self.slots);
        self.misses.clear();
        self.misses.extend(absent(&self.slots));
        self.directory.admit(ids, &self.misses, &mut self.placements);
    }

    /// Ends the last batch and passes the next epoch to the policy.
    pub(super) fn retarget(&mut self, ranking: &[u32]) {
        self.directory.lookup(&[], &mut self.slots);
        self.directory.retarget(ranking);
    }

    /// Brings what the policy wants; returns how many rows that is.
    pub(super) fn bring_ahead(&mut self) -> u64 {
        self.directory.wanted(&mut self.wanted);
        self.positions.clear();
        self.positions.extend(0..self.wanted.len() as u32);
        self.directory.admit(&self.wanted, &self.positions, &mut self.placements);
        self.wanted.len() as u64
    }
}
