//! The volatile tensors of one store, by name, within one bound of memory.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use thiserror::Error;

use crate::memory_budget::{MemoryBudget, OverBudget, Reservation};
use crate::volatile::{Stamp, VolatileClaim, VolatileError, VolatilePublication, VolatileRows};

/// Most volatile tensors of one store.
const VOLATILE_TENSORS_MAX: usize = 1024;

/// Most ranges of all volatile tensors of one store.
const VOLATILE_RANGES_MAX: usize = 1 << 20;

/// Description of rows of a volatile tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolatileShape {
    /// Name, unique among the volatile tensors of a store.
    pub name: String,
    /// Name of the element type.
    pub dtype: String,
    /// Elements of a row.
    pub width: u32,
    /// Bytes of a row, not 0.
    pub row_bytes: usize,
    /// Rows that are claimed together, counted from the start of each partition; 0 for all of one.
    pub range_rows: u32,
}

/// Volatile tensors, declared one after the other and never dropped.
///
/// ```
/// use lodestore_cache::VolatileStore;
/// use lodestore_cache::volatile_store::VolatileShape;
///
/// let store = VolatileStore::new(1 << 20);
/// let (name, dtype) = ("h1".to_owned(), "f32".to_owned());
/// let shape = VolatileShape { name, dtype, width: 2, row_bytes: 8, range_rows: 0 };
/// let h1 = store.declare(&shape, [0..100, 100..200])?;
/// let mut claims = h1.claim(&[0..100])?;
/// h1.publish(&claims, &[7, 9], &[1; 16], 3)?;
/// let (mut rows, mut stamps) = ([0; 16], [0; 2]);
/// let places = h1.rows().locate(&[7, 8])?;
/// assert_eq!(h1.rows().pull_stamped(&places, 3, &mut rows, &mut stamps)?, 1);
/// h1.release(&mut claims);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct VolatileStore {
    budget: MemoryBudget,
    tensors: RwLock<Vec<Arc<VolatileTensor>>>,
}

/// One volatile tensor.
pub struct VolatileTensor {
    shape: VolatileShape,
    rows: VolatileRows,
    /// Publications so far.
    n_publications: AtomicU64,
    _memory: Reservation,
}

/// Why a volatile tensor is not there.
#[derive(Debug, Error)]
pub enum DeclareError {
    /// There is one of this name, with other rows.
    #[error(
        "volatile tensor `{name}` is there as {known}, and {wanted} is wanted; use another name, or \
         declare it in the same way everywhere"
    )]
    Differs {
        /// Its name.
        name: String,
        /// The rows that it has.
        known: String,
        /// The rows that are wanted.
        wanted: String,
    },
    /// The store has no memory for it.
    #[error(
        "volatile tensor `{name}` takes {bytes} bytes ({n_rows} rows of {row_bytes}), and {left_bytes} \
         of the {budget_bytes} for rows in memory are left; give more memory, or declare fewer rows"
    )]
    Memory {
        /// Its name.
        name: String,
        /// Bytes that it would take.
        bytes: u64,
        /// Rows that it would have.
        n_rows: u64,
        /// Bytes of each.
        row_bytes: usize,
        /// Bytes that are left.
        left_bytes: u64,
        /// Bytes of all volatile tensors.
        budget_bytes: u64,
    },
    /// There are too many tensors, or ranges of them.
    #[error(
        "volatile tensor `{name}` is one too many: {VOLATILE_TENSORS_MAX} tensors and \
         {VOLATILE_RANGES_MAX} ranges are the limits; claim more rows together"
    )]
    TooMany {
        /// Its name.
        name: String,
    },
    /// The rows could not be made.
    #[error(transparent)]
    Rows(#[from] VolatileError),
}

impl VolatileShape {
    fn described(&self) -> String {
        let Self { dtype, width, range_rows, .. } = self;
        match range_rows {
            0 => format!("{width}x{dtype}"),
            _ => format!("{width}x{dtype} claimed by {range_rows} rows"),
        }
    }
}

