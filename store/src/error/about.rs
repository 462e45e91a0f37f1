//! Subject of an error: a file, the system, or damage.

use std::io;
use std::path::Path;

use super::StoreError;
use crate::error_origin::ErrorOrigin;

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
            | Self::ReadOnly { dir: file }
            | Self::Forked { dir: file }
            | Self::Follows { dir: file, .. }
            | Self::WritesStopped { dir: file, .. } => Some(file),
            Self::NoTensor { .. }
            | Self::NoPart { .. }
            | Self::Busy { .. }
            | Self::FollowRefused { .. }
            | Self::MoveRefused { .. }
            | Self::NoNode { .. }
            | Self::OutputLength { .. }
            | Self::NoVersion { .. }
            | Self::VersionAhead { .. }
            | Self::Fixed { .. }
            | Self::TensorRefused { .. }
            | Self::Stopped
            | Self::PutLength { .. }
            | Self::PutTooLarge { .. }
            | Self::Plan(_) => None,
        }
    }

    /// Returns whether the error says something about the files, or only about the system.
    #[must_use]
    pub fn origin(&self) -> ErrorOrigin {
        match self {
            Self::Io { source, .. } | Self::Read { source, .. } => ErrorOrigin::of(source),
            Self::Catalog { origin, .. } => *origin,
            Self::Locked { .. }
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
