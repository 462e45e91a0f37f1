//! Lists of node ids, from the command line and from files, and ids of the imported files.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use lodestore_client::{PullKind, RowSource};
use lodestore_graph::npy::{NpyArray, NpyType};
use lodestore_graph::{NodeId, PartId};
use lodestore_store::import::EXTERNAL_ID_TENSOR;

/// External ids are asked for in pieces of this many bytes.
const EXTERNAL_CHUNK_BYTES: usize = 16 << 20;

/// Node ids on the command line: themselves, or a file that has them.
#[derive(Clone, Debug)]
pub(crate) enum IdsArg {
    Listed(Vec<NodeId>),
    File(PathBuf),
}

impl FromStr for IdsArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.bytes().all(|byte| byte.is_ascii_digit() || byte == b',') {
            return Ok(Self::File(text.into()));
        }
        let mut ids = Vec::new();
        for word in text.split(',') {
            match word.parse() {
                Ok(id) => ids.push(NodeId(id)),
                Err(_) => {
                    return Err(format!(
                        "expected ids below 2^32 as in 5,17,19999, found `{word}`; a file with such \
                         a name is ./NAME"
                    ));
                }
            }
        }
        Ok(Self::Listed(ids))
    }
}

impl IdsArg {
    /// Returns the file, if it is one.
    pub(crate) fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::Listed(_) => None,
            Self::File(path) => Some(path),
        }
    }

    /// Checks the ids, which must be below `n_nodes`.
    pub(crate) fn open(&self, n_nodes: u32) -> Result<NodeIds<'_>> {
        let ids = match self {
            Self::Listed(ids) => ids,
            Self::File(path) => return Ok(NodeIds::File(IdFile::open(path, n_nodes)?)),
        };
        if let Some(id) = ids.iter().find(|id| id.0 >= n_nodes) {
            bail!("--ids: there is no node {id}, the graph has nodes 0 to below {n_nodes}");
        }
        Ok(NodeIds::Listed(ids))
    }
}

/// A list of node ids, read in pieces.
pub(crate) enum NodeIds<'a> {
    Listed(&'a [NodeId]),
    File(IdFile),
}

impl NodeIds<'_> {
    /// Returns the number of ids.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Listed(ids) => ids.len() as u64,
            Self::File(file) => file.len(),
        }
    }

    /// Returns all ids.
    pub(crate) fn all(&self) -> Result<Vec<NodeId>> {
        match self {
            Self::Listed(ids) => Ok(ids.to_vec()),
            Self::File(file) => file.chunks(usize::MAX).next().unwrap_or_else(|| Ok(Vec::new())),
        }
    }

    /// Returns the ids, `chunk_ids` at a time.
    pub(crate) fn chunks(
        &self,
        chunk_ids: usize,
    ) -> Box<dyn Iterator<Item = Result<Vec<NodeId>>> + '_> {
        match self {
            Self::Listed(ids) => Box::new(ids.chunks(chunk_ids).map(|chunk| Ok(chunk.to_vec()))),
            Self::File(file) => Box::new(file.chunks(chunk_ids)),
        }
    }
}

/// A checked list of node ids in a file, mapped; read in pieces.
pub(crate) struct IdFile {
    array: NpyArray,
    n_nodes: u32,
}

impl IdFile {
    /// Opens a 1-D array of u32, i32, u64 or i64; ids must be below `n_nodes`.
    pub(crate) fn open(path: &Path, n_nodes: u32) -> Result<Self> {
        let array = NpyArray::open(path)?;
        check_integers(path, "ids", array.dtype(), array.shape())?;
        Ok(Self { array, n_nodes })
    }

    /// Returns the number of ids.
    pub(crate) fn len(&self) -> u64 {
        self.array.shape()[0]
    }

    /// Returns the ids, `chunk_ids` at a time; the first that is no node is an error with its
    /// position.
    pub(crate) fn chunks(
        &self,
        chunk_ids: usize,
    ) -> impl Iterator<Item = Result<Vec<NodeId>>> + '_ {
        let n_ids = self.len() as usize;
        (0..n_ids).step_by(chunk_ids).map(move |first| {
            let positions = first..n_ids.min(first.saturating_add(chunk_ids));
            positions.map(|position| self.id(position)).collect()
        })
    }

    fn id(&self, position: usize) -> Result<NodeId> {
        let id = integer(self.array.dtype(), self.array.bytes(), position);
        match u32::try_from(id) {
            Ok(id) if id < self.n_nodes => Ok(NodeId(id)),
            _ => bail!(
                "{}: id {position} is {id}, but the graph has nodes 0 to below {}",
                self.array.path().display(),
                self.n_nodes
            ),
        }
    }
}

/// Fails unless an array is a list of whole numbers; `what` says of which, for the message.
pub(crate) fn check_integers(path: &Path, what: &str, dtype: NpyType, shape: &[u64]) -> Result<()> {
    let path = path.display();
    if shape.len() != 1 {
        bail!("{path}: {what} must have shape (N,), found {shape:?}");
    }
    // `numpy.array([])` is of f64.
    let is_empty = shape[0] == 0;
    if !is_empty && !matches!(dtype, NpyType::U32 | NpyType::I32 | NpyType::U64 | NpyType::I64) {
        bail!("{path}: {what} must be u32, i32, u64 or i64, found {dtype}");
    }
    Ok(())
}

