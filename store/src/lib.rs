//! Rows on disk: graphs as folders of self-contained partitions, segments with page checksums,
//! read plans, readers, import, verification.
//!
//! This crate knows bytes, files and node ids. It does not know the network, caches or their
//! policies, sampling, or what the rows mean to a model.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

mod catalog;
mod checksum;
mod codec;
mod convert;
mod device;
mod dtype;
mod embedded;
mod error;
#[cfg(test)]
mod fixture;
mod graph;
mod import;
mod inspect;
mod layout;
pub mod limits;
mod map;
mod meta;
mod nan;
mod plan;
mod prefetch;
mod reader;
mod row;
mod segment;
mod source;
pub mod synthetic;
mod tensor;
mod verify;

pub use catalog::{CATALOG_FORMAT_VERSION, Catalog, SegmentRecord};
pub use codec::{CodecChoice, SegmentCodec, UnknownCodec};
pub use device::{Access, Change, Device, Disk, Entry, FileReader, FileWriter, KeyValues};
pub use dtype::{Dtype, UnknownDtype};
pub use embedded::EmbeddedStore;
pub use error::StoreError;
pub use graph::{Graph, META_FILE};
pub use import::{EXTERNAL_ID_TENSOR, ImportError, Importer, TensorOptions};
pub use inspect::{GraphSummary, PartSummary, TensorSummary, inspect};
pub use layout::{DATA_OFFSET, GroupIndexError, LayoutError, PAGE_BYTES, RowGroups, SegmentLayout};
pub use meta::{GRAPH_FORMAT_VERSION, GraphMeta, MetaError};
pub use nan::NanPolicy;
pub use plan::{DeviceProfile, Extent, PlanError, PlannedRow, ReadPlan};
pub use reader::{Fault, FaultyReader, MappedReader, MemoryReader, RowReader};
pub use row::RowIdx;
pub use segment::{SEGMENT_FORMAT_VERSION, Segment, SegmentDigest, SegmentIdentity, SegmentWriter};
pub use source::{
    ConvertedSource, NpySource, NpzCsrSource, SourceError, TensorSource, check_source, open_source,
};
pub use tensor::{TensorSpec, TensorSpecError};
pub use verify::{Damage, VerifyReport, verify};
