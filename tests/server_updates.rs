//! Updates through real server processes: killed without a warning, stopped under load, and from
//! the command line.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../benches/src/graph.rs"]
#[allow(unreachable_pub, dead_code, reason = "public where it lives")]
mod graph;
mod support;

#[path = "server_updates/command_line.rs"]
mod command_line;
#[path = "server_updates/killed.rs"]
mod killed;
