//! Page-aligned memory that reads fill, lent out in regions.

use std::io;
use std::sync::Arc;

use memmap2::{Advice, MmapMut, MmapRaw};

use super::pool::Large;
use crate::limits::PAGE_BYTES;

const PAGE: usize = PAGE_BYTES as usize;

/// Memory of an arena's regions that are too long for it, all together; one alone may be longer.
const ALONE_BYTES: usize = 32 << 20;

/// Memory of whole pages, lent out in regions of consecutive ones.
///
/// Every page is free or belongs to one [`Region`].
#[derive(Debug)]
pub(crate) struct Arena {
    memory: Arc<MmapRaw>,
    n_pages: usize,
    /// One bit per page, set where it is lent; bits past the last page are set.
    lent: Box<[u64]>,
    /// Where the last search ended; the next starts there.
    cursor: usize,
    n_regions: usize,
    /// Bytes of regions with memory of their own.
    alone_bytes: usize,
    /// Whether the kernel knows the memory, by index 0.
    registered: bool,
    /// The right to so much memory, where few have it.
    large: Option<Large>,
}

/// Consecutive pages of an arena, or memory of its own: the one way to these bytes.
#[derive(Debug)]
pub(crate) struct Region {
    memory: Arc<MmapRaw>,
    start_bytes: usize,
    len_bytes: usize,
    registered: bool,
}

impl Arena {
    /// Takes memory of `len_bytes`, whole pages and not 0, from the system.
    pub(crate) fn new(len_bytes: usize) -> io::Result<Self> {
        let n_pages = whole_pages(len_bytes);
        let mut lent = vec![0u64; n_pages.div_ceil(64)].into_boxed_slice();
        if !n_pages.is_multiple_of(64) {
            lent[n_pages / 64] = !0 << (n_pages % 64);
        }
        let memory = anonymous(len_bytes)?;
        let (n_regions, alone_bytes) = (0, 0);
        let (registered, large) = (false, None);
        Ok(Self { memory, n_pages, lent, cursor: 0, n_regions, alone_bytes, registered, large })
    }

    /// Keeps the right to its memory until it is dropped.
    pub(super) fn keep(&mut self, large: Large) {
        self.large = Some(large);
    }

    /// Lends `len_bytes` together, whole pages and not 0; `None` while there are none.
    ///
    /// Where nothing is lent there always are: what is longer than half of the arena gets memory
    /// of its own.
    pub(crate) fn take(&mut self, len_bytes: usize) -> io::Result<Option<Region>> {
        let n_pages = whole_pages(len_bytes);
        if n_pages > self.n_pages / 2 {
            return self.take_alone(len_bytes);
        }
        let found = self.find(n_pages, self.cursor..self.n_pages);
        let Some(page) = found.or_else(|| self.find(n_pages, 0..self.n_pages)) else {
            return Ok(None);
        };
        (page..page + n_pages).for_each(|page| self.lent[page / 64] |= 1 << (page % 64));
        self.cursor = page + n_pages;
        self.n_regions += 1;
        let (memory, registered) = (Arc::clone(&self.memory), self.registered);
        Ok(Some(Region { memory, start_bytes: page * PAGE, len_bytes, registered }))
    }

    fn take_alone(&mut self, len_bytes: usize) -> io::Result<Option<Region>> {
        if self.alone_bytes > 0 && self.alone_bytes + len_bytes > ALONE_BYTES {
            return Ok(None);
        }
        let memory = anonymous(len_bytes)?;
        self.alone_bytes += len_bytes;
        self.n_regions += 1;
        Ok(Some(Region { memory, start_bytes: 0, len_bytes, registered: false }))
    }

