//! A partition on its way into a graph's folder: what has come of it, until it is there as a whole.
//!
//! `docs/replication.md` has the steps. The side that releases a partition is
//! [`PartCopy`](crate::update::PartCopy).

mod arrival;
mod owner;
pub(crate) mod piece;

pub use arrival::{Arrival, ArrivingCatalog, ArrivingFile};
