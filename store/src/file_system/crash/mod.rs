//! A file system in memory that keeps no more than POSIX promises, loses power, and fails on
//! request.
//!
//! The state after a loss of power ([`CrashFileSystem::after_loss`]) follows from a seed:
//!
//! - Bytes that were synced stay. Any number of the bytes appended since is there; each 512-byte
//!   sector of them holds what was written, zeros, or garbage.
//! - Names (creation, rename, removal) that were followed by a sync of their folder stay as they
//!   were. Each change since has happened or not, on its own; a rename leaves its file one name,
//!   the old or the new. A synced file without a durable name is gone.
//! - A batch of a key-value store stays when its write has returned; one in flight is there whole
//!   or not at all. The store is reachable when its folder's name is durable.
//!
//! A sync that fails has forgotten what it was for: the bytes or names stay undecided although
//! later syncs succeed. A write to a key-value store that fails may show up when the store is
//! opened again. No other is taken before that, or before the store has recovered in place. A
//! file system is full while a sticky [`Fault`] for want of space is armed, and has room after it.
//! A file or folder that is moved to another folder comes there and goes here, each on its own. Not
//! simulated: two folders' order of events (none is assumed), damage of what was synced.

mod fault;
mod loss;
mod pairs;
mod state;

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use lodestore_graph::lock::IgnorePoison;

pub use fault::{Fault, Neglect, Operation, Plan};

use super::{Access, Entry, FileReader, FileSystem, FileWriter, KeyValues};
use loss::{Content, Folder};
use pairs::Pairs;
use state::{Node, NodeIdx, State};

/// A simulated file system; clones are the same file system.
#[derive(Clone)]
pub struct CrashFileSystem {
    state: Arc<Mutex<State>>,
}

impl CrashFileSystem {
    /// Returns an empty file system; `seed` decides what refused operations did before they were
    /// refused.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(seed))) }
    }

    /// Makes the file system break a promise from here on.
    pub fn neglect(&self, neglect: Neglect) {
        self.lock().neglect = Some(neglect);
    }

    /// Plans a fault, or none; what was planned before is off.
    pub fn arm(&self, plan: Option<Plan>) {
        self.lock().trigger.arm(plan);
    }

    /// Returns whether the planned fault has come.
    #[must_use]
    pub fn has_struck(&self) -> bool {
        self.lock().trigger.has_struck()
    }

    /// Returns whether the power has gone.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.lock().is_dead
    }

    /// Returns the file system as a machine finds it after the power went now: no handles, no
    /// locks, no plan.
    ///
    /// This file system stays as it is, so that many outcomes of one loss can be looked at.
    #[must_use]
    pub fn after_loss(&self, seed: u64) -> Self {
        Self { state: Arc::new(Mutex::new(self.lock().after_loss(seed))) }
    }

    /// Locks the state for one operation, which ends also when it fails.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().ignore_poison()
    }

    fn sync_node(&self, node: NodeIdx) -> io::Result<()> {
        let mut state = self.lock();
        let fault = state.strikes(Operation::Sync)?;
        if fault.is_none_or(Fault::loses_data) {
            let neglect = state.neglect;
            match (&mut state.nodes[node], neglect) {
                (Node::File { .. }, Some(Neglect::FileSyncs)) => {}
                (Node::File { .. }, Some(Neglect::Order)) => state.late_syncs.push(node),
                (Node::Folder(..), Some(Neglect::FolderSyncs)) => {}
                (Node::File { content, .. }, _) => content.sync(fault.is_none()),
                (Node::Folder(folder, _), _) => folder.sync(fault.is_none()),
            }
        }
        fault.map_or(Ok(()), |fault| Err(fault.error()))
    }
}

