//! Topology and halo, piece by piece.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use lodestore_graph::PartId;
use lodestore_graph::file_check::{
    FileCheck, FileFault, FileKind, FilePartition, HEADER_BYTES, Piece, PieceSum,
};
use lodestore_graph::lock::IgnorePoison;
use thiserror::Error;

use crate::error::StoreError;
use crate::file_system::{FileReader, FileSystem};
use crate::graph::Graph;

/// Bytes that are read and looked at in one go; they stay in a core's cache.
const PIECE_BYTES: u64 = 1 << 18;

/// Why a file of lists cannot be checked piece by piece.
#[derive(Debug, Error)]
pub(super) enum ListsError {
    /// It cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its header or its length is wrong.
    #[error("{}: {fault}", path.display())]
    Fault { path: PathBuf, fault: FileFault },
}

/// An open file of lists and what its pieces have added up to.
#[derive(Debug)]
pub(super) struct Lists {
    path: PathBuf,
    file: Box<dyn FileReader>,
    file_bytes: u64,
    check: FileCheck,
    pieces: Vec<Piece>,
    /// By piece.
    sums: Mutex<Vec<Option<PieceSum>>>,
}

impl Lists {
    /// Opens a file of partition `part` and checks its header and length.
    pub(super) fn open(graph: &Graph, part: PartId, kind: FileKind) -> Result<Self, ListsError> {
        let path = match kind {
            FileKind::Topology => graph.topology_path(part),
            FileKind::Halo => graph.halo_path(part),
        };
        let (file, head) = head(&**graph.file_system(), &path)?;
        let file_bytes = file.len_bytes().map_err(StoreError::io(&path, "read the length of"))?;
        let uuid = *graph.uuid().as_bytes();
        match FileCheck::new(
            kind,
            &head,
            file_bytes,
            FilePartition { book: graph.book(), part, uuid },
        ) {
            Ok(check) => {
                let pieces: Vec<Piece> = check.pieces(PIECE_BYTES).collect();
                let sums = Mutex::new(vec![None; pieces.len()]);
                Ok(Self { path, file, file_bytes, check, pieces, sums })
            }
            Err(fault) => Err(ListsError::Fault { path, fault }),
        }
    }

    pub(super) fn n_pieces(&self) -> u64 {
        self.pieces.len() as u64
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn check(&self) -> &FileCheck {
        &self.check
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Reads a piece into `buffer` and sums it up.
    pub(super) fn sum(&self, piece: u64, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
        let wanted = &self.pieces[piece as usize];
        let n_bytes = (wanted.bytes.end - wanted.bytes.start) as usize;
        buffer.resize(n_bytes.max(buffer.len()), 0);
        let bytes = &mut buffer[..n_bytes];
        let read = self.file.read_exact_at(bytes, wanted.bytes.start);
        read.map_err(StoreError::io(&self.path, "read"))?;
        let sum = self.check.sum(wanted, bytes);
        self.sums.lock().ignore_poison()[piece as usize] = Some(sum);
        Ok(())
    }

    /// Returns the sums of all pieces, in their order; `None` if one could not be read.
    pub(super) fn sums(&self) -> Option<Vec<PieceSum>> {
        self.sums.lock().ignore_poison().iter().cloned().collect()
    }
}

/// Opens a file of lists and reads its first page, or less where it is shorter.
pub(crate) fn head(
    fs: &dyn FileSystem,
    path: &Path,
) -> Result<(Box<dyn FileReader>, Vec<u8>), StoreError> {
    let file = fs.open(path).map_err(StoreError::io(path, "open"))?;
    let file_bytes = file.len_bytes().map_err(StoreError::io(path, "read the length of"))?;
    let mut head = vec![0; file_bytes.min(HEADER_BYTES as u64) as usize];
    file.read_exact_at(&mut head, 0).map_err(StoreError::io(path, "read"))?;
    Ok((file, head))
}
