//! Stores under loss of power and damage, and graphs of earlier formats.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod crash;
mod damage;
mod format1;
mod format2;
mod real_data;
