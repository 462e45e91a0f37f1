//! The edges of a graph as two arrays.

use lodestore_graph::NodeId;

use crate::error::Error;
use crate::open_graph::OpenGraph;

/// A number that names a source in an array.
pub(crate) trait Source: numpy::Element + Copy {
    /// Returns the number, where it fits.
    fn of(id: u32) -> Option<Self>;
}

impl Source for i64 {
    fn of(id: u32) -> Option<Self> {
        Some(id.into())
    }
}

impl Source for i32 {
    fn of(id: u32) -> Option<Self> {
        Self::try_from(id).ok()
    }
}

/// Returns where the edges into each node start, and the source of each edge.
pub(crate) fn csc<T: Source>(opened: &OpenGraph) -> Result<(Vec<i64>, Vec<T>), Error> {
    let topology = opened.topology()?;
    let mut colptr = vec![0];
    let mut row = Vec::with_capacity(topology.n_edges() as usize);
    for node in (0..topology.n_nodes()).map(NodeId) {
        for &source in topology.in_neighbours(node) {
            let of_type = T::of(source);
            row.push(of_type.ok_or_else(|| {
                Error::Dtype(format!("node {source} does not fit int32; take int64"))
            })?);
        }
        colptr.push(row.len() as i64);
    }
    Ok((colptr, row))
}
