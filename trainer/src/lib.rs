//! A thin GNN trainer: the models of `lodestore-models` under the training strategies of the
//! papers.
//!
//! This crate does not know where rows are or how they travel: it sees features only through
//! `lodestore-client`. It computes on the CPU, in f32.
//!
//! All rows of a run are of one version ([`RowVersions`]), which its report and its checkpoint
//! name; `docs/guide.md` has the rule.
//!
//! [`train`] runs workers in one process, [`train_together`] in several. The command `lode train`
//! is the program over it, and `docs/training.md` has its settings.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

mod best_model;
pub mod bottleneck;
pub mod checkpoint;
mod checkpoint_error;
pub mod config;
pub mod error;
mod evaluate;
mod features;
pub mod infer;
mod labels;
mod layerwise;
pub mod options;
mod process_group;
pub mod profile;
mod record;
pub mod replay;
mod replica;
pub mod report;
mod run;
pub mod run_model;
mod setup;
mod sources;
pub mod step;
mod step_outcome;
pub mod strategy;
mod train;
mod worker;
mod worker_thread;
mod workers;

pub use config::{Strategy, TrainConfig};
pub use error::TrainError;
pub use options::{Metric, ModelKind};
pub use report::{Progress, TrainReport};
pub use sources::{RowVersions, TrainGraph, WorkerSources};
pub use train::{train, train_together};
