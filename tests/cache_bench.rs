//! Policies compared on traces of every format, as a user does it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

#[path = "cache_bench/formats.rs"]
mod formats;
#[path = "cache_bench/graphs.rs"]
mod graphs;
#[path = "cache_bench/massive.rs"]
mod massive;
#[path = "cache_bench/results.rs"]
mod results;
#[path = "cache_bench/tiers.rs"]
mod tiers;
#[path = "cache_bench/traces.rs"]
mod traces;
