//! Rows that are rewritten while others read them: read, check, retry.

use super::sync::{AtomicU64, AtomicWords, Ordering, fence, pause, prefetch, zeros};
use crate::huge_vec::MemoryError;

pub(super) const WORD_BYTES: usize = size_of::<u64>();

/// Words of a slot before its row.
const HEAD_WORDS: usize = 2;

/// Words of a line of the processor's cache.
const LINE_WORDS: usize = 8;

/// Bytes of rows that are prefetched while one is copied. A core can wait for as many concurrently,
/// and they are few enough to stay in its nearest cache.
const AHEAD_BYTES: usize = 4 << 10;

/// Slots of rows that any number of threads read while others write them. No reader waits for a
/// lock (CaPGNN, section 4.2, whose queues rewrite rows that are in use).
///
/// Each slot has a version, odd while its row is being written. A reader copies the row, and takes
/// it if the version was even and the same before and after. Else the bytes are torn, and it tries
/// again or reads elsewhere. Each row has a tag, which is checked too: the number of its write, for
/// example. A reader that got a slot before it was reused sees that.
pub struct VersionedRows {
    /// The version, the tag, and the row of each slot, in one place since they are read together.
    words: AtomicWords,
    row_bytes: usize,
}

/// A row was being written while it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TornRead;

impl VersionedRows {
    /// Returns `n_slots` rows of `row_bytes` zeros, all with tag 0. Memory of slots that are never
    /// written is reserved but not taken.
    ///
    /// Fails when there is no such memory.
    pub fn new(n_slots: usize, row_bytes: usize) -> Result<Self, MemoryError> {
        let too_large = || MemoryError::TooLarge {
            n_slots: u32::try_from(n_slots).unwrap_or(u32::MAX),
            row_bytes,
        };
        let bytes = n_slots.checked_mul(Self::slot_bytes(row_bytes)).ok_or_else(too_large)?;
        let refused = || {
            let source = std::io::ErrorKind::OutOfMemory.into();
            MemoryError::Reserve { bytes, source }
        };
        let words = zeros(bytes / WORD_BYTES).ok_or_else(refused)?;
        Ok(Self { words, row_bytes })
    }

