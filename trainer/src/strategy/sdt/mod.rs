//! SDT-GNN: a local model for each partition, trained on that partition and its halo alone, and
//! averages of them (section III-D).
//!
//! [`plan`], [`residents`] and [`average`] decide; [`local`], [`load`], [`worker`] and [`team`]
//! move rows, load ahead and compute; [`run`] goes through the partitions of an epoch.

mod average;
mod load;
mod local;
mod plan;
mod residents;
mod run;
mod setup;
mod team;
mod worker;

pub(crate) use run::LocalModels;
pub(crate) use team::PartitionTeam;
