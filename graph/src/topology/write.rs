//! Writing the topology files of all partitions.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::lists::{self, InEdge, ListInput, NumberedEdge};
use super::{Direction, Topology, TopologyError, TopologyOptions};
use crate::book::PartitionBook;
use crate::edges::EdgeStream;
use crate::file_error::FileError;
use crate::header::{EdgeColumns, FileKind, HEADER_BYTES, Header, Identity};
use crate::ids::PartId;
use crate::relabel::Relabelling;

const BUFFER_BYTES: usize = 1 << 20;

/// Counts of the written file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TopologySummary {
    /// Edges of all lists: each direction of an undirected edge, each repeated edge once unless
    /// repeated edges are kept.
    pub n_edges_directed: u64,
    /// Edges of the input from a node to itself, kept or not.
    pub n_self_loops: u64,
    /// Directed edges that repeat another one, kept or not.
    pub n_duplicates: u64,
}

/// Writes `topology.csr` of every partition to `path_of(partition)`, and syncs it. Self loops are
/// kept, repeated edges stored once.
pub fn write_topologies(
    edges: &dyn EdgeStream,
    relabelling: &Relabelling,
    direction: Direction,
    uuid: [u8; 16],
    path_of: &dyn Fn(PartId) -> PathBuf,
) -> Result<TopologySummary, TopologyError> {
    let options = TopologyOptions::usual(direction);
    write_topologies_with(edges, relabelling, &options, uuid, path_of)
}

/// Does as [`write_topologies`], of the edges and with the columns that `options` name.
///
/// The stream is read once, then once for each window. Memory beside the relabelling:
///
/// - 4 bytes per node of the graph;
/// - 8 bytes per node of the largest partition;
/// - a window, and 8 bytes per node of a window;
/// - 8 MiB of buffers.
///
/// A node whose list alone is longer makes the window as long as its list. An edge takes 4 bytes of
/// a window, or 16 where edge ids or weights are written.
pub fn write_topologies_with(
    edges: &dyn EdgeStream,
    relabelling: &Relabelling,
    options: &TopologyOptions<'_>,
    uuid: [u8; 16],
    path_of: &dyn Fn(PartId) -> PathBuf,
) -> Result<TopologySummary, TopologyError> {
    check_weights(edges, options)?;
    let write = if options.edge_ids || options.weights.is_some() {
        write::<NumberedEdge>
    } else {
        write::<u32>
    };
    write(ListInput { edges, relabelling, options }, uuid, path_of, Durability::Synced)
}

fn check_weights(
    edges: &dyn EdgeStream,
    options: &TopologyOptions<'_>,
) -> Result<(), TopologyError> {
    let Some(weights) = options.weights else { return Ok(()) };
    if weights.len() as u64 != edges.n_edges() {
        let (expected, found) = (edges.n_edges(), weights.len() as u64);
        return Err(TopologyError::Weights { expected, found });
    }
    match weights.iter().position(|weight| !weight.is_finite()) {
        None => Ok(()),
        Some(edge) => Err(TopologyError::Weight { edge: edge as u64, found: weights[edge] }),
    }
}

/// Writes the lists of all nodes, both directions of every edge, to one file that a crash may
/// take, and opens it. Ids are those of the relabelling; its partitions do not matter.
pub fn scratch_topology(
    edges: &dyn EdgeStream,
    relabelling: Relabelling,
    path: &Path,
) -> Result<(Relabelling, Topology), TopologyError> {
    let whole = PartitionBook::single(relabelling.book.n_nodes());
    let (book, relabelling) = (relabelling.book, Relabelling { book: whole, ..relabelling });
    // This process alone reads the file.
    let (uuid, path_of) = ([0; 16], |_| path.to_owned());
    let options = TopologyOptions::usual(Direction::Undirected);
    let input = ListInput { edges, relabelling: &relabelling, options: &options };
    write::<u32>(input, uuid, &path_of, Durability::Fleeting)?;
    let topology = Topology::open(&[path.to_owned()], &relabelling.book, uuid)?;
    Ok((Relabelling { book, ..relabelling }, topology))
}

/// Whether files must survive a crash.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durability {
    Synced,
    Fleeting,
}

fn write<E: InEdge>(
    input: ListInput<'_>,
    uuid: [u8; 16],
    path_of: &dyn Fn(PartId) -> PathBuf,
    durability: Durability,
) -> Result<TopologySummary, TopologyError> {
    let (book, options) = (&input.relabelling.book, input.options);
    let create = |part| PartFile::create(book, part, uuid, path_of(part), options);
    let mut files = book.parts().map(create);
    let mut current = files.next().transpose()?;
    let counts = lists::for_each::<E>(input, &mut |node, list| {
        // Nodes come in order, so a file is done when the first node past it comes.
        while let Some(done) = current.take_if(|file| !file.range.contains(&node.0)) {
            done.finish(options, durability)?;
            current = files.next().transpose()?;
        }
        current.as_mut().map_or(Ok(()), |file| file.push(list))
    })?;
    for file in current.map(Ok).into_iter().chain(files) {
        file?.finish(options, durability)?;
    }
    Ok(counts)
}

/// The file of one partition while its lists arrive.
struct PartFile {
    path: PathBuf,
    file: BufWriter<File>,
    identity: Identity,
    range: Range<u32>,
    offsets: Vec<u64>,
    n_edges: u64,
    neighbours_crc: crc32fast::Hasher,
    /// Sources of one list.
    sources: Vec<u32>,
    /// Numbers of the edges so far, where a column needs them; a file without a name.
    edge_ids: Option<BufWriter<File>>,
}

