//! Files of every format, good and bad, and flags that cannot work.

use std::io::Write;
use std::path::Path;

use lodestore_graph::npy::NpyType;
use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

use crate::cache_bench::traces::{arrays, batches, bench, counts, file, name, write};
use testing::process::lode_line;
use testing::write_npy;

/// Returns a trace in oracleGeneral: u32 time, u64 object, u32 size, i64 next access; packed.
fn oracle_general(objects: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let record = |object: u64| {
        let mut bytes = vec![1, 0, 0, 0];
        bytes.extend(object.to_le_bytes());
        bytes.extend([9, 0, 0, 0]);
        bytes.extend((-1i64).to_le_bytes());
        bytes
    };
    objects.into_iter().flat_map(record).collect()
}

/// Writes an archive as `numpy.savez` and `numpy.savez_compressed` do.
fn npz(path: &Path, batches: &[Vec<u32>], method: CompressionMethod) {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), batches);
    let mut archive = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    for member in ["ids.npy", "offsets.npy"] {
        let options = SimpleFileOptions::default().compression_method(method);
        archive.start_file(member, options).unwrap();
        archive.write_all(&std::fs::read(dir.path().join(member)).unwrap()).unwrap();
    }
    archive.finish().unwrap();
}

#[test]
fn archives_and_arrays_and_wide_ids_give_the_same_results() {
    let dir = tempfile::tempdir().unwrap();
    let batches = batches();
    let expected = counts(&bench(&write(dir.path(), &batches), "").succeeded().json());
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let path = dir.path().join("t.npz");
        npz(&path, &batches, method);
        let found = bench(&["--trace", &name(&path)], "").succeeded().json();
        assert_eq!(counts(&found), expected, "{method}");
    }
    // The end of the last batch may be left out; ids may be of any width.
    let (ids, offsets) = arrays(&batches);
    let wide: Vec<i64> = ids.iter().map(|&id| id.into()).collect();
    let (ids, starts) = (dir.path().join("w.npy"), dir.path().join("s.npy"));
    write_npy(&ids, NpyType::I64, &[wide.len() as u64], &wide);
    let n_starts = offsets.len() - 1;
    write_npy(&starts, NpyType::I64, &[n_starts as u64], &offsets[..n_starts]);
    let trace = ["--trace", &name(&ids), "--offsets", &name(&starts)];
    assert_eq!(counts(&bench(&trace, "").succeeded().json()), expected);
    // Batches of the file are all of 40.
    let cut = ["--trace", &name(&ids), "--batch", "40"];
    assert_eq!(counts(&bench(&cut, "").succeeded().json()), expected);
}

#[test]
fn sparse_ids_are_served_as_dense_ones() {
    let dir = tempfile::tempdir().unwrap();
    let batches = batches();
    let expected = counts(&bench(&write(dir.path(), &batches), "").succeeded().json());
    // Up to near the end of 32 bits.
    let spread = |id: &u32| u32::MAX - 8_000_000 + id * 16_000;
    let sparse: Vec<Vec<u32>> =
        batches.iter().map(|batch| batch.iter().map(spread).collect()).collect();
    let found = bench(&write(dir.path(), &sparse), "").succeeded().json();
    let hits = |results: &[serde_json::Value]| -> Vec<_> {
        results.iter().map(|result| (result["policy"].clone(), result["hits"].clone())).collect()
    };
    // Policies that hash ids may decide otherwise.
    let same = hits(&counts(&found)).into_iter().zip(hits(&expected)).filter(|(a, b)| a == b);
    assert!(same.count() >= 50, "{found}");
    assert!(found["peak_anonymous_bytes"].as_u64().unwrap() < 200 << 20);
    let last = write(dir.path(), &[vec![u32::MAX, 0], vec![u32::MAX]]);
    let report = bench(&last, "--capacities 2").succeeded().json();
    assert_eq!(report["trace"]["distinct_rows"], 2);
}

