//! Policies compared on traces of every format, as a user does it.

mod formats;
mod graphs;
mod massive;
mod results;
mod tiers;
mod traces;
