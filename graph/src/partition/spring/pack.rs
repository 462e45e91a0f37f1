//! Assigning clusters to partitions (Algorithm 1, lines 26–29).

use super::cluster::{Node, UNSEEN};
use super::merge::Clusters;
use crate::ids::PartId;
use crate::partition::loads::Loads;

/// Clusters, largest first, go to the least occupied partition (longest processing time first),
/// then nodes without edges one by one. Partitions of more than `capacity` nodes give up clusters,
/// the smallest first, where another has room for them.
pub(super) fn assign(
    nodes: &[Node],
    mut clusters: Clusters,
    n_parts: u16,
    capacity: Option<u64>,
) -> Vec<PartId> {
    let mut owners = vec![PartId(0); clusters.n_numbered()];
    let mut loads = Loads::new(n_parts);
    let order = clusters.largest_first();
    for &root in &order {
        owners[root as usize] = loads.add_to_least(u64::from(clusters.size(root)));
    }
    if let Some(capacity) = capacity {
        for &root in order.iter().rev() {
            let owner = &mut owners[root as usize];
            loads.relieve(owner, u64::from(clusters.size(root)), capacity);
        }
    }
    drop(order);
    nodes
        .iter()
        .map(|node| match node.cluster {
            UNSEEN => loads.add_to_least(1),
            cluster => owners[clusters.root(cluster) as usize],
        })
        .collect()
}
