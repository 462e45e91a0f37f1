//! One batch on disk.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | epoch, u32 |
//! | 4..8 | worker, u32 |
//! | 8..12 | batch, u32 |
//! | 12..16 | bytes before compression, u32, at most 1 GiB |
//! | 16..20 | bytes of the zstd frame, u32 |
//! | 20..24 | CRC-32 of bytes 0..20 and of the zstd frame, from that of the header |
//! | 24.. | zstd frame |
//!
//! Before compression a batch is a list of u32 in four planes: the lowest byte of every word, then
//! the second, third and highest. The words are
//!
//! 1. number of nodes, of roots, and of message-flow blocks;
//! 2. for each block from the input on: number of destinations, number of edges;
//! 3. the nodes;
//! 4. for each block: the number of edges of each destination, then the code of each edge.
//!
//! Sampling numbers new nodes in the order of their edges. So the code of a source is its distance
//! behind the next new number; 0 means a new node. Most codes are 0 or small.

use std::io::Read;

use super::ScheduleSpec;
use super::error::BlockFault;
use super::footer::crc_of;
use crate::batch::{Batch, Block};
use crate::header::u32_at;
use crate::ids::NodeId;

/// Bytes before the zstd frame.
pub(super) const FRAME_BYTES: usize = 24;
/// Most bytes of a batch before compression; bounds what a forged block can make a reader take.
pub(super) const MAX_RAW_BYTES: usize = 1 << 30;
/// zstd's fastest level but the negative ones: higher ones gain little on ids.
const LEVEL: i32 = 1;

/// Which batch: epoch, worker, batch within both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) epoch: u32,
    pub(super) worker: u32,
    pub(super) batch: u32,
}

impl Place {
    fn words(self) -> [u32; 3] {
        [self.epoch, self.worker, self.batch]
    }
}

/// A block as it goes to the file.
pub(super) struct Encoded {
    pub(super) bytes: Vec<u8>,
    pub(super) n_ids: u32,
    /// BLAKE3 of place and batch before compression.
    pub(super) digest: [u8; 32],
}

/// Encodes `batch`; fails with the bytes that it takes when these are more than a block holds.
pub(super) fn encode(batch: &Batch, place: Place, header_crc: u32) -> Result<Encoded, u64> {
    let words = to_words(batch);
    let raw_bytes = 4 * words.len();
    if raw_bytes > MAX_RAW_BYTES {
        return Err(raw_bytes as u64);
    }
    let planes = to_planes(&words);
    let digest = digest_of(place, &planes);
    let mut bytes = vec![0; FRAME_BYTES + zstd::zstd_safe::compress_bound(raw_bytes)];
    let zstd_bytes = zstd::bulk::compress_to_buffer(&planes, &mut bytes[FRAME_BYTES..], LEVEL)
        .expect("a buffer of the size that zstd asks for is enough");
    bytes.truncate(FRAME_BYTES + zstd_bytes);
    let [epoch, worker, batch_no] = place.words();
    let fields = [epoch, worker, batch_no, raw_bytes as u32, zstd_bytes as u32];
    for (bytes, field) in bytes.chunks_exact_mut(4).zip(fields) {
        bytes.copy_from_slice(&field.to_le_bytes());
    }
    let crc = crc_of(header_crc, &[&bytes[..20], &bytes[FRAME_BYTES..]]);
    bytes[20..FRAME_BYTES].copy_from_slice(&crc.to_le_bytes());
    Ok(Encoded { bytes, n_ids: batch.nodes.len() as u32, digest })
}

/// Returns the bytes of the block that starts with `frame`, if that is sound.
pub(super) fn len_of(frame: &[u8; FRAME_BYTES]) -> usize {
    FRAME_BYTES + u32_at(frame, 16) as usize
}

/// Limits that every batch of a schedule keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    n_nodes: u32,
    n_hops: usize,
    /// Bytes of a block before compression, at most.
    max_raw_bytes: usize,
}

