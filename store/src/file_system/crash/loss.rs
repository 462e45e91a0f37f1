//! Bytes of a file and names in a folder: those that programs see, and those that a loss of power
//! may leave. That is decided by a stream that follows from one seed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use lodestore_graph::splitmix64;

use super::state::NodeIdx;

/// The unit that a disk writes whole.
const SECTOR_BYTES: usize = 512;

/// A stream of decisions.
#[derive(Debug)]
pub(super) struct Dice {
    state: u64,
}

/// Fate of a group of things that may each be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    /// Everything stays.
    Keeps,
    /// Everything goes.
    Loses,
    /// Each on its own.
    Mixes,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: splitmix64(seed) }
    }

    pub(super) fn word(&mut self) -> u64 {
        self.state = splitmix64(self.state);
        self.state
    }

    /// Returns a number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    pub(super) fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// Extremes are as likely as everything between them, since bugs live there.
    pub(super) fn mood(&mut self) -> Mood {
        match self.below(4) {
            0 => Mood::Keeps,
            1 => Mood::Loses,
            _ => Mood::Mixes,
        }
    }

    /// Returns whether one thing of a group in this mood stays.
    pub(super) fn keeps(&mut self, mood: Mood) -> bool {
        match mood {
            Mood::Keeps => true,
            Mood::Loses => false,
            Mood::Mixes => self.coin(),
        }
    }
}

/// The bytes of a file, live and durable.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// Shared with what a loss of power leaves, as far as that is the same.
    live: Arc<Vec<u8>>,
    /// Bytes from here on were not synced.
    synced_bytes: usize,
    /// Ranges before that which a failed sync has forgotten; ascending.
    forgotten: Vec<Range<usize>>,
}

impl Content {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.live
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        Arc::make_mut(&mut self.live).extend_from_slice(bytes);
    }

    /// Syncs with success, or fails and forgets: a later sync finds nothing left to write.
    pub(super) fn sync(&mut self, succeeds: bool) {
        let unsynced = self.synced_bytes..self.live.len();
        if !succeeds && !unsynced.is_empty() {
            self.forgotten.push(unsynced);
        }
        self.synced_bytes = self.live.len();
    }

    /// Returns the bytes after a loss of power: what was synced, and any length of the rest. Each
    /// sector of the rest is as it was written, zeros, or garbage.
    pub(super) fn after_loss(&self, dice: &mut Dice) -> Self {
        let unsafe_ranges = self.unsafe_ranges();
        if unsafe_ranges.is_empty() {
            return Self { forgotten: Vec::new(), ..self.clone() };
        }
        let (mut bytes, mood) = (Vec::clone(&self.live), dice.mood());
        if mood == Mood::Keeps {
            return Self::durable(bytes);
        }
        bytes.truncate(self.length_after_loss(&unsafe_ranges, mood, dice));
        for range in unsafe_ranges {
            let end = range.end.min(bytes.len());
            let mut start = range.start;
            while start < end {
                let sector_end = end.min((start / SECTOR_BYTES + 1) * SECTOR_BYTES);
                tear(&mut bytes[start..sector_end], dice);
                start = sector_end;
            }
        }
        Self::durable(bytes)
    }

    fn durable(bytes: Vec<u8>) -> Self {
        Self { synced_bytes: bytes.len(), live: Arc::new(bytes), forgotten: Vec::new() }
    }

    /// Ranges that no sync vouches for, ascending and not empty.
    fn unsafe_ranges(&self) -> Vec<Range<usize>> {
        let unsynced = self.synced_bytes..self.live.len();
        self.forgotten.iter().cloned().chain([unsynced]).filter(|range| !range.is_empty()).collect()
    }

    /// Returns the length of the file after a loss of power. It is never shorter than what was
    /// synced.
    fn length_after_loss(&self, ranges: &[Range<usize>], mood: Mood, dice: &mut Dice) -> usize {
        let mut shortest = self.live.len();
        for range in ranges.iter().rev() {
            if range.end < shortest {
                break;
            }
            shortest = range.start;
        }
        let spread = (self.live.len() - shortest) as u64;
        match mood {
            Mood::Loses => shortest,
            _ if dice.coin() => self.live.len(),
            _ => shortest + dice.below(spread + 1) as usize,
        }
    }
}

/// Tears a sector, or the part of it that was not synced: zeros, garbage, or what was written.
fn tear(sector: &mut [u8], dice: &mut Dice) {
    match dice.below(4) {
        0 => sector.fill(0),
        1 => sector.iter_mut().for_each(|byte| *byte = dice.word() as u8),
        _ => {}
    }
}

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
