//! `lode-lab reproduce hopgnn`: rows counted by sampling are those that training pulls.

use std::fs;
use std::path::Path;

use lodestore_graph::npy::NpyType;
use serde_json::Value;
use testing::process::lode_line;
use testing::write_npy;

/// Generates a graph of 400 nodes, all of which train.
fn generate(dir: &Path) -> String {
    let raw = dir.join("raw");
    let line = "generate --nodes 400 --degree 8 --dim 12 --classes 4 --community 50 --seed 3";
    lode_line(&format!("{line} --out {}", raw.display())).succeeded();
    write_npy(&raw.join("all.npy"), NpyType::U8, &[400], &[0u8; 400]);
    raw.display().to_string()
}

/// Imports it as `name`, in the order of the input.
fn import(raw: &str, out: &Path, flags: &str) -> String {
    lode_line(&format!(
        "import --edges {raw}/edges.npy --undirected --tensor feat={raw}/features.npy \
         --tensor label={raw}/labels.npy --tensor split={raw}/all.npy --order input {flags} --out {}",
        out.display()
    ))
    .succeeded();
    out.display().to_string()
}

fn figures(graph: &str, out: &Path, flags: &str) -> Value {
    let line = format!("reproduce hopgnn --graph {graph} --out {} --json {flags}", out.display());
    lode_line(&line).succeeded().json()
}

fn cells(found: &Value) -> &Vec<Value> {
    found["graphs"][0]["cells"].as_array().unwrap()
}

fn way<'a>(cell: &'a Value, name: &str) -> &'a Value {
    let ways = cell["ways"].as_array().unwrap();
    ways.iter().find(|way| way["way"] == name).unwrap()
}

#[test]
fn rows_and_bytes_are_those_of_training() {
    let dir = tempfile::tempdir().unwrap();
    let raw = generate(dir.path());
    let graph = import(&raw, &dir.path().join("g"), "--parts 4 --partitioner hash");
    let train = |flags: &str| {
        let line = format!(
            "train --graph {graph} --workers 4 --fanout 3,2 --batch 10 --epochs 1 --seed 7 \
             --hidden 8 --evaluate-every 0 --no-test --json {flags}"
        );
        lode_line(&line).succeeded().json()["epochs"][0].clone()
    };
    let steps = train("--strategy hop")["steps"].as_u64().unwrap();
    let flags = "--servers 4 --partitioner hash --fanout 3,2 --batch 10 --seed 7 --hidden 8";
    let found = figures(&graph, &dir.path().join("out"), &format!("{flags} --iterations {steps}"));
    let cell = &cells(&found)[0];
    let roots = cell["roots"].as_f64().unwrap() * steps as f64;
    assert_eq!(roots, found["graphs"][0]["training_nodes"].as_f64().unwrap(), "whole batches only");
    for (name, flags) in [
        ("model_centric", "--strategy ondemand --roots global"),
        ("micrographs", "--strategy hop --migration paper --no-pregather"),
        ("pregathered", "--strategy hop --migration paper"),
        ("home", "--strategy hop"),
    ] {
        let (way, epoch) = (way(cell, name), train(flags));
        let sum = |key: &str| way[key].as_f64().unwrap() * steps as f64;
        assert_eq!(Some(sum("remote_rows")), epoch["remote_rows"].as_f64(), "{name}: {epoch}");
        if name != "model_centric" {
            for key in ["model_bytes", "gradient_bytes"] {
                assert_eq!(Some(sum(key)), epoch[key].as_f64(), "{name} {key}: {epoch}");
            }
            let imbalance = cell["balance"]["imbalance"].as_f64().unwrap();
            assert!((0.0..1.0).contains(&imbalance), "{cell}");
        }
    }
}