impl PartFile {
    fn create(
        book: &PartitionBook,
        part: PartId,
        uuid: [u8; 16],
        path: PathBuf,
        options: &TopologyOptions<'_>,
    ) -> Result<Self, TopologyError> {
        let range = book.range(part);
        let mut offsets = Vec::with_capacity(range.len() + 1);
        offsets.push(0);
        let neighbours_at = HEADER_BYTES + 8 * (range.len() + 1);
        let opened = File::create(&path).and_then(|mut file| {
            file.seek(SeekFrom::Start(neighbours_at as u64))?;
            Ok(BufWriter::with_capacity(BUFFER_BYTES, file))
        });
        let file = opened.map_err(FileError::at(&path, "create"))?;
        let has_columns = options.edge_ids || options.weights.is_some();
        let edge_ids = has_columns.then(|| nameless(&path)).transpose();
        Ok(Self {
            edge_ids: edge_ids.map_err(FileError::at(&path, "create edge ids beside"))?,
            path,
            file,
            identity: Identity::of(book, part, uuid),
            range,
            offsets,
            n_edges: 0,
            neighbours_crc: crc32fast::Hasher::new(),
            sources: Vec::new(),
        })
    }

    fn push<E: InEdge>(&mut self, list: &[E]) -> Result<(), TopologyError> {
        self.sources.clear();
        self.sources.extend(list.iter().map(|edge| edge.source()));
        let bytes = bytemuck::cast_slice(&self.sources);
        self.neighbours_crc.update(bytes);
        self.n_edges += list.len() as u64;
        self.offsets.push(self.n_edges);
        let written = self.file.write_all(bytes).and_then(|()| match &mut self.edge_ids {
            Some(ids) => list
                .iter()
                .filter_map(|edge| edge.edge())
                .try_for_each(|edge| ids.write_all(&edge.to_le_bytes())),
            None => Ok(()),
        });
        Ok(written.map_err(FileError::at(&self.path, "write"))?)
    }

    fn finish(
        mut self,
        options: &TopologyOptions<'_>,
        durability: Durability,
    ) -> Result<(), TopologyError> {
        let column_crcs = self.write_columns(options)?;
        let offsets = bytemuck::cast_slice::<u64, u8>(&self.offsets);
        let [third, fourth] = column_crcs;
        let neighbours_crc = self.neighbours_crc.finalize();
        let header = Header {
            kind: FileKind::Topology,
            identity: self.identity,
            n_nodes: self.offsets.len() as u64 - 1,
            n_edges: self.n_edges,
            columns: EdgeColumns { ids: options.edge_ids, weights: options.weights.is_some() },
            section_crcs: [crc32fast::hash(offsets), neighbours_crc, third, fourth],
        };
        let sealed = self.file.into_inner().map_err(io::IntoInnerError::into_error);
        let written = sealed.and_then(|mut file| {
            file.rewind()?;
            file.write_all(&header.encode())?;
            file.write_all(offsets)?;
            if durability == Durability::Synced { file.sync_all() } else { Ok(()) }
        });
        Ok(written.map_err(FileError::at(&self.path, "write"))?)
    }

    /// Appends the columns asked for; returns the checksum of each, 0 where there is none.
    fn write_columns(&mut self, options: &TopologyOptions<'_>) -> Result<[u32; 2], TopologyError> {
        let Some(ids) = self.edge_ids.take() else { return Ok([0; 2]) };
        let path = &self.path;
        let flushed = ids.into_inner().map_err(io::IntoInnerError::into_error);
        let ids = flushed.map_err(FileError::at(path, "write edge ids of"))?;
        let mut crcs = Vec::new();
        if options.edge_ids {
            crcs.push(append(&mut self.file, path, &ids, |id| Ok(id.to_le_bytes()))?);
        }
        if let Some(weights) = options.weights {
            crcs.push(append(&mut self.file, path, &ids, |id| {
                // There was a weight for each edge of the first pass.
                let weight = usize::try_from(id).ok().and_then(|id| weights.get(id));
                weight.map(|weight| weight.to_le_bytes()).ok_or(TopologyError::EdgesChanged)
            })?);
        }
        crcs.resize(2, 0);
        Ok([crcs[0], crcs[1]])
    }
}

/// Appends the results of `cell` for each of the `ids`; returns its checksum.
fn append<const N: usize>(
    file: &mut BufWriter<File>,
    path: &Path,
    mut ids: &File,
    cell: impl Fn(u64) -> Result<[u8; N], TopologyError>,
) -> Result<u32, TopologyError> {
    ids.rewind().map_err(FileError::at(path, "read edge ids of"))?;
    let mut crc = crc32fast::Hasher::new();
    let (mut bytes, mut cells) = (Vec::with_capacity(BUFFER_BYTES), Vec::new());
    loop {
        bytes.clear();
        let read = ids.take(BUFFER_BYTES as u64).read_to_end(&mut bytes);
        if read.map_err(FileError::at(path, "read edge ids of"))? == 0 {
            return Ok(crc.finalize());
        }
        cells.clear();
        for &id in bytes.as_chunks().0 {
            cells.extend_from_slice(&cell(u64::from_le_bytes(id))?);
        }
        crc.update(&cells);
        file.write_all(&cells).map_err(FileError::at(path, "write"))?;
    }
}

/// Returns a file beside `path` that goes when it is closed.
fn nameless(path: &Path) -> io::Result<BufWriter<File>> {
    let name = path.with_extension("ids.tmp");
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&name)?;
    std::fs::remove_file(&name)?;
    Ok(BufWriter::with_capacity(BUFFER_BYTES, file))
}
