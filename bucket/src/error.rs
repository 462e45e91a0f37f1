//! Errors between a folder and a bucket.

use std::path::Path;

use lodestore_graph::PartId;
use lodestore_store::StoreError;
use thiserror::Error;

/// Why a bucket could not be read, written or trusted.
#[derive(Debug, Error)]
pub enum BucketError {
    /// It cannot be done as things are, or the object store refused.
    #[error("{place}: {reason}")]
    Refused {
        /// The bucket, an object, a folder or a file.
        place: String,
        /// The reason, with what helps.
        reason: String,
    },
    /// The object store failed, or did not answer. It may do so later.
    #[error("{place}: {reason}")]
    Unreachable {
        /// The object.
        place: String,
        /// The failure.
        reason: String,
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
    /// Another writer has the partition now: it has published another history than that of this
    /// folder, or taken the partition over.
    #[error("{url}: fenced: {reason}")]
    Fenced {
        /// The bucket.
        url: String,
        /// The publication, and what to do.
        reason: String,
    },
    /// The folder has forgotten the commit by which the published version was made.
    #[error("{url}: {reason}")]
    UnknownHistory {
        /// The bucket.
        url: String,
        /// Both versions, and what to do.
        reason: String,
    },
    /// The bucket is ahead of the folder.
    #[error("{url}: {reason}")]
    Behind {
        /// The bucket.
        url: String,
        /// Both versions, and what to do.
        reason: String,
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
    /// The files of a version are more than a folder may take.
    #[error("{url}: {reason}")]
    NoRoom {
        /// The bucket.
        url: String,
        /// The version, and its bytes.
        reason: String,
    },
    /// The folder of the graph.
    #[error(transparent)]
    Folder(#[from] StoreError),
    /// The runtime could not be started, or a thread of it failed.
    #[error("cannot run in the background: {0}")]
    Runtime(String),
}

impl BucketError {
    /// Returns the error of something that cannot be done at a path.
    pub(crate) fn refused_at(path: &Path, reason: impl Into<String>) -> Self {
        Self::Refused { place: path.display().to_string(), reason: reason.into() }
    }

    /// Returns whether another writer has the partition now, so that nothing more can be published
    /// from this folder.
    #[must_use]
    pub fn fences(&self) -> bool {
        matches!(self, Self::Fenced { .. })
    }
}