    /// Takes a region back.
    ///
    /// # Panics
    /// When it is of another arena.
    pub(crate) fn give_back(&mut self, region: Region) {
        let Region { memory, start_bytes, len_bytes, .. } = region;
        self.n_regions -= 1;
        if self.is_whole() {
            // From here on, what fits at all fits in any order of lengths that divide the memory.
            self.cursor = 0;
        }
        if len_bytes / PAGE > self.n_pages / 2 {
            self.alone_bytes -= len_bytes;
            return;
        }
        assert!(Arc::ptr_eq(&memory, &self.memory), "a region of another arena");
        let page = start_bytes / PAGE;
        for page in page..page + len_bytes / PAGE {
            self.lent[page / 64] &= !(1 << (page % 64));
        }
    }

    /// Returns whether nothing is lent.
    pub(crate) fn is_whole(&self) -> bool {
        self.n_regions == 0
    }

    /// Returns the start and length, for registering.
    pub(super) fn span(&self) -> (*mut u8, usize) {
        (self.memory.as_mut_ptr(), self.memory.len())
    }

    /// Returns whether the kernel knows the memory, by index 0.
    pub(super) fn is_registered(&self) -> bool {
        self.registered
    }

    /// Notes whether the kernel knows the memory, by index 0.
    pub(super) fn set_registered(&mut self, registered: bool) {
        self.registered = registered;
    }

    /// Returns the first of `n` free pages in a row, within `range`.
    fn find(&self, n: usize, range: std::ops::Range<usize>) -> Option<usize> {
        let mut end = range.start;
        while end < range.end {
            let start = self.next(end, false)?;
            end = self.next(start, true).unwrap_or(self.n_pages);
            if end - start >= n {
                return Some(start);
            }
        }
        None
    }

    /// Returns the first page from `page` on that is lent, or that is not.
    fn next(&self, page: usize, lent: bool) -> Option<usize> {
        let flip = if lent { 0 } else { !0 };
        let mut mask = !0 << (page % 64);
        for word in page / 64..self.lent.len() {
            let found = (self.lent[word] ^ flip) & mask;
            if found != 0 {
                return Some(word * 64 + found.trailing_zeros() as usize);
            }
            mask = !0;
        }
        None
    }
}

impl Region {
    /// Returns its length: whole pages.
    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns whether it is in memory that the kernel knows.
    pub(super) fn is_registered(&self) -> bool {
        self.registered
    }

    /// Returns where it starts.
    pub(super) fn start(&self) -> *mut u8 {
        // Does not wrap: a region is within its memory.
        self.memory.as_mut_ptr().wrapping_add(self.start_bytes)
    }

    /// Returns its bytes.
    #[expect(unsafe_code, reason = "memory that the kernel writes is no slice by itself")]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the range is within the memory, which lives as long as `self` and is initialised
        // (the system zeroes it). No other region has these pages, and a queue owns a region for as
        // long as the kernel may write to it, so no writer exists while we borrow.
        unsafe { std::slice::from_raw_parts(self.start(), self.len_bytes) }
    }

    /// Returns its bytes, for writing.
    #[expect(unsafe_code, reason = "memory that the kernel writes is no slice by itself")]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len_bytes) }
    }
}

fn whole_pages(len_bytes: usize) -> usize {
    assert!(len_bytes > 0 && len_bytes.is_multiple_of(PAGE), "{len_bytes} are no whole pages");
    len_bytes / PAGE
}

