//! Layer-wise passes over all nodes: `lode infer`, and evaluation in bounded memory.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lodestore_graph::npy::{NpyArray, NpyType};
use serde_json::Value;

use testing::graph::generated_as;
use testing::process::{command, lode_line};
use testing::write_npy;

const N_NODES: u32 = 1500;
const N_CLASSES: usize = 4;
/// Longest time until an inference has come so far.
const DEADLINE: Duration = Duration::from_secs(60);

/// Returns a graph of two partitions with features of `dim` columns.
fn graph(dir: &Path, dim: u32) -> String {
    fs::create_dir(dir).unwrap();
    let flags = format!("--nodes {N_NODES} --degree 7 --dim {dim} --classes {N_CLASSES}");
    generated_as(dir, &flags, 2)
}

/// Returns the bytes of all rows of a tensor, in the order of node ids.
fn rows(dir: &Path, graph: &str, tensor: &str) -> Vec<u8> {
    let (ids, out) = (dir.join("ids.npy"), dir.join("rows.npy"));
    write_npy(&ids, NpyType::U32, &[N_NODES.into()], &(0..N_NODES).collect::<Vec<u32>>());
    let _ = fs::remove_file(&out);
    lode_line(&format!(
        "gather --graph {graph} --tensor {tensor} --ids {} --out {}",
        ids.display(),
        out.display()
    ))
    .succeeded();
    NpyArray::open(&out).unwrap().bytes().to_vec()
}

fn train(graph: &str, model: &Path, more: &str) {
    let model = model.display();
    lode_line(&format!(
        "train --graph {graph} --epochs 3 --batch 100 --hidden 16 --save-model {model} {more}"
    ))
    .succeeded();
}

#[test]
fn logits_are_those_that_an_evaluation_measures() {
    let dir = tempfile::tempdir().unwrap();
    let graph = graph(&dir.path().join("g"), 12);
    let labels = rows(dir.path(), &graph, "label");
    let labels = labels.as_chunks::<8>().0.iter().map(|label| i64::from_le_bytes(*label));
    let labels: Vec<i64> = labels.collect();
    let splits = rows(dir.path(), &graph, "split");
    let model = dir.path().join("model.safetensors");
    for (kind, more) in [
        ("sage", "--model sage --fanout 5,5,5"),
        ("gcn", "--model gcn"),
        ("gat", "--model gat --heads 2"),
        ("deep", "--fanout 2,2,2,2,2,2,2,2,2,2 --norm layer --residual"),
        ("clipped", "--fanout 5,5,5 --norm layer --optimizer adamw --clip-norm 1"),
    ] {
        train(&graph, &model, more);
        let model = model.display();
        let found = lode_line(&format!("evaluate {graph} --model {model} --json"));
        let expected = found.succeeded().json()["test_accuracy"].as_f64().unwrap();
        let infer = format!("infer {graph} --model {model}");
        let report = lode_line(&format!("{infer} --out-tensor {kind} --json")).succeeded().json();
        assert_eq!(report["width"], N_CLASSES, "{report}");
        assert_eq!(report["nodes"], N_NODES, "{report}");
        assert_eq!(report["bytes"], 4 * N_CLASSES * N_NODES as usize, "{report}");
        let logits = rows(dir.path(), &graph, kind);
        let values = logits.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value));
        let values: Vec<f32> = values.collect();
        let (mut n_right, mut n_test) = (0, 0);
        for ((row, label), split) in values.chunks(N_CLASSES).zip(&labels).zip(&splits) {
            let largest = (0..N_CLASSES).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
            n_test += u32::from(*split == 2);
            n_right += u32::from(*split == 2 && largest as i64 == *label);
        }
        assert_eq!(f64::from(n_right) / f64::from(n_test), expected, "{kind}");
        // In little memory, through a temporary file.
        lode_line(&format!("{infer} --out-tensor {kind}-small --memory 20KB")).succeeded();
        let small = rows(dir.path(), &graph, &format!("{kind}-small"));
        let small = small.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value));
        assert!(small.zip(&values).all(|(small, value)| (small - value).abs() < 1e-4), "{kind}");
        let text = lode_line(&format!("{infer} --out-tensor {kind}-emb --output embedding"));
        assert!(text.succeeded().stdout.contains("f32 x 16 for 1,500 nodes"));
        let embedding = rows(dir.path(), &graph, &format!("{kind}-emb"));
        assert_eq!(embedding.len(), 64 * N_NODES as usize);
        let embedding = embedding.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value));
        let embedding: Vec<f32> = embedding.collect();
        assert!(embedding.iter().any(|value| *value != 0.0), "{kind}");
        // ReLU leaves nothing below 0, ELU does.
        assert_eq!(embedding.iter().all(|value| *value >= 0.0), kind != "gat", "{kind}");
    }
    let tensors = lode_line(&format!("inspect {graph} --json")).succeeded().json();
    let names: Vec<&Value> = tensors["tensors"].as_array().unwrap().iter().collect();
    assert!(names.iter().any(|tensor| tensor["name"] == "gat-emb"), "{tensors}");
    lode_line(&format!("verify {graph}")).succeeded();
}

