//! Segments of a tensor that the catalog does not name.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::super::segment::{Assessment, Expected, Recovered, identity_of, look};
use super::contents::Contents;
use super::tensor::Look;
use crate::catalog::TensorRecord;
use crate::error::StoreError;
use crate::error_origin::ErrorOrigin;
use crate::graph::{segment_file, version_of_file};
use crate::segment::SegmentIdentity;

impl Look<'_> {
    /// Returns a segment that a compaction has written after the one of `record`, if it has rows
    /// that nothing else has. These are of its own version, for which the catalog is too old, or of
    /// pages that are `found` lost. A compaction checks what it writes, and all that it reads was
    /// committed.
    pub(super) fn later(
        &mut self,
        record: &TensorRecord,
        found: &Assessment,
        contents: &Contents,
    ) -> Result<Option<(TensorRecord, Box<Recovered>)>, StoreError> {
        let (above, only_whole) = match found {
            Assessment::Hopeless(_) => (record.version, false),
            Assessment::Recovered(mended) if !mended.lost_pages.is_empty() => {
                (record.version, true)
            }
            // What is committed is there, in segments and deltas.
            Assessment::Recovered(_) if contents.salvaged => {
                (contents.version.unwrap_or(record.version), true)
            }
            Assessment::Recovered(_) => return Ok(None),
        };
        let newest = self.newest(above)?;
        Ok(newest
            .filter(|(_, mended)| !only_whole || (mended.proven && mended.lost_pages.is_empty())))
    }

    /// Returns the newest file of a version above `above` that can be used, as it says itself what
    /// it is.
    pub(super) fn newest(
        &self,
        above: u32,
    ) -> Result<Option<(TensorRecord, Box<Recovered>)>, StoreError> {
        let mut found: Vec<(TensorRecord, Box<Recovered>)> = Vec::new();
        for (identity, file) in self.candidates()? {
            let (version, tensor) = (identity.version, self.spec.name.clone());
            if version <= above {
                continue;
            }
            let expected = Expected { identity: identity.clone(), digest: None };
            let path = self.part_dir.join(&file);
            if let Assessment::Recovered(mended) =
                look(&*self.actions.device, &path, &expected, self.actions.n_threads)?
            {
                let record = self.record(&identity, mended.digest(), file);
                found.push((TensorRecord { tensor, version, record, lost: None }, mended));
            }
        }
        // Of two files of one version that which the writer would have called so.
        Ok(found.into_iter().max_by_key(|(TensorRecord { version, record, .. }, _)| {
            (*version, record.file == segment_file(&self.spec.name, *version))
        }))
    }

    /// Files but `chosen` that are called as segments of this tensor, or say that they are one.
    pub(super) fn strays(&self, chosen: &str) -> Result<Vec<PathBuf>, StoreError> {
        let entries = self.actions.device.list(self.part_dir);
        let entries = entries.map_err(StoreError::io(self.part_dir, "list"))?.into_iter();
        let named = entries.filter(|entry| !entry.is_dir).map(|entry| entry.name);
        let named = named.filter(|name| version_of_file(name, &self.spec.name).is_some());
        let telling = self.candidates()?.into_iter().map(|(_, file)| file);
        let strays: BTreeSet<String> = named.chain(telling).filter(|it| it != chosen).collect();
        Ok(strays.into_iter().map(|name| self.part_dir.join(name)).collect())
    }

    /// Files that say that they are segments of this tensor.
    fn candidates(&self) -> Result<Vec<(SegmentIdentity, String)>, StoreError> {
        let device = &self.actions.device;
        let entries = device.list(self.part_dir).map_err(StoreError::io(self.part_dir, "list"))?;
        let segments = entries.into_iter().filter(|e| !e.is_dir && e.name.ends_with(".seg"));
        let is_ours = |found: &SegmentIdentity| {
            found.version > 0 && *found == self.identity(found.segment, found.version)
        };
        let mut ours = Vec::new();
        for entry in segments {
            let path = self.part_dir.join(&entry.name);
            let file = match device.open(&path).map_err(StoreError::io(&path, "open")) {
                Err(error) if error.origin() == ErrorOrigin::System => return Err(error),
                Err(_) => continue,
                Ok(file) => file,
            };
            ours.extend(identity_of(&*file).filter(is_ours).map(|found| (found, entry.name)));
        }
        Ok(ours)
    }
}
