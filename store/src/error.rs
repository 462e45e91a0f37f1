//! Errors of opening, reading and changing a stored graph.

use std::io;
use std::path::{Path, PathBuf};

use lodestore_graph::{NodeId, PartId};
use thiserror::Error;

use crate::dtype::{Dtype, Element};
use crate::error_origin::ErrorOrigin;
use crate::limits::{MAX_PUT_BYTES, MAX_VERSIONS_AHEAD};
use crate::meta::MetaError;
use crate::plan::PlanError;
use crate::row::RowIdx;
use crate::tensor::TensorSpec;

/// An error of the store.
#[derive(Debug, Error)]
pub enum StoreError {
    /// An operation of the operating system failed.
    #[error("{}: cannot {action}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The operation, for example `read`.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The device failed, or the file ends too early.
    #[error("{}: cannot read at byte {offset_bytes}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Offset of the first byte that could not be read.
        offset_bytes: u64,
        /// The system's error, or that the file was cut.
        source: io::Error,
    },
    /// `graph.toml` does not describe a graph.
    #[error("{}: {source}", file.display())]
    Meta {
        /// The `graph.toml`.
        file: PathBuf,
        /// What is wrong with the file.
        source: MetaError,
    },
    /// The header, the checksum table or the footer of a segment is damaged.
    #[error(
        "{}: damaged {section} (byte offset {offset}): {reason}; \
         restore the file from a copy or import again", file.display()
    )]
    DamagedSegment {
        /// Segment file.
        file: PathBuf,
        /// `header`, `page table`, `group index` or `footer`.
        section: &'static str,
        /// Offset of the section.
        offset: u64,
        /// The expected and the found value.
        reason: String,
    },
    /// The bytes of a page do not match their checksum.
    #[error(
        "{}: damaged page {page} (byte offset {offset}): checksum expected {expected:#010x}, \
         found {found:#010x}; verify the graph, then restore the file from a copy",
        file.display(), offset = crate::layout::DATA_OFFSET + page * crate::limits::PAGE_BYTES
    )]
    DamagedPage {
        /// Segment file.
        file: PathBuf,
        /// Page, counted from the first row.
        page: u64,
        /// Checksum in the segment's table.
        expected: u32,
        /// Checksum of the bytes read.
        found: u32,
    },
    /// A row group cannot be decompressed although its pages are intact.
    #[error(
        "{}: row group {group} cannot be decompressed: {reason}; \
         restore the file from a copy or import again", file.display()
    )]
    DamagedGroup {
        /// Segment file.
        file: PathBuf,
        /// Row group, counted from the first row.
        group: u32,
        /// The expected and the found value.
        reason: String,
    },
    /// The file is longer or shorter than its header says.
    #[error(
        "{}: expected {expected} bytes, found {found}; the file was cut or extended, \
         restore it from a copy", file.display()
    )]
    FileLength {
        /// Segment file.
        file: PathBuf,
        /// Length that follows from the header.
        expected: u64,
        /// Length on disk.
        found: u64,
    },
    /// An intact segment at the place of another.
    #[error(
        "{}: this segment belongs elsewhere: expected {field} {expected}, found {found}; \
         files were swapped or copied between graphs", file.display()
    )]
    Misplaced {
        /// Segment file.
        file: PathBuf,
        /// The property that differs, for example `partition`.
        field: &'static str,
        /// Value in the graph's catalog.
        expected: String,
        /// Value in the file.
        found: String,
    },
    /// A file of a newer release.
    #[error(
        "{}: format version {found}, this release reads up to {supported}; use a newer release",
        file.display()
    )]
    NewerFormat {
        /// The file.
        file: PathBuf,
        /// Version in the file.
        found: u32,
        /// Newest version that this release reads.
        supported: u32,
    },
    /// An unusable catalog of a partition.
    #[error("{}: catalog: {reason}", dir.display())]
    Catalog {
        /// Folder of the catalog.
        dir: PathBuf,
        /// The reason.
        reason: String,
        /// Whether the catalog or the system is at fault.
        origin: ErrorOrigin,
    },
    /// A pending row that is not as it was put.
    #[error(
        "{}: pending row {row} of `{tensor}` for version {version}: {reason}; \
         verify the graph, then put the row again", dir.display()
    )]
    DamagedPending {
        /// Folder of the catalog.
        dir: PathBuf,
        /// Tensor that the row belongs to.
        tensor: String,
        /// Version that the row is pending for.
        version: u32,
        /// Row number in the partition.
        row: RowIdx,
        /// The expected and the found value.
        reason: String,
    },
    /// Committed rows in the form of an older release.
    #[error(
        "{}: rows of `{tensor}` at version {version} are stored in the form of an older release; \
         compact the graph to convert them", dir.display()
    )]
    OldRows {
        /// Folder of the partition.
        dir: PathBuf,
        /// Tensor that the rows belong to.
        tensor: String,
        /// Version of the rows.
        version: u32,
    },
    /// Another process has the graph open for writing.
    #[error(
        "{}: another process has this graph open for writing; \
         wait for it, stop it, or write through it", dir.display()
    )]
    Locked {
        /// The locked folder of the partition or its catalog.
        dir: PathBuf,
    },
    /// The file system lacks features that writing needs.
    #[error(
        "{}: {reason}; a graph cannot be written there: use a local disk, or mount the file system \
         with locks and links", dir.display()
    )]
    Unsuited {
        /// Folder of the graph or partition.
        dir: PathBuf,
        /// What the file system lacks.
        reason: String,
    },
    /// A file that is written in place has more than one name.
    #[error(
        "{}: this file has {n_links} hard links and is written in place: a write here would damage \
         the other copy of the graph; replace the folder of the catalog by a copy without links \
         (`cp -r`), then open the graph again", file.display()
    )]
    HardLinked {
        /// The file, in the folder of a catalog.
        file: PathBuf,
        /// Number of names of the file.
        n_links: u64,
    },
    /// A file with rows of a later version than the catalog's.
    #[error(
        "{}: has rows of version {version} that are not pending, but the catalog is at version \
         {committed}: was it restored from an older copy, or has its log lost its end? Nothing was \
         written. Repair the graph, which adds the file, or move the file to a folder `quarantine` \
         beside it, which drops these rows", file.display()
    )]
    LaterFile {
        /// The file.
        file: PathBuf,
        /// Newest version that it has rows of.
        version: u32,
        /// Version of the catalog.
        committed: u32,
    },
    /// A change of a graph that is open for reading.
    #[error("{}: opened for reading; open it for writing to put, commit or compact", dir.display())]
    ReadOnly {
        /// Folder of the graph.
        dir: PathBuf,
    },
    /// A graph in a forked process. The child cannot write to any graph if the parent has opened
    /// one for writing or reading. It cannot open any graph if the parent had one open for writing
    /// at the fork.
    #[error(
        "{}: this process was forked from one that uses graphs: it cannot write to any, and cannot \
         open any if one was open for writing at the fork; write in the parent, or start this \
         process by spawn",
        dir.display()
    )]
    Forked {
        /// Folder of the graph.
        dir: PathBuf,
    },
    /// Writes of a partition were stopped, or an earlier one failed with an unknown outcome.
    #[error("{}: {reason}, so further writes are rejected; {advice}", dir.display())]
    WritesStopped {
        /// Folder of the catalog.
        dir: PathBuf,
        /// The failed write, or why writes were stopped.
        reason: String,
        /// The remedy.
        advice: &'static str,
    },
    /// A version that was folded into a later one, or is not committed.
    #[error("version {asked} cannot be read; the oldest is {oldest}, the newest {newest}")]
    NoVersion {
        /// Requested version.
        asked: u32,
        /// Oldest readable version, that of the newest base segment.
        oldest: u32,
        /// Newest committed version.
        newest: u32,
    },
    /// Partitions whose versions no crash explains.
    #[error(
        "{}: its partitions have different histories: {versions}. Fetch those that were restored \
         or fetched on their own again, or accept their rows as they are by aligning them",
        dir.display()
    )]
    HistoriesDiffer {
        /// Folder of the graph.
        dir: PathBuf,
        /// The partitions with their versions.
        versions: String,
    },
    /// More partitions than this process can open.
    #[error(
        "{}: {n_parts} partitions of {n_tensors} tensors need at least {needed} open files, and \
         this process may open {limit}; raise the limit (`ulimit -n`, or RLIMIT_NOFILE by the \
         process itself), or open fewer partitions",
        dir.display()
    )]
    FileLimit {
        /// Folder of the graph.
        dir: PathBuf,
        /// Partitions to open.
        n_parts: usize,
        /// Tensors of each partition.
        n_tensors: usize,
        /// Minimum of open files.
        needed: u64,
        /// Files that the process may open.
        limit: u64,
    },
    /// A version too far ahead of the committed one.
    #[error(
        "version {asked} is more than {MAX_VERSIONS_AHEAD} after the committed version \
         {committed}; commit the one after it"
    )]
    VersionAhead {
        /// Requested version.
        asked: u32,
        /// The committed version.
        committed: u32,
    },
    /// The caller stopped the operation.
    #[error("stopped by the caller; partial output was removed")]
    Stopped,
    /// A tensor that cannot be added or dropped.
    #[error("cannot add or drop tensor `{tensor}`: {reason}")]
    TensorRefused {
        /// Name of the tensor.
        tensor: String,
        /// The reason.
        reason: String,
    },
    /// A tensor that only an import can write.
    #[error("`{tensor}` is read-only: it maps node ids; import the graph again")]
    Fixed {
        /// Name of the tensor.
        tensor: String,
    },
    /// Rows whose length does not match their ids and the tensor.
    #[error("the rows put must have {expected_bytes} bytes, found {found_bytes}")]
    PutLength {
        /// Number of ids times bytes of a row.
        expected_bytes: u64,
        /// Bytes given.
        found_bytes: u64,
    },
    /// More bytes than one put may have.
    #[error("{found_bytes} bytes in one put; the limit is {MAX_PUT_BYTES}, put it in pieces")]
    PutTooLarge {
        /// Bytes given.
        found_bytes: u64,
    },
    /// A file that cannot be rebuilt.
    #[error("{}: cannot be rebuilt: {reason}; restore it from a copy", file.display())]
    Unrepairable {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A tensor that the graph does not have.
    #[error("no tensor `{tensor}` in this graph; it has: {known}")]
    NoTensor {
        /// Requested name.
        tensor: String,
        /// Names of the graph's tensors, comma separated.
        known: String,
    },
    /// A partition that does not exist, or is not open.
    #[error("partition {part} is not here or not open; open are: {opened}")]
    NoPart {
        /// Requested partition.
        part: PartId,
        /// Open partitions.
        opened: String,
    },
    /// A partition that is busy for a moment, with a move or another copy.
    #[error("partition {part}: {reason}; try again")]
    Busy {
        /// The partition.
        part: PartId,
        /// The reason.
        reason: &'static str,
    },
    /// A folder that follows a writer, and that no other process may write.
    #[error(
        "{} follows {writer}, which accepts its puts and commits; write there, or, if the writer \
         is gone for good, stop the server of this folder and remove its file `{}`",
        dir.display(), crate::meta::FOLLOWS_FILE
    )]
    Follows {
        /// The graph's folder.
        dir: PathBuf,
        /// Addresses of the writer.
        writer: String,
    },
    /// A writer's version that a follower cannot switch to.
    #[error("cannot follow partition {part}: {reason}")]
    FollowRefused {
        /// The partition.
        part: PartId,
        /// The reason, and what to do.
        reason: String,
    },
    /// A partition that cannot be copied or moved.
    #[error("cannot move partition {part}: {reason}")]
    MoveRefused {
        /// The partition.
        part: PartId,
        /// The reason.
        reason: String,
    },
    /// A node id past the end of the graph.
    #[error("node {node} at position {position} of the ids; the graph has {n_nodes} nodes")]
    NoNode {
        /// Requested node id.
        node: NodeId,
        /// Position in the list of ids.
        position: usize,
        /// Number of nodes of the graph.
        n_nodes: u32,
    },
    /// A request for elements of another type than the tensor's.
    #[error("expected elements of type {expected} for `{tensor}`, found {found}")]
    ElementType {
        /// The tensor.
        tensor: String,
        /// Element type of the tensor.
        expected: Dtype,
        /// Requested type.
        found: Dtype,
    },
    /// An output whose length does not match the requested rows.
    #[error("the output must have {expected_bytes} bytes, found {found_bytes}")]
    OutputLength {
        /// Number of rows times bytes of a row.
        expected_bytes: u64,
        /// Bytes given.
        found_bytes: u64,
    },
    /// Rows that cannot be planned on this segment.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl StoreError {
    /// Fails with [`StoreError::ElementType`] unless the elements of a tensor are of type `T`.
    pub fn check_element<T: Element>(tensor: &TensorSpec) -> Result<(), Self> {
        if T::DTYPE == tensor.dtype {
            return Ok(());
        }
        let name = tensor.name.clone();
        Err(Self::ElementType { tensor: name, expected: tensor.dtype, found: T::DTYPE })
    }

    /// Returns the file or folder of the error, if any.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Io { file, .. }
            | Self::Read { file, .. }
            | Self::Meta { file, .. }
            | Self::DamagedSegment { file, .. }
            | Self::DamagedPage { file, .. }
            | Self::DamagedGroup { file, .. }
            | Self::FileLength { file, .. }
            | Self::Misplaced { file, .. }
            | Self::NewerFormat { file, .. }
            | Self::Unrepairable { file, .. }
            | Self::Catalog { dir: file, .. }
            | Self::DamagedPending { dir: file, .. }
            | Self::OldRows { dir: file, .. }
            | Self::Locked { dir: file }
            | Self::FileLimit { dir: file, .. }
            | Self::Unsuited { dir: file, .. }
            | Self::HardLinked { file, .. }
            | Self::LaterFile { file, .. }
            | Self::ReadOnly { dir: file }
            | Self::Forked { dir: file }
            | Self::Follows { dir: file, .. }
            | Self::WritesStopped { dir: file, .. } => Some(file),
            _ => None,
        }
    }

    /// Returns whether the files or the system are at fault.
    #[must_use]
    pub fn origin(&self) -> ErrorOrigin {
        match self {
            Self::Io { source, .. } | Self::Read { source, .. } => ErrorOrigin::of(source),
            Self::Catalog { origin, .. } => *origin,
            Self::Locked { .. }
            | Self::FileLimit { .. }
            | Self::Unsuited { .. }
            | Self::HardLinked { .. }
            | Self::LaterFile { .. }
            | Self::Forked { .. }
            | Self::Busy { .. }
            | Self::Follows { .. }
            | Self::FollowRefused { .. }
            | Self::Stopped => ErrorOrigin::System,
            _ => ErrorOrigin::Damage,
        }
    }

    /// Returns whether a file that the catalog named is gone. A compaction may have replaced it, so
    /// reading the catalog again helps.
    pub(crate) fn is_gone(&self) -> bool {
        let gone = [io::ErrorKind::NotFound, io::ErrorKind::WouldBlock];
        matches!(self, Self::Io { source, .. } if gone.contains(&source.kind()))
    }

    /// Converts an [`io::Error`] at `file` into a [`StoreError::Io`].
    pub(crate) fn io(file: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let file = file.to_owned();
        move |source| Self::Io { file, action, source }
    }
}
