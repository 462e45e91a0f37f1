//! Bad input as a user would meet it: a clear message, the right exit code, nothing half-made.

mod damaged;
mod inputs;
mod network;
mod outputs;
