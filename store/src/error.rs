//! Errors between a stored graph and its requested rows.

use std::io;
use std::path::{Path, PathBuf};

use lodestore_graph::{NodeId, PartId};
use thiserror::Error;

use crate::dtype::Dtype;
use crate::error_origin::ErrorOrigin;
use crate::limits::{MAX_PUT_BYTES, MAX_VERSIONS_AHEAD};
use crate::meta::MetaError;
use crate::plan::PlanError;
use crate::row::RowIdx;

/// Why stored rows could not be opened, read or trusted.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", file.display())]
    Io {
        /// File concerned.
        file: PathBuf,
        /// The operation, for example `read`.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The device failed, or the file ends too early.
    #[error("{}: cannot read at byte {offset_bytes}: {source}", file.display())]
    Read {
        /// File concerned.
        file: PathBuf,
        /// First byte that could not be read.
        offset_bytes: u64,
        /// The system's reason, or that the file was cut.
        source: io::Error,
    },
    /// `graph.toml` does not describe a graph.
    #[error("{}: {source}", file.display())]
    Meta {
        /// The `graph.toml`.
        file: PathBuf,
        /// The fault of it.
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
        /// Where the section starts.
        offset: u64,
        /// The expected and the found value.
        reason: String,
    },
    /// The bytes of a page are not those that were written there.
    #[error(
        "{}: damaged page {page} (byte offset {offset}): checksum expected {expected:#010x}, \
         found {found:#010x}; run `lode verify`, then restore the file from a copy",
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
    /// A row group cannot be unpacked although its pages are as they were written.
    #[error(
        "{}: row group {group} cannot be unpacked: {reason}; \
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
    /// A sound segment in the place of another.
    #[error(
        "{}: this segment belongs elsewhere: expected {field} {expected}, found {found}; \
         files were swapped or copied between graphs", file.display()
    )]
    Misplaced {
        /// Segment file.
        file: PathBuf,
        /// The property that differs, for example `partition`.
        field: &'static str,
        /// Value that the graph's catalog promises.
        expected: String,
        /// Value in the file.
        found: String,
    },
    /// A file of a later release.
    #[error(
        "{}: format version {found}, this release reads up to {supported}; use a newer `lode`",
        file.display()
    )]
    NewerFormat {
        /// File concerned.
        file: PathBuf,
        /// Version in the file.
        found: u32,
        /// Newest version that this release reads.
        supported: u32,
    },
    /// The catalog of a partition cannot be used.
    #[error("{}: catalog: {reason}", dir.display())]
    Catalog {
        /// Folder of the catalog.
        dir: PathBuf,
        /// RocksDB's or our own reason.
        reason: String,
        /// Whether it says something about the catalog.
        origin: ErrorOrigin,
    },
    /// A pending row is not as it was put.
    #[error(
        "{}: pending row {row} of `{tensor}` for version {version}: {reason}; \
         run `lode verify`, then put the row again", dir.display()
    )]
    DamagedPending {
        /// Folder of the catalog.
        dir: PathBuf,
        /// Tensor that the row belongs to.
        tensor: String,
        /// Version that it was put for.
        version: u32,
        /// The row in its partition.
        row: RowIdx,
        /// The expected and the found value.
        reason: String,
    },
    /// Committed rows as older releases stored them.
    #[error(
        "{}: rows of `{tensor}` at version {version} are stored as an older release did; \
         run `lode compact` on the graph, which brings it forward", dir.display()
    )]
    OldRows {
        /// Folder of the partition.
        dir: PathBuf,
        /// Tensor that the rows belong to.
        tensor: String,
        /// Version that they were committed for.
        version: u32,
    },
    /// Another process writes.
    #[error(
        "{}: another process has this graph open for writing; \
         wait for it, stop it, or write through it", dir.display()
    )]
    Locked {
        /// Folder of the partition or of its catalog that is taken.
        dir: PathBuf,
    },
    /// The file system lacks what a graph that is written needs.
    #[error(
        "{}: {reason}; a graph cannot be written there: keep it on a local disk, or mount the file \
         system with locks and links", dir.display()
    )]
    Unsuited {
        /// Folder of the graph or partition.
        dir: PathBuf,
        /// What the file system lacks.
        reason: String,
    },
    /// A file that a writer changes in place has more than one name.
    #[error(
        "{}: {n_links} hard links lead to this file, which is written in place: a write here would \
         damage the other copy of the graph; replace the folder of the catalog by a copy without \
         links (`cp -r`), then open the graph again", file.display()
    )]
    HardLinked {
        /// The file, in the folder of a catalog.
        file: PathBuf,
        /// Number of its names.
        n_links: u64,
    },
    /// A file with rows of a version that the catalog does not have.
    #[error(
        "{}: has rows of version {version} that are not pending, and the catalog is of version \
         {committed}: was it restored from an older copy, or has its log lost its end? Nothing is \
         written before that is settled: repair the graph, which takes the file in, or move the \
         file to a folder `quarantine` beside it, which gives these rows up", file.display()
    )]
    LaterFile {
        /// The file.
        file: PathBuf,
        /// Newest version that it has rows of.
        version: u32,
        /// Version of the catalog.
        committed: u32,
    },
    /// A change of a graph that was opened for reading.
    #[error("{}: opened for reading; open it for writing to put, commit or compact", dir.display())]
    ReadOnly {
        /// Folder of the graph.
        dir: PathBuf,
    },
    /// A graph that a forked process may not use. A child can write to none if its parent has
    /// opened some for writing or reading. It can open none if one was open for writing at the
    /// fork.
    #[error(
        "{}: this process was forked from one that uses graphs: it can write to none, and can open \
         none if one was open for writing at the fork; write in the parent, or start this process \
         by spawn",
        dir.display()
    )]
    Forked {
        /// Folder of the graph.
        dir: PathBuf,
    },
    /// A write has failed before, and what it left on disk is not known; or writes were stopped.
    #[error("{}: {reason}, so that nothing more is written there; {advice}", dir.display())]
    WritesStopped {
        /// Folder of the catalog that it was for.
        dir: PathBuf,
        /// The failure, or why they were stopped.
        reason: String,
        /// The remedy.
        advice: &'static str,
    },
    /// A version that was compacted away, or that is not committed yet.
    #[error("version {asked} cannot be read; the oldest is {oldest}, the newest {newest}")]
    NoVersion {
        /// Version asked for.
        asked: u32,
        /// Oldest version that can be read: that of the newest segment.
        oldest: u32,
        /// Newest committed version.
        newest: u32,
    },
    /// Partitions whose versions no crash explains.
    #[error(
        "{}: its partitions are not of one history: {versions}. Fetch those that were restored or \
         fetched on their own again, or accept their rows as they are by aligning them",
        dir.display()
    )]
    HistoriesDiffer {
        /// Folder of the graph.
        dir: PathBuf,
        /// The partitions with their versions.
        versions: String,
    },
    /// More partitions than this process can have open.
    #[error(
        "{}: {n_parts} partitions of {n_tensors} tensors are at least {needed} open files, and this \
         process may open {limit}; raise its limit (`ulimit -n`, or RLIMIT_NOFILE by the process \
         itself), or open fewer partitions",
        dir.display()
    )]
    FileLimit {
        /// Folder of the graph.
        dir: PathBuf,
        /// Partitions to be opened.
        n_parts: usize,
        /// Tensors of each.
        n_tensors: usize,
        /// Files that they are at least.
        needed: u64,
        /// Files that the process may open.
        limit: u64,
    },
    /// A version that is too far ahead of the committed one.
    #[error(
        "version {asked} is more than {MAX_VERSIONS_AHEAD} after the committed version \
         {committed}; commit the one after it"
    )]
    VersionAhead {
        /// The version.
        asked: u32,
        /// The committed version.
        committed: u32,
    },
    /// The caller did not want it to continue.
    #[error("stopped before its end; what was written is removed")]
    Stopped,
    /// A tensor that cannot come to the graph, or go from it, now.
    #[error("tensor `{tensor}` neither comes nor goes: {reason}")]
    TensorRefused {
        /// Name of the tensor.
        tensor: String,
        /// Why.
        reason: String,
    },
    /// A tensor that only an import writes.
    #[error("`{tensor}` says which node is which and cannot be put; import the graph again")]
    Fixed {
        /// Name of the tensor.
        tensor: String,
    },
    /// Rows of another length than their ids and the tensor say.
    #[error("the rows put must have {expected_bytes} bytes, found {found_bytes}")]
    PutLength {
        /// Ids times bytes of a row.
        expected_bytes: u64,
        /// Bytes given.
        found_bytes: u64,
    },
    /// More than one put may carry.
    #[error("{found_bytes} bytes in one put; the limit is {MAX_PUT_BYTES}, put it in pieces")]
    PutTooLarge {
        /// Bytes given.
        found_bytes: u64,
    },
    /// Nothing is left from which the file could be rebuilt.
    #[error("{}: cannot be rebuilt: {reason}; restore it from a copy", file.display())]
    Unrepairable {
        /// File concerned.
        file: PathBuf,
        /// The operation.
        reason: String,
    },
    /// The graph has no such tensor.
    #[error("no tensor `{tensor}` in this graph; it has: {known}")]
    NoTensor {
        /// Name asked for.
        tensor: String,
        /// Names that exist, comma separated.
        known: String,
    },
    /// The partition does not exist, or was not opened here.
    #[error("partition {part} is not here or not open; these are: {opened}")]
    NoPart {
        /// Partition asked for.
        part: PartId,
        /// Partitions that could have been asked for.
        opened: String,
    },
    /// The partition is held up for a moment, by its hand-over or by another copy of it.
    #[error("partition {part}: {reason}; try again")]
    Busy {
        /// The partition.
        part: PartId,
        /// The obstacle.
        reason: &'static str,
    },
    /// A folder follows another server's, and is written by that alone.
    #[error(
        "{} follows {writer}, which takes its puts and commits; write there, or, when that is gone for \
         good, stop the server of this folder and remove its file `{}`",
        dir.display(), crate::meta::FOLLOWS_FILE
    )]
    Follows {
        /// The graph's folder.
        dir: PathBuf,
        /// Addresses of the writer.
        writer: String,
    },
    /// The state of the writer cannot follow that of the follower.
    #[error("partition {part} is not followed: {reason}")]
    FollowRefused {
        /// The partition.
        part: PartId,
        /// Why, and what to do.
        reason: String,
    },
    /// A partition cannot be copied or moved so.
    #[error("partition {part} is not moved: {reason}")]
    MoveRefused {
        /// The partition.
        part: PartId,
        /// Why.
        reason: String,
    },
    /// A node id past the end of the graph.
    #[error("node {node} at position {position} of the ids; the graph has {n_nodes} nodes")]
    NoNode {
        /// Id asked for.
        node: NodeId,
        /// Its position in the list.
        position: usize,
        /// Nodes of the graph.
        n_nodes: u32,
    },
    /// Elements of another type than the tensor's are asked for.
    #[error("elements of `{tensor}` are {expected}, asked for {found}")]
    ElementType {
        /// The tensor.
        tensor: String,
        /// Its type.
        expected: Dtype,
        /// The type asked for.
        found: Dtype,
    },
    /// The output has another length than the rows asked for.
    #[error("the output must have {expected_bytes} bytes, found {found_bytes}")]
    OutputLength {
        /// Rows times bytes of a row.
        expected_bytes: u64,
        /// Bytes given.
        found_bytes: u64,
    },
    /// The rows cannot be planned on this segment.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl StoreError {
    /// Returns the file or folder that the error is about, where there is one.
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

    /// Returns whether the error says something about the files, or only about the system.
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

    /// Returns whether a file is gone that the catalog named a moment ago. A compaction may have
    /// replaced it, which another look at the catalog shows.
    pub(crate) fn is_gone(&self) -> bool {
        let gone = [io::ErrorKind::NotFound, io::ErrorKind::WouldBlock];
        matches!(self, Self::Io { source, .. } if gone.contains(&source.kind()))
    }

    /// Turns an [`io::Error`] at `file` into a [`StoreError::Io`].
    pub(crate) fn io(file: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let file = file.to_owned();
        move |source| Self::Io { file, action, source }
    }
}
