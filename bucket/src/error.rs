//! Errors between a folder and a bucket.

use std::path::PathBuf;

use lodestore_graph::PartId;
use lodestore_store::StoreError;
use thiserror::Error;
use uuid::Uuid;

/// Why a bucket could not be read, written or trusted.
#[derive(Debug, Error)]
pub enum BucketError {
    /// The URL cannot be used.
    #[error("{url}: {reason}")]
    Url {
        /// The URL without credentials.
        url: String,
        /// The expected form.
        reason: String,
    },
    /// The object store refused, failed, or did not answer.
    #[error("{url}/{key}: cannot {action}: {reason}")]
    Store {
        /// The bucket.
        url: String,
        /// The object.
        key: String,
        /// The operation, for example `read`.
        action: &'static str,
        /// The store's reason, without queries of URLs.
        reason: String,
    },
    /// There is no graph below the URL.
    #[error("{url}: no graph is there (expected {url}/lodestore-graph); `lode push` creates one")]
    NoGraph {
        /// The bucket.
        url: String,
    },
    /// The graph of the bucket is another than that of the folder.
    #[error(
        "{url}: graph {found} is there, and {} is graph {expected}; use the URL of this graph, or \
         an empty one", dir.display()
    )]
    OtherGraph {
        /// The bucket.
        url: String,
        /// Folder of the graph.
        dir: PathBuf,
        /// Graph of the folder.
        expected: Uuid,
        /// Graph of the bucket.
        found: Uuid,
    },
    /// An object is not the one that was written there.
    #[error("{url}/{key}: damaged: {reason}; push the graph again from a folder that has it whole")]
    Damaged {
        /// The bucket.
        url: String,
        /// The object.
        key: String,
        /// The object that was expected, and the one that was found.
        reason: String,
    },
    /// A pin of this name keeps another version.
    #[error(
        "{url}: pin {name:?} keeps version {pinned}, not {wanted}; remove it by --unpin {name}, or \
         take another name"
    )]
    Pinned {
        /// The bucket.
        url: String,
        /// The pin.
        name: String,
        /// The version that it keeps.
        pinned: u32,
        /// The version that it was to keep.
        wanted: u32,
    },
    /// An object of a format that only a later release reads.
    #[error("{url}/{key}: format {found}, this release reads up to {known}; use a newer `lode`")]
    Newer {
        /// The bucket.
        url: String,
        /// The object.
        key: String,
        /// Format of the object.
        found: u32,
        /// Newest format of this release.
        known: u32,
    },
    /// Another writer has published, and its history is not that of this folder.
    #[error(
        "{url}: fenced: partition {part} has publication {sequence} of version {version}, which is \
         not in the history of this folder; another writer publishes here. Stop one of them, and \
         pull what is published into a new folder"
    )]
    Fenced {
        /// The bucket.
        url: String,
        /// The partition.
        part: PartId,
        /// The publication.
        sequence: u64,
        /// Its version.
        version: u32,
    },
    /// Another writer has taken the partition over.
    #[error(
        "{url}: fenced: another writer has taken partition {part} over, by publication {sequence} \
         (epoch {epoch}). Stop one of them: `lode serve --take-over` takes it back if nothing was \
         committed here meanwhile; else pull what is published into a new folder"
    )]
    TakenOver {
        /// The bucket.
        url: String,
        /// The partition.
        part: PartId,
        /// The newest publication.
        sequence: u64,
        /// Its epoch.
        epoch: u32,
    },
    /// Others publish a partition faster than it can be taken over.
    #[error(
        "{url}: other writers publish partition {part} without pause; stop them, and run it again"
    )]
    Contended {
        /// The bucket.
        url: String,
        /// The partition.
        part: PartId,
    },
    /// The folder has forgotten the commit by which the published version was made.
    #[error(
        "{url}: partition {part} is published at version {published}. More than 1,024 commits later, at \
         version {here}, this folder no longer knows by which commit that was made. If no other \
         folder has published it, `lode serve --take-over` continues"
    )]
    UnknownHistory {
        /// The bucket.
        url: String,
        /// The partition.
        part: PartId,
        /// Version of the newest publication.
        published: u32,
        /// Version of the folder.
        here: u32,
    },
    /// Partitions are published with different tensors.
    #[error(
        "{url}: partition {part} has other tensors at version {version} than the partitions before \
         it: tensors were added or dropped, and not all partitions pushed since; push them"
    )]
    OtherTensors {
        /// The bucket.
        url: String,
        /// The partition.
        part: PartId,
        /// The version.
        version: u32,
    },
    /// The file that says which epochs a folder owns.
    #[error("{}: {reason}; without this file any later writer could not fence this folder", path.display())]
    Epochs {
        /// The file.
        path: PathBuf,
        /// The expected form, or the failure.
        reason: String,
    },
    /// The bucket is ahead of the folder.
    #[error(
        "{url}: partition {part} is published at version {published}, and version {here} is here; \
         `lode pull` brings this folder forward"
    )]
    Behind {
        /// The bucket.
        url: String,
        /// The partition.
        part: PartId,
        /// Version of the newest publication.
        published: u32,
        /// Version of the folder.
        here: u32,
    },
    /// No version is there that every partition has.
    #[error(
        "{url}: no version{} is complete: partition {part} has not published it, or garbage \
         collection has removed it", wanted.map_or(String::new(), |it| format!(" {it}"))
    )]
    NoVersion {
        /// The bucket.
        url: String,
        /// The version that was asked for.
        wanted: Option<u32>,
        /// The first partition without it.
        part: PartId,
    },
    /// The graph has no such partition.
    #[error("{url}: there is no partition {part}; the graph has {n_parts}")]
    NoPart {
        /// The bucket.
        url: String,
        /// The partition.
        part: PartId,
        /// Number of partitions.
        n_parts: u16,
    },
    /// Objects that are not published may have been collected meanwhile.
    #[error(
        "{url}: uploading took {hours} h, and garbage collection may have removed what came first; \
         run it again: it continues"
    )]
    TooSlow {
        /// The bucket.
        url: String,
        /// Hours since the start.
        hours: u64,
    },
    /// Modification times of the bucket are in its future.
    #[error(
        "{url}/{key}: written {ahead_s} s after now by the clock of the bucket, which was set back; \
         nothing is removed until it has caught up"
    )]
    Clock {
        /// The bucket.
        url: String,
        /// The object.
        key: String,
        /// Seconds in the future.
        ahead_s: u64,
    },
    /// The files of a version are more than a folder may take.
    #[error(
        "{url}: version {version} of partition {part} brings the folder to {needed} bytes, of \
         {limit} at most; raise --disk, or follow fewer partitions"
    )]
    NoRoom {
        /// The bucket.
        url: String,
        /// The partition.
        part: PartId,
        /// The version.
        version: u32,
        /// Bytes with it.
        needed: u64,
        /// Most bytes.
        limit: u64,
    },
    /// A partition that is brought by a move cannot be brought from a bucket too.
    #[error(
        "{}: partition {part} is coming by `lode transfer`; finish that first", dir.display()
    )]
    Arriving {
        /// Folder of the graph.
        dir: PathBuf,
        /// The partition.
        part: PartId,
    },
    /// A folder that is pulled into has rows that were not committed.
    #[error(
        "{}: partition {part} has rows that are not committed; commit them, or pull into another \
         folder", dir.display()
    )]
    Pending {
        /// Folder of the graph.
        dir: PathBuf,
        /// The partition.
        part: PartId,
    },
    /// The folder of the graph.
    #[error(transparent)]
    Folder(#[from] StoreError),
    /// The runtime could not be started, or a thread of it failed.
    #[error("cannot run in the background: {0}")]
    Runtime(String),
}

impl BucketError {
    /// Returns whether another writer has the partition now, so that nothing more can be published
    /// from this folder.
    #[must_use]
    pub fn fences(&self) -> bool {
        matches!(self, Self::Fenced { .. } | Self::TakenOver { .. })
    }
}
