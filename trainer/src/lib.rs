//! A thin GNN trainer on candle: GraphSAGE, GCN and GAT under the training strategies of the
//! papers.
//!
//! This crate does not know where rows are or how they travel: it sees features only through
//! `lodestore-client`. It computes on the CPU, in f32.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

mod adam;
mod attention;
mod best_model;
mod bottleneck;
mod checkpoint;
pub mod collective;
mod config;
mod conv;
mod error;
mod evaluate;
mod features;
mod infer;
mod labels;
mod largest;
mod layer;
mod layerwise;
mod linear;
mod loss;
mod matrix;
mod metric;
mod model;
mod model_file;
mod norm;
mod options;
mod process_group;
mod profile;
mod random;
mod rate;
mod record;
mod replay;
mod replica;
mod report;
mod run;
mod setup;
mod step;
mod step_outcome;
mod strategy;
mod train;
mod worker;
mod workers;

pub use bottleneck::{Bottleneck, Preparation, StepShares};
pub use checkpoint::{CheckpointError, CheckpointFault, Place};
pub use config::{
    CheckpointConfig, Compression, Fetch, FullConfig, Halo, HopConfig, HotPolicy, Merge, Migration,
    Mode, OptimizerState, Roots, Sampling, SdtConfig, Strategy, TrainConfig,
};
pub use error::TrainError;
pub use infer::{Evaluation, InferConfig, InferOutput, Inference, RowOutput, evaluate_saved};
pub use metric::Metric;
pub use model::{ModelKind, parameter_count};
pub use model_file::SavedModelError;
pub use options::{
    Aggregation, LayerOptions, Norm, Optimizer, RateSchedule, UpdateOptions, WarmUp,
};
pub use process_group::give_up;
pub use profile::profile_device;
pub use replay::Replay;
pub use report::{EpochReport, RowsFrom, TrainReport};
pub use step::{FullTraffic, HopTraffic, RowsBySource, SdtTraffic, StepSeconds, WorkerStep};
pub use strategy::hop::{Iteration, Iterations, TimeStep};
pub use train::{Progress, TrainGraph, WorkerSources, train, train_together};
