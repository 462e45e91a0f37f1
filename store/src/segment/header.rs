//! The first page of a segment: what the file is and whose rows it holds.
//!
//! ```text
//! offset  bytes  field (little-endian)
//! 0       8      magic "LODESEG" and a zero byte
//! 8       4      format version: 1 for codec 0, 2 for codec 1, 3 for a delta
//! 12      4      codec: 0 = raw, 1 = zstd row groups
//! 16      16     uuid of the graph
//! 32      16     uuid of the segment
//! 48      4      partition
//! 52      4      version of the tensor
//! 56      4      dtype: 0 f32, 1 f16, 2 bf16, 3 f64, 4 u8, 5 i8, 6 i16, 7 i32, 8 i64
//! 60      4      width: elements per row
//! 64      4      rows
//! 68      4      length of the tensor's name
//! 72      64     name of the tensor, zero padded
//! 136     4      codec 1: rows of a group; codec 0: zero
//! 140     4      kind: 0 = every row of the partition, 1 = delta: the rows of its row list
//! 144     4      kind 1: rows of the partition; kind 0: zero
//! 148     3944   zeros
//! 4092    4      CRC-32 of bytes 0 to 4091
//! ```
//!
//! Magic, version and checksum keep their places in every later version.

use lodestore_graph::PartId;
use uuid::Uuid;

use super::SEGMENT_FORMAT_VERSION;
use crate::codec::SegmentCodec;
use crate::dtype::Dtype;
use crate::limits::{MAX_TENSOR_NAME_BYTES, PAGE_BYTES};
use crate::tensor::TensorSpec;

const MAGIC: [u8; 8] = *b"LODESEG\0";
const NAME_OFFSET: usize = 72;
const GROUP_ROWS_OFFSET: usize = 136;
const KIND_OFFSET: usize = 140;
const DELTA_OF_OFFSET: usize = 144;
const CRC_OFFSET: usize = PAGE_BYTES as usize - 4;

/// One page of bytes.
pub(super) type Page = [u8; PAGE_BYTES as usize];

/// Whose rows a segment holds: equal in its header, in its footer and in the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentIdentity {
    /// Uuid of the graph.
    pub graph: Uuid,
    /// Uuid of this file; seeds its page checksums.
    pub segment: Uuid,
    /// Partition that owns the rows.
    pub part: PartId,
    /// Version of the tensor, from 1.
    pub version: u32,
    /// Tensor that the rows belong to.
    pub tensor: TensorSpec,
    /// Number of rows in the file.
    pub n_rows: u32,
    /// Rows of the partition where the file is a delta: it has some of them, named by its row list.
    /// `None` for a segment that has every row.
    pub delta_of: Option<u32>,
}

/// Why a header page is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderFault {
    Damaged(String),
    Newer(u32),
}

impl From<String> for HeaderFault {
    fn from(reason: String) -> Self {
        Self::Damaged(reason)
    }
}

