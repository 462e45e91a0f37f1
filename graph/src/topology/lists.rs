//! In-neighbour lists from passes over an edge stream, in memory of the order of the nodes.

use std::ops::Range;

use super::{Direction, EdgePolicy, TopologyError, TopologyOptions, TopologySummary};
use crate::edges::EdgeStream;
use crate::ids::NodeId;
use crate::relabel::Relabelling;

/// Entry of an edge into a node; sorts by source.
pub(super) trait InEdge: Copy + Ord + Default {
    /// Returns the edge from `source` that is number `edge` of the stream.
    fn of(source: u32, edge: u64) -> Self;
    /// Returns where it comes from.
    fn source(self) -> u32;
    /// Returns its number, if it is remembered.
    fn edge(self) -> Option<u64>;
}

impl InEdge for u32 {
    #[inline]
    fn of(source: u32, _: u64) -> Self {
        source
    }

    #[inline]
    fn source(self) -> u32 {
        self
    }

    #[inline]
    fn edge(self) -> Option<u64> {
        None
    }
}

/// An edge that remembers its number; of repeated ones the first sorts first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NumberedEdge {
    pub(super) source: u32,
    pub(super) edge: u64,
}

impl InEdge for NumberedEdge {
    #[inline]
    fn of(source: u32, edge: u64) -> Self {
        Self { source, edge }
    }

    #[inline]
    fn source(self) -> u32 {
        self.source
    }

    #[inline]
    fn edge(self) -> Option<u64> {
        Some(self.edge)
    }
}

/// Callback for each node and its list.
pub(super) type VisitList<'a, E> = dyn FnMut(NodeId, &[E]) -> Result<(), TopologyError> + 'a;

/// The edges of a topology, and how it is made of them.
#[derive(Clone, Copy)]
pub(super) struct ListInput<'a> {
    pub(super) edges: &'a dyn EdgeStream,
    pub(super) relabelling: &'a Relabelling,
    pub(super) options: &'a TopologyOptions<'a>,
}

/// Calls `f` with every node, ascending, and its in-edges, by rising source. Repeated edges follow
/// each other in the order of the stream, or all but the first are left out.
///
/// One pass counts; then each pass gathers the lists of as many consecutive nodes as fill
/// `options.window_bytes` together (of one node at least). Memory: 4 bytes per node of the graph, 8
/// per node of a window, and a window. A list that is longer makes the window as long.
pub(super) fn for_each<E: InEdge>(
    input: ListInput<'_>,
    f: &mut VisitList<'_, E>,
) -> Result<TopologySummary, TopologyError> {
    let ListInput { edges, relabelling, options } = input;
    let (expected, found) = (relabelling.internal_of.len(), edges.n_nodes());
    if found as usize > expected {
        return Err(TopologyError::Nodes { expected, found });
    }
    let (degrees, n_self_loops) = count(input)?;
    let mut counts = TopologySummary { n_self_loops, ..TopologySummary::default() };
    let mut gathered: Vec<E> = Vec::new();
    let mut first = 0;
    while first < degrees.len() {
        let window = window_from(first, &degrees, options.window_bytes / size_of::<E>());
        let ends = gather(input, &window, &degrees, &mut gathered)?;
        let mut start = 0;
        for (node, end) in window.clone().zip(ends) {
            let list = &mut gathered[start..end];
            list.sort_unstable();
            let n_distinct = match options.duplicates {
                EdgePolicy::Drop => dedup(list),
                EdgePolicy::Keep => n_distinct(list),
            };
            counts.n_duplicates += (list.len() - n_distinct) as u64;
            let kept = match options.duplicates {
                EdgePolicy::Drop => &list[..n_distinct],
                EdgePolicy::Keep => &*list,
            };
            counts.n_edges_directed += kept.len() as u64;
            f(NodeId(node as u32), kept)?;
            start = end;
        }
        first = window.end;
    }
    Ok(counts)
}

