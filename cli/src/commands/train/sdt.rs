//! How `sdt` trains and averages local models.

use clap::Args;
use lodestore_trainer::Strategy;
use lodestore_trainer::config::{OptimizerState, SdtConfig};

use crate::flags::parse_size;
use crate::usage::UsageError;

/// Flags of `--strategy sdt`.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct SdtArgs {
    /// sdt: average the local models after every N epochs [default: 1].
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    average_every: Option<u32>,
    /// sdt: what becomes of the states of optimisers then: averaged (as parameters are), local
    /// (each local model keeps its own) or reset [default: averaged].
    #[arg(long, value_name = "O")]
    optimizer_state: Option<OptimizerState>,
    /// sdt: hops of the halo that each partition has. As many as layers keep sampled neighbourhoods
    /// whole; 1 is what SDT-GNN's code does, and 0 no halo [default: as many as layers].
    #[arg(long, value_name = "L")]
    halo_hops: Option<u32>,
    /// sdt: one batch for each partition, with all of its training nodes and all of their
    /// neighbours. Only the number of layers of --fanout counts, and --batch does not.
    #[arg(long)]
    full_partition: bool,
    /// sdt --memory: what training takes of it; the rest is for partitions [default: two thirds].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    reserve: Option<u64>,
}

impl SdtArgs {
    /// Returns the settings of `sdt`, with the memory of each worker; fails where a flag would do
    /// nothing.
    pub(super) fn check(
        &self,
        strategy: Strategy,
        memory: Option<u64>,
    ) -> Result<SdtConfig, UsageError> {
        let used = [
            ("--average-every", self.average_every.is_some()),
            ("--optimizer-state", self.optimizer_state.is_some()),
            ("--halo-hops", self.halo_hops.is_some()),
            ("--full-partition", self.full_partition),
            ("--reserve", self.reserve.is_some()),
        ];
        let usual = SdtConfig::default();
        if strategy != Strategy::Sdt {
            return match used.into_iter().find(|(_, used)| *used) {
                Some((flag, _)) => Err(UsageError::new(format!("{flag} is for --strategy sdt"))),
                None => Ok(usual),
            };
        }
        if self.reserve.is_some() && memory.is_none() {
            return Err(UsageError::new("--reserve is a part of --memory; give both"));
        }
        Ok(SdtConfig {
            average_every: self.average_every.unwrap_or(usual.average_every),
            optimizer_state: self.optimizer_state.unwrap_or(usual.optimizer_state),
            halo_hops: self.halo_hops,
            full_partition: self.full_partition,
            memory_bytes: memory,
            reserved_bytes: self.reserve,
        })
    }
}
