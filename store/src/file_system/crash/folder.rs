//! Names in a folder: those that programs see, and those that a loss of power may leave.

use std::collections::BTreeMap;

use super::dice::Dice;
use super::state::NodeIdx;

pub(super) type Names = BTreeMap<String, NodeIdx>;

/// The names of a folder, live and durable.
#[derive(Clone, Debug, Default)]
pub(super) struct Folder {
    live: Names,
    /// The durable state, before any change of `log`.
    base: Names,
    log: Vec<(NameChange, Fate)>,
}

/// One change of a folder's names.
#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Add { name: String, node: NodeIdx },
    Move { to: String, node: NodeIdx },
    Remove { name: String, node: NodeIdx },
}

/// Outcome of a change at a loss of power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Undecided until the folder is synced.
    Pending,
    /// Undecided for ever: the sync that was for it failed.
    Forgotten,
    /// It stays.
    Durable,
}

impl Folder {
    /// Returns a folder whose names are all durable.
    pub(super) fn durable(names: Names) -> Self {
        Self { live: names.clone(), base: names, log: Vec::new() }
    }

    pub(super) fn names(&self) -> &Names {
        &self.live
    }

    pub(super) fn apply(&mut self, change: NameChange) {
        change.apply(&mut self.live);
        self.log.push((change, Fate::Pending));
    }

    /// Syncs the folder with success, or fails and forgets.
    pub(super) fn sync(&mut self, succeeds: bool) {
        let fate = if succeeds { Fate::Durable } else { Fate::Forgotten };
        for (_, pending) in self.log.iter_mut().filter(|(_, fate)| *fate == Fate::Pending) {
            *pending = fate;
        }
        // Changes keep their order, so nothing is folded that comes after something undecided.
        if self.log.iter().all(|(_, fate)| *fate == Fate::Durable) {
            self.base.clone_from(&self.live);
            self.log.clear();
        }
    }

    /// Returns the names after a loss of power: each undecided change has happened or not.
    pub(super) fn after_loss(&self, dice: &mut Dice) -> Names {
        let mood = dice.mood();
        let mut names = self.base.clone();
        for (change, fate) in &self.log {
            if *fate == Fate::Durable || dice.keeps(mood) {
                change.apply(&mut names);
            }
        }
        names
    }
}

impl NameChange {
    fn apply(&self, names: &mut Names) {
        match self {
            Self::Add { name, node } => {
                names.insert(name.clone(), *node);
            }
            // Whatever its name was by then: what is moved has one name before and after.
            Self::Move { to, node } => {
                names.retain(|_, named| named != node);
                names.insert(to.clone(), *node);
            }
            // A change before it may not have happened, so that another node has the name.
            Self::Remove { name, node } => {
                if names.get(name) == Some(node) {
                    names.remove(name);
                }
            }
        }
    }
}