impl FileSystem for CrashFileSystem {
    fn open(&self, path: &Path) -> io::Result<Box<dyn FileReader>> {
        let mut state = self.lock();
        let node = state.perform(Operation::Open, |state| {
            let node = state.find(path)?;
            state.content(node).map(|_| node)
        })?;
        let is_pinned = AtomicBool::new(false);
        Ok(Box::new(CrashReader { fs: self.clone(), node, is_pinned }))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn FileWriter>> {
        let file = Node::File { content: Content::default(), n_pins: 0 };
        let mut state = self.lock();
        let node = state.perform(Operation::Create, |state| state.add(path, file))?;
        Ok(Box::new(CrashWriter { fs: self.clone(), node }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let folder = Node::Folder(Folder::default(), Pairs::default());
        let mut state = self.lock();
        state.perform(Operation::CreateDir, |state| match state.add(path, folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                state.find(path).and_then(|node| state.folder(node).map(|_| ()))
            }
            added => added.map(|_| ()),
        })
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let mut state = self.lock();
        state.perform(Operation::List, |state| {
            let names = state.folder(state.find(dir)?)?.names();
            let entry = |(name, node): (&String, &NodeIdx)| Entry {
                name: name.clone(),
                is_dir: state.folder(*node).is_ok(),
            };
            Ok(names.iter().map(entry).collect())
        })
    }

    fn exists(&self, path: &Path) -> bool {
        let state = self.lock();
        !state.is_dead && state.find(path).is_ok()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.lock().perform(Operation::Rename, |state| state.rename(from, to, false))
    }

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.lock().perform(Operation::Replace, |state| state.rename(from, to, true))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.lock().perform(Operation::RemoveFile, |state| state.remove(path, false))
    }

    fn remove_if_unpinned(&self, path: &Path) -> io::Result<bool> {
        let mut state = self.lock();
        let node = match state.perform(Operation::Open, |state| state.find(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            found => found?,
        };
        if state.perform(Operation::Pin, |state| Ok(*state.n_pins(node)? > 0))? {
            return Ok(false);
        }
        state.perform(Operation::RemoveFile, |state| state.remove(path, false)).map(|()| true)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.lock().perform(Operation::RemoveDir, |state| state.remove_all(path))
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        let node = {
            let state = self.lock();
            if state.is_dead {
                return Err(Fault::PowerLoss.error());
            }
            state.find(path)?
        };
        self.sync_node(node)
    }

    /// Returns `false`: nothing waits in memory, and operations of one thread have one order.
    fn waits(&self) -> bool {
        false
    }

    fn key_values(&self, dir: &Path, access: Access) -> io::Result<Box<dyn KeyValues>> {
        Ok(match access {
            Access::Create => Box::new(self.create_pairs(dir)?),
            Access::Write | Access::Read | Access::Salvage => {
                Box::new(self.open_pairs(dir, access)?)
            }
        })
    }
}

/// A file that is read; it stays readable when its name goes.
#[derive(Debug)]
struct CrashReader {
    fs: CrashFileSystem,
    node: NodeIdx,
    is_pinned: AtomicBool,
}

/// A file that is written.
#[derive(Debug)]
struct CrashWriter {
    fs: CrashFileSystem,
    node: NodeIdx,
}

impl FileReader for CrashReader {
    fn len_bytes(&self) -> io::Result<u64> {
        let mut state = self.fs.lock();
        state.perform(Operation::Length, |state| Ok(state.content(self.node)?.bytes().len() as u64))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.fs.lock();
        let fault = state.strikes(Operation::Read)?;
        let bytes = state.content(self.node)?.bytes();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let mut n = buffer.len().min(bytes.len() - start);
        match fault {
            None => {}
            // Never 0, which would mean the end.
            Some(Fault::ShortRead) => n = n.div_ceil(2),
            Some(fault) => return Err(fault.error()),
        }
        buffer[..n].copy_from_slice(&bytes[start..start + n]);
        Ok(n)
    }

    fn as_file(&self) -> Option<&File> {
        None
    }

    fn pin(&self) -> io::Result<()> {
        let mut state = self.fs.lock();
        state.perform(Operation::Pin, |state| {
            if !self.is_pinned.swap(true, Ordering::Relaxed) {
                *state.n_pins(self.node)? += 1;
            }
            Ok(())
        })
    }
}

impl Drop for CrashReader {
    fn drop(&mut self) {
        if self.is_pinned.load(Ordering::Relaxed)
            && let Ok(n_pins) = self.fs.lock().n_pins(self.node)
        {
            *n_pins -= 1;
        }
    }
}

impl FileWriter for CrashWriter {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.fs.lock();
        let Some(fault) = state.strikes(Operation::Append)? else {
            state.content(self.node)?.append(bytes);
            return Ok(());
        };
        // What is refused has written something; what was lost with the power, anything.
        let written = match fault {
            Fault::PowerLoss => bytes.len(),
            _ => state.dice.below(bytes.len() as u64 + 1) as usize,
        };
        state.content(self.node)?.append(&bytes[..written]);
        Err(fault.error())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.fs.sync_node(self.node)
    }
}

impl fmt::Debug for CrashFileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CrashFileSystem")
    }
}

#[cfg(test)]
mod tests;