/// Returns number `at` of a list that [`check_integers`] passed.
pub(crate) fn integer(dtype: NpyType, bytes: &[u8], at: usize) -> i128 {
    let size = dtype.size_bytes();
    let mut wide = [0; 8];
    wide[..size].copy_from_slice(&bytes[at * size..(at + 1) * size]);
    let bits = u64::from_le_bytes(wide);
    match dtype {
        NpyType::I32 => i128::from(bits as u32 as i32),
        NpyType::I64 => i128::from(bits as i64),
        _ => i128::from(bits),
    }
}

/// Node that no graph has.
const NO_NODE: NodeId = NodeId(u32::MAX);

/// The internal id of each external one.
pub(crate) struct InternalIds {
    of: Vec<NodeId>,
}

impl InternalIds {
    /// Reads the external ids of all nodes of `parts`. Memory: 4 bytes per node and a chunk.
    pub(crate) fn read(source: &dyn RowSource, parts: &[PartId]) -> Result<Self> {
        let mut of = vec![NO_NODE; source.book().n_nodes() as usize];
        for &part in parts {
            read_part(source, source.book().range(part), &mut of)?;
        }
        Ok(Self { of })
    }

    /// Puts internal ids in the place of external ones, which are those of a list from position
    /// `first` on. Fails for one that is not among the external ids that were read.
    pub(crate) fn translate(&self, nodes: &mut [NodeId], first: u64) -> Result<()> {
        for (position, node) in (first..).zip(nodes) {
            let internal = self.of[node.index()];
            if internal == NO_NODE {
                bail!("id {position} of the list, {node}, is that of no node on this machine");
            }
            *node = internal;
        }
        Ok(())
    }
}

fn read_part(source: &dyn RowSource, nodes: Range<u32>, internal_of: &mut [NodeId]) -> Result<()> {
    let chunk_rows = (EXTERNAL_CHUNK_BYTES / size_of::<i64>()) as u32;
    let mut rows = Vec::new();
    for start in nodes.clone().step_by(chunk_rows as usize) {
        let end = start.saturating_add(chunk_rows).min(nodes.end);
        let ids: Vec<NodeId> = (start..end).map(NodeId).collect();
        rows.resize(ids.len() * size_of::<i64>(), 0);
        source.pull(EXTERNAL_ID_TENSOR, &ids, &mut rows, PullKind::Vector)?;
        for (&internal, external) in ids.iter().zip(rows.as_chunks::<8>().0) {
            let external = i64::from_le_bytes(*external);
            let slot = usize::try_from(external).ok().and_then(|e| internal_of.get_mut(e));
            *slot.with_context(|| {
                format!("node {internal} has external id {external}; run `lode verify`")
            })? = internal;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use lodestore_graph::npy::NpyWriter;

    use super::*;

    fn ids(dtype: NpyType, bytes: &[u8]) -> Result<Vec<NodeId>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ids.npy");
        let n = bytes.len() / dtype.size_bytes();
        NpyWriter::write(&path, dtype, &[n as u64], bytes).unwrap();
        let file = IdFile::open(&path, 10)?;
        assert_eq!(file.len(), n as u64);
        let chunks: Result<Vec<_>> = file.chunks(2).collect();
        Ok(chunks?.concat())
    }

    #[test]
    fn every_integer_type_is_read() {
        let expected = [3, 0, 9].map(NodeId);
        let bytes: Vec<u8> = [3i64, 0, 9].iter().flat_map(|id| id.to_le_bytes()).collect();
        assert_eq!(ids(NpyType::I64, &bytes).unwrap(), expected);
        assert_eq!(ids(NpyType::U64, &bytes).unwrap(), expected);
        let bytes: Vec<u8> = [3i32, 0, 9].iter().flat_map(|id| id.to_le_bytes()).collect();
        assert_eq!(ids(NpyType::I32, &bytes).unwrap(), expected);
        assert_eq!(ids(NpyType::U32, &bytes).unwrap(), expected);
        assert_eq!(ids(NpyType::U32, &[]).unwrap(), []);
        assert_eq!(ids(NpyType::F64, &[]).unwrap(), []);
    }

    #[test]
    fn what_is_no_node_is_named_with_its_position() {
        let bytes: Vec<u8> = [3i64, 0, -1].iter().flat_map(|id| id.to_le_bytes()).collect();
        let error = ids(NpyType::I64, &bytes).unwrap_err().to_string();
        assert!(error.contains("id 2 is -1"), "{error}");
        let error = ids(NpyType::U32, &10u32.to_le_bytes()).unwrap_err().to_string();
        assert!(error.contains("id 0 is 10") && error.contains("below 10"), "{error}");
        assert!(ids(NpyType::F32, &[0; 4]).unwrap_err().to_string().contains("found <f4"));
    }
}
