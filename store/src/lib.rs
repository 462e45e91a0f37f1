//! Rows on disk: graphs as folders of self-contained partitions, segments with page checksums,
//! read plans, readers, import, verification.
//!
//! This crate knows bytes, files and node ids. It does not know the network, caches or their
//! policies, sampling, or what the rows mean to a model.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

mod catalog;
mod checksum;
mod codec;
mod compact;
mod convert;
mod dtype;
mod embedded;
mod error;
mod error_origin;
mod file_system;
#[cfg(test)]
mod fixture;
mod follow;
mod graph;
mod growing;
mod import;
mod inspect;
mod layers;
mod layout;
pub mod limits;
mod map;
mod meta;
mod nan;
mod new_file;
mod plan;
mod probe;
mod quarantine;
mod reader;
mod repair;
mod ring;
mod row;
mod segment;
mod source;
pub mod synthetic;
mod tensor;
mod transfer;
mod update;
mod verify;

pub use catalog::{CATALOG_FORMAT_VERSION, Catalog, SegmentRecord};
pub use codec::{CodecChoice, SegmentCodec, UnknownCodec};
pub use compact::Compacted;
pub use dtype::{Dtype, UnknownDtype};
pub use embedded::EmbeddedStore;
pub use error::StoreError;
pub use error_origin::ErrorOrigin;
pub use file_system::crash;
pub use file_system::{
    Access, Change, Disk, EachPair, Entry, FileReader, FileSystem, FileWriter, Guard, KeyValues,
};
pub use follow::{Coverage, FetchedFile, FollowedFolder, Manifest, Succession};
pub use graph::{Graph, HOT_ROWS_DIR, META_FILE};
pub use import::{EXTERNAL_ID_TENSOR, ImportError, Importer, TensorOptions};
pub use inspect::{
    CodecSummary, DiskSummary, GraphSummary, LayerSummary, PartSummary, ReaderSummary,
    TensorSummary, inspect,
};
pub use layout::{DATA_OFFSET, GroupIndexError, LayoutError, RowGroups, SegmentLayout};
pub use limits::PAGE_BYTES;
pub use meta::{GRAPH_FORMAT_VERSION, GraphMeta, MetaError};
pub use nan::{NanPolicy, first_nan};
pub use plan::{DiskProfile, Extent, PlanError, PlannedRow, ReadPlan};
pub use probe::{
    DEVICE_FILE, ProbeCell, ProbeOptions, ProbeReport, ProfileError, StoredProfile, probe,
};
pub use reader::{
    DirectReader, Fault, FaultyReader, MappedReader, MemoryReader, OpenOptions, PreadReader,
    ReaderKind, RowReader, UnknownReader, available_memory_bytes, choose as choose_reader,
    open as open_reader,
};
pub use repair::{Done, Lost, Moved, RepairReport, repair, repair_on, repair_parts};
pub use row::RowIdx;
pub use segment::{SEGMENT_FORMAT_VERSION, Segment, SegmentDigest, SegmentIdentity, SegmentWriter};
pub use source::{
    ConvertedSource, NpySource, Npz, NpzCsrSource, NpzDenseSource, NpzMember, RawSource,
    SafetensorsSource, SourceError, TensorSource, check_source, open_source,
};
pub use tensor::{TensorSpec, TensorSpecError};
pub use transfer::{Arrival, ArrivingCatalog, ArrivingFile};
pub use update::{
    Folding, GraphHandle, GraphVersion, Layer, LayerRows, NewTensor, OpenMode, PartCopy, PartFiles,
    SEAL_MAX, StoppedWrites, TensorHandle, TensorVersion, TensorView, View, drop_tensor,
};
pub use verify::{
    Damage, MAX_DAMAGES_PER_FILE, VerifyReport, verify, verify_lists, verify_on, verify_parts,
    verify_rows,
};
