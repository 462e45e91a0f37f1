//! `graph.toml`: whatever the text, it is refused or describes a graph that is written the same.

use lodestore_store::limits::MAX_TENSORS;
use lodestore_store::meta::GraphMeta;
use lodestore_store::{Dtype, TensorSpec};

use crate::memory::bounded;

/// Parses a `graph.toml`, and parses it again as it is written. The first byte says whether the
/// rest follows a checksum line that fits it.
pub fn run(data: &[u8]) {
    let Some((&sealed, text)) = data.split_first() else { return };
    let mut text = String::from_utf8_lossy(text).into_owned();
    if sealed % 2 == 1 {
        text = format!("checksum = \"{:08x}\"\n{text}", crc32fast::hash(text.as_bytes()));
    }
    let Ok((meta, book)) = bounded(text.len(), || GraphMeta::parse(&text)) else { return };
    assert_eq!(meta.nodes, book.n_nodes());
    assert_eq!(meta.bounds, book.bounds());
    assert!(meta.tensors.len() <= MAX_TENSORS);
    let (again, _) = GraphMeta::parse(&meta.to_text()).expect("what is written can be read");
    assert_eq!(meta, again);
}

/// Returns a graph of two partitions, with and without its checksum line.
pub fn seeds() -> Vec<Vec<u8>> {
    let tensor = |name, dtype, width| TensorSpec::new(name, dtype, width).expect("a tensor");
    let meta = GraphMeta {
        format_version: 1,
        uuid: uuid::Uuid::from_u128(5),
        nodes: 10,
        edges: 12,
        undirected: true,
        bounds: vec![0, 4, 10],
        tensors: vec![tensor("feat", Dtype::F32, 3), tensor("label", Dtype::I64, 1)],
        dropped: std::collections::BTreeMap::new(),
    };
    let text = meta.to_text();
    let body = text.split_once('\n').expect("a checksum line").1;
    vec![[&[0], text.as_bytes()].concat(), [&[1], body.as_bytes()].concat()]
}
