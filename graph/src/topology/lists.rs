//! In-neighbour lists from passes over an edge stream, in memory of the order of the nodes.

use std::ops::Range;

use super::TopologyError;
use crate::NodeId;
use crate::edges::EdgeStream;
use crate::relabel::Relabelling;

/// Edges that are gathered in one pass: 256 MiB of ids.
pub(super) const WINDOW_EDGES: usize = 1 << 26;

/// What is done with each node and its list.
pub(super) type VisitList<'a> = dyn FnMut(NodeId, &[u32]) -> Result<(), TopologyError> + 'a;

/// What the passes saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Edges of all lists.
    pub(super) n_edges: u64,
    /// Edges of the stream from a node to itself.
    pub(super) n_self_loops: u64,
    /// Directed edges that were dropped as repetitions.
    pub(super) n_duplicates: u64,
}

/// Calls `f` with every node, ascending, and the sorted distinct in-neighbours of it.
///
/// One pass counts; then each pass gathers the lists of as many consecutive nodes as have
/// `window_edges` edges together (of one node at least). Memory: 4 bytes per node and 4 bytes per
/// edge of a window, 8 bytes per node of a window.
pub(super) fn for_each(
    edges: &dyn EdgeStream,
    relabelling: &Relabelling,
    undirected: bool,
    window_edges: usize,
    f: &mut VisitList<'_>,
) -> Result<Counts, TopologyError> {
    let (expected, found) = (relabelling.internal_of.len(), edges.n_nodes());
    if found as usize > expected {
        return Err(TopologyError::Nodes { expected, found });
    }
    let (degrees, n_self_loops) = count(edges, relabelling, undirected)?;
    let mut counts = Counts { n_self_loops, ..Counts::default() };
    let mut gathered = Vec::new();
    let mut first = 0;
    while first < degrees.len() {
        let window = window_from(first, &degrees, window_edges);
        let ends = gather(edges, relabelling, undirected, &window, &degrees, &mut gathered)?;
        let mut start = 0;
        for (node, end) in window.clone().zip(ends) {
            let list = &mut gathered[start..end];
            list.sort_unstable();
            let n_distinct = dedup(list);
            counts.n_edges += n_distinct as u64;
            counts.n_duplicates += (list.len() - n_distinct) as u64;
            f(NodeId(node as u32), &list[..n_distinct])?;
            start = end;
        }
        first = window.end;
    }
    Ok(counts)
}

/// In-degree of every internal node, repetitions counted, and the number of self loops.
fn count(
    edges: &dyn EdgeStream,
    relabelling: &Relabelling,
    undirected: bool,
) -> Result<(Vec<u32>, u64), TopologyError> {
    let internal_of = &relabelling.internal_of;
    let mut degrees = vec![0u32; internal_of.len()];
    let mut n_self_loops = 0;
    edges.for_each_chunk(&mut |chunk| {
        for &[u, v] in chunk {
            let degree = &mut degrees[internal_of[v as usize] as usize];
            *degree = degree.saturating_add(1);
            if undirected && u != v {
                let degree = &mut degrees[internal_of[u as usize] as usize];
                *degree = degree.saturating_add(1);
            }
            n_self_loops += u64::from(u == v);
        }
        Ok(())
    })?;
    match degrees.iter().position(|&degree| degree == u32::MAX) {
        Some(node) => Err(TopologyError::Degree { node: relabelling.external_of[node] }),
        None => Ok((degrees, n_self_loops)),
    }
}

/// The nodes from `first` whose edges fit together; one node at least.
fn window_from(first: usize, degrees: &[u32], window_edges: usize) -> Range<usize> {
    let mut n_edges = degrees[first] as usize;
    let mut end = first + 1;
    while end < degrees.len() && n_edges + degrees[end] as usize <= window_edges {
        n_edges += degrees[end] as usize;
        end += 1;
    }
    first..end
}

/// Gathers the lists of `window` one after another; gives where each ends.
fn gather(
    edges: &dyn EdgeStream,
    relabelling: &Relabelling,
    undirected: bool,
    window: &Range<usize>,
    degrees: &[u32],
    gathered: &mut Vec<u32>,
) -> Result<Vec<usize>, TopologyError> {
    let mut n_edges = 0;
    let mut next = Vec::with_capacity(window.len());
    for &degree in &degrees[window.clone()] {
        next.push(n_edges);
        n_edges += degree as usize;
    }
    gathered.clear();
    gathered.resize(n_edges, 0);
    let (internal_of, first) = (&relabelling.internal_of, window.start);
    let mut changed = false;
    edges.for_each_chunk(&mut |chunk| {
        for &[u, v] in chunk {
            let (u, v) = (internal_of[u as usize], internal_of[v as usize]);
            changed |= !put(gathered, &mut next, (v as usize).wrapping_sub(first), u);
            if undirected && u != v {
                changed |= !put(gathered, &mut next, (u as usize).wrapping_sub(first), v);
            }
        }
        Ok(())
    })?;
    let mut end = 0;
    for (&degree, &next) in degrees[window.clone()].iter().zip(&next) {
        end += degree as usize;
        changed |= next != end;
    }
    if changed { Err(TopologyError::EdgesChanged) } else { Ok(next) }
}

