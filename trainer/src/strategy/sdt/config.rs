//! The settings of `sdt`.

use serde::Serialize;

use crate::config::TrainConfig;
use crate::error::{TrainError, check};
use crate::options::by_name;

/// Settings of the local models of partitions and their average under `sdt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SdtConfig {
    /// Local models are averaged after every `n` epochs, at least 1.
    pub average_every: u32,
    /// Treatment of the states of their optimisers then.
    pub optimizer_state: OptimizerState,
    /// Hops of the halo that a partition has; as many as layers unless given, which keeps sampled
    /// neighbourhoods whole.
    pub halo_hops: Option<u32>,
    /// One batch for each partition: all of its training nodes, with all of their neighbours.
    pub full_partition: bool,
    /// Memory of each worker, of which T is for training and the rest for partitions (SDT-GNN,
    /// section III-C). Unless given, two partitions of a worker are in memory.
    pub memory_bytes: Option<u64>,
    /// T: two thirds of the memory unless given.
    pub reserved_bytes: Option<u64>,
}

/// Treatment of the states of optimisers when local models are averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerState {
    /// Each local model keeps its own.
    Local,
    /// Moments are averaged as parameters are: three times the bytes, and far fewer epochs where
    /// local models make few steps between averages.
    Averaged,
    /// Moments begin at zero again.
    Reset,
}

impl Default for SdtConfig {
    fn default() -> Self {
        Self {
            average_every: 1,
            optimizer_state: OptimizerState::Averaged,
            halo_hops: None,
            full_partition: false,
            memory_bytes: None,
            reserved_bytes: None,
        }
    }
}

impl SdtConfig {
    /// Fails for settings of `sdt` that cannot work.
    pub(super) fn check(&self, config: &TrainConfig) -> Result<(), TrainError> {
        check(self.average_every >= 1, "average_every", "at least 1", self.average_every)?;
        let replays = config.replay.is_some();
        check(!replays, "replay", "none under the strategy sdt", "a recording")?;
        let is_of_memory = self.reserved_bytes.is_none() || self.memory_bytes.is_some();
        check(is_of_memory, "reserved_bytes", "a part of memory_bytes", "no memory_bytes")
    }

    /// Returns the bytes that the partitions of a worker may take, and those that are left for
    /// training (SDT-GNN, section III-C). None where memory is not limited.
    pub(super) fn partition_bytes(&self) -> Option<[u64; 2]> {
        let memory = self.memory_bytes?;
        let reserved = self.reserved_bytes.unwrap_or(memory - memory / 3);
        Some([memory.saturating_sub(reserved), reserved])
    }

    /// Returns the hops of halos for a model of `n_layers`: none beyond the layers is needed.
    pub(super) fn halo_hops_of(&self, n_layers: usize) -> u32 {
        let n_layers = n_layers as u32;
        self.halo_hops.map_or(n_layers, |hops| hops.min(n_layers))
    }
}

by_name!(
    OptimizerState,
    "optimiser state",
    Local = "local",
    Averaged = "averaged",
    Reset = "reset"
);