#[test]
fn what_cannot_be_inferred_is_said_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (graph, other) = (graph(&dir.path().join("g"), 12), graph(&dir.path().join("h"), 13));
    let path = dir.path().join("model.safetensors");
    train(&graph, &path, "--fanout 5,5 --evaluate-every 0 --no-test");
    let model = path.display();
    let infer = |graph: &str, more: &str| {
        lode_line(&format!("infer {graph} --model {model} --out-tensor {more}"))
    };
    infer(&graph, "feat").failed(1, &["feat", "has a tensor of this name"]);
    infer(&graph, "a/b").failed(1, &["a/b", "a-z"]);
    infer(&graph, "x --output rows").failed(2, &["logits, embedding"]);
    infer(&other, "x").failed(1, &["layers.0.weight", "as the graph asks for"]);
    train(&graph, &path, "--fanout 5");
    infer(&graph, "x --output embedding").failed(1, &["output", "one layer", "embedding"]);
    fs::write(&path, "no model").unwrap();
    infer(&graph, "x").failed(1, &["no file of tensors"]);
    fs::remove_file(&path).unwrap();
    infer(&graph, "x").failed(1, &["cannot read it"]);
    train(&graph, &path, "--fanout 5,5");
    let tensors = lode_line(&format!("inspect {graph} --json")).succeeded().json();
    let names = tensors["tensors"].as_array().unwrap();
    assert!(names.iter().all(|tensor| tensor["name"] != "x"), "{tensors}");
    fs::remove_file(Path::new(&graph).join("part-001/topology.csr")).unwrap();
    infer(&graph, "x").failed(1, &["topology.csr"]);
}

/// Starts `line`, and kills it once `file` of its folder is there, a little later; false if it had
/// ended before.
fn kill(line: &str, file: &Path, then: Duration) -> bool {
    let (mut run, start) = (command(line.split_whitespace()).spawn().unwrap(), Instant::now());
    while !file.exists() && run.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < DEADLINE, "no {}", file.display());
        sleep(Duration::from_micros(200));
    }
    sleep(then);
    let is_running = run.try_wait().unwrap().is_none();
    run.kill().unwrap();
    run.wait().unwrap();
    is_running
}

#[test]
fn an_inference_that_is_killed_continues_and_makes_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (flags, n_nodes) = ("--nodes 20000 --degree 30 --dim 64 --classes 4", 20_000);
    let graph = generated_as(dir.path(), flags, 2);
    let path = dir.path().join("model.safetensors");
    let train = format!("train --graph {graph} --fanout 3,3,3 --epochs 1 --hidden 64 --no-test");
    let train = format!("{train} --evaluate-every 0 --save-model {}", path.display());
    lode_line(&train).succeeded();
    // So little memory that all rows are in files, and many chunks in a layer.
    let line = |tensor: &str| {
        format!(
            "infer {graph} --model {} --out-tensor {tensor} --memory 2MiB --json",
            path.display()
        )
    };
    let plain = lode_line(&line("plain")).succeeded().json();
    assert_eq!(plain["resumed"], false);
    let folder = |tensor: &str| Path::new(&graph).with_file_name(format!("graph.infer-{tensor}"));
    assert!(!folder("plain").exists());
    let ids: Vec<u32> = (0..n_nodes).collect();
    let bytes = |tensor: &str| {
        let (ids_file, out) = (dir.path().join("ids.npy"), dir.path().join("out.npy"));
        write_npy(&ids_file, NpyType::U32, &[n_nodes.into()], &ids);
        let _ = fs::remove_file(&out);
        let (ids, out_file) = (ids_file.display(), out.display());
        lode_line(&format!(
            "gather --graph {graph} --tensor {tensor} --ids {ids} --out {out_file}"
        ))
        .succeeded();
        NpyArray::open(&out).unwrap().bytes().to_vec()
    };
    let expected = bytes("plain");
    let killed = folder("killed");
    // As each stage begins, within the first, and while the tensor is written.
    let points = [("rows-0", 0), ("rows-0", 20), ("rows-1", 5), ("rows-2", 0), ("rows-3", 8)];
    let kill = |(file, then): &(&str, u64)| {
        kill(&line("killed"), &killed.join(file), Duration::from_millis(*then))
    };
    let n_killed = points.iter().filter(|point| kill(point)).count();
    assert!(n_killed >= 3, "killed {n_killed} times");
    // Nothing of the tensor is there.
    let tensors = lode_line(&format!("inspect {graph} --json")).succeeded().json();
    let has_killed = tensors["tensors"].as_array().unwrap().iter().any(|it| it["name"] == "killed");
    if !has_killed {
        let report = lode_line(&line("killed")).succeeded().json();
        assert_eq!(report["resumed"], true, "{report}");
    }
    assert!(!killed.exists());
    assert_eq!(bytes("killed"), expected);
    // Nothing is taken over from another model.
    let other = folder("other");
    assert!(self::kill(&line("other"), &other.join("rows-2"), Duration::ZERO));
    lode_line(&format!("{train} --seed 9")).succeeded();
    let report = lode_line(&line("other")).succeeded().json();
    assert_eq!(report["resumed"], false, "{report}");
    assert_ne!(bytes("other"), expected);
    lode_line(&format!("verify {graph}")).succeeded();
}

#[test]
fn an_evaluation_takes_the_memory_that_it_is_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let flags = "--nodes 150000 --degree 24 --dim 100 --classes 4 --train 0.002";
    let graph = generated_as(dir.path(), flags, 2);
    let peak = |more: &str| {
        let line = format!(
            "train --graph {graph} --workers 2 --epochs 1 --batch 100 --fanout 5,5,5 --hidden 100 \
             --evaluate-every 0 --reader pread --json {more}"
        );
        lode_line(&line).succeeded().json()["peak_anonymous_bytes"].as_u64().unwrap()
    };
    let (without, small, large) =
        (peak("--no-test"), peak("--evaluation-memory 16MiB"), peak("--evaluation-memory 1GiB"));
    // Rows of one layer, most of which the others need: 60 MB.
    assert!(large > without + (60 << 20), "{large} {without}");
    // Blocks, threads and what the allocator keeps come on top.
    assert!(small < without + (48 << 20), "{small} {without}");
}
