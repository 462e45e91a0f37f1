//! Records of segments.

use std::ops::ControlFlow;

use super::{Catalog, SegmentRecord, broken, failed, keys};
use crate::device::Change;
use crate::error::StoreError;

impl Catalog {
    /// The segment under `tensor` at `version`: that of the newest record up to it, with the
    /// version of the record; `None` if there is no such record.
    pub fn segment(
        &self,
        tensor: &str,
        version: u32,
    ) -> Result<Option<(u32, SegmentRecord)>, StoreError> {
        let newest = self.segments(tensor)?.into_iter().rfind(|(of, _)| *of <= version);
        Ok(newest)
    }

    /// All records of a tensor with their versions, ascending.
    pub fn segments(&self, tensor: &str) -> Result<Vec<(u32, SegmentRecord)>, StoreError> {
        let prefix = keys::segments_of(tensor);
        let mut records = Vec::new();
        let mut fault = None;
        let mut each = |key: &[u8], value: &[u8]| {
            let version = keys::segment_version(&key[prefix.len()..]).ok_or("no version");
            let record = version
                .map_err(str::to_owned)
                .and_then(|version| Ok((version, SegmentRecord::from_bytes(value)?)));
            match record {
                Ok(record) => records.push(record),
                Err(reason) => {
                    fault = Some(format!("record of `{tensor}`, key {key:02x?}: {reason}"));
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        };
        self.pairs.scan(&prefix, &mut each).map_err(failed(&self.dir))?;
        fault.map_or(Ok(records), |reason| Err(broken(&self.dir, reason)))
    }

    /// Puts the record of `version` in the place of all that `tensor` has: at once, and durable
    /// when it returns.
    pub fn switch_segment(
        &self,
        tensor: &str,
        version: u32,
        record: &SegmentRecord,
    ) -> Result<(), StoreError> {
        let old = self.segments(tensor)?.into_iter().filter(|(of, _)| *of != version);
        let mut changes: Vec<Change> =
            old.map(|(of, _)| Change::Delete(keys::segment(tensor, of))).collect();
        changes.push(Change::Put(keys::segment(tensor, version), record.to_bytes()));
        self.write(&changes)
    }
}
