//! Rows of several versions, found in a time that does not depend on how many versions there are.
//!
//! The logarithmic method (Bentley and Saxe, 1980): the rows of a version come as a run of their
//! own, and the last two runs become one as long as the older is not twice as large. So there are
//! at most log2(rows) runs, and a row is copied that often at most while versions come.

use std::cmp::Ordering;
use std::sync::Arc;

use roaring::RoaringBitmap;

/// The rows of all versions from one to another.
#[derive(Clone, Debug)]
enum Run {
    /// Of one version: as small as a bitmap.
    One { version: u32, rows: Arc<RoaringBitmap> },
    /// Of several: each row with each of its versions, ascending.
    Several { entries: Arc<Vec<(u32, u32)>> },
}

/// Runs of ascending versions; a copy shares all of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs {
    runs: Vec<Run>,
}

impl Runs {
    /// Adds the rows of a version above all that are there.
    pub(super) fn push(&mut self, version: u32, rows: Arc<RoaringBitmap>) {
        self.runs.push(Run::One { version, rows });
        while let [.., older, newer] = &self.runs[..]
            && older.len() < 2 * newer.len()
        {
            let merged = older.merged(newer);
            self.runs.truncate(self.runs.len() - 2);
            self.runs.push(merged);
        }
    }

    /// The newest version up to `newest` that has `row`.
    pub(super) fn version_of(&self, row: u32, newest: u32) -> Option<u32> {
        self.runs.iter().rev().find_map(|run| run.version_of(row, newest))
    }

    #[cfg(test)]
    pub(super) fn n_runs(&self) -> usize {
        self.runs.len()
    }

    /// Tells `each` all rows with all of their versions, in no order.
    pub(super) fn for_each(&self, mut each: impl FnMut(u32, u32)) {
        self.runs
            .iter()
            .for_each(|run| run.entries().for_each(|(row, version)| each(row, version)));
    }
}

impl Run {
    fn len(&self) -> u64 {
        match self {
            Self::One { rows, .. } => rows.len(),
            Self::Several { entries } => entries.len() as u64,
        }
    }

    fn version_of(&self, row: u32, newest: u32) -> Option<u32> {
        match self {
            Self::One { version, rows } => {
                (*version <= newest && rows.contains(row)).then_some(*version)
            }
            Self::Several { entries } => {
                let after = entries.partition_point(|entry| *entry <= (row, newest));
                let (of, version) = *entries.get(after.checked_sub(1)?)?;
                (of == row).then_some(version)
            }
        }
    }

    fn entries(&self) -> Box<dyn Iterator<Item = (u32, u32)> + '_> {
        match self {
            Self::One { version, rows } => Box::new(rows.iter().map(|row| (row, *version))),
            Self::Several { entries } => Box::new(entries.iter().copied()),
        }
    }

    fn merged(&self, newer: &Self) -> Self {
        let mut entries = Vec::with_capacity((self.len() + newer.len()) as usize);
        let (mut older, mut newer) = (self.entries().peekable(), newer.entries().peekable());
        while let (Some(a), Some(b)) = (older.peek(), newer.peek()) {
            match a.cmp(b) {
                Ordering::Less => entries.extend(older.next()),
                _ => entries.extend(newer.next()),
            }
        }
        entries.extend(older);
        entries.extend(newer);
        Self::Several { entries: Arc::new(entries) }
    }
}