#[test]
fn figures_do_not_depend_on_how_the_graph_was_imported() {
    let dir = tempfile::tempdir().unwrap();
    let raw = generate(dir.path());
    let found = ["--parts 1", "--parts 3 --partitioner hash"].map(|flags| {
        let of = dir.path().join(flags.replace(' ', ""));
        fs::create_dir(&of).unwrap();
        let graph = import(&raw, &of.join("g"), flags);
        let out = of.join("out");
        let found = figures(&graph, &out, "--servers 1,2,4 --batch 16 --iterations 2");
        let kept = fs::read_to_string(out.join("runs.json")).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&kept).unwrap(), found);
        let report = fs::read_to_string(out.join("report.md")).unwrap();
        assert!(!report.contains("NaN") && !report.contains("inf"), "{report}");
        for chart in ["fig14", "rows", "fig16", "fig18", "fig22", "fig23"] {
            let svg = fs::read_to_string(out.join(format!("{chart}.svg"))).unwrap();
            roxmltree::Document::parse(&svg).unwrap();
            assert!(report.contains(&format!("({chart}.svg)")), "{chart} in {report}");
        }
        assert_eq!(fs::read_dir(&out).unwrap().count(), 2 + 6);
        found
    });
    assert_eq!(found[0], found[1]);
    // Two partitioners, three numbers of servers, three models.
    assert_eq!(cells(&found[0]).len() % 9, 0);
    for cell in cells(&found[0]) {
        let rows = |name: &str| way(cell, name)["remote_rows"].as_f64().unwrap();
        assert_eq!(rows("home"), rows("pregathered"));
        assert!(rows("pregathered") <= rows("micrographs"));
        assert_eq!(rows("model_centric") == 0.0, cell["servers"] == 1, "{cell}");
    }
}

#[test]
fn graphs_that_cannot_be_counted_are_refused_and_small_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let raw = generate(dir.path());
    let graph = import(&raw, &dir.path().join("g"), "");
    let out = dir.path().join("out");
    let run = |graph: &str, flags: &str| {
        let out = out.display();
        lode_line(&format!("reproduce hopgnn --graph {graph} --out {out} --json {flags}"))
    };
    run(&graph, "--servers 0").failed(2, &["--servers"]);
    run(&graph, "--fanout 10,0").failed(2, &["fan-out"]);
    run(&graph, "--batch 0").failed(2, &["number of roots"]);
    run(&graph, "--iterations 0").failed(2, &["--iterations"]);
    run(&graph, "--partitioner best").failed(2, &["partitioner", "spring"]);
    run("nowhere", "").failed(1, &["nowhere"]);
    lode_line("reproduce hopgnn --out x").failed(2, &["--graph"]);
    assert!(!out.exists());
    // Nodes 0 and 1 without edges, none of which trains; then both do.
    let empty = dir.path().join("empty.npy");
    write_npy(&empty, NpyType::U32, &[0, 2], &[0u32; 0]);
    let split = dir.path().join("split.npy");
    let import = |split_of: [u8; 2], out: &str, n: usize| {
        write_npy(&split, NpyType::U8, &[n as u64], &split_of[..n]);
        let (empty, split, out) = (empty.display(), split.display(), dir.path().join(out));
        lode_line(&format!(
            "import --edges {empty} --nodes {n} --tensor split={split} --out {}",
            out.display()
        ))
        .succeeded();
        out.display().to_string()
    };
    let untrained = import([1, 2], "untrained", 2);
    run(&untrained, "--servers 2").failed(1, &["training nodes", "split"]);
    fs::remove_dir(&out).unwrap();
    let one = import([0, 0], "one", 1);
    run(&one, "--servers 2").failed(2, &["--servers 2", "1 nodes"]);
    for (graph, servers) in [(one, 1), (import([0, 0], "two", 2), 2)] {
        let found = run(&graph, &format!("--servers {servers}")).succeeded().json();
        for cell in cells(&found) {
            assert_eq!((&cell["r_micro"], &cell["edge_cut"]), (&0.0.into(), &0.0.into()));
            // Each row is its own root's; model 0 may be far from root 1.
            assert_eq!(way(cell, "home")["remote_rows"], 0.0);
            assert_eq!(way(cell, "home")["rows"], f64::from(servers));
        }
        fs::remove_dir_all(&out).unwrap();
    }
}
