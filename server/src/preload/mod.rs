//! Rows that are loaded into the tiers after a start, before a pull asks for them.
//!
//! Each shard loads the rows that it owns, by the reads that gathers make. They go through the
//! fence that keeps a changed row out of a tier, see `rows/tier.rs`. A tier that holds its table
//! gets all of it. A smaller one gets the rows that were resident when the server was stopped,
//! hottest first. [`hot_rows`] keeps these in a file for each partition.

mod hot_rows;
mod load;
mod work;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use lodestore_graph::PartId;
use lodestore_graph::lock::IgnorePoison;
use lodestore_store::file_system::Disk;
use lodestore_store::graph::HOT_ROWS_DIR;
use tracing::{info, warn};

use crate::config::{PreloadChoice, ServerConfig};
use crate::error::ServerError;
use crate::partitions::Partitions;
use hot_rows::{HotRows, Owner};

/// The rows of one tensor to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PreloadRule {
    No,
    /// The table, if the tier holds it.
    Whole,
    /// The table, else what was remembered of it.
    WholeOrRemembered,
    /// The table, else what was remembered of it, else its first rows.
    WhatFits,
}

impl PreloadRule {
    /// Returns whether rows of a table that the tier does not hold are remembered.
    fn remembers(self) -> bool {
        matches!(self, Self::WholeOrRemembered | Self::WhatFits)
    }
}

/// The rows that are loaded, shared by all shards.
#[derive(Debug)]
pub(crate) struct Preload {
    /// By position of the tensor.
    wanted: Vec<PreloadRule>,
    dir: PathBuf,
    owner: [u8; 16],
    remembered: Mutex<Remembered>,
    /// Rows in tiers at a stop, by partition.
    resident: Mutex<Resident>,
    /// The first read that has failed.
    fault: Mutex<Option<String>>,
}

/// Rows that files have, until each shard has taken its own.
#[derive(Debug, Default)]
struct Remembered {
    /// Shards that have taken theirs.
    n_shards: u16,
    rows: BTreeMap<PartId, HotRows>,
}

/// Rows that tiers hold at a stop.
#[derive(Debug, Default)]
struct Resident {
    /// Shards that have passed theirs on.
    n_shards: u16,
    /// By tensor, a list of each shard.
    rows: BTreeMap<PartId, BTreeMap<String, Vec<Vec<u32>>>>,
}

impl Preload {
    /// Checks the requested tables, and reads the remembered rows. A file that cannot be used is
    /// reported in the log and ignored.
    pub(crate) fn new(config: &ServerConfig, partitions: &Partitions) -> Result<Self, ServerError> {
        let wanted = wanted(&config.preload, partitions)?;
        let graph = partitions.live.graph();
        let dir = config.state_dir.clone().unwrap_or_else(|| graph.dir().join(HOT_ROWS_DIR));
        let this = Self {
            wanted,
            dir,
            owner: *graph.meta().uuid.as_bytes(),
            remembered: Mutex::default(),
            resident: Mutex::default(),
            fault: Mutex::default(),
        };
        if this.remembers() {
            for &part in &*partitions.parts() {
                match hot_rows::read(&Disk, &this.dir, this.owner(partitions, part)) {
                    Ok(Some(rows)) => {
                        drop(this.remembered.lock().ignore_poison().rows.insert(part, rows));
                    }
                    Ok(None) => {}
                    Err(error) => warn!(%error, "remembered rows are not loaded"),
                }
            }
        }
        Ok(this)
    }

    fn remembers(&self) -> bool {
        self.wanted.iter().any(|rule| rule.remembers())
    }

    /// Returns the remembered rows of a tensor of a partition that a shard owns, hottest first;
    /// `None` where there are none of any shard.
    fn remembered(
        &self,
        part: PartId,
        name: &str,
        is_own: impl Fn(u32) -> bool,
    ) -> Option<Vec<u32>> {
        let remembered = self.remembered.lock().ignore_poison();
        let rows = remembered.rows.get(&part)?.get(name)?;
        Some(rows.iter().copied().filter(|&row| is_own(row)).collect())
    }

    /// Drops the remembered rows once each of `n_shards` has called this.
    fn has_planned(&self, n_shards: usize) {
        let mut remembered = self.remembered.lock().ignore_poison();
        remembered.n_shards += 1;
        if usize::from(remembered.n_shards) == n_shards {
            remembered.rows = BTreeMap::new();
        }
    }

    /// Returns the first failure.
    pub(crate) fn fault(&self) -> Option<String> {
        self.fault.lock().ignore_poison().clone()
    }

    fn note_fault(&self, reason: &str) {
        let mut fault = self.fault.lock().ignore_poison();
        if fault.is_none() {
            warn!(reason, "rows could not be loaded ahead, and are read when they are asked for");
            *fault = Some(reason.to_owned());
        }
    }

    /// Takes what a shard's tiers hold, hottest first.
    fn add_resident(&self, rows: Vec<(PartId, String, Vec<u32>)>) {
        let mut resident = self.resident.lock().ignore_poison();
        resident.n_shards += 1;
        for (part, tensor, rows) in rows {
            resident.rows.entry(part).or_default().entry(tensor).or_default().push(rows);
        }
    }

    /// Writes down which rows were resident, once all shards have ended well.
    pub(crate) fn save(&self, partitions: &Partitions, n_shards: u16) {
        let resident = std::mem::take(&mut *self.resident.lock().ignore_poison());
        if resident.n_shards != n_shards {
            return;
        }
        for (part, rows) in resident.rows {
            let merged = rows.into_iter().map(|(tensor, lists)| (tensor, interleaved(&lists)));
            let rows: HotRows = merged.collect();
            let n_rows: usize = rows.values().map(Vec::len).sum();
            let saved = hot_rows::write(&Disk, &self.dir, self.owner(partitions, part), &rows);
            match saved {
                Ok(()) => info!(%part, n_rows, "resident rows are remembered"),
                Err(error) => {
                    warn!(%part, dir = %self.dir.display(), %error, "resident rows are forgotten");
                }
            }
        }
    }

    fn owner(&self, partitions: &Partitions, part: PartId) -> Owner {
        let range = partitions.book.range(part);
        Owner { graph: self.owner, part, n_rows: range.end - range.start }
    }
}

fn wanted(
    choices: &[PreloadChoice],
    partitions: &Partitions,
) -> Result<Vec<PreloadRule>, ServerError> {
    let names = || partitions.tensors.iter().map(|tensor| tensor.description.name.as_str());
    let of_all = if choices.contains(&PreloadChoice::Auto) {
        PreloadRule::WholeOrRemembered
    } else if choices.contains(&PreloadChoice::Whole) {
        PreloadRule::Whole
    } else {
        PreloadRule::No
    };
    let mut wanted = vec![of_all; partitions.tensors.len()];
    for choice in choices {
        let PreloadChoice::Tensor(name) = choice else { continue };
        let Some(position) = names().position(|known| known == name) else {
            let known = names().collect::<Vec<_>>().join(", ");
            return Err(ServerError::NoTensor { found: name.clone(), known });
        };
        wanted[position] = PreloadRule::WhatFits;
    }
    Ok(wanted)
}

/// Merges lists, each hottest first, into one.
fn interleaved(lists: &[Vec<u32>]) -> Vec<u32> {
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest).flat_map(|at| lists.iter().filter_map(move |list| list.get(at).copied())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_of_each_shard_come_first() {
        let lists = [vec![1, 4, 6], vec![2], vec![3, 5]];
        assert_eq!(interleaved(&lists), [1, 2, 3, 4, 5, 6]);
        assert!(interleaved(&[]).is_empty());
    }
}
