//! `graph.toml`: what a graph is. Written once, atomically, at the end of an import, as a
//! sealed text (`sealed_text.rs`).

use std::collections::BTreeMap;

use lodestore_graph::topology::Direction;
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
pub const GRAPH_FORMAT_VERSION: u32 = 2;

/// Format of a graph of which no tensor was dropped: older releases read it too.
const FIRST_FORMAT_VERSION: u32 = 1;

/// Identity, counts, partition bounds and tensors of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphMeta {
    /// The oldest format that has what it describes, [`GRAPH_FORMAT_VERSION`] at most.
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
    /// How often a tensor of this name was dropped, for names of which any was.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dropped: BTreeMap<String, u32>,
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

    /// Returns the description of a graph whose tensors are all of its import.
    #[must_use]
    pub fn new(
        uuid: Uuid,
        book: &PartitionBook,
        edges: u64,
        direction: Direction,
        tensors: Vec<TensorSpec>,
    ) -> Self {
        Self {
            format_version: FIRST_FORMAT_VERSION,
            uuid,
            nodes: book.n_nodes(),
            edges,
            undirected: direction == Direction::Undirected,
            bounds: book.bounds().to_vec(),
            tensors,
            dropped: BTreeMap::new(),
        }
    }

    /// Returns the identity of the tensor called `name`: another one for each tensor that the graph
    /// has had under this name.
    ///
    /// It is derived, so that machines that have parts of the graph and make the same changes agree
    /// on it.
    #[must_use]
    pub fn tensor_uuid(&self, name: &str) -> Uuid {
        let n_dropped = self.dropped.get(name).copied().unwrap_or(0);
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.uuid.as_bytes());
        hasher.update(&n_dropped.to_le_bytes());
        hasher.update(name.as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        uuid::Builder::from_custom_bytes(bytes).into_uuid()
    }

    /// Removes the tensor called `name`. Another one of this name is another tensor.
    pub(crate) fn drop_tensor(&mut self, name: &str) {
        self.tensors.retain(|tensor| tensor.name != name);
        let n_dropped = self.dropped.entry(name.to_owned()).or_default();
        *n_dropped = n_dropped.saturating_add(1);
        self.format_version = GRAPH_FORMAT_VERSION;
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
    parsed.is_some_and(|(copy, _)| {
        let with_tensors = GraphMeta {
            tensors: of.tensors.clone(),
            dropped: of.dropped.clone(),
            format_version: of.format_version,
            ..copy
        };
        with_tensors == *of
    })
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
            dropped: BTreeMap::new(),
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
    fn a_tensor_that_was_dropped_and_made_again_is_another_one() {
        let mut meta = cora();
        let of_import = meta.tensor_uuid("label");
        assert_ne!(of_import, meta.tensor_uuid("feat"));
        assert_ne!(
            of_import,
            GraphMeta { uuid: Uuid::from_u128(6), ..cora() }.tensor_uuid("label")
        );
        assert!(!meta.to_text().contains("dropped"), "older releases read it");
        let label = meta.tensor("label").unwrap().clone();
        meta.drop_tensor("label");
        meta.tensors.push(label);
        let again = meta.tensor_uuid("label");
        assert_ne!(again, of_import);
        assert_eq!(GraphMeta::parse(&meta.to_text()).unwrap().0, meta);
        assert!(is_copy(cora().to_text().as_bytes(), &meta), "of before it was dropped");
        meta.drop_tensor("label");
        assert!(![of_import, again].contains(&meta.tensor_uuid("label")));
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
        let newer = parse(|t| t.replace("format_version = 1", "format_version = 3\nnews = 1"));
        assert!(matches!(newer, MetaError::Newer { found: 3 }));
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