impl VolatileStore {
    /// Makes a store whose tensors take at most `budget_bytes` together.
    #[must_use]
    pub fn new(budget_bytes: u64) -> Self {
        Self::within(MemoryBudget::new(budget_bytes))
    }

    /// Makes a store whose tensors take their memory from `budget`, which others may take from too.
    #[must_use]
    pub fn within(budget: MemoryBudget) -> Self {
        Self { budget, tensors: RwLock::default() }
    }

    /// Makes room for the rows of `parts`, ranges of ids that ascend, unless the tensor is there
    /// already.
    ///
    /// Fails when one of this name has other rows, or the memory does not suffice.
    pub fn declare(
        &self,
        shape: &VolatileShape,
        parts: impl IntoIterator<Item = Range<u32>>,
    ) -> Result<Arc<VolatileTensor>, DeclareError> {
        // Held while memory is reserved, which takes none: two declare it once.
        let mut tensors = self.tensors.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = tensors.iter().find(|known| known.shape.name == shape.name) {
            return match known.shape == *shape {
                true => Ok(Arc::clone(known)),
                false => Err(DeclareError::Differs {
                    name: shape.name.clone(),
                    known: known.shape.described(),
                    wanted: shape.described(),
                }),
            };
        }
        let too_many = || DeclareError::TooMany { name: shape.name.clone() };
        let n_known: usize = tensors.iter().map(|known| known.rows.n_ranges()).sum();
        let parts: Vec<Range<u32>> = parts.into_iter().collect();
        let ranges = ranges(&parts, shape.range_rows, VOLATILE_RANGES_MAX.saturating_sub(n_known));
        let ranges =
            ranges.filter(|_| tensors.len() < VOLATILE_TENSORS_MAX).ok_or_else(too_many)?;
        let n_rows = parts.iter().map(|part| part.len() as u64).sum();
        let memory = self.reserve(shape, n_rows)?;
        let rows = VolatileRows::new(ranges, shape.row_bytes)?;
        let (shape, n_publications) = (shape.clone(), AtomicU64::new(0));
        let tensor = Arc::new(VolatileTensor { shape, rows, n_publications, _memory: memory });
        tensors.push(Arc::clone(&tensor));
        Ok(tensor)
    }

    fn reserve(&self, shape: &VolatileShape, n_rows: u64) -> Result<Reservation, DeclareError> {
        let bytes = VolatileRows::bytes_of(n_rows, shape.row_bytes);
        self.budget.reserve(bytes).map_err(|OverBudget { left_bytes, budget_bytes, .. }| {
            let (name, row_bytes) = (shape.name.clone(), shape.row_bytes);
            DeclareError::Memory { name, bytes, n_rows, row_bytes, left_bytes, budget_bytes }
        })
    }

    /// Returns the tensor of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<VolatileTensor>> {
        let tensors = self.tensors.read().unwrap_or_else(PoisonError::into_inner);
        tensors.iter().find(|known| known.shape.name == name).cloned()
    }

    /// Returns the names of all tensors, separated by commas.
    #[must_use]
    pub fn names(&self) -> String {
        let tensors = self.tensors.read().unwrap_or_else(PoisonError::into_inner);
        let names: Vec<&str> = tensors.iter().map(|tensor| tensor.shape.name.as_str()).collect();
        names.join(", ")
    }

    /// Returns the number of tensors, and the memory that they may take, in bytes.
    #[must_use]
    pub fn size(&self) -> (usize, u64) {
        let tensors = self.tensors.read().unwrap_or_else(PoisonError::into_inner);
        (tensors.len(), tensors.iter().map(|tensor| tensor.rows.bytes() as u64).sum())
    }
}

