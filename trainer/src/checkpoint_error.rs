//! Errors of checkpoints.

use std::{io, path::PathBuf};

use thiserror::Error;

use crate::step::Place;

/// Reason for a failed write or load of a checkpoint.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A call of the operating system failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// The operation.
        action: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// Another run writes to the folder.
    #[error("{} is in use by another run; name another folder or wait for it", path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// The folder has a checkpoint, and the run is not to resume.
    #[error(
        "{} is there already: resume to continue from it, or remove it to start again", path.display()
    )]
    Exists {
        /// The checkpoint.
        path: PathBuf,
    },
    /// The file is not a checkpoint of this run.
    #[error("{}: {fault}", path.display())]
    File {
        /// The checkpoint.
        path: PathBuf,
        /// The fault.
        fault: CheckpointFault,
    },
}

/// The fault of a checkpoint's bytes.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum CheckpointFault {
    /// The length differs from that in the header.
    #[error(
        "the file has {found_bytes} bytes, expected {expected_bytes}; remove it to start again"
    )]
    Length {
        /// Bytes of the file.
        found_bytes: u64,
        /// Least bytes by the header.
        expected_bytes: u64,
    },
    /// Another kind of file.
    #[error("no checkpoint: its first 8 bytes are {found:02x?}; name another folder")]
    Magic {
        /// First bytes.
        found: [u8; 8],
    },
    /// Written by another release.
    #[error("format version {found} is not known, {known} is; use the release that wrote it")]
    Version {
        /// Version found.
        found: u32,
        /// The version of this release.
        known: u32,
    },
    /// A number past its limit.
    #[error("{what} must be at most {most}, found {found}; remove it to start again")]
    TooLarge {
        /// Name of the number.
        what: &'static str,
        /// The limit.
        most: u64,
        /// Number found.
        found: u64,
    },
    /// Damaged bytes.
    #[error("damaged: its digest is {found}, expected {expected}; remove it to start again")]
    Digest {
        /// Digest that the file carries, in hex.
        expected: String,
        /// Digest of its bytes, in hex.
        found: String,
    },
    /// A checkpoint of another graph.
    #[error(
        "written for graph {found}, this is {expected}; train on that graph, or name another folder"
    )]
    Graph {
        /// Uuid of the graph that is trained on, in hex.
        expected: String,
        /// Uuid in the checkpoint, in hex.
        found: String,
    },
    /// A checkpoint of another run.
    #[error(
        "written by a run with {found}, this one has {expected}; resume with the same settings"
    )]
    Settings {
        /// This run's settings that differ.
        expected: String,
        /// Those of the checkpoint.
        found: String,
    },
    /// A checkpoint of a run with a setting of an earlier release.
    #[error(
        "written by a run with {setting}, which this release lacks; resume with the release that wrote \
         it, or name another folder"
    )]
    Removed {
        /// The setting.
        setting: &'static str,
    },
    /// A checkpoint of a run over rows of another version.
    #[error(
        "made with rows of {found}, this run reads {expected}; resume at that version, or allow the run \
         to mix versions"
    )]
    Rows {
        /// The versions that this run reads.
        expected: String,
        /// Those of the checkpoint.
        found: String,
    },
    /// The checkpoint is past the last epoch of the run.
    #[error(
        "the checkpoint is in epoch {} of a run of {epochs}; ask for more epochs",
        place.epoch.saturating_add(1)
    )]
    Over {
        /// Place of the checkpoint.
        place: Place,
        /// Epochs of this run.
        epochs: u32,
    },
    /// Parts that contradict each other.
    #[error("{what}, which contradicts the rest of the file; remove it to start again")]
    Contradiction {
        /// The part that contradicts the others.
        what: String,
    },
}
