//! zstd row groups beside raw rows: bytes on disk, import, random gathers from memory.
//!
//! First coauthor-physics (bag of words, found through `LODE_DATA`), then made-up sparse rows of
//! several lengths and densities, which show where zstd pays. Contestants take turns. It does not
//! measure reads from disk, of which zstd needs fewer.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use lodestore_benches::{Contestant, Rounds, check_parts, is_smoke, random_ids};
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::Direction;
use lodestore_graph::{NodeId, PartId, splitmix64};
use lodestore_store::codec::CodecChoice;
use lodestore_store::import::TensorOptions;
use lodestore_store::plan::{DiskProfile, ReadPlan};
use lodestore_store::reader::{MappedReader, RowReader};
use lodestore_store::source::{SourceError, TensorSource, open_source};
use lodestore_store::{Dtype, EmbeddedStore, Graph, Importer, RowIdx};

const SPARSE_BYTES: usize = 64 << 20;
const ROW_BYTES: [usize; 5] = [64, 400, 1024, 4096, 32_768];
const ONE_IN: [u64; 5] = [200, 50, 20, 8, 3];

fn main() {
    check_parts(&[]);
    let (batch_rows, sparse_bytes) = if is_smoke() { (50, 1 << 20) } else { (5000, SPARSE_BYTES) };
    physics(batch_rows);
    for row_bytes in ROW_BYTES {
        for one_in in ONE_IN {
            let n_rows = (sparse_bytes / row_bytes) as u32;
            let source = SparseRows { n_rows, row_bytes, one_in };
            let name = format!("sparse {row_bytes} B, one in {one_in}");
            compare(&name, &source, batch_rows);
        }
    }
}

fn physics(batch_rows: usize) {
    let data = std::env::var_os("LODE_DATA")
        .map_or_else(|| PathBuf::from("../../shared/data"), PathBuf::from);
    let path = data.join("coauthor-physics").join("features_csr.npz");
    if is_smoke() || !path.exists() {
        println!("SKIPPED: {} (not here, or smoke size)", path.display());
        return;
    }
    let source = open_source(&path).expect("a readable matrix");
    compare("coauthor-physics", &*source, batch_rows);
}

/// Imports the same rows raw and compressed, then gathers from both.
fn compare(name: &str, source: &dyn TensorSource, batch_rows: usize) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let import = |codec: CodecChoice, place: &str| {
        let start = Instant::now();
        let out = import(dir.path(), place, source, codec);
        (reader(&out), out, start.elapsed().as_secs_f64())
    };
    let (raw, raw_dir, raw_seconds) = import(CodecChoice::Raw, "raw");
    let (zstd, _, zstd_seconds) = import(CodecChoice::Zstd, "zstd");
    let (auto, _, _) = import(CodecChoice::Auto, "auto");
    let ids = random_ids(raw.layout().n_rows(), batch_rows, 1);
    let pairs: Vec<(RowIdx, u32)> = ids.iter().copied().map(RowIdx).zip(0..).collect();
    let scratch = |n: usize| Mutex::new((ReadPlan::default(), vec![0; n]));
    let n_bytes = batch_rows * raw.layout().row_bytes();
    let outs = [scratch(n_bytes), scratch(n_bytes)];
    let gather = |reader: &MappedReader, out: &Mutex<(ReadPlan, Vec<u8>)>| {
        let (plan, out) = &mut *out.lock().expect("no panic");
        reader.gather(&pairs, &DiskProfile::default(), plan, out).expect("rows");
    };
    let contestants: [Contestant<'_>; 2] = [
        ("raw", Box::new(|_| gather(&raw, &outs[0]))),
        ("zstd", Box::new(|_| gather(&zstd, &outs[1]))),
    ];
    let figures = Rounds::from_args(11, 1).run(&contestants);
    drop(contestants);
    let [a, b] = outs.map(|out| out.into_inner().expect("no panic").1);
    assert!(a == b, "both codecs give the same rows");
    let store = EmbeddedStore::open(&raw_dir, None).expect("the graph opens");
    let nodes: Vec<NodeId> = ids.iter().copied().map(NodeId).collect();
    let mut again = vec![0; n_bytes];
    store.gather("feat", &nodes, &mut again).expect("rows");
    assert!(again == a, "the store returns them too");
    let megabytes = raw.layout().raw_bytes() as f64 / 1e6;
    let us = |seconds: f64| seconds * 1e6 / batch_rows as f64;
    println!(
        "codec {name}: {:.1}x smaller ({} to {} bytes), auto takes {}, import raw {:.0} zstd {:.0} \
         MB/s, gather raw {:.2} zstd {:.2} us/row, rate {:.0} % (best against best {:.0} %)",
        raw.layout().file_bytes() as f64 / zstd.layout().file_bytes() as f64,
        raw.layout().file_bytes(),
        zstd.layout().file_bytes(),
        auto.segment().codec(),
        megabytes / raw_seconds,
        megabytes / zstd_seconds,
        us(figures[0].median.as_secs_f64()),
        us(figures[1].median.as_secs_f64()),
        figures[1].share * 100.0,
        figures[1].best_share * 100.0,
    );
}

fn import(dir: &Path, place: &str, source: &dyn TensorSource, codec: CodecChoice) -> PathBuf {
    let out = dir.join(place);
    let n_rows = u32::try_from(source.n_rows()).expect("few rows");
    let nodes = Relabelling::identity(n_rows);
    let mut importer = Importer::begin(&out).expect("a free place");
    let options = TensorOptions { codec, ..TensorOptions::default() };
    importer.add_tensor("feat", source, options, &nodes, &mut |_, _| {}).expect("rows are written");
    importer.commit(&nodes, 0, Direction::Directed).expect("the graph is published");
    out
}

fn reader(graph: &Path) -> MappedReader {
    let graph = Graph::open(graph).expect("the graph opens");
    let segment = graph.segment(PartId(0), "feat").expect("the segment opens");
    MappedReader::open(segment).expect("the segment maps")
}

/// f32 elements of which one in this many is a small integer and the others are 0.
struct SparseRows {
    n_rows: u32,
    row_bytes: usize,
    one_in: u64,
}

impl TensorSource for SparseRows {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn width(&self) -> u64 {
        self.row_bytes as u64 / 4
    }

    fn n_rows(&self) -> u64 {
        self.n_rows.into()
    }

    fn path(&self) -> &Path {
        Path::new("sparse rows")
    }

    fn copy_rows(&self, rows: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(self.row_bytes)) {
            for (column, out) in (0u64..).zip(out.chunks_exact_mut(4)) {
                let random = splitmix64(u64::from(row) << 32 | column);
                let set = random.is_multiple_of(self.one_in);
                let value = if set { 1.0 + (random >> 60) as f32 } else { 0.0 };
                out.copy_from_slice(&value.to_le_bytes());
            }
        }
        Ok(())
    }
}
