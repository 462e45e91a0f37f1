//! Times of loading batches, and the sources of their rows.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::source::{PullStats, TierRows};

/// Times of loading one or more batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadStats {
    /// Rows of the worker's own partitions.
    pub local_rows: u64,
    /// Rows of other partitions found in the hot set, or in a tier of their source.
    pub hit_rows: u64,
    /// Part of `hit_rows` that tiers of their source, or an earlier batch that was loaded together
    /// with this one, had. The hot set had the others.
    pub found: TierRows,
    /// Rows of other partitions that had to be pulled.
    pub remote_rows: u64,
    /// Bytes of those pulls.
    pub remote_bytes: u64,
    /// Requests that the pulls took, one per server asked.
    pub pulls: u64,
    /// Part of `remote_rows` that came beside what a batch asked for.
    pub ahead_rows: u64,
    /// Time from the ids to the last row in place.
    pub seconds: f64,
    /// Part of it that looked rows up: in the partition book, the hot set, and tiers, which copy
    /// what they find.
    pub lookup_seconds: f64,
    /// Part of it that waited for rows which travelled.
    pub pull_seconds: f64,
    /// Part of it that read the worker's own rows, from disk or from memory, to their places.
    pub read_seconds: f64,
    /// Part of it that put other rows in place: kept ones, and those that travelled.
    pub copy_seconds: f64,
}

impl LoadStats {
    /// Returns the stats of rows that were pulled and nothing else.
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
