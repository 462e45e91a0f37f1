//! Key-value stores of a simulated file system: as RocksDB with a synced log.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::fault::{Fault, Neglect, Operation};
use super::loss::Dice;
use super::state::{Node, NodeIdx, State};
use super::{CrashFileSystem, Folder};
use crate::file_system::{Access, Change, EachPair, KeyValues};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// State of a key-value store in a folder.
#[derive(Clone, Debug, Default)]
pub(super) struct Pairs {
    stage: Stage,
    /// Shared with the snapshots of readers.
    map: Arc<Map>,
    /// A batch whose write failed: the next opening finds it in the log, or does not.
    in_doubt: Option<Vec<Change>>,
    /// The pairs before the last write, where writes are not durable.
    durable: Option<Arc<Map>>,
    /// Whether it is open for writing.
    is_locked: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Absent,
    /// Its creation was interrupted, or its removal was not made durable.
    Uncertain,
    /// Files of it are missing.
    Broken,
    Present,
}

impl Pairs {
    /// Removes its files; that is not durable.
    pub(super) fn remove(&mut self) {
        if self.stage == Stage::Present {
            self.stage = Stage::Uncertain;
        }
    }

    pub(super) fn after_loss(&self, dice: &mut Dice) -> Self {
        let stage = match self.stage {
            Stage::Uncertain => match dice.below(3) {
                0 => Stage::Absent,
                // Without its first batch there is nothing that could be missed.
                1 if !self.map.is_empty() => Stage::Broken,
                _ => Stage::Present,
            },
            stage => stage,
        };
        let durable = self.durable.as_ref().filter(|_| dice.coin()).unwrap_or(&self.map);
        let mut pairs = Self { stage, map: Arc::clone(durable), ..Self::default() };
        if let Some(changes) = self.in_doubt.as_deref().filter(|_| dice.coin()) {
            pairs.apply(changes);
        }
        pairs
    }

    fn apply(&mut self, changes: &[Change]) {
        let map = Arc::make_mut(&mut self.map);
        for change in changes {
            match change {
                Change::Put(key, value) => {
                    map.insert(key.clone(), value.clone());
                }
                Change::Delete(key) => {
                    map.remove(key);
                }
                Change::DeleteRange(from, to) => map.retain(|key, _| key < from || key >= to),
            }
        }
    }

    fn open(&mut self, access: Access, dice: &mut Dice) -> io::Result<()> {
        match self.stage {
            Stage::Broken => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "files missing"));
            }
            Stage::Absent | Stage::Uncertain => return Err(io::ErrorKind::NotFound.into()),
            Stage::Present => {}
        }
        if access == Access::Write && self.is_locked {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // While a writer has it open, its log is not gone through.
        if !self.is_locked
            && let Some(changes) = self.in_doubt.take()
            && dice.coin()
        {
            self.apply(&changes);
        }
        self.is_locked |= access == Access::Write;
        Ok(())
    }
}

impl CrashFileSystem {
    pub(super) fn create_pairs(&self, dir: &Path) -> io::Result<CrashPairs> {
        let mut state = self.lock();
        let node = state.perform(Operation::CreatePairs, |state| {
            let node = match state.find(dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    state.add(dir, Node::Folder(Folder::default(), Pairs::default()))?
                }
                found => found?,
            };
            let is_dead = state.is_dead;
            let pairs = state.pairs(node)?;
            if pairs.stage != Stage::Absent {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            pairs.stage = if is_dead { Stage::Uncertain } else { Stage::Present };
            pairs.is_locked = true;
            Ok(node)
        })?;
        Ok(CrashPairs { fs: self.clone(), node, mode: Mode::writes() })
    }

    pub(super) fn open_pairs(&self, dir: &Path, access: Access) -> io::Result<CrashPairs> {
        let mut state = self.lock();
        let (node, map) = state.perform(Operation::OpenPairs, |state| {
            let node = state.find(dir)?;
            let mut dice = Dice::new(state.dice.word());
            let pairs = state.pairs(node)?;
            pairs.open(access, &mut dice)?;
            Ok((node, Arc::clone(&pairs.map)))
        })?;
        let mode = if access == Access::Write { Mode::writes() } else { Mode::Reads(map) };
        Ok(CrashPairs { fs: self.clone(), node, mode })
    }
}

