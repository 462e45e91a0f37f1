//! Checking the files of a partition that hold topology, piece by piece.
//!
//! A piece is checked on its own, so that many threads share one file and none needs all of it in
//! memory. The sums of all pieces, in their order, decide whether the file is sound. The check has
//! no I/O of its own: bytes come from wherever the caller has them.

mod rule;

use std::ops::Range;

use thiserror::Error;

use crate::book::PartitionBook;
use crate::header::{Header, Identity};
use crate::ids::PartId;
use rule::Rule;

pub use crate::header::{EdgeColumns, FORMAT_VERSION, FileKind, HEADER_BYTES, HeaderFault};

/// Pieces of this size stay in a core's cache between the checksum and the look at the numbers.
const PIECE_BYTES: u64 = 1 << 18;

/// Why the bytes of a file cannot be trusted.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FileFault {
    /// The header is not the one that is expected.
    #[error(transparent)]
    Header(#[from] HeaderFault),
    /// The header counts other nodes than the partition owns.
    #[error("lists of {found} nodes, but the partition owns {expected}")]
    NodeCount {
        /// Nodes that the partition owns.
        expected: u64,
        /// Nodes in the file.
        found: u64,
    },
    /// The file is longer or shorter than its header says.
    #[error("expected {expected_bytes} bytes, found {found_bytes}")]
    Length {
        /// Bytes that the header asks for; u64::MAX when they cannot be counted.
        expected_bytes: u64,
        /// Bytes there are.
        found_bytes: u64,
    },
    /// A section is damaged.
    #[error(
        "section `{section}` from byte {offset_bytes} is damaged: \
         its checksum is {found:08x}, expected {expected:08x}"
    )]
    Checksum {
        /// Which section.
        section: &'static str,
        /// Where it starts.
        offset_bytes: u64,
        /// Checksum in the header.
        expected: u32,
        /// Checksum of the bytes.
        found: u32,
    },
    /// A section is whole but its numbers make no sense.
    #[error("entry {entry} of section `{section}` is out of order or range")]
    Content {
        /// Which section.
        section: &'static str,
        /// Position in the section.
        entry: u64,
    },
}

/// Rules for the sections of a file.
#[derive(Debug)]
pub struct FileCheck {
    header: Header,
    sections: Vec<FileSection>,
}

/// A run of numbers in a file.
#[derive(Debug)]
struct FileSection {
    name: &'static str,
    bytes: Range<u64>,
    crc: u32,
    rule: Rule,
}

/// Some of the bytes of one section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    section: usize,
    /// Where they lie in the file.
    pub bytes: Range<u64>,
}

/// Sums of a piece.
#[derive(Clone, Debug)]
pub struct PieceSum {
    section: usize,
    crc: crc32fast::Hasher,
    /// First and last number.
    ends: Option<(u64, u64)>,
    /// Position in the section of the first number.
    first_entry: u64,
    /// Position of the first number that is out of order or range.
    fault: Option<u64>,
}

/// The partition that a file belongs to.
#[derive(Clone, Copy, Debug)]
pub struct FilePartition<'a> {
    /// Which nodes each partition owns.
    pub book: &'a PartitionBook,
    /// The partition.
    pub part: PartId,
    /// Identity of the graph.
    pub uuid: [u8; 16],
}

impl FileCheck {
    /// Reads the header of a file of `file_bytes` bytes; `head` is its first page, or less where
    /// the file is shorter.
    pub fn new(
        kind: FileKind,
        head: &[u8],
        file_bytes: u64,
        partition: FilePartition<'_>,
    ) -> Result<Self, FileFault> {
        let FilePartition { book, part, uuid } = partition;
        let header = Header::decode(head, kind, &Identity::of(book, part, uuid))?;
        let check = Self { sections: sections(&header, book, part), header };
        let expected = book.range(part).len() as u64;
        if kind == FileKind::Topology && check.header.n_nodes != expected {
            return Err(FileFault::NodeCount { expected, found: check.header.n_nodes });
        }
        match check.sections.last() {
            Some(last) if last.bytes.end == file_bytes => Ok(check),
            last => Err(FileFault::Length {
                expected_bytes: last.map_or(u64::MAX, |last| last.bytes.end),
                found_bytes: file_bytes,
            }),
        }
    }