/// Returns the in-degree of every internal node, repetitions counted, and the number of self loops.
fn count(input: ListInput<'_>) -> Result<(Vec<u32>, u64), TopologyError> {
    let ListInput { edges, relabelling, options } = input;
    let internal_of = &relabelling.internal_of;
    let undirected = options.direction == Direction::Undirected;
    let loops = options.self_loops == EdgePolicy::Keep;
    let mut degrees = vec![0u32; internal_of.len()];
    let mut n_self_loops = 0;
    edges.for_each_chunk(&mut |chunk| {
        for &[u, v] in chunk {
            if u != v || loops {
                let degree = &mut degrees[internal_of[v as usize] as usize];
                *degree = degree.saturating_add(1);
            }
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

/// Returns the nodes from `first` whose edges fit together; one node at least.
fn window_from(first: usize, degrees: &[u32], window_edges: usize) -> Range<usize> {
    let mut n_edges = degrees[first] as usize;
    let mut end = first + 1;
    while end < degrees.len() && n_edges + degrees[end] as usize <= window_edges {
        n_edges += degrees[end] as usize;
        end += 1;
    }
    first..end
}

/// Gathers the lists of `window` one after another; returns where each ends.
fn gather<E: InEdge>(
    input: ListInput<'_>,
    window: &Range<usize>,
    degrees: &[u32],
    gathered: &mut Vec<E>,
) -> Result<Vec<usize>, TopologyError> {
    let ListInput { edges, relabelling, options } = input;
    let mut n_edges = 0;
    let mut next = Vec::with_capacity(window.len());
    for &degree in &degrees[window.clone()] {
        next.push(n_edges);
        n_edges += degree as usize;
    }
    gathered.clear();
    gathered.resize(n_edges, E::default());
    let (internal_of, first) = (&relabelling.internal_of, window.start);
    let undirected = options.direction == Direction::Undirected;
    let loops = options.self_loops == EdgePolicy::Keep;
    let (mut changed, mut edge) = (false, 0);
    edges.for_each_chunk(&mut |chunk| {
        for (edge, &[u, v]) in (edge..).zip(chunk) {
            let (to_u, to_v) = (internal_of[u as usize], internal_of[v as usize]);
            let row = |node: u32| (node as usize).wrapping_sub(first);
            if u != v || loops {
                changed |= !put(gathered, &mut next, row(to_v), E::of(to_u, edge));
            }
            if undirected && u != v {
                changed |= !put(gathered, &mut next, row(to_u), E::of(to_v, edge));
            }
        }
        edge += chunk.len() as u64;
        Ok(())
    })?;
    let mut end = 0;
    for (&degree, &next) in degrees[window.clone()].iter().zip(&next) {
        end += degree as usize;
        changed |= next != end;
    }
    if changed { Err(TopologyError::EdgesChanged) } else { Ok(next) }
}

/// Appends `edge` to the list of `row`, if that is in the window; false when no room is left.
#[inline]
fn put<E: InEdge>(gathered: &mut [E], next: &mut [usize], row: usize, edge: E) -> bool {
    let Some(next) = next.get_mut(row) else { return true };
    let Some(slot) = gathered.get_mut(*next) else { return false };
    *slot = edge;
    *next += 1;
    true
}

/// Moves the first edge from each source of a sorted list to its front; returns how many there are.
fn dedup<E: InEdge>(list: &mut [E]) -> usize {
    let mut n_distinct = list.len().min(1);
    for i in 1..list.len() {
        list[n_distinct] = list[i];
        n_distinct += usize::from(list[i].source() != list[n_distinct - 1].source());
    }
    n_distinct
}

/// Sources of a sorted list.
fn n_distinct<E: InEdge>(list: &[E]) -> usize {
    let changes = list.windows(2).filter(|pair| pair[0].source() != pair[1].source()).count();
    changes + list.len().min(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edges::{EdgeError, MemoryEdges, VisitChunk};
    use crate::ids::PartId;
    use proptest::prelude::*;
    use std::cell::Cell;

    /// Sources and numbers of the edges into each node.
    type Lists = Vec<Vec<(u32, u64)>>;

    fn built<E: InEdge>(
        edges: &MemoryEdges,
        relabelling: &Relabelling,
        options: &TopologyOptions<'_>,
        window_edges: usize,
    ) -> (Lists, TopologySummary) {
        let mut lists = Lists::new();
        let options = TopologyOptions { window_bytes: window_edges * size_of::<E>(), ..*options };
        let counts = for_each::<E>(
            ListInput { edges, relabelling, options: &options },
            &mut |node, list| {
                assert_eq!(node.index(), lists.len());
                lists.push(list.iter().map(|e| (e.source(), e.edge().unwrap_or(0))).collect());
                Ok(())
            },
        );
        (lists, counts.unwrap())
    }

    fn naive(
        edges: &[[u32; 2]],
        relabelling: &Relabelling,
        options: &TopologyOptions<'_>,
    ) -> (Lists, TopologySummary) {
        let internal = |v: u32| relabelling.internal_of[v as usize];
        let mut lists = vec![Vec::new(); relabelling.internal_of.len()];
        let mut counts = TopologySummary::default();
        for (edge, &[u, v]) in (0u64..).zip(edges) {
            let mut ends = vec![];
            if u != v || options.self_loops == EdgePolicy::Keep {
                ends.push((u, v));
            }
            if options.direction == Direction::Undirected && u != v {
                ends.push((v, u));
            }
            for (u, v) in ends {
                let list: &mut Vec<(u32, u64)> = &mut lists[internal(v) as usize];
                let repeated = list.iter().any(|(source, _)| *source == internal(u));
                counts.n_duplicates += u64::from(repeated);
                if !repeated || options.duplicates == EdgePolicy::Keep {
                    list.push((internal(u), edge));
                    counts.n_edges_directed += 1;
                }
            }
            counts.n_self_loops += u64::from(u == v);
        }
        lists.iter_mut().for_each(|list| list.sort_unstable());
        (lists, counts)
    }

    fn policy() -> impl Strategy<Value = EdgePolicy> {
        prop_oneof![Just(EdgePolicy::Keep), Just(EdgePolicy::Drop)]
    }

    proptest! {
        #[test]
        fn agrees_with_plain_lists_for_any_window(
            ends in prop::collection::vec((0u32..20, 0u32..20), 0..120),
            parts in prop::collection::vec(0u16..4, 20..26),
            direction in any::<bool>().prop_map(Direction::from),
            (self_loops, duplicates) in (policy(), policy()),
            window_edges in 0usize..150,
        ) {
            let pairs: Vec<[u32; 2]> = ends.iter().map(|&(u, v)| [u, v]).collect();
            let assignment: Vec<PartId> = parts.iter().map(|&p| PartId(p)).collect();
            let relabelling = Relabelling::new(&assignment, 4).unwrap();
            let options =
                TopologyOptions { direction, self_loops, duplicates, ..Default::default() };
            let (mut lists, counts) = naive(&pairs, &relabelling, &options);
            let edges = MemoryEdges::new(pairs).unwrap();
            let found = built::<NumberedEdge>(&edges, &relabelling, &options, window_edges);
            prop_assert_eq!(&found, &(lists.clone(), counts));
            lists.iter_mut().flatten().for_each(|(_, edge)| *edge = 0);
            let found = built::<u32>(&edges, &relabelling, &options, window_edges);
            prop_assert_eq!(found, (lists, counts));
        }
    }

    fn plain(edges: &dyn EdgeStream, n_nodes: u32) -> Result<TopologySummary, TopologyError> {
        let nodes = Relabelling::identity(n_nodes);
        let options = TopologyOptions { window_bytes: 36, ..Default::default() };
        let input = ListInput { edges, relabelling: &nodes, options: &options };
        for_each::<u32>(input, &mut |_, _| Ok(()))
    }

    #[test]
    fn more_nodes_than_the_relabelling_knows_are_an_error() {
        let edges = MemoryEdges::new(vec![[0, 3]]).unwrap();
        let error = plain(&edges, 3);
        assert!(matches!(error, Err(TopologyError::Nodes { expected: 3, found: 4 })));
    }

    /// A stream with other edges in every pass.
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
            let error = plain(&edges, 2);
            assert!(matches!(error, Err(TopologyError::EdgesChanged)));
        }
    }
}
