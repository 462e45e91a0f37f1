//! Pairs as a copy of a catalog takes them.

use super::{Catalog, Pair, broken, failed, keys};
use crate::device::{Change, EachPair};
use crate::error::StoreError;
use crate::row::RowIdx;

/// Key and value.
type RawPair = (Vec<u8>, Vec<u8>);

impl Catalog {
    /// Tells `each` the pairs from `key` on that a copy needs, ascending; not whose it is, which a
    /// copy says itself.
    pub(crate) fn scan_to_copy(
        &self,
        key: &[u8],
        each: &mut EachPair<'_>,
    ) -> Result<(), StoreError> {
        let mut pair = |key: &[u8], value: &[u8]| match key {
            keys::IDENTITY | keys::GRAPH_COPY | keys::HOLDERS => {
                std::ops::ControlFlow::Continue(())
            }
            _ => each(key, value),
        };
        self.pairs.scan_from(key, &mut pair).map_err(failed(&self.dir))
    }

    /// The pair of the committed version.
    pub(crate) fn version_pair(&self) -> Result<RawPair, StoreError> {
        let version = self.current_version()?;
        Ok((keys::VERSION.to_vec(), version.to_le_bytes().to_vec()))
    }

    /// The pair of a row that was put.
    pub(crate) fn row_pair(
        &self,
        tensor: &str,
        version: u32,
        row: RowIdx,
    ) -> Result<RawPair, StoreError> {
        let mut key = keys::rows_of(tensor);
        keys::push_row(&mut key, version, row);
        match self.get(&key)? {
            Some(value) => Ok((key, value)),
            None => {
                let reason = format!("row {row} of `{tensor}`, version {version}, is gone");
                Err(broken(&self.dir, reason))
            }
        }
    }

    /// Whether a repair has lost something that nobody was told.
    pub(crate) fn has_losses(&self) -> Result<bool, StoreError> {
        Ok(self.get(keys::LOSSES)?.is_some())
    }

    /// Writes pairs of a catalog that is copied: all or none, and durable when it returns.
    ///
    /// Fails for pairs that no copy has. What they say is for verification to judge.
    pub(crate) fn write_copied(&self, pairs: &[(&[u8], &[u8])]) -> Result<(), StoreError> {
        for (key, value) in pairs {
            let is_known = match super::pairs::told_apart(key, value) {
                Pair::Version | Pair::Holders | Pair::Row { .. } => true,
                Pair::PreparedVersion(found) => found.is_some(),
                Pair::Delta { record, .. } | Pair::Prepared { record, .. } => record.is_ok(),
                Pair::Segment { record, .. } | Pair::Lost { record, .. } => record.is_ok(),
                _ => false,
            };
            if !is_known {
                let key = key.escape_ascii();
                let reason = format!("a copy of it came with a pair that none has, \"{key}\"");
                return Err(broken(&self.dir, reason));
            }
        }
        let put = |(key, value): &(&[u8], &[u8])| Change::Put(key.to_vec(), value.to_vec());
        self.write(&pairs.iter().map(put).collect::<Vec<_>>())
    }
}
