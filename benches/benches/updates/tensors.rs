//! New tensors of a graph that there is, beside plain copies.

use std::fs::{self, File};
use std::io::Read;
use std::time::Instant;

use lodestore_benches::{drop_cached, feature_graph, is_smoke, row_of};
use lodestore_graph::NodeId;
use lodestore_store::codec::SegmentCodec;
use lodestore_store::update::drop_tensor;
use lodestore_store::{Dtype, EmbeddedStore, Graph, OpenMode, TensorSpec};

use super::{ROW_BYTES, Scale, WIDTH, copy_seconds, open};

/// Measures new tensors with the rows of a file, in turn with plain copies of it. Both read it from
/// the disk.
pub(super) fn new_tensors(scale: Scale) {
    const PIECE_BYTES: usize = 1 << 20;
    let dir = tempfile::tempdir().expect("a folder");
    let graph = feature_graph(dir.path(), scale.n_nodes, WIDTH, 1);
    let path = dir.path().join("rows");
    let rows: Vec<u8> = (0..scale.n_nodes).flat_map(|node| row_of(NodeId(node), WIDTH)).collect();
    fs::write(&path, &rows).expect("room for the rows");
    let spec = TensorSpec::new("new", Dtype::F32, WIDTH).expect("a tensor");
    let mut piece = vec![0; PIECE_BYTES];
    let (mut copied, mut written) = (Vec::new(), Vec::new());
    for _ in 0..if is_smoke() { 1 } else { 7 } {
        copied.push(copy_seconds(&path));
        drop_cached(&path);
        let live = open(&graph, OpenMode::Write);
        let start = Instant::now();
        let mut file = File::open(&path).expect("the rows");
        let mut tensor = live.new_tensor(spec.clone(), SegmentCodec::Raw).expect("a tensor");
        loop {
            let n_bytes = file.read(&mut piece).expect("rows");
            if n_bytes == 0 {
                break;
            }
            tensor.write_rows(&piece[..n_bytes]).expect("room for the tensor");
        }
        tensor.finish().expect("all rows");
        written.push(start.elapsed().as_secs_f64());
        drop(live);
        let store = EmbeddedStore::open(&graph, None).expect("a store");
        let last = scale.n_nodes - 1;
        let mut row = vec![0; ROW_BYTES];
        store.gather("new", &[NodeId(last)], &mut row).expect("a row");
        assert!(row == rows[last as usize * ROW_BYTES..], "the last row");
        drop(store);
        drop_tensor(Graph::open(&graph).expect("a graph"), "new").expect("it goes");
    }
    let median = |all: &mut Vec<f64>| {
        all.sort_by(f64::total_cmp);
        rows.len() as f64 / all[all.len() / 2] / 1e6
    };
    let (copied, written) = (median(&mut copied), median(&mut written));
    println!(
        "updates, a new tensor of {:.0} MB: {written:.0} MB/s; plain copy and sync: {copied:.0} MB/s; {:.2} \
         of it",
        rows.len() as f64 / 1e6,
        written / copied,
    );
}