impl Shape {
    /// Returns the shape of batches of a graph of `n_nodes` nodes that are drawn as `spec` says.
    pub(super) fn of(spec: &ScheduleSpec, n_nodes: u32) -> Self {
        let n_hops = spec.fanouts.len();
        let mut n_met = spec.max_roots().min(n_nodes.into());
        let mut n_words = 3 + 2 * n_hops as u64;
        for fanout in &spec.fanouts {
            let n_edges = n_met.saturating_mul(fanout.of(u32::MAX).into());
            n_words = n_words.saturating_add(n_met + n_edges);
            n_met = n_met.saturating_add(n_edges).min(n_nodes.into());
        }
        let n_bytes = n_words.saturating_add(n_met).saturating_mul(4);
        Self { n_nodes, n_hops, max_raw_bytes: n_bytes.min(MAX_RAW_BYTES as u64) as usize }
    }
}

/// Decodes and checks the batch that should be at `place`.
pub(super) fn decode(
    bytes: &[u8],
    place: Place,
    header_crc: u32,
    shape: &Shape,
) -> Result<Batch, BlockFault> {
    sound_batch(&planes(bytes, place, header_crc, shape)?, shape)
}

/// Does the same, with the digest that the writer gave it.
pub(super) fn decode_with_digest(
    bytes: &[u8],
    place: Place,
    header_crc: u32,
    shape: &Shape,
) -> Result<(Batch, [u8; 32]), BlockFault> {
    let planes = planes(bytes, place, header_crc, shape)?;
    Ok((sound_batch(&planes, shape)?, digest_of(place, &planes)))
}

fn sound_batch(planes: &[u8], shape: &Shape) -> Result<Batch, BlockFault> {
    let batch = from_words(&from_planes(planes), shape.n_hops)?;
    batch.check(shape.n_nodes)?;
    Ok(batch)
}

/// Returns the planes of the batch at `place`, not yet known to be one.
fn planes(
    bytes: &[u8],
    place: Place,
    header_crc: u32,
    shape: &Shape,
) -> Result<Vec<u8>, BlockFault> {
    let length = |what, promised: usize, found: usize| {
        let (promised, found) = (promised as u64, found as u64);
        if promised == found { Ok(()) } else { Err(BlockFault::Length { what, promised, found }) }
    };
    // Blocks start at least a frame apart: that was checked with the index.
    let (frame, compressed) = bytes.split_at(bytes.len().min(FRAME_BYTES));
    length("bytes of frame", FRAME_BYTES, frame.len())?;
    let (expected, found) = (u32_at(frame, 20), crc_of(header_crc, &[&frame[..20], compressed]));
    if expected != found {
        return Err(BlockFault::Checksum { expected, found });
    }
    let found = [u32_at(frame, 0), u32_at(frame, 4), u32_at(frame, 8)];
    if found != place.words() {
        return Err(BlockFault::Place { found: found.into() });
    }
    length("compressed bytes", u32_at(frame, 16) as usize, compressed.len())?;
    let raw_bytes = u32_at(frame, 12) as usize;
    let planes = decompress(compressed, raw_bytes.min(shape.max_raw_bytes))?;
    length("bytes", raw_bytes, planes.len())?;
    Ok(planes)
}

/// Decompresses at most `most_bytes` and one more; memory grows with the actual length.
fn decompress(compressed: &[u8], most_bytes: usize) -> Result<Vec<u8>, BlockFault> {
    let codec = |error: std::io::Error| BlockFault::Codec(error.to_string());
    let mut planes = Vec::new();
    let decoder = zstd::stream::read::Decoder::with_buffer(compressed).map_err(codec)?;
    decoder.take(most_bytes as u64 + 1).read_to_end(&mut planes).map_err(codec)?;
    Ok(planes)
}

fn digest_of(place: Place, planes: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for word in place.words() {
        hasher.update(&word.to_le_bytes());
    }
    hasher.update(planes);
    *hasher.finalize().as_bytes()
}

