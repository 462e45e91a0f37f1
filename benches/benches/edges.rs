//! Edge streams: edges per second of one pass, from files in the page cache.
//!
//! `direct` reads and works on one thread; `opened` is what `lode` uses, where another thread reads
//! ahead. Ids are checked as always; the work is a sum. It does not measure a disk.

use std::io::Write;
use std::path::Path;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use lodestore_benches::{is_smoke, random_ids};
use lodestore_graph::edges::{ArrayEdges, EdgeFile, EdgeStream, ExtraColumns, IdWidth, TextEdges};
use lodestore_graph::npy::{NpyType, NpyWriter};

fn edges(c: &mut Criterion) {
    let n_edges = if is_smoke() { 3000 } else { 10_000_000 };
    let ids = random_ids(2_449_029, 2 * n_edges, 1);
    let dir = tempfile::tempdir().expect("a folder");
    let file = |name: &str| dir.path().join(name);
    write_files(dir.path(), &ids);
    let expected = ids.iter().map(|&id| u64::from(id)).sum::<u64>();

    let text = |name: &str| TextEdges::open(&file(name), ExtraColumns::Refuse, None);
    let npy = |name: &str| ArrayEdges::open_npy(&file(name), None);
    let streams: [(&str, Box<dyn EdgeStream>); 6] = [
        ("direct/npy u32", Box::new(npy("a.npy").expect("edges"))),
        ("direct/npy i64", Box::new(npy("b.npy").expect("edges"))),
        (
            "direct/raw u32",
            Box::new(ArrayEdges::open_raw(&file("c.u32"), IdWidth::U32, None).expect("edges")),
        ),
        ("direct/text", Box::new(text("d.txt").expect("edges"))),
        ("opened/npy u32", EdgeFile::at(file("a.npy")).open(None).expect("edges")),
        ("opened/text", EdgeFile::at(file("d.txt")).open(None).expect("edges")),
    ];
    let mut group = c.benchmark_group("edges");
    group.throughput(Throughput::Elements(n_edges as u64)).sample_size(10);
    for (name, stream) in streams {
        assert_eq!(sum(&*stream), expected);
        let (how, what) = name.split_once('/').expect("two names");
        group.bench_function(BenchmarkId::new(how, what), |b| b.iter(|| sum(&*stream)));
    }
    group.finish();
}

fn sum(edges: &dyn EdgeStream) -> u64 {
    let mut sum = 0;
    edges
        .for_each_chunk(&mut |chunk| {
            sum += chunk.as_flattened().iter().map(|&id| u64::from(id)).sum::<u64>();
            Ok(())
        })
        .expect("sound edges");
    sum
}

/// Writes the same edges as `a.npy` (u32), `b.npy` (i64), `c.u32` and `d.txt`.
fn write_files(dir: &Path, ids: &[u32]) {
    let n_edges = ids.len() as u64 / 2;
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let npy = |name: &str, dtype, bytes: &[u8]| {
        NpyWriter::write(&dir.join(name), dtype, &[n_edges, 2], bytes).expect("a file");
    };
    npy("a.npy", NpyType::U32, &bytes);
    std::fs::write(dir.join("c.u32"), bytes).expect("a file");
    let wide: Vec<u8> = ids.iter().flat_map(|&id| u64::from(id).to_le_bytes()).collect();
    npy("b.npy", NpyType::I64, &wide);
    let mut text =
        std::io::BufWriter::new(std::fs::File::create(dir.join("d.txt")).expect("a file"));
    for [u, v] in ids.as_chunks::<2>().0 {
        writeln!(text, "{u} {v}").expect("a line");
    }
    text.flush().expect("a file");
}

criterion_group!(benches, edges);
criterion_main!(benches);
