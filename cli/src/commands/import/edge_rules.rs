//! Flags that say which edges an import keeps.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use lodestore_graph::topology::EdgePolicy;
use lodestore_import::EdgeRules;

/// Rules for the edges that an import keeps, and for their columns.
#[derive(Args, Clone, Debug)]
pub(super) struct EdgeRuleArgs {
    /// Treatment of edges from a node to itself.
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = Policy::Keep)]
    self_loops: Policy,
    /// Treatment of edges that are in the input more than once; where they are kept, each can be
    /// sampled.
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = Policy::Drop)]
    duplicates: Policy,
    /// Keep the position of each edge in the input beside the topology: 8 bytes an edge.
    #[arg(long)]
    edge_ids: bool,
    /// Keep a weight of each edge beside the topology: .npy of shape (E,), f32, in the order of the
    /// edges. Where repeated edges are dropped, the weight of the first is kept.
    #[arg(long, value_name = "FILE")]
    edge_weights: Option<PathBuf>,
}

/// Treatment of some edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    Keep,
    Drop,
}

impl From<Policy> for EdgePolicy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Keep => Self::Keep,
            Policy::Drop => Self::Drop,
        }
    }
}

impl From<EdgeRuleArgs> for EdgeRules {
    fn from(args: EdgeRuleArgs) -> Self {
        Self {
            self_loops: args.self_loops.into(),
            duplicates: args.duplicates.into(),
            edge_ids: args.edge_ids,
            edge_weights: args.edge_weights,
        }
    }
}