/// An open key-value store of a [`CrashFileSystem`].
#[derive(Debug)]
pub(super) struct CrashPairs {
    fs: CrashFileSystem,
    node: NodeIdx,
    mode: Mode,
}

#[derive(Debug)]
enum Mode {
    /// The pairs as of the opening.
    Reads(Arc<Map>),
    /// After a write that failed, no other is taken.
    Writes { has_failed: AtomicBool },
}

impl Mode {
    fn writes() -> Self {
        Self::Writes { has_failed: AtomicBool::new(false) }
    }
}

impl CrashPairs {
    /// Returns the pairs as of now; nothing is locked while they are looked at.
    fn map(&self) -> io::Result<Arc<Map>> {
        let mut state = self.fs.lock();
        state.perform(Operation::ReadPairs, |state| {
            Ok(match &self.mode {
                Mode::Reads(map) => Arc::clone(map),
                Mode::Writes { .. } => Arc::clone(&state.pairs(self.node)?.map),
            })
        })
    }

    /// Does `act` unless it must fail; an earlier failure makes every later one fail.
    fn change(
        &self,
        operation: Operation,
        act: impl FnOnce(&mut State, Option<Fault>) -> io::Result<()>,
    ) -> io::Result<()> {
        let Mode::Writes { has_failed } = &self.mode else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "opened for reading"));
        };
        let mut state = self.fs.lock();
        let fault = state.strikes(operation)?;
        if has_failed.load(Ordering::Relaxed) {
            return Err(io::Error::other("an earlier write failed; open it again"));
        }
        act(&mut state, fault)?;
        let Some(fault) = fault else { return Ok(()) };
        has_failed.store(true, Ordering::Relaxed);
        Err(fault.error())
    }
}

impl KeyValues for CrashPairs {
    fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.map()?.get(key).cloned())
    }

    fn scan_from(&self, key: &[u8], each: &mut EachPair<'_>) -> io::Result<()> {
        let map = self.map()?;
        let from = (Bound::Included(key), Bound::Unbounded);
        for (key, value) in map.range::<[u8], _>(from) {
            if each(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn write(&self, changes: &[Change]) -> io::Result<()> {
        self.change(Operation::WritePairs, |state, fault| {
            let neglect = state.neglect;
            let pairs = state.pairs(self.node)?;
            if neglect == Some(Neglect::PairSyncs) {
                pairs.durable = Some(Arc::clone(&pairs.map));
            }
            if fault.is_some() {
                pairs.in_doubt = Some(changes.to_vec());
            } else {
                pairs.apply(changes);
                state.sync_late();
            }
            Ok(())
        })
    }

    fn flush(&self) -> io::Result<()> {
        self.change(Operation::FlushPairs, |_, _| Ok(()))
    }

    /// Finds the failed batch in its log, or does not, and writes over it what was there before.
    /// Until that is durable the batch stays in doubt. A batch that removes a range stays where it
    /// is found.
    fn recover(&self) -> io::Result<()> {
        let Mode::Writes { has_failed } = &self.mode else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "opened for reading"));
        };
        if !has_failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut state = self.fs.lock();
        for operation in [Operation::OpenPairs, Operation::WritePairs] {
            if let Some(fault) = state.strikes(operation)? {
                return Err(fault.error());
            }
        }
        let is_in_log = state.dice.coin();
        let pairs = state.pairs(self.node)?;
        let in_doubt = pairs.in_doubt.take();
        if let Some(changes) = in_doubt.filter(|it| is_in_log && it.iter().any(Change::is_range)) {
            pairs.apply(&changes);
        }
        has_failed.store(false, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for CrashPairs {
    fn drop(&mut self) {
        if matches!(self.mode, Mode::Writes { .. })
            && let Ok(pairs) = self.fs.lock().pairs(self.node)
        {
            pairs.is_locked = false;
        }
    }
}
