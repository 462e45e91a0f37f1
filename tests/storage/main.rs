//! Graphs as files: imported, read in every way, updated, copied to a bucket, and refused when bad.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod bad_input;
mod bucket;
mod importing;
mod machines;
mod readers;
mod releases;
mod roundtrip;
mod updates;
