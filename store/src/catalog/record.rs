//! Record of one segment in the catalog, as bytes.

use uuid::Uuid;

use super::CATALOG_FORMAT_VERSION;
use crate::segment::{SegmentDigest, SegmentIdentity};

/// A segment as the catalog knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentRecord {
    /// Uuid in the segment's header.
    pub segment: Uuid,
    /// Number of rows.
    pub n_rows: u32,
    /// Bytes of one row.
    pub row_bytes: u32,
    /// BLAKE3 of the segment's tables: page checksums and group index, both padded.
    pub digest: SegmentDigest,
    /// Name of the file in the partition's folder.
    pub file: String,
}

impl SegmentRecord {
    /// Returns the record of the segment `identity` in a file of this name.
    pub(crate) fn new(identity: &SegmentIdentity, digest: SegmentDigest, file: String) -> Self {
        let (segment, n_rows) = (identity.segment, identity.n_rows);
        let row_bytes = identity.tensor.row_bytes() as u32;
        Self { segment, n_rows, row_bytes, digest, file }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = CATALOG_FORMAT_VERSION.to_le_bytes().to_vec();
        bytes.extend_from_slice(self.segment.as_bytes());
        bytes.extend_from_slice(&self.n_rows.to_le_bytes());
        bytes.extend_from_slice(&self.row_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.digest);
        bytes.extend_from_slice(self.file.as_bytes());
        bytes
    }

    /// Returns the format of a record that only a later release reads.
    pub(super) fn newer_format(bytes: &[u8]) -> Option<u32> {
        let format = Fields { bytes }.u32().ok()?;
        (format > CATALOG_FORMAT_VERSION).then_some(format)
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let mut fields = Fields { bytes };
        let format = fields.u32()?;
        if format > CATALOG_FORMAT_VERSION {
            return Err(format!("format {format}, this release reads {CATALOG_FORMAT_VERSION}"));
        }
        let segment = Uuid::from_bytes(fields.take()?);
        let (n_rows, row_bytes, digest) = (fields.u32()?, fields.u32()?, fields.take()?);
        let file = std::str::from_utf8(fields.bytes).map_err(|_| "file name is not UTF-8")?;
        // A name from a file never becomes a path that leads out of the partition's folder.
        if file.is_empty() || file.starts_with('.') || file.contains(['/', '\0']) {
            return Err(format!("{file:?} is not a plain file name"));
        }
        Ok(Self { segment, n_rows, row_bytes, digest, file: file.to_owned() })
    }
}

/// The unread rest of a record.
pub(super) struct Fields<'a> {
    pub(super) bytes: &'a [u8],
}

impl Fields<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (&field, rest) = self.bytes.split_first_chunk().ok_or("it is too short")?;
        self.bytes = rest;
        Ok(field)
    }

    pub(super) fn u32(&mut self) -> Result<u32, String> {
        self.take().map(u32::from_le_bytes)
    }
}
