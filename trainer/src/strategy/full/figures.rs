//! Counts of a partition in an epoch.

use lodestore_client::load_stats::LoadStats;
use serde::{Deserialize, Serialize};

use super::exchange::Sent;
use crate::step_outcome::exact;

/// The figures of a partition in an epoch, as processes exchange them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PartFigures {
    pub(crate) part: u32,
    /// Mean loss over its training nodes.
    #[serde(with = "exact")]
    pub(crate) loss: f64,
    pub(crate) n_roots: u64,
    pub(crate) n_right: u64,
    pub(crate) n_own: u64,
    /// Rows of its halo, and those of other workers among them.
    pub(crate) halo_rows: u64,
    pub(crate) remote_rows: u64,
    /// Other workers' input rows that were pulled.
    pub(crate) pulled: LoadStats,
    /// Rows of layers that came from other workers, and bytes of them.
    pub(crate) embedding_rows: u64,
    pub(crate) embedding_bytes: u64,
    /// Bytes of gradients that went back to other workers.
    pub(crate) gradient_bytes: u64,
    /// Squares of what narrowing took from rows and gradients that it sent, and of these.
    pub(crate) narrowing: [f64; 2],
    pub(crate) compute_seconds: f64,
    /// Time of its process with rows on their way, and nothing to compute meanwhile.
    pub(crate) exchange_seconds: f64,
    pub(crate) wait_seconds: f64,
    /// The oldest rows that were used, in epochs.
    pub(crate) staleness: u32,
    /// Bytes of kept inputs.
    pub(crate) input_bytes: u64,
    /// Description of the values where the loss is not finite.
    pub(crate) fault: Option<Fault>,
}

/// Epoch that left the range of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// A feature that is no number: its bits, so that it can travel.
    Feature { node: u32, column: u64, bits: u32 },
    /// The row of this node.
    Row { node: u32 },
}

impl PartFigures {
    /// Adds the loss by narrowing; nothing where it is no number, which the training loss shows.
    pub(crate) fn note(&mut self, Sent { loss, .. }: Sent) {
        if loss.error.is_finite() && loss.all.is_finite() {
            self.narrowing[0] += loss.error;
            self.narrowing[1] += loss.all;
        }
    }
}
