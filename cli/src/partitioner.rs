//! Partitioner and its parameters, as a user writes them.

use clap::Args;
use lodestore_graph::partition::{Algorithm, PartitionConfig, SpringParams};
use lodestore_graph::topology::Direction;

use crate::usage::UsageError;

/// Parameters of partitioners.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PartitionerArgs {
    /// Rounds of refinement after the partitioner. Nodes move to where their neighbours are, in
    /// memory of the order of the nodes. No more edges are cut than what the bound of balance
    /// leaves of the partitioner's own. One round is worth its time nearly always, a second gains
    /// up to 2 % more. 0 is SDT-GNN's SPRING [default: 1 after spring, 0 after others and with
    /// --all].
    #[arg(long, value_name = "ROUNDS")]
    refine: Option<u32>,
    /// Nodes of the largest partition over the mean, from 1; 1.05 where it is refined. No partition
    /// has more, but that one node too many is allowed where nodes do not divide evenly.
    #[arg(long, value_name = "RATIO")]
    max_balance: Option<f64>,
    /// SPRING: volume (sum of degrees) above which a cluster neither takes nor loses nodes
    /// [default: a twentieth of all nodes' volume per partition].
    #[arg(long, value_name = "VOLUME")]
    tau: Option<f64>,
    /// SPRING: merging makes no cluster of more than this times the mean nodes of a partition; 1.05
    /// unless given.
    #[arg(long, value_name = "RATIO")]
    beta: Option<f64>,
    /// SPRING: clustering passes over the edges; 1 unless given.
    #[arg(long, value_name = "N")]
    passes: Option<u32>,
}

impl PartitionerArgs {
    /// Returns the settings of `algorithm`; refuses parameters of another one.
    pub(crate) fn config(
        &self,
        algorithm: Algorithm,
        n_parts: u16,
        direction: Direction,
    ) -> Result<PartitionConfig, UsageError> {
        let is_spring = matches!(algorithm, Algorithm::Spring(_));
        if !is_spring && (self.tau.is_some() || self.beta.is_some() || self.passes.is_some()) {
            return Err(UsageError::new(format!(
                "--tau, --beta and --passes are for spring, not for {algorithm}"
            )));
        }
        let refine = self.refine.unwrap_or(is_spring.into());
        Self { refine: Some(refine), ..self.clone() }.config_for_any(algorithm, n_parts, direction)
    }

    /// Does as [`Self::config`], for runs of all algorithms: SPRING's parameters are for SPRING,
    /// and none is refined unless all are.
    pub(crate) fn config_for_any(
        &self,
        algorithm: Algorithm,
        n_parts: u16,
        direction: Direction,
    ) -> Result<PartitionConfig, UsageError> {
        let algorithm = match algorithm {
            Algorithm::Spring(defaults) => Algorithm::Spring(SpringParams {
                tau_vol: self.tau.or(defaults.tau_vol),
                beta: self.beta.unwrap_or(defaults.beta),
                passes: self.passes.unwrap_or(defaults.passes),
            }),
            other => other,
        };
        let config = PartitionConfig {
            direction,
            max_balance: self.max_balance,
            refine_rounds: self.refine.unwrap_or(0),
            ..PartitionConfig::new(algorithm, n_parts)
        };
        config.check().map_err(UsageError::of)?;
        Ok(config)
    }
}