impl SegmentIdentity {
    /// Returns the first field in which `self` (expected) and `found` differ, with both values.
    pub(super) fn difference(&self, found: &Self) -> Option<(&'static str, String, String)> {
        let kind = |of: Option<u32>| of.map_or("all".to_owned(), |rows| format!("some of {rows}"));
        let fields: [(&'static str, String, String); 7] = [
            ("graph", self.graph.to_string(), found.graph.to_string()),
            ("segment", self.segment.to_string(), found.segment.to_string()),
            ("partition", self.part.to_string(), found.part.to_string()),
            ("version", self.version.to_string(), found.version.to_string()),
            ("tensor", describe(&self.tensor), describe(&found.tensor)),
            ("rows", kind(self.delta_of), kind(found.delta_of)),
            ("row count", self.n_rows.to_string(), found.n_rows.to_string()),
        ];
        fields.into_iter().find(|(_, expected, found)| expected != found)
    }

    /// Returns the header page of a segment with this identity and codec.
    pub(super) fn to_page(&self, codec: SegmentCodec) -> Page {
        let mut page = [0u8; PAGE_BYTES as usize];
        let name = self.tensor.name.as_bytes();
        page[0..8].copy_from_slice(&MAGIC);
        page[16..32].copy_from_slice(self.graph.as_bytes());
        page[32..48].copy_from_slice(self.segment.as_bytes());
        let words = [
            (8, format_version(codec, self.delta_of)),
            (12, codec.code()),
            (48, u32::from(self.part.0)),
            (52, self.version),
            (56, self.tensor.dtype.code()),
            (60, self.tensor.width),
            (64, self.n_rows),
            (68, name.len() as u32),
            (GROUP_ROWS_OFFSET, codec.group_rows()),
            (KIND_OFFSET, u32::from(self.delta_of.is_some())),
            (DELTA_OF_OFFSET, self.delta_of.unwrap_or(0)),
        ];
        for (offset, word) in words {
            put_u32(&mut page, offset, word);
        }
        page[NAME_OFFSET..NAME_OFFSET + name.len()].copy_from_slice(name);
        seal(&mut page);
        page
    }

    /// Checks a header page of a file without other proof.
    pub(super) fn from_page(page: &Page) -> Result<(Self, SegmentCodec), HeaderFault> {
        if page[0..8] != MAGIC {
            return Err(format!("expected the magic {MAGIC:x?}, found {:x?}", &page[0..8]).into());
        }
        check_seal(page)?;
        if u32_at(page, 8) > SEGMENT_FORMAT_VERSION {
            return Err(HeaderFault::Newer(u32_at(page, 8)));
        }
        let part = u32_at(page, 48);
        let part = u16::try_from(part).map_err(|_| format!("partition {part} is out of range"))?;
        let tensor = tensor_of(page)?;
        let delta_of = delta_of(page)?;
        let codec = codec_of(page, tensor.row_bytes(), delta_of)?;
        let identity = Self {
            graph: uuid_at(page, 16),
            segment: uuid_at(page, 32),
            part: PartId(part),
            version: u32_at(page, 52),
            tensor,
            n_rows: u32_at(page, 64),
            delta_of,
        };
        Ok((identity, codec))
    }
}

/// Returns the oldest format that knows codec and kind, so that older releases read what they can.
fn format_version(codec: SegmentCodec, delta_of: Option<u32>) -> u32 {
    match (codec, delta_of) {
        (_, Some(_)) => 3,
        (SegmentCodec::Raw, None) => 1,
        (SegmentCodec::Zstd { .. }, None) => 2,
    }
}

/// Returns the rows of the partition, where the page is a delta's: at least as many as the delta
/// has.
fn delta_of(page: &Page) -> Result<Option<u32>, String> {
    let (kind, of, n_rows) =
        (u32_at(page, KIND_OFFSET), u32_at(page, DELTA_OF_OFFSET), u32_at(page, 64));
    match kind {
        0 if of == 0 => Ok(None),
        1 if of >= n_rows => Ok(Some(of)),
        _ => Err(format!("kind {kind} with {n_rows} of {of} rows")),
    }
}

fn codec_of(page: &Page, row_bytes: usize, delta_of: Option<u32>) -> Result<SegmentCodec, String> {
    let (version, group_rows) = (u32_at(page, 8), u32_at(page, GROUP_ROWS_OFFSET));
    let codec = match u32_at(page, 12) {
        0 => SegmentCodec::Raw,
        1 => SegmentCodec::Zstd { group_rows },
        code => return Err(format!("expected codec 0 (raw) or 1 (zstd), found {code}")),
    };
    if version != format_version(codec, delta_of) || group_rows != codec.group_rows() {
        let code = codec.code();
        return Err(format!("codec {code} with format {version} and groups of {group_rows} rows"));
    }
    codec.check(row_bytes).map_err(|error| error.to_string())?;
    Ok(codec)
}

fn tensor_of(page: &Page) -> Result<TensorSpec, String> {
    let code = u32_at(page, 56);
    let dtype = Dtype::from_code(code).ok_or_else(|| format!("unknown dtype code {code}"))?;
    let name_bytes = u32_at(page, 68) as usize;
    if name_bytes > MAX_TENSOR_NAME_BYTES {
        return Err(format!("tensor name of {name_bytes} bytes"));
    }
    let name = std::str::from_utf8(&page[NAME_OFFSET..NAME_OFFSET + name_bytes])
        .map_err(|_| "tensor name is not UTF-8".to_owned())?;
    TensorSpec::new(name, dtype, u32_at(page, 60)).map_err(|error| error.to_string())
}

fn describe(tensor: &TensorSpec) -> String {
    format!("`{}` ({} x {})", tensor.name, tensor.dtype, tensor.width)
}

/// Writes the CRC-32 of a page's other bytes to its end.
pub(super) fn seal(page: &mut Page) {
    let crc = crc32fast::hash(&page[..CRC_OFFSET]);
    put_u32(page, CRC_OFFSET, crc);
}

/// Checks the CRC-32 at a page's end.
pub(super) fn check_seal(page: &Page) -> Result<(), String> {
    let (expected, found) = (u32_at(page, CRC_OFFSET), crc32fast::hash(&page[..CRC_OFFSET]));
    if expected == found {
        return Ok(());
    }
    Err(format!("checksum expected {expected:#010x}, found {found:#010x}"))
}

pub(super) fn put_u32(page: &mut Page, offset: usize, value: u32) {
    page[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
}

pub(super) fn u32_at(page: &Page, offset: usize) -> u32 {
    u32::from_le_bytes([page[offset], page[offset + 1], page[offset + 2], page[offset + 3]])
}

fn uuid_at(page: &Page, offset: usize) -> Uuid {
    let mut bytes = [0u8; 16];
    bytes.copy_from_slice(&page[offset..offset + 16]);
    Uuid::from_bytes(bytes)
}
