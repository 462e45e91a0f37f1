//! Earlier versions that the files of a version hold.

use super::Manifest;

/// The versions of a partition that the files of a manifest hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// Lowest and highest one; there are gaps between.
    lowest: u32,
    highest: u32,
    /// First and last version of each delta of several versions. All but the last are missing.
    folded: Vec<(u32, u32)>,
}

impl Coverage {
    /// Takes all versions from `lowest` to `highest`, but those within a delta of several: `folded`
    /// has the first and the last version of each.
    #[must_use]
    pub fn new(lowest: u32, highest: u32, folded: Vec<(u32, u32)>) -> Self {
        Self { lowest, highest, folded }
    }

    /// Returns the highest version up to `version` that is covered.
    #[must_use]
    pub fn highest_up_to(&self, version: u32) -> Option<u32> {
        let mut version = version.min(self.highest);
        loop {
            if version < self.lowest {
                return None;
            }
            let is_inside = |(first, last): &&(u32, u32)| (*first..*last).contains(&version);
            match self.folded.iter().find(is_inside) {
                Some((first, _)) => version = first.checked_sub(1)?,
                None => return Some(version),
            }
        }
    }

    /// Returns whether a version is covered.
    #[must_use]
    pub fn has(&self, version: u32) -> bool {
        self.highest_up_to(version) == Some(version)
    }
}

impl Manifest {
    /// Returns the versions that its files hold.
    #[must_use]
    pub fn coverage(&self) -> Coverage {
        let folded = self.tensors.iter().flat_map(|tensor| &tensor.deltas);
        let folded = folded.filter(|it| it.first < it.version).map(|it| (it.first, it.version));
        let lowest = self.tensors.iter().map(|tensor| tensor.base.0).max();
        Coverage::new(lowest.unwrap_or(self.version), self.version, folded.collect())
    }

    /// Returns the manifest of an earlier version, of a part of these files; `None` where they do
    /// not hold that version.
    #[must_use]
    pub fn at(&self, version: u32) -> Option<Self> {
        if !self.coverage().has(version) {
            return None;
        }
        let mut earlier = Self { version, ..self.clone() };
        for tensor in &mut earlier.tensors {
            tensor.deltas.retain(|delta| delta.version <= version);
        }
        earlier.commits.retain(|commit| commit.number <= version);
        Some(earlier)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::ManifestTensor;
    use super::super::manifest::tests::{manifest, record};
    use super::*;
    use crate::catalog::DeltaRecord;
    use crate::graph::delta_file;

    proptest! {
        #[test]
        fn a_manifest_is_cut_to_exactly_the_versions_that_its_layers_end_at(
            steps in prop::collection::vec(prop::collection::vec((1u32..3, 0u32..3), 0..5), 1..3),
            ahead in 0u32..3,
        ) {
            // Deltas of several versions, with versions between that have none.
            let mut whole = manifest();
            whole.tensors.truncate(steps.len());
            let mut newest = 0;
            for (tensor, steps) in whole.tensors.iter_mut().zip(&steps) {
                let mut last = tensor.base.0;
                tensor.deltas.clear();
                for (skipped, more) in steps {
                    let (first, version) = (last + skipped, last + skipped + more);
                    let record = record(&delta_file(&tensor.name, first, version));
                    tensor.deltas.push(DeltaRecord { first, version, record });
                    last = version;
                }
                newest = newest.max(last);
            }
            whole.version = newest + ahead;
            whole.commits.clear();
            let coverage = whole.coverage();
            for version in 0..whole.version + 3 {
                let is_whole = |tensor: &ManifestTensor| {
                    tensor.base.0 <= version
                        && tensor.deltas.iter().all(|it| it.first > version || it.version <= version)
                };
                let is_held = version <= whole.version && whole.tensors.iter().all(is_whole);
                prop_assert_eq!(coverage.has(version), is_held, "{} of {:?}", version, whole);
                let highest = (0..=version).rev().find(|it| coverage.has(*it));
                prop_assert_eq!(coverage.highest_up_to(version), highest);
                let Some(earlier) = whole.at(version) else {
                    prop_assert!(!is_held);
                    continue;
                };
                prop_assert!(is_held);
                prop_assert_eq!(&Manifest::from_bytes(&earlier.to_bytes()).unwrap(), &earlier);
                prop_assert_eq!(earlier.version, version);
                for (ours, theirs) in earlier.tensors.iter().zip(&whole.tensors) {
                    prop_assert_eq!(&ours.base, &theirs.base);
                    let n_kept = theirs.deltas.iter().filter(|it| it.first <= version).count();
                    prop_assert_eq!(&ours.deltas[..], &theirs.deltas[..n_kept]);
                }
            }
        }
    }
}
