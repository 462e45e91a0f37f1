//! Report of a repair and its losses.

use std::ops::Range;
use std::path::Path;

use serde::Serialize;

use crate::graph::{catalog_dir, is_segment_file};

/// Whether a repair changes the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairMode {
    /// It changes what must change.
    Apply,
    /// It reports what it would do.
    DryRun,
}

/// More ranges of nodes than this are counted, not listed.
const MAX_RANGES: usize = 1000;

/// The outcome of a repair; of a dry run, what it would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RepairReport {
    /// Nothing is lost, and everything is here that was to be looked at.
    pub ok: bool,
    /// Nothing was changed: this is what would be done.
    pub dry_run: bool,
    /// The reason why it stopped before its end, if it did: reported work was done by then, and
    /// another repair does the rest.
    pub stopped: Option<String>,
    /// Rebuilt items, in this order.
    pub done: Vec<Done>,
    /// Originals that were replaced, and what could not be used.
    pub quarantined: Vec<Moved>,
    /// Partitions that have no folder here: another machine may hold them, and nothing is known of
    /// them. Empty where partitions were named: then one that is missing is lost.
    pub absent: Vec<u16>,
    /// Items that cannot be recovered from this graph.
    pub lost: Vec<Lost>,
    /// Where this report is kept, where something was changed: in the graph's quarantine.
    pub kept_in: Option<String>,
}

impl RepairReport {
    /// Returns whether nothing is lost, and everything is here that was to be looked at.
    pub(super) fn is_whole(&self) -> bool {
        self.lost.is_empty() && self.absent.is_empty() && self.stopped.is_none()
    }

    /// Returns whether anything was changed, or something is lost that no repair finds again.
    pub(super) fn has_changes(&self) -> bool {
        !self.done.is_empty() || !self.quarantined.is_empty()
    }
}

/// A file or folder that was rebuilt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Done {
    /// Its name.
    pub file: String,
    /// The work done on it, and the proof of its result.
    pub action: String,
}

/// A file or folder that moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// Where it was.
    pub from: String,
    /// Where it is.
    pub to: String,
}

/// Something that is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// The file that held it.
    pub file: String,
    /// Tensor whose rows are lost; `null` when it is not rows.
    pub tensor: Option<String>,
    /// Number of rows that are lost; 0 for other things than rows, or if the number is unknown.
    pub rows: u64,
    /// Nodes whose rows are lost, as ranges from the first to before the second; of many ranges the
    /// first ones.
    pub nodes: Vec<[u32; 2]>,
    /// Why.
    pub reason: String,
}

impl Lost {
    /// Returns a loss of something that is not rows, or of an unknown number of rows.
    pub(super) fn file(file: &Path, reason: String) -> Self {
        let file = file.display().to_string();
        Self { file, tensor: None, rows: 0, nodes: Vec::new(), reason }
    }

    /// Returns whether it is of rows, and their tensor is known.
    pub(super) fn is_of_rows(&self) -> bool {
        self.tensor.is_some()
    }

    /// Returns the line that a catalog keeps of the loss of a file of its partition.
    pub(super) fn to_line(&self) -> String {
        let name = Path::new(&self.file).file_name().unwrap_or_default();
        format!("{}: {}", name.display(), self.reason)
    }

    /// Returns the loss that [`Lost::to_line`] made this line of. Any other line is a loss of the
    /// catalog itself.
    pub(super) fn from_line(part_dir: &Path, line: &str) -> Self {
        match line.split_once(": ").filter(|(name, _)| is_segment_file(name)) {
            Some((name, reason)) => Self::file(&part_dir.join(name), reason.to_owned()),
            None => Self::file(&catalog_dir(part_dir), line.to_owned()),
        }
    }

    /// Returns a loss of rows of a tensor: ascending ranges of nodes, which may overlap by a row.
    pub(super) fn rows(
        file: &Path,
        tensor: &str,
        ranges: impl IntoIterator<Item = Range<u32>>,
        reason: String,
    ) -> Self {
        let mut lost = Self { tensor: Some(tensor.to_owned()), ..Self::file(file, reason) };
        let mut last_end = 0;
        for range in ranges {
            let start = range.start.max(last_end);
            if start >= range.end {
                continue;
            }
            lost.rows += u64::from(range.end - start);
            let has_room = lost.nodes.len() < MAX_RANGES;
            match lost.nodes.last_mut() {
                Some(last) if last[1] == start => last[1] = range.end,
                _ if has_room => lost.nodes.push([start, range.end]),
                _ => {}
            }
            last_end = range.end;
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_on_two_damaged_pages_count_once() {
        let lost = Lost::rows(Path::new("a"), "feat", [3..5, 4..6, 6..6, 9..10], String::new());
        assert_eq!((lost.rows, lost.nodes), (4, vec![[3, 6], [9, 10]]));
        let many = (0..3000).map(|i| 2 * i..2 * i + 1);
        let lost = Lost::rows(Path::new("a"), "feat", many, String::new());
        assert_eq!((lost.rows, lost.nodes.len()), (3000, MAX_RANGES));
    }
}
