//! Edges of a stream that a topology keeps, and their columns.

/// Whether edges of some kind are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgePolicy {
    /// They are edges as all others.
    Keep,
    /// They are counted and left out.
    Drop,
}

/// Whether an edge can be followed against its direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Edges are as given.
    #[default]
    Directed,
    /// The reverse of every edge is an edge too.
    Undirected,
}

impl From<bool> for Direction {
    /// Returns the direction of edges that are undirected, or are not.
    fn from(undirected: bool) -> Self {
        if undirected { Self::Undirected } else { Self::Directed }
    }
}

/// How a topology is made of edges.
#[derive(Clone, Copy, Debug)]
pub struct TopologyOptions<'a> {
    /// Whether the reverse of every edge that is no self loop is added.
    pub direction: Direction,
    /// Edges from a node to itself; kept by default.
    pub self_loops: EdgePolicy,
    /// Directed edges with the same ends as an earlier one; dropped by default. Where they are kept
    /// a node has the same neighbour several times, and sampling may draw each.
    pub duplicates: EdgePolicy,
    /// Whether files hold the number of each edge in the stream; that of the first one where
    /// repeated edges are dropped.
    pub edge_ids: bool,
    /// A finite weight for each edge of the stream, in its order, for files to hold.
    pub weights: Option<&'a [f32]>,
    /// Bytes of edges that are gathered in one pass over the stream; 256 MiB by default.
    pub window_bytes: usize,
}

impl Default for TopologyOptions<'_> {
    fn default() -> Self {
        Self {
            direction: Direction::Directed,
            self_loops: EdgePolicy::Keep,
            duplicates: EdgePolicy::Drop,
            edge_ids: false,
            weights: None,
            window_bytes: 256 << 20,
        }
    }
}

impl TopologyOptions<'_> {
    /// Returns the usual ones, for edges of one direction or of both.
    #[must_use]
    pub fn usual(direction: Direction) -> Self {
        Self { direction, ..Self::default() }
    }
}