/// Returns ranges of at most `range_rows` ids, each of one part; `None` where there are more than
/// `n_max`.
fn ranges(parts: &[Range<u32>], range_rows: u32, n_max: usize) -> Option<Vec<Range<u32>>> {
    let step = |part: &Range<u32>| match range_rows {
        0 => part.len().max(1) as u32,
        rows => rows,
    };
    // Before any of them is made.
    let n_ranges: usize = parts.iter().map(|part| part.len().div_ceil(step(part) as usize)).sum();
    let cut = |part: &Range<u32>| {
        let (step, end) = (step(part), part.end);
        let starts = part.clone().step_by(step as usize);
        starts.map(move |start| start..start.saturating_add(step).min(end)).collect::<Vec<_>>()
    };
    (n_ranges <= n_max).then(|| parts.iter().flat_map(cut).collect())
}

impl VolatileTensor {
    /// Returns the shape of its rows.
    #[must_use]
    pub fn shape(&self) -> &VolatileShape {
        &self.shape
    }

    /// Returns its rows.
    #[must_use]
    pub fn rows(&self) -> &VolatileRows {
        &self.rows
    }

    /// Claims ids, all or none; see [`VolatileRows::claim`]. The claims ascend by range.
    ///
    /// Fails for ids that are not whole ranges, and where another publisher has one of them.
    pub fn claim(&self, ids: &[Range<u32>]) -> Result<Vec<VolatileClaim>, VolatileError> {
        let mut claims = Vec::new();
        self.claim_more(ids, &mut claims)?;
        Ok(claims)
    }

    /// Adds claims of `ids` to those of one publisher, which ascend by range. Claims that it has
    /// already are renewed, and their rows forgotten. Returns the number of ids.
    ///
    /// Fails as [`VolatileTensor::claim`], and then has changed nothing.
    pub fn claim_more(
        &self,
        ids: &[Range<u32>],
        claims: &mut Vec<VolatileClaim>,
    ) -> Result<u64, VolatileError> {
        let mut ranges = Vec::new();
        for ids in ids {
            ranges.extend(self.rows.ranges_of(ids.clone())?);
        }
        ranges.sort_unstable();
        ranges.dedup();
        let of = |range: &usize| claims.binary_search_by_key(range, VolatileClaim::range);
        let (own, others): (Vec<usize>, Vec<usize>) =
            ranges.iter().copied().partition(|range| of(range).is_ok());
        let own: Vec<usize> = own.iter().filter_map(|range| of(range).ok()).collect();
        let mut added = Vec::with_capacity(others.len());
        for range in others {
            match self.rows.claim(range) {
                Ok(claim) => added.push(claim),
                Err(error) => {
                    self.release(&mut added);
                    return Err(error);
                }
            }
        }
        for at in own {
            self.rows.renew(&mut claims[at])?;
        }
        claims.append(&mut added);
        claims.sort_unstable_by_key(VolatileClaim::range);
        Ok(ranges.iter().map(|&range| self.rows.n_ids_of(range) as u64).sum())
    }

    /// Ends claims.
    pub fn release(&self, claims: &mut Vec<VolatileClaim>) {
        claims.drain(..).for_each(|claim| self.rows.release(claim));
    }

    /// Publishes rows with `stamp` under `claims`, which ascend by range, and wakes waiters. All
    /// ids are checked before a row is written.
    ///
    /// After [`VolatileError::Older`] all rows without a later stamp are written.
    pub fn publish(
        &self,
        claims: &[VolatileClaim],
        ids: &[u32],
        rows: &[u8],
        stamp: Stamp,
    ) -> Result<(), VolatileError> {
        let publication = self.rows.check_publication(claims, ids, stamp)?;
        self.publish_checked(&publication, ids, 0, rows)
    }

    /// Publishes rows that were checked; see [`VolatileRows::publish_checked`].
    ///
    /// # Panics
    ///
    /// Unless the publication has a row for each of `ids`.
    pub fn publish_checked(
        &self,
        publication: &VolatilePublication<'_>,
        ids: &[u32],
        first: usize,
        rows: &[u8],
    ) -> Result<(), VolatileError> {
        let published = self.rows.publish_checked(publication, ids, first, rows);
        // After the rows: a thread that sees the number sees them.
        self.n_publications.fetch_add(1, Ordering::Release);
        published
    }