/// Appends `source` to the list of `row`, if that is in the window; false when no room is left.
#[inline]
fn put(gathered: &mut [u32], next: &mut [usize], row: usize, source: u32) -> bool {
    let Some(next) = next.get_mut(row) else { return true };
    let Some(slot) = gathered.get_mut(*next) else { return false };
    *slot = source;
    *next += 1;
    true
}

/// Moves the distinct numbers of a sorted list to its front; gives how many there are.
fn dedup(list: &mut [u32]) -> usize {
    let mut n_distinct = list.len().min(1);
    for i in 1..list.len() {
        list[n_distinct] = list[i];
        n_distinct += usize::from(list[i] != list[n_distinct - 1]);
    }
    n_distinct
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PartId;
    use crate::edges::{EdgeError, MemoryEdges, VisitChunk};
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::collections::BTreeSet;

    type Lists = Vec<Vec<u32>>;

    fn built(
        edges: &MemoryEdges,
        relabelling: &Relabelling,
        undirected: bool,
        window_edges: usize,
    ) -> (Lists, Counts) {
        let mut lists = Lists::new();
        let counts = for_each(edges, relabelling, undirected, window_edges, &mut |node, list| {
            assert_eq!(node.index(), lists.len());
            lists.push(list.to_vec());
            Ok(())
        });
        (lists, counts.unwrap())
    }

    fn naive(edges: &[[u32; 2]], relabelling: &Relabelling, undirected: bool) -> (Lists, Counts) {
        let internal = |v: u32| relabelling.internal_of[v as usize];
        let mut sets = vec![BTreeSet::new(); relabelling.internal_of.len()];
        let mut counts = Counts::default();
        for &[u, v] in edges {
            let ends = if undirected && u != v { vec![(u, v), (v, u)] } else { vec![(u, v)] };
            for (u, v) in ends {
                let new = sets[internal(v) as usize].insert(internal(u));
                counts.n_edges += u64::from(new);
                counts.n_duplicates += u64::from(!new);
            }
            counts.n_self_loops += u64::from(u == v);
        }
        (sets.into_iter().map(|set| set.into_iter().collect()).collect(), counts)
    }

    proptest! {
        #[test]
        fn agrees_with_sets_for_any_window(
            ends in prop::collection::vec((0u32..20, 0u32..20), 0..120),
            parts in prop::collection::vec(0u16..4, 20..26),
            undirected: bool,
            window_edges in 0usize..150,
        ) {
            let pairs: Vec<[u32; 2]> = ends.iter().map(|&(u, v)| [u, v]).collect();
            let assignment: Vec<PartId> = parts.iter().map(|&p| PartId(p)).collect();
            let relabelling = Relabelling::new(&assignment, 4).unwrap();
            let expected = naive(&pairs, &relabelling, undirected);
            let edges = MemoryEdges::new(pairs).unwrap();
            prop_assert_eq!(built(&edges, &relabelling, undirected, window_edges), expected);
        }
    }

    #[test]
    fn more_nodes_than_the_relabelling_knows_are_an_error() {
        let edges = MemoryEdges::new(vec![[0, 3]]).unwrap();
        let error = for_each(&edges, &Relabelling::identity(3), false, 9, &mut |_, _| Ok(()));
        assert!(matches!(error, Err(TopologyError::Nodes { expected: 3, found: 4 })));
    }

    /// Gives other edges in every pass.
    struct Changing(Vec<MemoryEdges>, Cell<usize>);

    impl EdgeStream for Changing {
        fn n_edges(&self) -> u64 {
            self.0[0].n_edges()
        }
        fn n_nodes(&self) -> u32 {
            2
        }
        fn for_each_chunk(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError> {
            let pass = self.1.replace(self.1.get() + 1);
            self.0[pass % self.0.len()].for_each_chunk(f)
        }
    }

    #[test]
    fn edges_that_change_between_passes_are_an_error() {
        for second in [vec![[1, 0]], vec![[0, 1], [0, 1]], vec![]] {
            let passes = [vec![[0, 1]], second];
            let passes = passes.map(|edges| MemoryEdges::new(edges).unwrap()).to_vec();
            let edges = Changing(passes, Cell::new(0));
            let error = for_each(&edges, &Relabelling::identity(2), false, 9, &mut |_, _| Ok(()));
            assert!(matches!(error, Err(TopologyError::EdgesChanged)));
        }
    }
}
