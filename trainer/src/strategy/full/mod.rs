//! CaPGNN: full-batch training over partitions, whose halos exchange rows of each layer (sections
//! 4.1 and 4.2).
//!
//! A partition computes the rows of its own nodes from all of their in-neighbours. Those that other
//! partitions own are its halo. The features of the halo never change, so they are pulled once and
//! kept. Its rows of later layers come from their owners in each epoch, and the gradients of these
//! go back. The computation is that of one partition of the whole graph, but for the order of sums.
//!
//! [`graph`], [`plan`], [`operator`] and [`compress`] decide; [`part`] and [`back`] compute;
//! [`exchange`] and [`team`] move rows; [`run`] makes epochs of passes.

mod back;
mod compress;
mod exchange;
mod graph;
mod inputs;
mod loss;
mod operator;
mod part;
mod plan;
mod run;
mod setup;
mod team;

pub(crate) use exchange::Messages;
pub(crate) use team::{FullTeam, PartFigures};

#[cfg(test)]
mod tests;
