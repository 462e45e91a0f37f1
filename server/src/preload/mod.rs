//! Preloading: rows that are loaded into the tiers after a start, before any pull requests them.
//!
//! Each shard loads the rows that it owns, with the reads of a gather. The same guard keeps rows
//! that change meanwhile out of the tier, see `rows/tier.rs`. A tier that fits its table gets the
//! whole table. A smaller one gets the rows that were resident when the server stopped, hottest
//! first. [`hot_rows`] saves these in a file per partition.

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

/// Which rows of a tensor are preloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PreloadRule {
    No,
    /// The table, if the tier fits it.
    Whole,
    /// The table, else its saved hot rows.
    WholeOrRemembered,
    /// The table, else its saved hot rows, else its first rows.
    WhatFits,
}

impl PreloadRule {
    /// Returns whether hot rows are saved for a table that does not fit its tier.
    fn remembers(self) -> bool {
        matches!(self, Self::WholeOrRemembered | Self::WhatFits)
    }
}

/// State of the preload, shared by all shards.
#[derive(Debug)]
pub(crate) struct Preload {
    /// By position of the tensor.
    wanted: Vec<PreloadRule>,
    dir: PathBuf,
    owner: [u8; 16],
    remembered: Mutex<Remembered>,
    /// Resident rows at a stop, by partition.
    resident: Mutex<Resident>,
    /// The first read error.
    fault: Mutex<Option<String>>,
}

/// Rows of the saved files, until each shard has planned.
#[derive(Debug, Default)]
struct Remembered {
    /// Shards that have planned.
    n_shards: u16,
    rows: BTreeMap<PartId, HotRows>,
}

/// Resident rows of the tiers at a stop.
#[derive(Debug, Default)]
struct Resident {
    /// Shards that have reported theirs.
    n_shards: u16,
    /// By partition and tensor, a list per shard.
    rows: BTreeMap<PartId, BTreeMap<String, Vec<Vec<u32>>>>,
}

impl Preload {
    /// Checks the tensors to preload, and reads the saved hot rows. An unusable file is logged and
    /// ignored.
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
                    Err(error) => warn!(%error, "ignoring saved hot rows"),
                }
            }
        }
        Ok(this)
    }

    fn remembers(&self) -> bool {
        self.wanted.iter().any(|rule| rule.remembers())
    }

    /// Returns the saved hot rows of a tensor in a partition that a shard owns, hottest first;
    /// `None` if no rows of the tensor are saved.
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

    /// Frees the saved rows once all `n_shards` shards have planned.
    fn has_planned(&self, n_shards: usize) {
        let mut remembered = self.remembered.lock().ignore_poison();
        remembered.n_shards += 1;
        if usize::from(remembered.n_shards) == n_shards {
            remembered.rows = BTreeMap::new();
        }
    }

    /// Returns the first read error.
    pub(crate) fn fault(&self) -> Option<String> {
        self.fault.lock().ignore_poison().clone()
    }

    fn note_fault(&self, reason: &str) {
        let mut fault = self.fault.lock().ignore_poison();
        if fault.is_none() {
            warn!(reason, "cannot preload rows; pulls read them on demand");
            *fault = Some(reason.to_owned());
        }
    }

    /// Adds the resident rows of a shard's tiers, hottest first.
    fn add_resident(&self, rows: Vec<(PartId, String, Vec<u32>)>) {
        let mut resident = self.resident.lock().ignore_poison();
        resident.n_shards += 1;
        for (part, tensor, rows) in rows {
            resident.rows.entry(part).or_default().entry(tensor).or_default().push(rows);
        }
    }

    /// Saves the resident rows, if all shards have ended without an error.
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
                Ok(()) => info!(%part, n_rows, "saved resident rows"),
                Err(error) => {
                    warn!(%part, dir = %self.dir.display(), %error, "cannot save resident rows");
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

/// Merges lists that are each hottest first into one.
fn interleaved(lists: &[Vec<u32>]) -> Vec<u32> {
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest).flat_map(|at| lists.iter().filter_map(move |list| list.get(at).copied())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_rows_of_each_shard_lead() {
        let lists = [vec![1, 4, 6], vec![2], vec![3, 5]];
        assert_eq!(interleaved(&lists), [1, 2, 3, 4, 5, 6]);
        assert!(interleaved(&[]).is_empty());
    }
}
