//! Tags by which a request says what it means: a graph, a tensor, or a volatile tensor of one shape.
//! A server that has another thing at that place answers `elsewhere`.

use crate::reply::Declared;

/// Returns the tag of a graph: the first eight bytes of its uuid, which are random.
#[must_use]
pub fn graph_tag(graph: [u8; 16]) -> u64 {
    u64::from_be_bytes(halves(graph).0)
}

/// Returns the tag of a tensor of a graph. It is that of the graph where the tensor's uuid is
/// unknown, which is all zeros.
#[must_use]
pub fn tensor_tag(graph: [u8; 16], tensor: [u8; 16]) -> u64 {
    if tensor == [0; 16] {
        return graph_tag(graph);
    }
    let words = [graph, tensor].into_iter().flat_map(|uuid| [halves(uuid).0, halves(uuid).1]);
    nonzero(words.map(u64::from_be_bytes).fold(0, mix))
}

/// Returns the tag of a volatile tensor of a graph, as a server has declared it.
#[must_use]
pub fn volatile_tag(graph: [u8; 16], name: &str, declared: &Declared) -> u64 {
    let Declared { dtype, width, row_bytes, range_rows } = declared;
    let mut tag = mix(0, graph_tag(graph));
    for text in [name, dtype.as_str()] {
        tag = mix(tag, text.len() as u64);
        tag = text.bytes().fold(tag, |tag, byte| mix(tag, byte.into()));
    }
    nonzero([*width, *row_bytes, *range_rows].into_iter().fold(tag, |tag, it| mix(tag, it.into())))
}

fn halves(uuid: [u8; 16]) -> ([u8; 8], [u8; 8]) {
    let [a, b, c, d, e, f, g, h, rest @ ..] = uuid;
    ([a, b, c, d, e, f, g, h], rest)
}

/// Mixes a word into a hash; the finalizer is that of SplitMix64 (Steele, Lea, Flood, 2014).
fn mix(hash: u64, word: u64) -> u64 {
    let mut hash = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// 0 means anything.
fn nonzero(tag: u64) -> u64 {
    tag.max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Other builds compute the same: a change is another version of the wire.
    #[test]
    fn tags_are_those_of_the_wire() {
        let (graph, tensor) = (*b"0123456789abcdef", *b"fedcba9876543210");
        assert_eq!(graph_tag(graph), u64::from_be_bytes(*b"01234567"));
        assert_eq!(tensor_tag(graph, [0; 16]), graph_tag(graph));
        let declared = Declared { dtype: "f16".into(), width: 4, row_bytes: 8, range_rows: 0 };
        let found = [tensor_tag(graph, tensor), volatile_tag(graph, "h1", &declared)];
        assert_eq!(found, [TENSOR_TAG, VOLATILE_TAG], "{found:#x?}");
    }

    const TENSOR_TAG: u64 = 0xc33e_571f_6687_2fda;
    const VOLATILE_TAG: u64 = 0x13c1_06f7_51d9_36c5;

    #[test]
    fn other_tensors_and_shapes_have_other_tags() {
        let graph = [7; 16];
        let mut tags = HashSet::new();
        for at in 0..16 {
            for bit in 0..8 {
                let mut uuid = [1; 16];
                uuid[at] ^= 1 << bit;
                assert!(tags.insert(tensor_tag(graph, uuid)));
                assert!(tags.insert(tensor_tag(uuid, graph)));
            }
        }
        let shape = Declared { dtype: "f32".into(), width: 2, row_bytes: 8, range_rows: 0 };
        let shapes = [
            Declared { dtype: "f16".into(), width: 4, ..shape.clone() },
            Declared { range_rows: 2, ..shape.clone() },
            shape,
        ];
        for (name, shape) in
            ["h", "hf"].into_iter().flat_map(|it| shapes.iter().map(move |s| (it, s)))
        {
            assert!(tags.insert(volatile_tag(graph, name, shape)), "{name} {shape:?}");
        }
    }
}
