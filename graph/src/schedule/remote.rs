//! Which nodes of a batch a worker does not own.

use crate::book::PartitionBook;
use crate::ids::NodeId;
use crate::sampler::is_local;

/// Fills `mask` with one bit per node, lowest first: set where `worker` of `n_workers` does not own
/// the node. It is RapidGNN's bitmask of remote nodes (section 4.2). Bits past the last node are 0.
pub fn remote_mask(
    nodes: &[NodeId],
    book: &PartitionBook,
    worker: u32,
    n_workers: u32,
    mask: &mut Vec<u64>,
) {
    mask.clear();
    mask.extend(nodes.chunks(64).map(|nodes| {
        let bit = |node| u64::from(!is_local(book, worker, n_workers, node));
        nodes.iter().rev().fold(0, |word, &node| word << 1 | bit(node))
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_are_what_is_not_local(
            ids in prop::collection::vec(0u32..60, 0..300),
            n_workers in 1u32..5,
        ) {
            let book = PartitionBook::new(vec![0, 10, 10, 40, 60]).unwrap();
            let nodes: Vec<NodeId> = ids.into_iter().map(NodeId).collect();
            let mut mask = vec![7; 9];
            for worker in 0..n_workers {
                remote_mask(&nodes, &book, worker, n_workers, &mut mask);
                prop_assert_eq!(mask.len(), nodes.len().div_ceil(64));
                for i in 0..64 * mask.len() {
                    let expected = nodes.get(i).is_some_and(|&node| {
                        !is_local(&book, worker, n_workers, node)
                    });
                    prop_assert_eq!(mask[i / 64] >> (i % 64) & 1 == 1, expected);
                }
            }
        }
    }
}