fn to_words(batch: &Batch) -> Vec<u32> {
    let n_dsts = batch.blocks.iter().map(|block| block.n_dst as usize).sum::<usize>();
    let n_words = 3 + 2 * batch.blocks.len() + batch.nodes.len() + n_dsts;
    let mut words = Vec::with_capacity(n_words + batch.n_edges() as usize);
    let counts = [batch.nodes.len(), batch.n_roots, batch.blocks.len()];
    words.extend(counts.map(|count| count as u32));
    for block in &batch.blocks {
        words.extend([block.n_dst, block.n_edges() as u32]);
    }
    words.extend(batch.nodes.iter().map(|node| node.0));
    for block in &batch.blocks {
        words.extend(block.offsets.windows(2).map(|ends| ends[1] - ends[0]));
        let mut next = block.n_dst;
        words.extend(block.sources.iter().map(|&source| {
            let code = next.wrapping_sub(source);
            next += u32::from(code == 0);
            code
        }));
    }
    words
}

/// Returns the batch that the words spell, of sound lengths but otherwise unchecked.
fn from_words(words: &[u32], n_hops: usize) -> Result<Batch, BlockFault> {
    let mut rest = words;
    let mut take = |n: usize| {
        let (taken, left) = rest.split_at_checked(n).ok_or(BlockFault::Length {
            what: "words",
            promised: n as u64,
            found: rest.len() as u64,
        })?;
        rest = left;
        Ok::<_, BlockFault>(taken)
    };
    let counts = take(3)?;
    let [n_nodes, n_roots, n_blocks] = [counts[0], counts[1], counts[2]].map(|n| n as usize);
    if n_blocks != n_hops {
        let (promised, found) = (n_hops as u64, n_blocks as u64);
        return Err(BlockFault::Length { what: "layers", promised, found });
    }
    let shapes = take(n_blocks.saturating_mul(2))?;
    let nodes = take(n_nodes)?.iter().map(|&id| NodeId(id)).collect();
    let mut blocks = Vec::with_capacity(n_blocks);
    let mut n_src = counts[0];
    for shape in shapes.chunks_exact(2) {
        let (n_dst, n_edges) = (shape[0], shape[1]);
        let (degrees, codes) = (take(n_dst as usize)?, take(n_edges as usize)?);
        blocks.push(block_of(n_src, n_dst, degrees, codes));
        n_src = n_dst;
    }
    match rest.len() as u64 {
        0 => Ok(Batch { nodes, n_roots, blocks }),
        found => Err(BlockFault::Length { what: "words past the batch", promised: 0, found }),
    }
}

fn block_of(n_src: u32, n_dst: u32, degrees: &[u32], codes: &[u32]) -> Block {
    let mut offsets = Vec::with_capacity(degrees.len() + 1);
    let mut end = 0u32;
    offsets.push(end);
    offsets.extend(degrees.iter().map(|&degree| {
        // Whether the ends ascend to the number of edges is checked with the batch.
        end = end.wrapping_add(degree);
        end
    }));
    let mut next = n_dst;
    let sources = codes.iter().map(|&code| {
        let source = next.wrapping_sub(code);
        next = next.wrapping_add(u32::from(code == 0));
        source
    });
    Block { n_src, n_dst, offsets, sources: sources.collect() }
}

fn to_planes(words: &[u32]) -> Vec<u8> {
    let mut planes = Vec::with_capacity(4 * words.len());
    for shift in [0, 8, 16, 24] {
        planes.extend(words.iter().map(|&word| (word >> shift) as u8));
    }
    planes
}

/// Joins the planes; bytes that do not make a whole word are left out.
fn from_planes(planes: &[u8]) -> Vec<u32> {
    let n = planes.len() / 4;
    let (low, high) = planes[..4 * n].split_at(2 * n);
    let (low, high) = (low.split_at(n), high.split_at(n));
    let bytes = low.0.iter().zip(low.1).zip(high.0.iter().zip(high.1));
    bytes.map(|((&a, &b), (&c, &d))| u32::from_le_bytes([a, b, c, d])).collect()
}

#[cfg(test)]
mod tests;
