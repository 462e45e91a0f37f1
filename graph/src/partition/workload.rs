//! How many partitions the memory of the workers asks for (SDT-GNN, Section III-C).

use std::fmt;

use serde::Serialize;

use super::PartitionError;

/// Present loads of the workers, and the work to assign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// q: number of workers, 1 or more.
    pub n_workers: u16,
    /// M: memory of each worker.
    pub memory_bytes: u64,
    /// T: memory of each that training itself takes; two thirds of M unless given.
    pub reserved_bytes: Option<u64>,
}

/// How many partitions there should be, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// S: bytes of graph and features.
    pub data_bytes: u64,
    /// M.
    pub memory_bytes: u64,
    /// T.
    pub reserved_bytes: u64,
    /// q.
    pub workers: u16,
    /// p: q if S ≤ q · (M − T), else S / (M − T) rounded up. Worker w has partitions w, w + q, …
    pub parts: u16,
}

impl Workers {
    /// Returns the partitions for `data_bytes` of graph and features.
    ///
    /// Fails when training leaves no memory for data, or more than 65 535 partitions are needed.
    pub fn workload(&self, data_bytes: u64) -> Result<Workload, PartitionError> {
        let &Self { n_workers, memory_bytes, reserved_bytes } = self;
        // Rounded up, so that what is left is a third at most.
        let reserved_bytes = reserved_bytes.unwrap_or(memory_bytes - memory_bytes / 3);
        let left = memory_bytes.saturating_sub(reserved_bytes);
        if left == 0 || n_workers == 0 {
            return Err(PartitionError::Memory { memory_bytes, reserved_bytes, n_workers });
        }
        let fits = u128::from(data_bytes) <= u128::from(n_workers) * u128::from(left);
        let needed = if fits { u64::from(n_workers) } else { data_bytes.div_ceil(left) };
        let parts = u16::try_from(needed)
            .map_err(|_| PartitionError::TooManyParts { found: needed, most: u16::MAX })?;
        Ok(Workload { data_bytes, memory_bytes, reserved_bytes, workers: n_workers, parts })
    }
}

impl fmt::Display for Workload {
    /// Writes the arithmetic.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self { data_bytes, memory_bytes, reserved_bytes, workers, parts } = self;
        let left = memory_bytes - reserved_bytes;
        let all = u128::from(workers) * u128::from(left);
        if u128::from(data_bytes) <= all {
            write!(
                f,
                "S = {data_bytes} B <= q (M - T) = {workers} x ({memory_bytes} B - \
                 {reserved_bytes} B) = {all} B: p = q = {parts}"
            )
        } else {
            write!(
                f,
                "S = {data_bytes} B > q (M - T) = {workers} x ({memory_bytes} B - \
                 {reserved_bytes} B) = {all} B: p = S / (M - T) rounded up = {data_bytes} / {left} \
                 = {parts}, up to {} for each worker",
                parts.div_ceil(workers)
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn workers(n_workers: u16, memory_bytes: u64, reserved_bytes: Option<u64>) -> Workers {
        Workers { n_workers, memory_bytes, reserved_bytes }
    }

    #[test]
    fn the_rule_at_its_edges() {
        // A third of 30 bytes on each of 4 workers: 40 bytes fit, 41 do not.
        let four = workers(4, 30, None);
        assert_eq!(four.workload(0).unwrap().parts, 4);
        assert_eq!(four.workload(40).unwrap().parts, 4);
        assert_eq!(four.workload(41).unwrap().parts, 5);
        assert_eq!(four.workload(1000).unwrap().parts, 100);
        assert_eq!(workers(4, 30, Some(0)).workload(120).unwrap().parts, 4);
        let text = four.workload(41).unwrap().to_string();
        assert_eq!(
            text,
            "S = 41 B > q (M - T) = 4 x (30 B - 20 B) = 40 B: p = S / (M - T) rounded up = 41 / 10 \
             = 5, up to 2 for each worker"
        );
    }

    #[test]
    fn no_room_and_too_many_are_errors() {
        for (n_workers, memory, reserved) in [(4, 30, Some(30)), (4, 30, Some(31)), (4, 0, None)] {
            let error = workers(n_workers, memory, reserved).workload(1);
            assert!(matches!(error, Err(PartitionError::Memory { .. })));
        }
        let error = workers(1, 3, None).workload(70_000);
        assert!(matches!(error, Err(PartitionError::TooManyParts { found: 70_000, .. })));
        assert!(workers(u16::MAX, u64::MAX, Some(0)).workload(u64::MAX).is_ok());
    }

    proptest! {
        #[test]
        fn what_is_dealt_fits(data in 0u64..100_000, memory in 3u64..5000, n_workers in 1u16..20) {
            if let Ok(found) = workers(n_workers, memory, None).workload(data) {
                let left = found.memory_bytes - found.reserved_bytes;
                prop_assert!(u64::from(found.parts) * left >= data);
                prop_assert!(found.parts >= n_workers);
            }
        }
    }
}