    /// Copies the row in `slot` to `out` and returns its tag; when it is being written, fails, and
    /// `out` has bytes without meaning.
    ///
    /// # Panics
    ///
    /// Unless there is such a slot and `out` is as long as a row.
    pub fn try_read(&self, slot: usize, out: &mut [u8]) -> Result<u64, TornRead> {
        assert_eq!(out.len(), self.row_bytes, "an output as long as a row");
        let (version, tag, row) = self.slot(slot);
        let before = version.load(Ordering::Acquire);
        if !before.is_multiple_of(2) {
            return Err(TornRead);
        }
        let tag = tag.load(Ordering::Relaxed);
        let (whole, rest) = out.as_chunks_mut::<WORD_BYTES>();
        for (word, bytes) in row.iter().zip(whole) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        if let (Some(word), false) = (row.last(), rest.is_empty()) {
            rest.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes()[..rest.len()]);
        }
        // A reader that has seen a word of a later version sees below that it has begun.
        fence(Ordering::Acquire);
        if version.load(Ordering::Relaxed) == before { Ok(tag) } else { Err(TornRead) }
    }

    /// Returns the tag of the row in `slot`, which is not copied; fails while it is being written.
    ///
    /// # Panics
    ///
    /// Unless there is such a slot.
    pub fn try_tag(&self, slot: usize) -> Result<u64, TornRead> {
        let (version, tag, _) = self.slot(slot);
        let before = version.load(Ordering::Acquire);
        let tag = tag.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_whole = before.is_multiple_of(2) && version.load(Ordering::Relaxed) == before;
        if is_whole { Ok(tag) } else { Err(TornRead) }
    }

    /// Copies the row in `slot` as [`VersionedRows::try_read`], tried `n_tries` times.
    ///
    /// # Panics
    ///
    /// As [`VersionedRows::try_read`].
    pub fn read(&self, slot: usize, out: &mut [u8], n_tries: usize) -> Result<u64, TornRead> {
        (0..n_tries).find_map(|_| self.try_read(slot, out).ok()).ok_or(TornRead)
    }

    /// Writes a row and its tag, unless the slot has a greater tag already. So the write with the
    /// greatest tag stays, in whatever order writes come. Waits for a thread that is writing the
    /// slot; no reader waits. Returns whether the row was written.
    ///
    /// # Panics
    ///
    /// Unless there is such a slot and `row` is as long as a row.
    pub fn write(&self, slot: usize, tag: u64, row: &[u8]) -> bool {
        assert_eq!(row.len(), self.row_bytes, "a row of the right length");
        let (version, slot_tag, words) = self.slot(slot);
        let before = begin(version);
        // It has no other writer meanwhile, and the earlier one was awaited.
        if slot_tag.load(Ordering::Relaxed) > tag {
            version.store(before, Ordering::Release);
            return false;
        }
        // Before any word: a reader that sees one sees the odd version too.
        fence(Ordering::Release);
        slot_tag.store(tag, Ordering::Relaxed);
        let (whole, rest) = row.as_chunks::<WORD_BYTES>();
        for (word, &bytes) in words.iter().zip(whole) {
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        if let (Some(word), false) = (words.last(), rest.is_empty()) {
            let mut padded = [0; WORD_BYTES];
            padded[..rest.len()].copy_from_slice(rest);
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
        version.store(before.wrapping_add(2), Ordering::Release);
        true
    }

    /// Brings the rows in `slots` near the processor, all together instead of one after the other.
    /// Takes nothing from them. For as many as the nearest caches hold.
    ///
    /// # Panics
    ///
    /// Unless all are slots.
    pub fn touch(&self, slots: impl Iterator<Item = usize>) {
        let mut touched = 0;
        for slot in slots {
            let words = self.slot_words(slot);
            // Of each line of the processor's cache one word.
            for word in words.iter().step_by(LINE_WORDS).chain(words.last()) {
                touched ^= word.load(Ordering::Relaxed);
            }
        }
        std::hint::black_box(touched);
    }

    /// Prefetches the start of the row in `slot`; of a long row the processor predicts the rest.
    /// Ignores a slot that does not exist.
    #[inline]
    fn prefetch(&self, slot: usize) {
        let n_words = Self::slot_bytes(self.row_bytes) / WORD_BYTES;
        let first = slot.saturating_mul(n_words);
        if first < self.words.len() {
            prefetch(&self.words, first..first + n_words.min(AHEAD_BYTES / WORD_BYTES));
        }
    }

    /// Calls `f` with the position and value of each of `rows`, while the rows after it are brought
    /// near.
    pub(super) fn each_ahead<T>(
        &self,
        rows: &[T],
        slot_of: impl Fn(&T) -> usize,
        mut f: impl FnMut(usize, &T),
    ) {
        let n_ahead = (AHEAD_BYTES / Self::slot_bytes(self.row_bytes)).max(1);
        let prefetch = |row: &T| self.prefetch(slot_of(row));
        rows.iter().take(n_ahead).for_each(prefetch);
        for (at, row) in rows.iter().enumerate() {
            rows.get(at + n_ahead).into_iter().for_each(prefetch);
            f(at, row);
        }
    }

    /// Returns the memory of a slot for rows of `row_bytes`, in bytes.
    #[must_use]
    pub const fn slot_bytes(row_bytes: usize) -> usize {
        let words = row_bytes.div_ceil(WORD_BYTES).saturating_add(HEAD_WORDS);
        words.saturating_mul(WORD_BYTES)
    }

    /// Returns the bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Returns the memory of rows, tags and versions, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.words.len() * WORD_BYTES
    }

    /// Returns the version of a slot, its tag and its row.
    fn slot(&self, slot: usize) -> (&AtomicU64, &AtomicU64, &[AtomicU64]) {
        let words = self.slot_words(slot);
        (&words[0], &words[1], &words[HEAD_WORDS..])
    }

    fn slot_words(&self, slot: usize) -> &[AtomicU64] {
        let n_words = Self::slot_bytes(self.row_bytes) / WORD_BYTES;
        let first = slot.checked_mul(n_words).expect("a slot there is");
        &self.words[first..first + n_words]
    }
}

/// Makes an even version odd, and returns what it was.
fn begin(version: &AtomicU64) -> u64 {
    let mut n_looks = 0;
    loop {
        let before = version.load(Ordering::Relaxed);
        let is_mine = before.is_multiple_of(2)
            && version
                .compare_exchange_weak(before, before | 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if is_mine {
            return before;
        }
        n_looks += 1;
        pause(n_looks);
    }
}
