use super::*;
use crate::batch::BatchError;
use crate::sampler::{Deal, Fanout};
use proptest::prelude::*;

const PLACE: Place = Place { epoch: 1, worker: 2, batch: 3 };

/// Returns the shape of any batch of a graph of `n_nodes` nodes with `n_hops` layers.
fn shape(n_nodes: u32, n_hops: usize) -> Shape {
    Shape { n_nodes, n_hops, max_raw_bytes: MAX_RAW_BYTES }
}

/// Returns a batch as a sampler could give, or not: sources need not be numbered by first sight.
fn any_batch() -> impl Strategy<Value = Batch> {
    let sizes = prop::collection::vec(0u32..12, 1..4);
    (sizes, prop::collection::vec(any::<u32>(), 200)).prop_map(|(mut sizes, random)| {
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let mut random = random.into_iter().cycle();
        let mut draw = |below: u32| random.next().map_or(0, |word| word % below);
        let nodes = (0..sizes[0]).map(|_| NodeId(draw(1000))).collect();
        let blocks = sizes.windows(2).map(|ends| {
            let (n_src, n_dst) = (ends[0], ends[1]);
            let mut offsets = vec![0];
            offsets.extend((0..n_dst).scan(0, |end, _| {
                *end += draw(4);
                Some(*end)
            }));
            let n_edges = offsets[n_dst as usize];
            let sources = (0..n_edges).map(|_| draw(n_src)).collect();
            Block { n_src, n_dst, offsets, sources }
        });
        let blocks = blocks.collect();
        Batch { nodes, n_roots: sizes[sizes.len() - 1] as usize, blocks }
    })
}

/// Returns the bytes of a block around `words`, checksum and lengths right.
fn forged(words: &[u32]) -> Vec<u8> {
    let planes = to_planes(words);
    let zstd = zstd::bulk::compress(&planes, LEVEL).unwrap();
    let mut bytes = Vec::new();
    for field in [1, 2, 3, planes.len() as u32, zstd.len() as u32] {
        bytes.extend(u32::to_le_bytes(field));
    }
    let crc = crc_of(9, &[&bytes, &zstd]);
    bytes.extend(crc.to_le_bytes());
    bytes.extend(zstd);
    bytes
}

#[test]
fn every_flipped_bit_and_every_truncation_is_an_error() {
    let batch = Batch { nodes: vec![NodeId(5)], n_roots: 1, blocks: vec![] };
    let whole = encode(&batch, PLACE, 9).unwrap().bytes;
    assert_eq!(decode(&whole, PLACE, 9, &shape(6, 0)), Ok(batch));
    for bit in 0..whole.len() * 8 {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&damaged, PLACE, 9, &shape(6, 0)).is_err(), "bit {bit}");
    }
    for len in 0..whole.len() {
        assert!(decode(&whole[..len], PLACE, 9, &shape(6, 0)).is_err(), "{len} bytes");
    }
    assert!(matches!(decode(&whole, PLACE, 8, &shape(6, 0)), Err(BlockFault::Checksum { .. })));
    let elsewhere = Place { batch: 4, ..PLACE };
    let fault = BlockFault::Place { found: (1, 2, 3) };
    assert_eq!(decode(&whole, elsewhere, 9, &shape(6, 0)), Err(fault));
    let fault = decode(&whole, PLACE, 9, &shape(5, 0)).unwrap_err();
    assert!(matches!(fault, BlockFault::Batch(BatchError::Node { .. })));
}

#[test]
fn fan_outs_bound_a_block() {
    let fanouts = [3, 2].map(|n| Fanout::at_most(n).unwrap()).to_vec();
    let (graph_uuid, seed, epochs, workers, deal) = ([0; 16], 0, 1, 2, Deal::Turns);
    let spec = ScheduleSpec { graph_uuid, seed, fanouts, batch_size: 2, epochs, workers, deal };
    // 3 counts, 4 of blocks, then 2 roots with 6 edges, 8 nodes with 16, 24 nodes in all.
    let words = 3 + 4 + (2 + 6) + (8 + 16) + 24;
    assert_eq!(Shape::of(&spec, 1000).max_raw_bytes, 4 * words);
    let home = ScheduleSpec { deal: Deal::Home, batch_size: 1, ..spec.clone() };
    assert_eq!(Shape::of(&home, 1000).max_raw_bytes, 4 * words);
    let words = 3 + 4 + (1 + 3) + (1 + 2) + 1;
    assert_eq!(Shape::of(&spec, 1).max_raw_bytes, 4 * words);
    let spec = ScheduleSpec { fanouts: vec![Fanout::All; 3], ..spec };
    assert_eq!(Shape::of(&spec, 1000).max_raw_bytes, MAX_RAW_BYTES);
}

#[test]
fn forgeries_under_a_good_checksum_are_refused() {
    let refused = |words: &[u32]| decode(&forged(words), PLACE, 9, &shape(100, 1)).unwrap_err();
    // Nodes 5 and 6; 5 is the root and receives an answer from 6.
    let good = [2, 1, 1, 1, 1, 5, 6, 1, 0];
    assert!(decode(&forged(&good), PLACE, 9, &shape(100, 1)).is_ok());
    for len in 0..good.len() {
        assert!(matches!(refused(&good[..len]), BlockFault::Length { .. }), "{len} words");
    }
    for position in 0..good.len() {
        for word in [7, u32::MAX] {
            let mut words = good;
            words[position] = word;
            // A root may be any node.
            let fine = (5..7).contains(&position) && word == 7;
            assert_eq!(
                decode(&forged(&words), PLACE, 9, &shape(100, 1)).is_ok(),
                fine,
                "{words:?}"
            );
        }
    }
    let past = [&good[..], &[0]].concat();
    assert!(matches!(refused(&past), BlockFault::Length { found: 1, .. }));
    let many = BlockFault::Length { what: "layers", promised: 1, found: 134_000_000 };
    assert_eq!(refused(&[0, 0, 134_000_000, 0]), many);
}

#[test]
fn a_small_frame_that_swells_is_cut_off() {
    let zstd = zstd::bulk::compress(&vec![0; 1 << 20], LEVEL).unwrap();
    assert!(zstd.len() < 1000);
    assert_eq!(decompress(&zstd, 100).unwrap().len(), 101);
    let mut bytes = Vec::new();
    for field in [1, 2, 3, 100, zstd.len() as u32] {
        bytes.extend(u32::to_le_bytes(field));
    }
    let crc = crc_of(9, &[&bytes, &zstd]);
    bytes.extend(crc.to_le_bytes());
    bytes.extend(zstd);
    let fault = BlockFault::Length { what: "bytes", promised: 100, found: 101 };
    assert_eq!(decode(&bytes, PLACE, 9, &shape(100, 1)), Err(fault));
}

proptest! {
    #[test]
    fn batches_come_back(batch in any_batch()) {
        prop_assume!(batch.check(1000).is_ok());
        let encoded = encode(&batch, PLACE, 9).unwrap();
        let shape = shape(1000, batch.blocks.len());
        prop_assert_eq!(encoded.n_ids as usize, batch.nodes.len());
        prop_assert_eq!(decode(&encoded.bytes, PLACE, 9, &shape), Ok(batch));
    }

    #[test]
    fn any_words_give_a_sound_batch_or_an_error(
        words in prop::collection::vec(0u32..9, 0..40),
        n_hops in 0usize..4,
    ) {
        if let Ok(batch) = decode(&forged(&words), PLACE, 9, &shape(9, n_hops)) {
            prop_assert_eq!(batch.check(9), Ok(()));
        }
    }
}
