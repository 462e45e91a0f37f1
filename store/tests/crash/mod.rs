//! The store on a simulated file system: the power goes at every operation, every operation is refused,
//! and planted bugs are found.
//!
//! `LODE_LONG` looks at more outcomes of each loss. A failure prints scenario, operation and seed.

mod following;
mod full;
mod import;
mod model;
mod old_rows;
mod small;
mod sweep;
mod tensors;
mod transfer;
mod updates;
mod world;
