//! One budget of bytes for tiers of several widths.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

/// Request of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRequest {
    /// Bytes of a row with its bookkeeping.
    pub slot_bytes: u64,
    /// Rows that it could use.
    pub wanted_rows: u32,
    /// Its share of the budget, relative to the others: say, how often its rows are read times
    /// their bytes.
    pub weight: u32,
}

/// Divides a budget: each tier gets bytes by weight. The unused part of a tier is divided among the
/// others in the same way. The last rows go to any tier with room, heaviest first. Returns rows in
/// the order of the requests; together they never pass the budget.
#[must_use]
pub fn shares(budget_bytes: u64, requests: &[MemoryRequest]) -> Vec<u32> {
    let mut rows = vec![0; requests.len()];
    let mut left = budget_bytes;
    let mut open: Vec<usize> = (0..requests.len()).collect();
    loop {
        let weights: u64 = open.iter().map(|&at| u64::from(requests[at].weight)).sum();
        let pool = left;
        let share = |at: usize| {
            part(pool, u64::from(requests[at].weight), weights) / requests[at].slot_bytes.max(1)
        };
        let n_open = open.len();
        open.retain(|&at| {
            let is_served = share(at) >= u64::from(requests[at].wanted_rows);
            if is_served {
                rows[at] = requests[at].wanted_rows;
                left -= u64::from(rows[at]) * requests[at].slot_bytes;
            }
            !is_served
        });
        if open.len() == n_open {
            for &at in &open {
                rows[at] = share(at) as u32;
                left -= u64::from(rows[at]) * requests[at].slot_bytes;
            }
            break;
        }
    }
    open.sort_by_key(|&at| std::cmp::Reverse(requests[at].weight));
    for at in open {
        let wanted = u64::from(requests[at].wanted_rows - rows[at]);
        let more = (left / requests[at].slot_bytes.max(1)).min(wanted) as u32;
        rows[at] += more;
        left -= u64::from(more) * requests[at].slot_bytes;
    }
    rows
}

/// ⌊bytes × weight / weights⌋, all of it when there is no weight.
fn part(bytes: u64, weight: u64, weights: u64) -> u64 {
    let product = u128::from(bytes) * u128::from(weight);
    product.checked_div(u128::from(weights)).map_or(0, |share| share as u64)
}

/// A budget of bytes that tiers take from while they live. Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    budget_bytes: u64,
    reserved_bytes: Arc<AtomicU64>,
}

/// Bytes of a [`MemoryBudget`]'s budget; they go back when this is dropped.
#[derive(Debug)]
#[must_use = "the bytes go back when the reservation is dropped"]
pub struct Reservation {
    bytes: u64,
    reserved_bytes: Arc<AtomicU64>,
}

/// The budget is used up.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a tier of {asked_bytes} bytes does not fit: {left_bytes} of {budget_bytes} are left")]
pub struct OverBudget {
    /// Bytes asked for.
    pub asked_bytes: u64,
    /// Bytes that are not reserved.
    pub left_bytes: u64,
    /// The whole budget.
    pub budget_bytes: u64,
}

impl MemoryBudget {
    /// Returns a budget of which nothing is reserved.
    #[must_use]
    pub fn new(budget_bytes: u64) -> Self {
        Self { budget_bytes, reserved_bytes: Arc::default() }
    }

    /// Takes bytes from the budget; none when there are not enough.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, OverBudget> {
        let add =
            |reserved: u64| reserved.checked_add(bytes).filter(|&sum| sum <= self.budget_bytes);
        // Only the sum matters: no other memory is published by it.
        let added = self.reserved_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        match added {
            Ok(_) => Ok(Reservation { bytes, reserved_bytes: Arc::clone(&self.reserved_bytes) }),
            Err(reserved) => Err(OverBudget {
                asked_bytes: bytes,
                left_bytes: self.budget_bytes - reserved,
                budget_bytes: self.budget_bytes,
            }),
        }
    }

    /// Returns the bytes that are not reserved.
    #[must_use]
    pub fn left_bytes(&self) -> u64 {
        self.budget_bytes - self.reserved_bytes.load(Ordering::Relaxed)
    }
}

impl Reservation {
    /// Returns the bytes reserved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.reserved_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(slot_bytes: u64, wanted_rows: u32, weight: u32) -> MemoryRequest {
        MemoryRequest { slot_bytes, wanted_rows, weight }
    }

    #[test]
    fn bytes_go_by_weight_and_the_modest_leave_theirs_to_others() {
        assert_eq!(shares(1200, &[request(4, 999, 1), request(400, 999, 2)]), [100, 2]);
        assert_eq!(shares(1200, &[request(4, 10, 1), request(100, 999, 1)]), [10, 11]);
        assert_eq!(shares(1200, &[request(4, 0, 5), request(100, 3, 1)]), [0, 3]);
        assert_eq!(shares(99, &[request(100, 3, 1)]), [0]);
        assert_eq!(shares(99, &[request(10, 3, 0)]), [3], "no weight, but no other tier");
        assert!(shares(99, &[]).is_empty());
    }

    #[test]
    fn bytes_that_are_left_go_to_the_heavier_first() {
        // 26 bytes by weight are 8 and 17: no row, and one. Of the 16 that are left each could have
        // one.
        assert_eq!(shares(26, &[request(10, 9, 1), request(10, 9, 2)]), [0, 2]);
        assert_eq!(shares(26, &[request(10, 9, 2), request(10, 9, 1)]), [2, 0]);
        // What the heavier has no use for, or no room, is the lighter's.
        assert_eq!(shares(26, &[request(10, 9, 1), request(10, 1, 2)]), [1, 1]);
        assert_eq!(shares(26, &[request(9, 9, 1), request(17, 9, 2)]), [1, 1]);
        assert_eq!(
            shares(35, &[request(10, 9, 1), request(10, 9, 3), request(10, 9, 2)]),
            [0, 2, 1]
        );
    }

    #[test]
    fn reservations_come_back() {
        let memory_budget = MemoryBudget::new(100);
        let first = memory_budget.reserve(60).unwrap();
        let error = memory_budget.clone().reserve(41).unwrap_err();
        assert_eq!(error, OverBudget { asked_bytes: 41, left_bytes: 40, budget_bytes: 100 });
        let second = memory_budget.reserve(40).unwrap();
        assert_eq!((memory_budget.left_bytes(), second.bytes()), (0, 40));
        drop(first);
        assert_eq!(memory_budget.left_bytes(), 60);
        assert!(memory_budget.reserve(u64::MAX).is_err());
    }

    proptest! {
        #[test]
        fn a_budget_is_filled_and_never_passed(
            budget in 0u64..100_000,
            requests in prop::collection::vec((1u64..3000, 0u32..200, 0u32..9), 0..6),
        ) {
            let requests: Vec<MemoryRequest> = requests.into_iter().map(|(b, r, w)| request(b, r, w)).collect();
            let rows = shares(budget, &requests);
            let used = requests.iter().zip(&rows).map(|(c, &n)| c.slot_bytes * u64::from(n));
            let left = budget.checked_sub(used.sum()).expect("within the budget");
            for (request, &rows) in requests.iter().zip(&rows) {
                prop_assert!(rows <= request.wanted_rows);
                prop_assert!(rows == request.wanted_rows || left < request.slot_bytes);
            }
        }
    }
}
