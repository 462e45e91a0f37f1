//! `graph.toml`: what a graph is. Written once, atomically, at the end of an import, as a
//! sealed text (`sealed_text.rs`).

use lodestore_graph::{BookError, PartitionBook};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

use crate::limits::MAX_TENSORS;
use crate::sealed_text::{format_version, seal_text, sealed_body};
use crate::tensor::{TensorSpec, TensorSpecError};

/// Name of the file that makes a graph's folder a follower's; it has the writer's addresses.
pub(crate) const FOLLOWS_FILE: &str = "follows";

/// Newest format of a graph that this release writes and reads.
pub const GRAPH_FORMAT_VERSION: u32 = 1;

/// Identity, counts, partition bounds and tensors of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphMeta {
    /// [`GRAPH_FORMAT_VERSION`] of the release that wrote it.
    pub format_version: u32,
    /// Identity of the graph, in every file of it.
    pub uuid: Uuid,
    /// Number of nodes.
    pub nodes: u32,
    /// Number of stored in-edges; both directions of an undirected edge count.
    pub edges: u64,
    /// Whether each edge of the input was stored in both directions.
    pub undirected: bool,
    /// Bounds of the partitions' node ranges, one more than there are partitions.
    pub bounds: Vec<u32>,
    /// Tensors, in the order of their import.
    pub tensors: Vec<TensorSpec>,
}

/// Why a text is not the description of a graph.
#[derive(Debug, Error)]
pub enum MetaError {
    /// The text contradicts its checksum or itself.
    #[error("{reason}")]
    Unsound {
        /// Expected and found.
        reason: String,
    },
    /// Not TOML, or not these keys.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// Written by a later release.
    #[error(
        "graph format version {found}, this release reads up to {GRAPH_FORMAT_VERSION}; \
         use a newer `lode`"
    )]
    Newer {
        /// Version in the file.
        found: u32,
    },
    /// The bounds are no partition book.
    #[error("bounds: {0}")]
    Book(#[from] BookError),
    /// A tensor cannot be.
    #[error(transparent)]
    Tensor(#[from] TensorSpecError),
}

impl GraphMeta {
    /// Checks the text of a `graph.toml`; returns the description and its partition book.
    pub fn parse(text: &str) -> Result<(Self, PartitionBook), MetaError> {
        let body = sealed_body(text).map_err(|reason| MetaError::Unsound {
            reason: format!(
                "{reason}; this is no graph.toml, or it was damaged or edited: restore it from a \
                 copy"
            ),
        })?;
        let found = format_version(body)?;
        if found > GRAPH_FORMAT_VERSION {
            return Err(MetaError::Newer { found });
        }
        let meta: Self = toml::from_str(body)?;
        let book = meta.check()?;
        Ok((meta, book))
    }

    /// Returns the text of a `graph.toml`.
    #[must_use]
    pub fn to_text(&self) -> String {
        // Integers, booleans and checked names always serialise.
        let body = toml::to_string(self);
        let body = body.unwrap_or_else(|error| unreachable!("a graph's description: {error}"));
        seal_text(&body)
    }

    /// Returns the tensor called `name`.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorSpec> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    fn check(&self) -> Result<PartitionBook, MetaError> {
        let unsound = |reason| Err(MetaError::Unsound { reason });
        let book = PartitionBook::new(self.bounds.clone())?;
        if book.n_nodes() != self.nodes {
            let (bounds_end, nodes) = (book.n_nodes(), self.nodes);
            return unsound(format!("bounds end at {bounds_end}, but nodes = {nodes}"));
        }
        if self.tensors.len() > MAX_TENSORS {
            let found = self.tensors.len();
            return unsound(format!("{found} tensors; the limit is {MAX_TENSORS}"));
        }
        for (i, tensor) in self.tensors.iter().enumerate() {
            tensor.check()?;
            if self.tensors[..i].iter().any(|other| other.name == tensor.name) {
                return unsound(format!("tensor `{}` is listed twice", tensor.name));
            }
        }
        Ok(book)
    }
}

/// Returns whether `text` describes the same graph, though perhaps with other tensors. A tensor
/// that comes or goes reaches `graph.toml` and its copies one after the other.
pub(crate) fn is_copy(text: &[u8], of: &GraphMeta) -> bool {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| GraphMeta::parse(text).ok());
    parsed.is_some_and(|(copy, _)| GraphMeta { tensors: of.tensors.clone(), ..copy } == *of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;

    fn cora() -> GraphMeta {
        GraphMeta {
            format_version: 1,
            uuid: Uuid::from_u128(5),
            nodes: 2708,
            edges: 10_556,
            undirected: true,
            bounds: vec![0, 1000, 1000, 2708],
            tensors: vec![
                TensorSpec::new("feat", Dtype::F32, 1433).unwrap(),
                TensorSpec::new("label", Dtype::I64, 1).unwrap(),
            ],
        }
    }

    /// Returns the text of a changed description under a checksum that fits.
    fn sealed(change: impl FnOnce(&str) -> String) -> String {
        let text = cora().to_text();
        seal_text(&change(text.split_once('\n').unwrap().1))
    }

    #[test]
    fn what_was_written_is_read() {
        let (meta, book) = GraphMeta::parse(&cora().to_text()).unwrap();
        assert_eq!(meta, cora());
        assert_eq!(book.n_parts(), 3);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_refused() {
        let text = cora().to_text().into_bytes();
        for bit in 0..text.len() * 8 {
            let mut damaged = text.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            if let Ok(damaged) = std::str::from_utf8(&damaged) {
                assert!(GraphMeta::parse(damaged).is_err(), "bit {bit}");
            }
        }
        for length in 0..text.len() {
            let cut = std::str::from_utf8(&text[..length]).unwrap();
            assert!(GraphMeta::parse(cut).is_err(), "length {length}");
        }
    }

    #[test]
    fn sealed_nonsense_is_refused_by_name() {
        let parse = |change: fn(&str) -> String| GraphMeta::parse(&sealed(change)).unwrap_err();
        let newer = parse(|t| t.replace("format_version = 1", "format_version = 2\nnews = 1"));
        assert!(matches!(newer, MetaError::Newer { found: 2 }));
        let unknown = parse(|t| t.replace("nodes", "colour = 1\nnodes"));
        assert!(unknown.to_string().contains("colour"), "{unknown}");
        let nodes = parse(|t| t.replace("nodes = 2708", "nodes = 2709"));
        assert_eq!(nodes.to_string(), "bounds end at 2708, but nodes = 2709");
        let bounds = parse(|t| t.replace("1000, 1000", "1000, 999"));
        assert!(matches!(bounds, MetaError::Book(_)), "{bounds}");
        let width = parse(|t| t.replace("1433", "0"));
        assert!(matches!(width, MetaError::Tensor(TensorSpecError::ZeroWidth { .. })));
        let twice = parse(|t| t.replace("label", "feat"));
        assert_eq!(twice.to_string(), "tensor `feat` is listed twice");
        let outside = parse(|t| t.replace("\"label\"", "\"../label\""));
        assert!(matches!(outside, MetaError::Tensor(TensorSpecError::Name { .. })));
    }
}
