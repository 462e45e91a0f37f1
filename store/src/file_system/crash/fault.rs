//! Faults of a simulated file system, and the operations that they strike.

use std::io;

use rustix::io::Errno;

/// A request to a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A file is opened for reading.
    Open,
    /// A file is created.
    Create,
    /// A folder is created.
    CreateDir,
    /// The names in a folder are listed.
    List,
    /// Something is moved to a free name.
    Rename,
    /// A file is moved over another.
    Replace,
    /// A file is removed.
    RemoveFile,
    /// A folder and all below it are removed.
    RemoveDir,
    /// A file or a folder is made durable.
    Sync,
    /// The length of an open file is read.
    Length,
    /// Bytes of an open file are read.
    Read,
    /// Bytes are appended to a file.
    Append,
    /// A file is pinned, or asked whether it is.
    Pin,
    /// A key-value store is created.
    CreatePairs,
    /// A key-value store is opened.
    OpenPairs,
    /// Pairs are read.
    ReadPairs,
    /// A batch of changes is written.
    WritePairs,
    /// A key-value store is flushed.
    FlushPairs,
}

/// The fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The power goes: the operation may or may not take effect, and nothing works after it.
    PowerLoss,
    /// The system refuses with this number. A refused append may have written some bytes. A sync
    /// that failed for `EIO` or `ENOSPC` has lost what it was for, whatever later syncs say.
    Errno(Errno),
    /// A read returns fewer bytes than requested, and there are more.
    ShortRead,
}

/// A fault and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The fault.
    pub fault: Fault,
    /// Operations that the fault could befall and that are spared, counted from the arming.
    pub after: u64,
    /// Whether every later such operation suffers the same.
    pub sticky: bool,
}

/// A promise that a file system breaks, so that a test can be seen to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neglect {
    /// Syncs of files do nothing.
    FileSyncs,
    /// Syncs of folders do nothing.
    FolderSyncs,
    /// Writes of pairs return before they are durable.
    PairSyncs,
    /// Files are synced after the write of pairs that follows, not before it.
    Order,
}

impl Operation {
    /// Returns whether it may change what a loss of power leaves behind.
    #[must_use]
    pub const fn changes(self) -> bool {
        use Operation::*;
        match self {
            Create | CreateDir | Rename | Replace | RemoveFile | RemoveDir | Sync | Append => true,
            CreatePairs | WritePairs | FlushPairs => true,
            Open | List | Length | Read | Pin | OpenPairs | ReadPairs => false,
        }
    }

    const fn needs_space(self) -> bool {
        self.changes() && !matches!(self, Self::RemoveFile | Self::RemoveDir)
    }

    const fn needs_a_descriptor(self) -> bool {
        use Operation::*;
        matches!(self, Open | Create | List | RemoveDir | Sync | CreatePairs | OpenPairs)
    }
}

impl Fault {
    /// Returns whether the fault can happen to such an operation.
    #[must_use]
    pub fn befalls(self, operation: Operation) -> bool {
        match self {
            Self::PowerLoss => operation.changes(),
            Self::Errno(Errno::NOSPC) => operation.needs_space(),
            Self::Errno(Errno::MFILE) => operation.needs_a_descriptor(),
            Self::Errno(_) => true,
            Self::ShortRead => operation == Operation::Read,
        }
    }

    /// Returns whether a sync that fails so has lost the data: the system forgets what it could not
    /// write.
    pub(super) fn loses_data(self) -> bool {
        matches!(self, Self::Errno(Errno::IO | Errno::NOSPC))
    }

    pub(super) fn error(self) -> io::Error {
        match self {
            Self::PowerLoss => io::Error::other("the simulated machine has lost power"),
            Self::Errno(errno) => errno.into(),
            Self::ShortRead => io::ErrorKind::UnexpectedEof.into(),
        }
    }
}

/// Decides for each operation whether the armed fault strikes it.
#[derive(Debug, Default)]
pub(super) struct Trigger {
    armed: Option<Plan>,
    /// Operations so far that the armed fault could have befallen.
    n_spared: u64,
    has_struck: bool,
}

impl Trigger {
    pub(super) fn arm(&mut self, plan: Option<Plan>) {
        *self = Self { armed: plan, ..Self::default() };
    }

    pub(super) fn has_struck(&self) -> bool {
        self.has_struck
    }

    /// Returns the fault that `operation` suffers.
    pub(super) fn strikes(&mut self, operation: Operation) -> Option<Fault> {
        let plan = self.armed.filter(|plan| plan.fault.befalls(operation))?;
        if self.n_spared < plan.after {
            self.n_spared += 1;
            return None;
        }
        if self.has_struck && !plan.sticky {
            return None;
        }
        self.has_struck = true;
        Some(plan.fault)
    }
}
