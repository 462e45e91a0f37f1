//! Bodies of the fuzz targets, one file each; `fuzz_targets/` wraps them for libFuzzer.
//!
//! A body panics when the code under test panics, takes more memory than its input warrants, or
//! returns unverified bytes. It knows no more of the store than its users do.

pub mod catalog;
pub mod device_toml;
pub mod edges;
pub mod graph_toml;
pub mod groups;
mod input_file;
mod memory;
pub mod npy;
pub mod npz;
pub mod records;
pub mod requests;
pub mod schedule;
pub mod segment;
pub mod stateful;
pub mod topology;

/// The graph, and the model of it, that the store's crash tests have.
#[path = "../../store/tests/crash/model.rs"]
mod model;
#[path = "../../store/tests/crash/small.rs"]
mod small;
#[path = "../../store/tests/crash/world.rs"]
mod world;
