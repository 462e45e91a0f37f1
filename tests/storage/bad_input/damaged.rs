//! Files damaged after the import: named, with the page, and never served.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use lodestore_graph::npy::NpyType;

use testing::graph::Source;
use testing::process::{Finished, Serving, lode_line};
use testing::{Numbers, write_npy};

/// Header pages of a segment before its rows.
const DATA_OFFSET: u64 = 4096;

fn flip(path: &Path, byte: u64, bit: u32) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut found = [0];
    file.read_exact_at(&mut found, byte).unwrap();
    file.write_all_at(&[found[0] ^ (1 << bit)], byte).unwrap();
}

/// Returns a graph in one partition, whose rows stay in order, and ids of all its nodes. Its rows
/// of `feat` take 51 pages.
fn imported() -> (Source, PathBuf) {
    let source = Source::random(4000, 1000);
    let graph = import(&source, "graph");
    let ids: Vec<u32> = (0..source.n_nodes).collect();
    write_npy(&source.file("ids.npy"), NpyType::U32, &[ids.len() as u64], &ids);
    (source, graph)
}

fn import(source: &Source, name: &str) -> PathBuf {
    let out = source.file(name);
    source.try_import(&out, &["feat", "label", "split"], &[]).succeeded();
    out
}

fn gather(source: &Source, from: &str, ids: &str) -> Finished {
    let (ids, out) = (source.file(ids), source.file("out.npy"));
    let (ids, out) = (ids.display(), out.display());
    lode_line(&format!("gather {from} --tensor feat --ids {ids} --out {out}"))
}

#[test]
fn a_flipped_bit_is_named_by_file_and_page_and_no_row_comes_back() {
    let (source, graph) = imported();
    let segment = graph.join("part-000/feat.v1.seg");
    flip(&segment, DATA_OFFSET + 2 * 4096 + 77, 3);
    let named = ["feat.v1.seg", "page 2", "expected", "found"];

    gather(&source, &format!("--graph {}", graph.display()), "ids.npy").failed(1, &named);
    assert!(!source.file("out.npy").exists());
    let report = lode_line(&format!("verify {} --json", graph.display())).failed(1, &[]).json();
    assert_eq!(report["ok"], false);
    assert_eq!(report["damaged"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(report["damaged"][0]["page"], 2);
    assert!(report["damaged"][0]["file"].as_str().unwrap().ends_with("feat.v1.seg"));
    lode_line(&format!("verify {}", graph.display())).failed(1, &[]);

    // A server reports the same, and continues with the whole partitions.
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --shards 2");
    let from = format!("--connect {}", server.address);
    gather(&source, &from, "ids.npy").failed(1, &named);
    assert!(!source.file("out.npy").exists());
    write_npy(&source.file("whole.npy"), NpyType::U32, &[3], &[0u32, 3999, 17]);
    gather(&source, &from, "whole.npy").succeeded();
    gather(&source, &from, "ids.npy").failed(1, &named);
    server.stop();
}

#[test]
fn no_flipped_bit_anywhere_makes_a_wrong_row() {
    let (source, graph) = imported();
    let segment = graph.join("part-000/feat.v1.seg");
    let whole = fs::read(&segment).unwrap();
    let mut numbers = Numbers(3);
    // Header, rows, page table, footer: some bits of each.
    let sections = [0, DATA_OFFSET, whole.len() as u64 - 8192, whole.len() as u64 - 4096];
    for section in sections {
        for _ in 0..3 {
            flip(&segment, section + u64::from(numbers.below(100)), numbers.below(8));
            let from = format!("--graph {}", graph.display());
            gather(&source, &from, "ids.npy").failed(1, &["feat.v1.seg"]);
            lode_line(&format!("verify {}", graph.display())).failed(1, &[]);
            assert!(!source.file("out.npy").exists());
            fs::write(&segment, &whole).unwrap();
        }
    }
    gather(&source, &format!("--graph {}", graph.display()), "ids.npy").succeeded();
}

#[test]
fn a_truncated_segment_is_refused_by_all() {
    let (source, graph) = imported();
    let segment = graph.join("part-000/feat.v1.seg");
    let whole = fs::read(&segment).unwrap();
    for length in [0, 100, 4096, 9000, whole.len() - 4096, whole.len() - 1] {
        fs::write(&segment, &whole[..length]).unwrap();
        gather(&source, &format!("--graph {}", graph.display()), "ids.npy")
            .failed(1, &["feat.v1.seg"]);
        let report = lode_line(&format!("verify {} --json", graph.display())).failed(1, &[]).json();
        assert_eq!(report["ok"], false, "{length}");
        lode_line(&format!("serve {} --listen 127.0.0.1:0", graph.display()))
            .failed(1, &["feat.v1.seg"]);
    }
    assert!(!source.file("out.npy").exists());
}

#[test]
fn damaged_topology_halo_and_description_are_found() {
    let (source, graph) = imported();
    let train = format!("train --graph {} --epochs 1", graph.display());
    for (file, stops_training) in
        [("part-000/topology.csr", true), ("part-000/halo.bin", false), ("graph.toml", true)]
    {
        let path = graph.join(file);
        let whole = fs::read(&path).unwrap();
        flip(&path, whole.len() as u64 - 3, 5);
        let report = lode_line(&format!("verify {} --json", graph.display())).failed(1, &[]).json();
        assert_eq!(report["ok"], false, "{file}");
        let damaged = report["damaged"].to_string();
        assert!(damaged.contains(file.rsplit('/').next().unwrap()), "{damaged}");
        if stops_training {
            lode_line(&train).failed(1, &[file.rsplit('/').next().unwrap()]);
        }
        fs::write(&path, whole).unwrap();
    }
    lode_line(&format!("verify {}", source.file("nowhere").display())).failed(1, &["nowhere"]);
}

#[test]
fn segments_in_each_others_places_are_refused() {
    let (source, graph) = imported();
    let other = import(&source, "other");
    fs::copy(other.join("part-000/feat.v1.seg"), graph.join("part-000/feat.v1.seg")).unwrap();
    gather(&source, &format!("--graph {}", graph.display()), "ids.npy")
        .failed(1, &["feat.v1.seg", "belongs elsewhere"]);
}
