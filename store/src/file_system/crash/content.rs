//! Bytes of a file: those that programs see, and those that a loss of power may leave.

use std::ops::Range;
use std::sync::Arc;

use super::dice::{Dice, Mood};

/// The unit that a disk writes whole.
const SECTOR_BYTES: usize = 512;

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
