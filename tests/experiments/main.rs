//! `lode-lab reproduce`: its figures agree with each other and with training.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod cap_figures;
mod hop_figures;
mod hop_times;
mod reproducing;
mod sdt_figures;