    /// Returns the number of publications so far: it changes after rows have.
    #[must_use]
    pub fn n_publications(&self) -> u64 {
        self.n_publications.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for VolatileTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VolatileTensor").field("shape", &self.shape).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(name: &str, range_rows: u32) -> VolatileShape {
        let (name, dtype) = (name.to_owned(), "f32".to_owned());
        VolatileShape { name, dtype, width: 2, row_bytes: 8, range_rows }
    }

    /// Bytes of a row of [`shape`] with its version and its tag.
    const SLOT_BYTES: u64 = 24;

    #[test]
    fn tensors_are_declared_once_and_within_their_memory() {
        let store = VolatileStore::new(100 * SLOT_BYTES);
        let first = store.declare(&shape("a", 0), [0..60]).unwrap();
        let again = store.declare(&shape("a", 0), [0..60]).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        let text = |shape: &VolatileShape, n| store.declare(shape, [0..n]).unwrap_err().to_string();
        let other = VolatileShape { width: 1, row_bytes: 4, ..shape("a", 0) };
        let differs = text(&other, 60);
        assert!(differs.contains("2xf32") && differs.contains("1xf32"), "{differs}");
        assert!(text(&shape("a", 7), 60).contains("claimed by 7 rows"));
        let told = text(&shape("b", 0), 41);
        assert!(told.contains("takes 984 bytes") && told.contains("960 of the 2400"), "{told}");
        store.declare(&shape("b", 0), [0..40]).unwrap();
        assert_eq!((store.names(), store.size()), ("a, b".to_owned(), (2, 100 * SLOT_BYTES)));
        assert!(store.get("c").is_none() && store.get("b").is_some());
        assert!(matches!(
            VolatileStore::new(u64::MAX).declare(&shape("c", 1), [0..2_000_000]),
            Err(DeclareError::TooMany { .. })
        ));
    }

    #[test]
    fn claims_are_all_or_none_and_a_range_never_crosses_parts() {
        let store = VolatileStore::new(1 << 20);
        let tensor = store.declare(&shape("a", 4), [0..10, 10..13]).unwrap();
        assert_eq!(tensor.rows().n_ranges(), 4);
        let mut first = tensor.claim(&[4..8]).unwrap();
        assert!(
            matches!(tensor.claim(&[0..10]), Err(VolatileError::Held { ids }) if ids == (4..8))
        );
        // What was claimed before it was seen that one is held is free again.
        let mut others = tensor.claim(&[8..10, 0..4, 0..4, 10..13]).unwrap();
        assert_eq!(others.iter().map(VolatileClaim::range).collect::<Vec<_>>(), [0, 2, 3]);
        assert!(matches!(tensor.claim(&[8..12]), Err(VolatileError::NotWhole { .. })));
        let before = tensor.n_publications();
        tensor.publish(&others, &[0, 12, 9], &[1; 24], 1).unwrap();
        assert!(tensor.n_publications() > before);
        assert!(tensor.publish(&others, &[4], &[1; 8], 1).is_err(), "that is the other's");
        // A renewed range has no row left; the others have all of theirs.
        assert_eq!(tensor.claim_more(&[8..10, 8..10], &mut others).unwrap(), 2);
        assert_eq!(others.iter().map(VolatileClaim::range).collect::<Vec<_>>(), [0, 2, 3]);
        let lacking = |id| {
            let places = tensor.rows().locate(&[id]).unwrap();
            tensor.rows().first_lacking(&places, 0, 0).is_some()
        };
        assert_eq!([0, 12, 9].map(lacking), [false, false, true]);
        tensor.publish(&others, &[9], &[1; 8], 0).unwrap();
        assert!(!lacking(9));
        assert!(tensor.claim_more(&[8..10, 4..8], &mut others).is_err() && !lacking(9));
        tensor.release(&mut others);
        tensor.release(&mut first);
        assert_eq!(tensor.claim(&[0..13]).unwrap().len(), 4);
    }
}
