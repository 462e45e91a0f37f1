//! `degree`: the rows of the highest degree, for good (MassiveGNN's prefetch without eviction,
//! Algorithm 1, line 18, which is also GNNLab's and PaGraph's rule).
//!
//! - Ids in order of degree, highest first; ties: lower id first.
//! - The first of them, one per slot, are the target; it never changes.

/// Returns ids in the order in which `degree` prefers them; `degrees[i]` is the degree of `ids[i]`.
///
/// # Panics
///
/// Unless there is one degree per id.
#[must_use]
pub fn rank_by_degree(ids: &[u32], degrees: &[u32]) -> Vec<u32> {
    assert_eq!(ids.len(), degrees.len(), "one degree per id");
    let mut ranked: Vec<(u32, u32)> = ids.iter().copied().zip(degrees.iter().copied()).collect();
    ranked.sort_unstable_by_key(|&(id, degree)| (std::cmp::Reverse(degree), id));
    ranked.into_iter().map(|(id, _)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_degree_comes_first_and_ties_go_to_the_lower_id() {
        assert_eq!(rank_by_degree(&[4, 7, 1, 9], &[3, 5, 5, 0]), [1, 7, 4, 9]);
    }
}
