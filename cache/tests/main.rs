//! Tiers beside their models: shared rows, rows by version, volatile rows.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod shared;
mod versioned;
mod volatile;
