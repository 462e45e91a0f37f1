//! Writing the topology files of all partitions.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Topology, TopologyError, lists};
use crate::edges::EdgeStream;
use crate::header::{FileKind, HEADER_BYTES, Header, Identity};
use crate::relabel::Relabelling;
use crate::{PartId, PartitionBook};

const BUFFER_BYTES: usize = 1 << 20;

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TopologySummary {
    /// Edges of all lists: each direction of an undirected edge, each repeated edge once.
    pub n_edges_directed: u64,
    /// Edges of the input from a node to itself; they are kept.
    pub n_self_loops: u64,
    /// Directed edges that were dropped because the same one was there already.
    pub n_duplicates: u64,
}

/// Writes `topology.csr` of every partition to `path_of(partition)`, and syncs it.
///
/// `undirected` adds the reverse of every edge. Memory is O(nodes) plus a window of
/// 256 MiB; the stream is read once, then once for each window.
pub fn write_topologies(
    edges: &dyn EdgeStream,
    relabelling: &Relabelling,
    undirected: bool,
    uuid: [u8; 16],
    path_of: &dyn Fn(PartId) -> PathBuf,
) -> Result<TopologySummary, TopologyError> {
    write(edges, relabelling, undirected, uuid, path_of, Durability::Synced)
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
    // Nobody but this process reads the file.
    let (uuid, path_of) = ([0; 16], |_| path.to_owned());
    write(edges, &relabelling, true, uuid, &path_of, Durability::Fleeting)?;
    let topology = Topology::open(&[path.to_owned()], &relabelling.book, uuid)?;
    Ok((Relabelling { book, ..relabelling }, topology))
}

/// Whether files must survive a crash.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durability {
    Synced,
    Fleeting,
}

fn write(
    edges: &dyn EdgeStream,
    relabelling: &Relabelling,
    undirected: bool,
    uuid: [u8; 16],
    path_of: &dyn Fn(PartId) -> PathBuf,
    durability: Durability,
) -> Result<TopologySummary, TopologyError> {
    let book = &relabelling.book;
    let mut files = book.parts().map(|part| PartFile::create(book, part, uuid, path_of(part)));
    let mut current = files.next().transpose()?;
    let window = lists::WINDOW_EDGES;
    let counts = lists::for_each(edges, relabelling, undirected, window, &mut |node, list| {
        // Nodes come in order, so a file is done when the first node past it comes.
        while let Some(done) = current.take_if(|file| !file.range.contains(&node.0)) {
            done.finish(durability)?;
            current = files.next().transpose()?;
        }
        current.as_mut().map_or(Ok(()), |file| file.push(list))
    })?;
    for file in current.map(Ok).into_iter().chain(files) {
        file?.finish(durability)?;
    }
    Ok(TopologySummary {
        n_edges_directed: counts.n_edges,
        n_self_loops: counts.n_self_loops,
        n_duplicates: counts.n_duplicates,
    })
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
}

impl PartFile {
    fn create(
        book: &PartitionBook,
        part: PartId,
        uuid: [u8; 16],
        path: PathBuf,
    ) -> Result<Self, TopologyError> {
        let range = book.range(part);
        let mut offsets = Vec::with_capacity(range.len() + 1);
        offsets.push(0);
        let neighbours_at = HEADER_BYTES + 8 * (range.len() + 1);
        let opened = File::create(&path).and_then(|mut file| {
            file.seek(SeekFrom::Start(neighbours_at as u64))?;
            Ok(BufWriter::with_capacity(BUFFER_BYTES, file))
        });
        let file = opened.map_err(|e| failed(&path, "create", e))?;
        let identity = Identity::of(book, part, uuid);
        let neighbours_crc = crc32fast::Hasher::new();
        Ok(Self { path, file, identity, range, offsets, n_edges: 0, neighbours_crc })
    }

    fn push(&mut self, list: &[u32]) -> Result<(), TopologyError> {
        let bytes = bytemuck::cast_slice(list);
        self.neighbours_crc.update(bytes);
        self.n_edges += list.len() as u64;
        self.offsets.push(self.n_edges);
        self.file.write_all(bytes).map_err(|e| failed(&self.path, "write", e))
    }

    fn finish(self, durability: Durability) -> Result<(), TopologyError> {
        let offsets = bytemuck::cast_slice::<u64, u8>(&self.offsets);
        let header = Header {
            kind: FileKind::Topology,
            identity: self.identity,
            n_nodes: self.offsets.len() as u64 - 1,
            n_edges: self.n_edges,
            section_crcs: [crc32fast::hash(offsets), self.neighbours_crc.finalize(), 0],
        };
        let sealed = self.file.into_inner().map_err(io::IntoInnerError::into_error);
        sealed
            .and_then(|mut file| {
                file.rewind()?;
                file.write_all(&header.encode())?;
                file.write_all(offsets)?;
                if durability == Durability::Synced { file.sync_all() } else { Ok(()) }
            })
            .map_err(|e| failed(&self.path, "write", e))
    }
}

fn failed(path: &Path, action: &'static str, source: io::Error) -> TopologyError {
    TopologyError::Io { path: path.to_owned(), action, source }
}
