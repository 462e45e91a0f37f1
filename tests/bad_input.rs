//! Bad input as a user would meet it: a clear message, the right exit code, nothing half-made.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

#[path = "bad_input/damaged.rs"]
mod damaged;
#[path = "bad_input/inputs.rs"]
mod inputs;
#[path = "bad_input/network.rs"]
mod network;
#[path = "bad_input/outputs.rs"]
mod outputs;
