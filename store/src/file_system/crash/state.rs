//! Everything that a simulated file system holds.

use std::io;
use std::path::{Component, Path};

use super::fault::{Fault, Neglect, Operation, Trigger};
use super::loss::{Content, Dice, Folder, NameChange, Names};
use super::pairs::Pairs;

/// Position of a node in [`State::nodes`].
pub(super) type NodeIdx = usize;

pub(super) const ROOT: NodeIdx = 0;

/// A file or a folder; nodes stay when their last name goes, as open files do.
#[derive(Debug)]
pub(super) enum Node {
    Folder(Folder, Pairs),
    File { content: Content, n_pins: u32 },
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) nodes: Vec<Node>,
    pub(super) trigger: Trigger,
    pub(super) is_dead: bool,
    /// Decides what a refused operation did before it was refused.
    pub(super) dice: Dice,
    pub(super) neglect: Option<Neglect>,
    /// Files whose sync a file system that neglects their order has put off.
    pub(super) late_syncs: Vec<NodeIdx>,
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        let nodes = vec![Node::Folder(Folder::default(), Pairs::default())];
        Self {
            nodes,
            trigger: Trigger::default(),
            is_dead: false,
            dice: Dice::new(seed),
            neglect: None,
            late_syncs: Vec::new(),
        }
    }

    /// Does the syncs that were put off until after a change.
    pub(super) fn sync_late(&mut self) {
        for node in std::mem::take(&mut self.late_syncs) {
            if let Node::File { content, .. } = &mut self.nodes[node] {
                content.sync(true);
            }
        }
    }

    /// Lets `operation` pass, or returns the fault that it suffers.
    pub(super) fn strikes(&mut self, operation: Operation) -> io::Result<Option<Fault>> {
        if self.is_dead {
            return Err(Fault::PowerLoss.error());
        }
        let fault = self.trigger.strikes(operation);
        self.is_dead = fault == Some(Fault::PowerLoss);
        Ok(fault)
    }

    /// Does `act` if `operation` passes. At a loss of power it is done too, without a result:
    /// whether it stays is decided with everything else that was not synced.
    pub(super) fn perform<T>(
        &mut self,
        operation: Operation,
        act: impl FnOnce(&mut Self) -> io::Result<T>,
    ) -> io::Result<T> {
        match self.strikes(operation)? {
            None => act(self),
            Some(fault) => {
                if self.is_dead {
                    let _ = act(self);
                }
                Err(fault.error())
            }
        }
    }

    /// Returns the node at `path`.
    pub(super) fn find(&self, path: &Path) -> io::Result<NodeIdx> {
        self.walk(&names(path)?)
    }

    fn walk(&self, names: &[&str]) -> io::Result<NodeIdx> {
        let mut node = ROOT;
        for name in names {
            node = *self.folder(node)?.names().get(*name).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(node)
    }

    /// Returns the folder that holds, or will hold, the last name of `path`, and that name.
    pub(super) fn parent<'a>(&self, path: &'a Path) -> io::Result<(NodeIdx, &'a str)> {
        let names = names(path)?;
        let (name, above) = names.split_last().ok_or(io::ErrorKind::InvalidInput)?;
        let node = self.walk(above)?;
        self.folder(node)?;
        Ok((node, name))
    }

    pub(super) fn folder(&self, node: NodeIdx) -> io::Result<&Folder> {
        match &self.nodes[node] {
            Node::Folder(folder, _) => Ok(folder),
            Node::File { .. } => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    pub(super) fn folder_mut(&mut self, node: NodeIdx) -> io::Result<&mut Folder> {
        match &mut self.nodes[node] {
            Node::Folder(folder, _) => Ok(folder),
            Node::File { .. } => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    pub(super) fn pairs(&mut self, node: NodeIdx) -> io::Result<&mut Pairs> {
        match &mut self.nodes[node] {
            Node::Folder(_, pairs) => Ok(pairs),
            Node::File { .. } => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    pub(super) fn content(&mut self, node: NodeIdx) -> io::Result<&mut Content> {
        match &mut self.nodes[node] {
            Node::File { content, .. } => Ok(content),
            Node::Folder(..) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    pub(super) fn n_pins(&mut self, node: NodeIdx) -> io::Result<&mut u32> {
        match &mut self.nodes[node] {
            Node::File { n_pins, .. } => Ok(n_pins),
            Node::Folder(..) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    /// Puts a node at `path`, where nothing must be.
    pub(super) fn add(&mut self, path: &Path, node: Node) -> io::Result<NodeIdx> {
        let (parent, name) = self.parent(path)?;
        if self.folder(parent)?.names().contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.nodes.push(node);
        let node = self.nodes.len() - 1;
        self.folder_mut(parent)?.apply(NameChange::Add { name: name.to_owned(), node });
        Ok(node)
    }

    /// Moves what is at `from` to `to`.
    pub(super) fn rename(&mut self, from: &Path, to: &Path, over: bool) -> io::Result<()> {
        let node = self.find(from)?;
        let ((from_dir, old), (to_dir, name)) = (self.parent(from)?, self.parent(to)?);
        if to != from && to.starts_with(from) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let there = self.folder(to_dir)?.names().get(name).copied();
        if !over && there.is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if over && [Some(node), there].into_iter().flatten().any(|n| self.folder(n).is_ok()) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if from_dir != to_dir {
            let (name, old) = (name.to_owned(), old.to_owned());
            self.folder_mut(to_dir)?.apply(NameChange::Add { name, node });
            self.folder_mut(from_dir)?.apply(NameChange::Remove { name: old, node });
        } else if there != Some(node) {
            self.folder_mut(to_dir)?.apply(NameChange::Move { to: name.to_owned(), node });
        }
        Ok(())
    }

    /// Takes the name of a file or of an empty folder away.
    pub(super) fn remove(&mut self, path: &Path, is_dir: bool) -> io::Result<()> {
        let node = self.find(path)?;
        match (is_dir, self.folder(node).is_ok()) {
            (true, false) => return Err(io::ErrorKind::NotADirectory.into()),
            (false, true) => return Err(io::ErrorKind::IsADirectory.into()),
            _ => {}
        }
        let (parent, name) = self.parent(path)?;
        self.folder_mut(parent)?.apply(NameChange::Remove { name: name.to_owned(), node });
        Ok(())
    }

    /// Takes away a folder and, before it, all below it, name by name.
    pub(super) fn remove_all(&mut self, path: &Path) -> io::Result<()> {
        let node = self.find(path)?;
        let names: Names = self.folder(node)?.names().clone();
        self.pairs(node)?.remove();
        for (name, node) in names {
            let path = path.join(name);
            match self.nodes[node] {
                Node::Folder(..) => self.remove_all(&path)?,
                Node::File { .. } => self.remove(&path, false)?,
            }
        }
        self.remove(path, true)
    }

    /// Returns the files that a machine finds when it starts again after a loss of power.
    pub(super) fn after_loss(&self, seed: u64) -> Self {
        let mut found = Self { nodes: Vec::new(), ..Self::new(seed) };
        let mut dice = Dice::new(seed ^ 0x10_55);
        self.keep(ROOT, &mut found, &mut dice);
        found
    }

    /// Copies what is left of a node and of all below it; returns its place in `found`.
    fn keep(&self, node: NodeIdx, found: &mut Self, dice: &mut Dice) -> NodeIdx {
        let place = found.nodes.len();
        match &self.nodes[node] {
            Node::File { content, .. } => {
                found.nodes.push(Node::File { content: content.after_loss(dice), n_pins: 0 });
            }
            Node::Folder(folder, pairs) => {
                found.nodes.push(Node::Folder(Folder::default(), pairs.after_loss(dice)));
                let names = folder.after_loss(dice).into_iter();
                let names: Names =
                    names.map(|(name, node)| (name, self.keep(node, found, dice))).collect();
                if let Node::Folder(folder, _) = &mut found.nodes[place] {
                    *folder = Folder::durable(names);
                }
            }
        }
        place
    }
}

/// Returns the names on the way from the root to `path`; the current folder is the root.
fn names(path: &Path) -> io::Result<Vec<&str>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => {
                names.push(name.to_str().ok_or(io::ErrorKind::InvalidFilename)?);
            }
            Component::ParentDir | Component::Prefix(_) => {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
    }
    Ok(names)
}
