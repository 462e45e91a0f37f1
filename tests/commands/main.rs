//! Commands over whole runs: `lode cache-bench`, `lode quickstart` and `lode schedule`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod cache_bench;
mod quickstart;
mod schedules;