/// Returns zeroed, page-aligned memory that a forked child does not have. If both had a page, the
/// kernel would fill that of one process, and not always of the one that reads.
fn anonymous(len_bytes: usize) -> io::Result<Arc<MmapRaw>> {
    let memory = MmapMut::map_anon(len_bytes)?;
    memory.advise(Advice::DontFork)?;
    Ok(Arc::new(memory.into()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks the arena against a model: the pages that each region has.
    fn check(arena: &Arena, regions: &[Region]) {
        let mut owners = vec![0; arena.n_pages];
        for region in regions.iter().filter(|region| Arc::ptr_eq(&region.memory, &arena.memory)) {
            let start = region.start_bytes / PAGE;
            owners[start..start + region.len_bytes / PAGE].iter_mut().for_each(|n| *n += 1);
        }
        for (page, &n_owners) in owners.iter().enumerate() {
            assert!(n_owners <= 1, "page {page} is lent {n_owners} times");
            assert_eq!(n_owners == 1, arena.lent[page / 64] >> (page % 64) & 1 == 1, "page {page}");
        }
        assert_eq!(arena.is_whole(), regions.is_empty());
        // The longest run of free pages, computed the slow way.
        let longest = owners.split(|&n| n > 0).map(<[i32]>::len).max().unwrap_or(0);
        let found = (1..=arena.n_pages).rev().find(|&n| arena.find(n, 0..arena.n_pages).is_some());
        assert_eq!(found.unwrap_or(0), longest);
    }

    proptest! {
        #[test]
        fn every_page_has_one_owner_and_free_ones_are_found(
            n_pages in prop::sample::select(vec![1usize, 2, 63, 64, 65, 130]),
            steps in prop::collection::vec((any::<bool>(), 0usize..200), 1..60),
        ) {
            let mut arena = Arena::new(n_pages * PAGE).unwrap();
            let mut regions: Vec<Region> = Vec::new();
            for (give, pick) in steps {
                if give && !regions.is_empty() {
                    arena.give_back(regions.swap_remove(pick % regions.len()));
                } else {
                    let len_bytes = (pick % (n_pages + 4) + 1) * PAGE;
                    let was_whole = arena.is_whole();
                    let region = arena.take(len_bytes).unwrap();
                    prop_assert!(region.is_some() || !was_whole);
                    regions.extend(region);
                }
                check(&arena, &regions);
            }
        }
    }

    #[test]
    fn regions_do_not_see_each_others_bytes() {
        let mut arena = Arena::new(16 * PAGE).unwrap();
        let mut regions: Vec<Region> =
            std::iter::from_fn(|| arena.take(2 * PAGE).unwrap()).take(20).collect();
        assert_eq!(regions.len(), 8);
        for (i, region) in regions.iter_mut().enumerate() {
            region.bytes_mut().fill(i as u8 + 1);
        }
        for (i, region) in regions.iter().enumerate() {
            assert_eq!(region.start() as usize % PAGE, 0);
            assert!(region.bytes().iter().all(|&byte| byte == i as u8 + 1));
        }
    }

    #[test]
    fn where_nothing_is_lent_equal_regions_fill_all_of_it_whatever_was_before() {
        let mut arena = Arena::new(16 * PAGE).unwrap();
        let odd = arena.take(PAGE).unwrap().unwrap();
        arena.give_back(odd);
        let regions = std::iter::from_fn(|| arena.take(4 * PAGE).unwrap());
        assert_eq!(regions.count(), 4);
    }

    #[test]
    fn long_regions_have_memory_of_their_own_and_a_bound() {
        let mut arena = Arena::new(4 * PAGE).unwrap();
        let huge = arena.take(ALONE_BYTES + PAGE).unwrap().unwrap();
        assert!(arena.take(3 * PAGE).unwrap().is_none(), "one too long is alone");
        let small = arena.take(2 * PAGE).unwrap().unwrap();
        arena.give_back(huge);
        let long: Vec<Region> =
            (0..9).map_while(|_| arena.take(ALONE_BYTES / 8).unwrap()).collect();
        assert_eq!(long.len(), 8);
        long.into_iter().chain([small]).for_each(|region| arena.give_back(region));
        assert!(arena.is_whole());
    }

    #[test]
    #[should_panic(expected = "another arena")]
    fn a_region_of_another_arena_is_refused() {
        let (mut one, mut other) = (Arena::new(4 * PAGE).unwrap(), Arena::new(4 * PAGE).unwrap());
        let region = one.take(PAGE).unwrap().unwrap();
        other.take(PAGE).unwrap();
        other.give_back(region);
    }

    #[test]
    fn bytes_outlive_the_arena() {
        let mut arena = Arena::new(4 * PAGE).unwrap();
        let mut region = arena.take(PAGE).unwrap().unwrap();
        drop(arena);
        region.bytes_mut()[PAGE - 1] = 9;
        assert_eq!(region.bytes()[PAGE - 1], 9);
    }
}