#[test]
fn traces_of_libcachesim_are_read_plain_and_compressed() {
    let dir = tempfile::tempdir().unwrap();
    let ids = batches().concat();
    let objects = || ids.iter().map(|&id| u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let bytes = oracle_general(objects());
    let plain = name(&file(dir.path(), "t.oracleGeneral", &bytes));
    let packed = zstd::encode_all(&bytes[..], 3).unwrap();
    let zst = name(&file(dir.path(), "t.oracleGeneral.zst", &packed));
    let mut header = vec![0; 8192];
    for at in [0, 8184] {
        header[at..at + 8].copy_from_slice(&0x1234_5678_9abc_def0_u64.to_le_bytes());
    }
    header[8] = 1;
    let lcs = name(&file(dir.path(), "t.lcs", &[header, bytes.clone()].concat()));
    let first = bench(&["--oracle-general", &plain], "").succeeded().json();
    assert_eq!(first["trace"]["accesses"], ids.len());
    assert_eq!(first["trace"]["largest_batch"], 1);
    for trace in [["--oracle-general", &zst], ["--lcs", &lcs]] {
        assert_eq!(counts(&bench(&trace, "").succeeded().json()), counts(&first));
    }
    let cut = bench(&["--oracle-general", &zst], "--batch 40 --limit 100").succeeded().json();
    assert_eq!((&cut["trace"]["accesses"], &cut["trace"]["batches"]), (&100.into(), &3.into()));

    let broken = name(&file(dir.path(), "b.zst", &packed[..packed.len() - 9]));
    bench(&["--oracle-general", &broken], "").failed(1, &["b.zst", "cannot read"]);
    let short = name(&file(dir.path(), "short", &bytes[..bytes.len() - 1]));
    bench(&["--oracle-general", &short], "").failed(1, &["short", "23 bytes follow"]);
    bench(&["--lcs", &plain], "").failed(1, &["not an lcs trace"]);
    let empty = name(&file(dir.path(), "empty", &[]));
    let nothing = bench(&["--oracle-general", &empty], "").succeeded().json();
    assert_eq!(nothing["trace"]["accesses"], 0);
}

#[test]
fn bad_arrays_are_named_with_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let ids = dir.path().join("ids.npy");
    let offsets = dir.path().join("offsets.npy");
    let trace = ["--trace".into(), name(&ids), "--offsets".into(), name(&offsets)];
    let with = |values: &[i64], bounds: &[i64]| {
        write_npy(&ids, NpyType::I64, &[values.len() as u64], values);
        write_npy(&offsets, NpyType::I64, &[bounds.len() as u64], bounds);
        bench(&trace, "")
    };
    with(&[1, 2], &[0, 1, 2]).succeeded();
    with(&[], &[0]).succeeded();
    with(&[], &[]).succeeded();
    with(&[1, -2], &[0, 2]).failed(1, &["ids.npy", "id 1 is -2"]);
    with(&[1 << 32], &[0, 1]).failed(1, &["4294967296", "0 to 4294967295"]);
    with(&[1, 2], &[1, 2]).failed(1, &["offsets.npy", "number 0 is 1"]);
    with(&[1, 2], &[0, 2, 1]).failed(1, &["must rise", "number 2 is 1"]);
    with(&[1, 2], &[0, 3]).failed(1, &["at most 2", "number 1 is 3"]);
    with(&[1, 2], &[0, -1]).failed(1, &["number 1 is -1"]);
    with(&[1, 2], &[]).failed(1, &["empty"]);
    write_npy(&ids, NpyType::F32, &[2], &[1f32, 2.0]);
    bench(&trace, "").failed(1, &["ids must be u32", "<f4"]);
    write_npy(&ids, NpyType::U32, &[1, 2], &[1u32, 2]);
    bench(&trace, "").failed(1, &["shape (N,)"]);
    file(dir.path(), "ids.npy", b"\x93NUMPY\x01\x00");
    bench(&trace, "").failed(1, &["ids.npy", "truncated"]);
    let archive = name(&file(dir.path(), "t.npz", b"PK\x03\x04 but no"));
    bench(&["--trace", &archive], "").failed(1, &["t.npz", "archive"]);
    bench(&["--trace", &archive, "--offsets", &name(&offsets)], "").failed(1, &["--offsets"]);
    bench(&["--trace", "no-such.npy"], "").failed(1, &["no-such.npy"]);
}

#[test]
fn flags_that_cannot_work_have_exit_code_2() {
    let lines = [
        ("", "give one of"),
        ("--schedule a --trace b", "give one of"),
        ("--trace t.npy --policies lru,best", "unknown policy `best`"),
        ("--trace t.npy --policies overlap", "--graph"),
        ("--trace t.npy --capacities 10,200%", "found 200%"),
        ("--trace t.npy --capacities lots", "found lots"),
        ("--trace t.npy --batch 0", "--batch"),
        ("--trace t.npy --row-bytes 0", "--row-bytes"),
        ("--trace t.npy --gamma 1.5", "found 1.5"),
        ("--trace t.npy --gamma NaN", "found NaN"),
        ("--trace t.npy --gamma 0.9,0", "found 0"),
        ("--trace t.npy --per-worker", "--remote"),
        ("--trace t.npy --candidates halo", "--per-worker"),
        ("--schedule s --graph g --remote --candidates halo", "--worker W --remote"),
        ("--trace t.npy --policies lru --rank lists", "--rank is for policies decay and degree"),
        ("--trace t.npy --policies lru --by-delta b.svg", "--by-delta is for policy decay"),
        ("--schedule s --graph g --remote --per-worker --worker 1", "cannot be used"),
        ("--schedule s --graph g --remote --per-worker --capacities 1%+1%", "for one tier"),
        ("--trace t.npy --delta 0", "--delta"),
        ("--trace t.npy --threads 0", "--threads"),
        ("--trace t.npy --worker 0", "--schedule"),
        ("--schedule s --remote", "--graph"),
        ("--schedule s --batch 5", "cannot be used"),
        ("--lcs s --offsets o.npy", "--trace"),
    ];
    for (line, part) in lines {
        lode_line(&format!("cache-bench {line}")).failed(2, &[part]);
    }
    let lines = [
        ("--kind zipf --alpha=-1 --out o", "--alpha"),
        ("--kind zipf --batches 4294967295 --batch 4294967295 --out o", "268,435,456"),
        ("--kind scan --ids 4294967295 --out o", "268,435,456"),
        ("--kind neighbours --out o", "--graph or --nodes"),
        ("--kind neighbours --nodes 10 --roots 0 --out o", "--roots"),
        ("--kind neighbours --nodes 10 --degree=-3 --out o", "mean_degree"),
        ("--kind halos --out o", "--graph"),
        ("--kind spiral --out o", "spiral"),
    ];
    for (line, part) in lines {
        lode_line(&format!("generate-trace {line}")).failed(2, &[part]);
    }
    lode_line("cache-bench --trace t.npy --svg no/such/folder/c.svg").failed(1, &["c.svg"]);
}