    /// Returns which kind of file it is.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.header.kind
    }

    /// Returns the edge columns of the file.
    #[must_use]
    pub fn columns(&self) -> EdgeColumns {
        self.header.columns
    }

    /// Returns the number of edges that the header counts.
    #[must_use]
    pub fn n_edges(&self) -> u64 {
        self.header.n_edges
    }

    /// Returns the offset of section `i`.
    pub(crate) fn section_bytes(&self, i: usize) -> Range<usize> {
        let bytes = &self.sections[i].bytes;
        bytes.start as usize..bytes.end as usize
    }

    /// Checks the bytes of a whole file.
    pub(crate) fn check_all(&self, file: &[u8]) -> Result<(), FileFault> {
        let bytes_of = |piece: &Piece| &file[piece.bytes.start as usize..piece.bytes.end as usize];
        self.finish(self.pieces(PIECE_BYTES).map(|piece| self.sum(&piece, bytes_of(&piece))))
    }

    /// Cuts all sections into pieces of at most `max_bytes`, which must be a multiple of 8.
    pub fn pieces(&self, max_bytes: u64) -> impl Iterator<Item = Piece> {
        let sections: Vec<Range<u64>> = self.sections.iter().map(|s| s.bytes.clone()).collect();
        sections.into_iter().enumerate().flat_map(move |(section, all)| {
            let starts = all.clone().step_by(max_bytes as usize);
            starts.map(move |start| Piece { section, bytes: start..all.end.min(start + max_bytes) })
        })
    }

    /// Sums a piece up; `bytes` are those that it names.
    #[must_use]
    pub fn sum(&self, piece: &Piece, bytes: &[u8]) -> PieceSum {
        let section = &self.sections[piece.section];
        let mut crc = crc32fast::Hasher::new();
        crc.update(bytes);
        let first_entry = (piece.bytes.start - section.bytes.start) / section.rule.entry_bytes();
        let (ends, fault) = section.rule.check(first_entry, bytes);
        PieceSum { section: piece.section, crc, ends, first_entry, fault }
    }

    /// Puts the sums of all pieces, in their order, together.
    pub fn finish(&self, sums: impl IntoIterator<Item = PieceSum>) -> Result<(), FileFault> {
        let totals = self.totals(sums);
        for (section, (crc, _)) in self.sections.iter().zip(&totals) {
            if *crc != section.crc {
                let (expected, found) = (section.crc, *crc);
                let (section, offset_bytes) = (section.name, section.bytes.start);
                return Err(FileFault::Checksum { section, offset_bytes, expected, found });
            }
        }
        for (section, (_, fault)) in self.sections.iter().zip(totals) {
            if let Some(entry) = fault {
                return Err(FileFault::Content { section: section.name, entry });
            }
        }
        Ok(())
    }

    /// Returns the checksum of each section and the first entry of it that is wrong.
    fn totals(&self, sums: impl IntoIterator<Item = PieceSum>) -> Vec<(u32, Option<u64>)> {
        let mut sums = sums.into_iter().peekable();
        let mut totals = Vec::new();
        for (i, section) in self.sections.iter().enumerate() {
            let (mut crc, mut ends, mut fault) = (crc32fast::Hasher::new(), None, None);
            while let Some(sum) = sums.next_if(|sum| sum.section == i) {
                crc.combine(&sum.crc);
                let border = ends.zip(sum.ends).map(|((_, last), (next, _))| (last, next));
                let broken = border.filter(|&(last, next)| !section.rule.may_follow(last, next));
                fault = fault.or(broken.map(|_| sum.first_entry)).or(sum.fault);
                ends = ends.map_or(sum.ends, |(first, last)| {
                    Some((first, sum.ends.map_or(last, |(_, last)| last)))
                });
            }
            let fault = fault.or_else(|| section.rule.check_ends(ends, section.n_entries()));
            totals.push((crc.finalize(), fault));
        }
        totals
    }
}

impl FileSection {
    fn n_entries(&self) -> u64 {
        (self.bytes.end - self.bytes.start) / self.rule.entry_bytes()
    }
}

/// Returns the format version of a sound header of `kind` that this release does not know.
#[must_use]
pub fn unknown_version(kind: FileKind, head: &[u8]) -> Option<u32> {
    match crate::header::sound_page(head, kind) {
        Err(HeaderFault::Version { found }) => Some(found),
        _ => None,
    }
}

/// Returns where the sections lie, as the header counts them; none where the counts overflow.
fn sections(header: &Header, book: &PartitionBook, part: PartId) -> Vec<FileSection> {
    let (n_nodes, n_edges) = (header.n_nodes, header.n_edges);
    let graph_nodes = book.n_nodes();
    let mut lengths: Vec<(&'static str, Option<u64>, Rule)> = match header.kind {
        FileKind::Topology => vec![
            (
                "offsets",
                n_nodes.checked_add(1).and_then(|n| n.checked_mul(8)),
                Rule::Offsets { end: n_edges },
            ),
            ("neighbours", n_edges.checked_mul(4), Rule::Nodes { graph_nodes }),
        ],
        FileKind::Halo => vec![
            ("ids", n_nodes.checked_mul(4), Rule::Foreign { graph_nodes, owned: book.range(part) }),
            ("degrees", n_nodes.checked_mul(4), Rule::Any),
            ("overlaps", n_nodes.checked_mul(2), Rule::Overlaps { n_parts: book.n_parts() }),
        ],
    };
    if header.columns.ids {
        lengths.push(("edge ids", n_edges.checked_mul(8), Rule::Any));
    }
    if header.columns.weights {
        lengths.push(("weights", n_edges.checked_mul(4), Rule::Finite));
    }
    let mut start = HEADER_BYTES as u64;
    let mut sections = Vec::new();
    for ((name, bytes, rule), crc) in lengths.into_iter().zip(header.section_crcs) {
        let Some(end) = bytes.and_then(|bytes| start.checked_add(bytes)) else { return Vec::new() };
        sections.push(FileSection { name, bytes: start..end, crc, rule });
        start = end;
    }
    sections
}

#[cfg(test)]
mod tests;
