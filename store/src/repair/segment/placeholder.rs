//! Placeholder of a segment that is lost entirely: a file in which no page passes.
//!
//! The graph opens, every other row is served, and each row of the lost segment is an error. Rows
//! can be put over it.

use uuid::Uuid;

use crate::checksum::PageChecksum;
use crate::codec::SegmentCodec;
use crate::layout::SegmentLayout;
use crate::limits::{MAX_GROUP_BYTES, PAGE_BYTES};
use crate::segment::{SegmentDigest, SegmentIdentity};

/// The bytes of a stub and what a catalog must know of it.
pub(crate) struct Placeholder {
    pub(crate) identity: SegmentIdentity,
    pub(crate) digest: SegmentDigest,
    pub(crate) bytes: Vec<u8>,
}

impl Placeholder {
    /// Returns the placeholder for the lost segment `identity`; the same at every call.
    ///
    /// Row groups of one byte each keep it small, whatever the rows are. `None` for rows that no
    /// segment can have.
    pub(crate) fn of(lost: &SegmentIdentity) -> Option<Self> {
        let seed = [lost.segment.as_bytes().as_slice(), b"lost"].concat();
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&blake3::hash(&seed).as_bytes()[..16]);
        let segment = uuid::Builder::from_custom_bytes(uuid).into_uuid();
        let identity = SegmentIdentity { segment, ..lost.clone() };
        let row_bytes = identity.tensor.row_bytes();
        let group_rows = (MAX_GROUP_BYTES / row_bytes).max(1) as u32;
        let n_groups = identity.n_rows.div_ceil(group_rows);
        let lengths = (0..n_groups).map(|_| 1);
        let layout =
            SegmentLayout::grouped(identity.n_rows, row_bytes, group_rows, lengths).ok()?;
        let codec = SegmentCodec::Zstd { group_rows };
        let tables = tables(segment, &layout, n_groups);
        let mut bytes = identity.header(codec).to_vec();
        bytes.resize(layout.table_offset() as usize, 0);
        bytes.extend_from_slice(&tables);
        bytes.extend_from_slice(&identity.footer(codec, &layout.sections(), &tables));
        Some(Self { identity, digest: blake3::hash(&tables).into(), bytes })
    }
}

fn tables(segment: Uuid, layout: &SegmentLayout, n_groups: u32) -> Vec<u8> {
    let checksum = PageChecksum::new(segment);
    let zeros = [0; PAGE_BYTES as usize];
    let failing = (0..layout.n_pages()).map(|page| checksum.of(page, &zeros) ^ 1);
    let mut tables: Vec<u8> = failing.flat_map(u32::to_le_bytes).collect();
    tables.resize(tables.len().next_multiple_of(PAGE_BYTES as usize), 0);
    (0..n_groups).for_each(|_| tables.extend_from_slice(&1u32.to_le_bytes()));
    tables.resize(tables.len().next_multiple_of(PAGE_BYTES as usize), 0);
    tables
}
