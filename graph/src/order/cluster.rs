//! Cluster order: the clusters of SPRING, one after another.

use super::bfs::breadth_first;
use super::inner_edges::{Inside, InsideEdges};
use crate::edges::{EdgeError, EdgeStream};
use crate::partition::{MergedClusters, UNSEEN, merged_clusters};

/// A cluster grows to the volume of this many mean rows: about the neighbourhood of one root.
const CLUSTER_ROWS: u64 = 512;
/// Merging makes no cluster of more rows than this.
const MERGED_ROWS: f64 = 4096.0;

/// Returns all rows, ordered by merged cluster, then by cluster, then breadth first. Merged
/// clusters come in the order in which a breadth-first search meets them. Rows without edges inside
/// the partition come last.
///
/// The clusters are those of SPRING (SDT-GNN, Algorithm 1, lines 2–25) over the edges inside the
/// partition. They do not depend on its partitioner, and are finer than a partitioner's.
pub(super) fn by_cluster(inside: &Inside<'_>) -> Result<Vec<u32>, EdgeError> {
    let edges = InsideEdges::new(inside);
    let n_rows = inside.n_rows();
    let mean_degree = 2 * edges.n_edges() / u64::from(n_rows.max(1));
    let tau_vol = CLUSTER_ROWS * mean_degree.max(1);
    let clusters = merged_clusters(&edges, n_rows, tau_vol, MERGED_ROWS)?;
    let mut rows = breadth_first(inside);
    let places = places(&clusters, &rows);
    rows.sort_by_key(|&row| match clusters.cluster_of[row as usize] {
        UNSEEN => u32::MAX,
        cluster => places[cluster as usize],
    });
    Ok(rows)
}

/// Returns the place of each cluster: those merged together one after another, as `rows` meet the
/// first of them.
fn places(clusters: &MergedClusters, rows: &[u32]) -> Vec<u32> {
    let mut places = vec![u32::MAX; clusters.next.len()];
    let mut n_placed = 0;
    for &row in rows {
        let met = clusters.cluster_of[row as usize];
        let mut cluster = met;
        while cluster != UNSEEN && places[cluster as usize] == u32::MAX {
            places[cluster as usize] = n_placed;
            n_placed += 1;
            cluster = clusters.next[cluster as usize];
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::super::tests::{graph, inside};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn merged_clusters_stay_together_and_so_do_the_clusters_within() {
        // Clusters 0 → 2 → 0 and 1 alone; row 3 has no edges.
        let clusters = MergedClusters { cluster_of: vec![1, 2, 0, UNSEEN, 2], next: vec![2, 1, 0] };
        assert_eq!(places(&clusters, &[4, 0, 2, 1, 3]), [1, 2, 0]);
        assert_eq!(places(&clusters, &[3, 0, 2, 1, 4]), [1, 0, 2]);
    }

    proptest! {
        #[test]
        fn rows_of_a_cluster_are_consecutive(graph in graph()) {
            let (topology, book) = graph;
            for part in book.parts() {
                let inside = inside(&topology, &book, part);
                let edges = InsideEdges::new(&inside);
                let clusters = merged_clusters(&edges, inside.n_rows(), 6, 8.0).unwrap();
                let rows = breadth_first(&inside);
                let mut placed = places(&clusters, &rows);
                let n_clusters = placed.len() as u32;
                placed.sort_unstable();
                prop_assert!(placed.into_iter().eq(0..n_clusters), "each has a place of its own");
                for cluster in 0..n_clusters {
                    let cycle = std::iter::successors(Some(cluster), |&at| {
                        Some(clusters.next[at as usize]).filter(|&next| next != cluster)
                    });
                    prop_assert!(cycle.take(n_clusters as usize + 1).count() <= n_clusters as usize);
                }
            }
        }
    }
}
