//! Times of loading batches, and the sources of their rows.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::source::{PullStats, TierRows};

/// Times of loading one or more batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadStats {
    /// Rows of the worker's own partitions.
    pub local_rows: u64,
    /// Rows of other partitions found in the hot set, or in a tier of the source.
    pub hit_rows: u64,
    /// Part of `hit_rows` found in tiers of the source, or in an earlier batch that was loaded
    /// together with this one. The hot set had the others.
    pub found: TierRows,
    /// Rows of other partitions that were pulled.
    pub remote_rows: u64,
    /// Bytes of those pulls.
    pub remote_bytes: u64,
    /// Requests of the pulls, one per server asked.
    pub pulls: u64,
    /// Part of `remote_rows` that was pulled beyond what the batch needs.
    pub ahead_rows: u64,
    /// Time from the ids to the last row in place.
    pub seconds: f64,
    /// Part of `seconds` for look-ups: in the partition book, the hot set, and in tiers, which copy
    /// the rows that they find.
    pub lookup_seconds: f64,
    /// Part of `seconds` waiting for pulled rows.
    pub pull_seconds: f64,
    /// Part of `seconds` reading the worker's own rows from disk or memory to their places.
    pub read_seconds: f64,
    /// Part of `seconds` copying other rows to their places: cached ones and pulled ones.
    pub copy_seconds: f64,
}

impl LoadStats {
    /// Returns the stats of pulled rows alone.
    #[must_use]
    pub fn from_pull(pull: PullStats) -> Self {
        Self {
            remote_rows: pull.rows,
            remote_bytes: pull.bytes,
            pulls: pull.requests,
            ahead_rows: pull.ahead_rows,
            ..Self::default()
        }
    }
}

impl AddAssign for LoadStats {
    fn add_assign(&mut self, more: Self) {
        self.local_rows += more.local_rows;
        self.hit_rows += more.hit_rows;
        self.remote_rows += more.remote_rows;
        self.remote_bytes += more.remote_bytes;
        self.pulls += more.pulls;
        self.ahead_rows += more.ahead_rows;
        self.found += more.found;
        self.seconds += more.seconds;
        self.lookup_seconds += more.lookup_seconds;
        self.pull_seconds += more.pull_seconds;
        self.read_seconds += more.read_seconds;
        self.copy_seconds += more.copy_seconds;
    }
}
