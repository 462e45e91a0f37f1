//! Comparison of two manifests of a partition by their files.

use super::{Manifest, ManifestTensor};
use crate::catalog::SegmentRecord;
use crate::version_id::VersionId;

/// Files of two manifests that have rows of the same versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommonFiles {
    /// Files that are the same.
    pub same: usize,
    /// Files of the same tensor and versions with other bytes.
    pub different: usize,
}

/// A file of rows: the first and the last version that it has rows of.
struct File<'a> {
    first: u32,
    last: u32,
    record: &'a SegmentRecord,
}

impl Manifest {
    /// Versions with the commits that made them, as far as they are listed, ascending.
    pub fn commits(&self) -> impl Iterator<Item = VersionId> {
        self.commits.iter().copied()
    }

    /// Returns whether two manifests of one version of a history have the same rows: the same
    /// tensors, each with the same files, or with files that were folded since.
    #[must_use]
    pub fn has_rows_of(&self, other: &Self) -> bool {
        let tensors = self.tensors.iter().zip(&other.tensors);
        self.has_tensors_of(other) && tensors.into_iter().all(|(a, b)| are_folds(a, b))
    }

    /// Returns the files of both that have rows of the same versions of a tensor.
    #[must_use]
    pub fn common_files(&self, other: &Self) -> CommonFiles {
        let mut common = CommonFiles::default();
        for tensor in &self.tensors {
            let Some(theirs) = other.tensors.iter().find(|it| it.is_of(&tensor.name, tensor.uuid))
            else {
                continue;
            };
            for ours in files_of(tensor) {
                let versions = (ours.first, ours.last);
                let theirs = files_of(theirs);
                match theirs.into_iter().find(|it| (it.first, it.last) == versions) {
                    Some(theirs) if is_same(ours.record, theirs.record) => common.same += 1,
                    Some(_) => common.different += 1,
                    None => {}
                }
            }
        }
        common
    }
}

/// Returns the files of a tensor, oldest first.
fn files_of(tensor: &ManifestTensor) -> Vec<File<'_>> {
    let (version, record) = &tensor.base;
    let mut files = vec![File { first: 0, last: *version, record }];
    for delta in &tensor.deltas {
        files.push(File { first: delta.first, last: delta.version, record: &delta.record });
    }
    files
}

fn is_same(a: &SegmentRecord, b: &SegmentRecord) -> bool {
    (a.segment, a.digest) == (b.segment, b.digest)
}

/// Returns whether the files of one are, from the oldest on, those of the other, or have the rows
/// of several of them.
fn are_folds(a: &ManifestTensor, b: &ManifestTensor) -> bool {
    let (a, b) = (files_of(a), files_of(b));
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    loop {
        let (ours, theirs) = match (a.next(), b.next()) {
            (Some(ours), Some(theirs)) => (ours, theirs),
            (None, None) => return true,
            (Some(_), None) | (None, Some(_)) => return false,
        };
        if ours.first != theirs.first {
            return false;
        }
        let (wide, narrow, others) = match ours.last.cmp(&theirs.last) {
            std::cmp::Ordering::Equal if is_same(ours.record, theirs.record) => continue,
            std::cmp::Ordering::Equal => return false,
            std::cmp::Ordering::Greater => (ours, theirs, &mut b),
            std::cmp::Ordering::Less => (theirs, ours, &mut a),
        };
        let (mut last, mut n_folded) = (narrow.last, 0);
        while let Some(next) = others.next_if(|it| it.last <= wide.last) {
            last = next.last;
            n_folded += 1;
        }
        // A segment with every row is of the version of its fold, which may have changed no row.
        if n_folded == 0 || last != wide.last && wide.first != 0 {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::manifest::tests::{manifest, record};
    use super::*;
    use crate::catalog::DeltaRecord;
    use crate::graph::{delta_file, segment_file};

    fn other(file: &str) -> SegmentRecord {
        SegmentRecord { segment: Uuid::from_u128(5), ..record(file) }
    }

    #[test]
    fn folds_have_the_same_rows_and_another_import_has_not() {
        let whole = manifest();
        assert!(whole.has_rows_of(&whole));
        let mut folded = whole.clone();
        folded.tensors[0].deltas =
            vec![DeltaRecord { first: 2, version: 6, record: other(&delta_file("feat", 2, 6)) }];
        assert!(folded.has_rows_of(&whole) && whole.has_rows_of(&folded));
        let mut segment = whole.clone();
        segment.tensors[0].base = (8, other(&segment_file("feat", 8)));
        segment.tensors[0].deltas.clear();
        assert!(segment.has_rows_of(&whole) && segment.has_rows_of(&folded));
        let mut imported = whole.clone();
        imported.tensors[1].base.1 = other("label.v1.seg");
        assert!(!imported.has_rows_of(&whole), "the same versions, and another file");
        assert_eq!(imported.common_files(&whole), CommonFiles { same: 3, different: 1 });
        let mut returned = whole.clone();
        returned.tensors[1].base = (7, other(&segment_file("label", 7)));
        assert!(!returned.has_rows_of(&whole), "nothing was there to be folded");
        let mut shorter = whole.clone();
        shorter.tensors[0].deltas.pop();
        assert!(!shorter.has_rows_of(&whole) && !whole.has_rows_of(&shorter));
        let mut renamed = whole.clone();
        renamed.tensors[1].name = "mark".to_owned();
        assert!(!renamed.has_rows_of(&whole));
        let split = &mut folded.tensors[0].deltas;
        split[0].version = 5;
        assert!(!folded.has_rows_of(&whole), "a part of a file is no fold");
        let mut again = segment.clone();
        again.tensors[0].uuid = Uuid::from_u128(8);
        assert!(!again.has_rows_of(&whole), "a tensor of the same name");
        assert_eq!(again.common_files(&whole), CommonFiles { same: 1, different: 0 });
        let known: Vec<u32> = whole.commits().map(|commit| commit.number).collect();
        assert_eq!(known, [7, 8]);
    }
}
