//! Every format of edges makes the same graph, and every row order holds the same rows.

use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use lodestore_graph::npy::{NpyArray, NpyType};
use lodestore_graph::order::RowOrder;
use serde_json::Value;

use testing::graph::{Source, shuffled_ids};
use testing::process::{Finished, lode, lode_line};
use testing::{Numbers, names_in, write_npy};

const N_PARTS: u16 = 3;
/// Bytes of a topology file before its lists; they name the graph.
const HEADER_BYTES: usize = 4096;

/// Returns edges with loops and repetitions, as the ids of 1500 nodes.
fn edges() -> Vec<[u32; 2]> {
    let mut numbers = Numbers(7);
    (0..6000).map(|_| [numbers.below(1500), numbers.below(1500)]).collect()
}

fn text(edges: &[[u32; 2]], between: &str, end: &str) -> Vec<u8> {
    edges.iter().map(|[u, v]| format!("{u}{between}{v}{end}")).collect::<String>().into_bytes()
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// Runs `lode import --json` into `graph` beside the edges.
fn import(edges: &Path, graph: &str, more: &[&str]) -> Finished {
    let (edges, out) = (edges.display().to_string(), edges.with_file_name(graph));
    let parts = N_PARTS.to_string();
    let mut args = vec!["import", "--json", "--undirected", "--parts", &parts, "--edges", &edges];
    let out = out.display().to_string();
    args.extend(["--out", &out]);
    args.extend(more);
    lode(args)
}

/// Returns the lists of all partitions, and what the report says of them.
fn lists(dir: &Path, report: &Value) -> (Vec<Vec<u8>>, Vec<Value>) {
    let lists = (0..N_PARTS).map(|part| {
        let file = dir.join(format!("part-{part:03}/topology.csr"));
        fs::read(file).unwrap().split_off(HEADER_BYTES)
    });
    let figures = ["nodes", "edges", "self_loops", "duplicate_edges", "edge_cut", "parts"];
    let mut report = report.clone();
    for part in report["parts"].as_array_mut().unwrap() {
        // Some of these bytes are RocksDB's.
        part.as_object_mut().unwrap().remove("bytes");
    }
    (lists.collect(), figures.map(|figure| report[figure].clone()).to_vec())
}

#[test]
fn every_format_of_edges_results_in_the_same_topology() {
    let dir = tempfile::tempdir().unwrap();
    let edges = edges();
    let file = |name: &str| dir.path().join(name);
    write_npy(&file("e.npy"), NpyType::U32, &[edges.len() as u64, 2], &edges);
    let expected = import(&file("e.npy"), "expected", &[]).succeeded().json();
    let expected = lists(&file("expected"), &expected);

    let wide: Vec<u64> = edges.iter().flatten().map(|&id| id.into()).collect();
    let plain = text(&edges, " ", "\n");
    let zstd = zstd::encode_all(&plain[..], 0).unwrap();
    let commented = [b"# from to\r\n\r\n".to_vec(), text(&edges, "\t", "\r\n")].concat();
    let files: [(&str, Vec<u8>, &[&str]); 10] = [
        ("e.u32", bytemuck::cast_slice(&edges).to_vec(), &[]),
        ("e.u64", bytemuck::cast_slice(&wide).to_vec(), &[]),
        ("e.bin", bytemuck::cast_slice(&wide).to_vec(), &["--edge-format", "u64"]),
        ("e.edges", plain[..plain.len() - 1].to_vec(), &[]),
        ("e.tsv", commented, &[]),
        ("e.csv.gz", gzip(&text(&edges, ", ", "\n")), &[]),
        ("e.txt.zst", zstd.clone(), &[]),
        ("e.zst", [zstd::encode_all(&b"% two frames\n"[..], 0).unwrap(), zstd].concat(), &[]),
        ("e.list", plain, &["--edge-format", "text"]),
        ("e.txt", text(&edges, "\t", "\t0.5\n"), &["--ignore-extra-columns"]),
    ];
    for (i, (name, bytes, more)) in files.iter().enumerate() {
        fs::write(file(name), bytes).unwrap();
        let graph = format!("graph{i}");
        let report = import(&file(name), &graph, more).succeeded().json();
        assert!(lists(&file(&graph), &report) == expected, "{name}: {report}");
    }
    let parsed = |name: &str, more: &[&str]| {
        let name = file(name).display().to_string();
        let args = ["partition", "--json", "--parts", "3", "--undirected", "--edges", &name];
        let mut report = lode(args.iter().chain(more)).succeeded().json();
        for figure in ["seconds", "steps", "peak_anonymous_bytes", "peak_growth_bytes"] {
            report.as_object_mut().unwrap().remove(figure);
        }
        report
    };
    assert_eq!(parsed("e.csv.gz", &[]), parsed("e.npy", &[]));
    assert_eq!(parsed("e.bin", &["--edge-format", "u64"]), parsed("e.npy", &[]));
}

#[test]
fn edges_that_cannot_be_read_are_named_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let whole = gzip(&text(&edges(), " ", "\n"));
    let files: [(&str, &[u8], &[&str]); 11] = [
        ("e.txt", b"0 1\n1 2\n2 -3\n", &["e.txt", "line 3", "negative"]),
        ("e.csv", b"src,dst\n0,1\n", &["e.csv", "line 1", "header"]),
        ("e.tsv", b"0\t1\t0.5\n", &["line 1", "--ignore-extra-columns"]),
        ("e.el", b"0 1\n2\n", &["line 2", "found one"]),
        ("e.edges", b"0 1\n0 4294967296\n", &["line 2", "4294967296"]),
        ("e.gz", &whole[..whole.len() / 2], &["e.gz", "after line"]),
        ("e.zst", b"0 1\n", &["e.zst"]),
        ("e.u32", &[0; 15], &["e.u32", "15 bytes"]),
        ("m.txt", b"%%MatrixMarket matrix\n2 2 1\n1 2\n", &["m.txt", "line 1", "MatrixMarket"]),
        ("q.csv", b"\"0\",\"1\"\n", &["q.csv", "line 1", "quotes"]),
        ("e.bin", &[0; 16], &["e.bin", "npy, u32, u64 or text", "--edge-format"]),
    ];
    for (name, bytes, parts) in files {
        fs::write(file(name), bytes).unwrap();
        import(&file(name), "graph", &[]).failed(1, parts);
    }
    fs::write(file("e.txt"), "0 1\n1 2\n2 3\n").unwrap();
    let failed = import(&file("e.txt"), "graph", &["--nodes", "3"]);
    failed.failed(1, &["e.txt", "line 3", "node 3", "below 3"]);
    import(&file("e.txt"), "graph", &["--edge-format", "csv"]).failed(2, &["csv", "text"]);
    import(&file("e.txt"), "graph", &["--order", "best"]).failed(2, &["best", "greedy"]);
    let (edges, out) = (file("e.txt"), file("graph"));
    let line = format!("import --parts 300 --edges {} --out {}", edges.display(), out.display());
    lode_line(&line).failed(1, &["300 partitions of 4 nodes", "ask for 4 at most"]);
    // The neighbours of nodes, as METIS has them, are no columns to skip.
    fs::write(file("e.tsv"), "4 3\n2 3\n1 3 4\n1 2\n2\n").unwrap();
    let failed = import(&file("e.tsv"), "graph", &["--ignore-extra-columns"]);
    failed.failed(1, &["e.tsv", "line 3", "expected 2 columns"]);
    assert_eq!(names_in(dir.path()).len(), files.len());
}

#[test]
fn every_order_holds_the_same_rows() {
    let source = Source::random(1500, 6000);
    let (ids, out) = (source.file("ids.npy"), source.file("out.npy"));
    let external = shuffled_ids(source.n_nodes);
    write_npy(&ids, NpyType::U32, &[external.len() as u64], &external);
    let mut report = Value::Null;
    for order in RowOrder::ALL.map(RowOrder::name) {
        let graph = source.file(order);
        let mut more = vec!["--parts", "3", "--order", order, "--json"];
        // Once, since it measures all of them.
        more.extend((order == "greedy").then_some("--compare-orders"));
        let found = source.try_import(&graph, &["feat"], &more).succeeded().json();
        assert_eq!(found["order"], order);
        let args = [&graph, &ids, &out].map(|path| path.display().to_string());
        let args = ["gather", "--external-ids", "--tensor", "feat", "--graph", &args[0]]
            .into_iter()
            .chain(["--ids", &args[1], "--out", &args[2]]);
        lode(args).succeeded();
        let rows = NpyArray::open(&out).unwrap();
        assert!(rows.bytes() == source.rows("feat", &external), "{order}");
        // The order of the input needs no files on the way.
        assert_eq!(names_in(&graph), names_in(&source.file("input")));
        if order == "greedy" {
            report = found;
        } else {
            assert!(found["rows_per_page"][order].as_f64().unwrap() > 1.0);
            assert_eq!(found["rows_per_page"].as_object().unwrap().len(), 1);
        }
    }
    for key in ["rows_per_page", "rows_per_page_window", "order_seconds"] {
        for order in RowOrder::ALL.map(RowOrder::name) {
            assert!(report[key][order].is_f64(), "{key} of {order}: {report}");
        }
    }
}

#[test]
fn folders_of_imports_that_were_killed_are_named() {
    let source = Source::random(20, 40);
    fs::create_dir(source.file("graph.importing-0")).unwrap();
    let finished = source.try_import(&source.file("graph"), &[], &[]).succeeded();
    assert!(finished.stderr.contains("graph.importing-0"), "{}", finished.stderr);
    assert!(source.file("graph.importing-0").exists());
}

/// Returns every file of a folder with its bytes.
fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let names = names_in(dir).into_iter();
    names
        .filter(|name| dir.join(name).is_file())
        .map(|name| (name.clone(), fs::read(dir.join(&name)).unwrap()))
        .collect()
}

#[test]
fn rapa_says_what_unlike_devices_would_do_without_and_applies_nothing() {
    let source = Source::random(600, 6000);
    let graph = source.import("graph", 2, "hash");
    let (fast, slow) = (source.file("fast.json"), source.file("slow.json"));
    let line = format!("profile-device --size 32 --runs 2 --memory 1GB --out {}", fast.display());
    let profile = lode_line(&format!("{line} --json")).succeeded().json();
    assert!(profile["mm_seconds"].as_f64().unwrap() > 0.0);
    let mut slower = profile.as_object().unwrap().clone();
    for (key, figure) in &mut slower {
        if key.ends_with("seconds") {
            *figure = (figure.as_f64().unwrap() * 2.0).into();
        }
    }
    fs::write(&slow, Value::from(slower).to_string()).unwrap();
    let before = contents(&graph.join("part-001"));
    let dropped = source.file("dropped");
    let profiles = format!("{},{}", fast.display(), slow.display());
    let line = format!("rapa {} --profiles {profiles} --tensor feat", graph.display());
    let report =
        lode_line(&format!("{line} --json --out {}", dropped.display())).succeeded().json();
    let parts = report["parts"].as_array().unwrap();
    assert_eq!(parts[0]["dropped_replicas"], 0);
    assert!(parts[1]["cost_after"].as_f64() < parts[1]["cost_before"].as_f64());
    for (part, report) in parts.iter().enumerate() {
        let ids = NpyArray::open(&source.file(&format!("dropped-{part:03}.npy"))).unwrap();
        assert_eq!(ids.shape()[0], report["dropped_replicas"].as_u64().unwrap());
    }
    assert!(parts[1]["dropped_replicas"].as_u64().unwrap() > 0);
    assert_eq!(contents(&graph.join("part-001")), before, "the graph stays as it is");
    assert!(lode_line(&line).succeeded().stdout.contains("nothing was applied"));

    lode_line(&format!("{line} --alpha 2")).failed(2, &["alpha"]);
    let three = format!("{profiles},{}", fast.display());
    let line = |profiles: &str| format!("rapa {} --profiles {profiles}", graph.display());
    lode_line(&line(&three)).failed(2, &["2 partitions", "found 3"]);
    fs::write(&slow, "{}").unwrap();
    lode_line(&line(&profiles)).failed(1, &["slow.json", "missing field"]);
    lode_line(&line("nowhere.json")).failed(1, &["nowhere.json"]);
}

#[test]
fn several_files_are_one_list_of_edges() {
    let dir = tempfile::tempdir().unwrap();
    let edges = edges();
    let file = |name: &str| dir.path().join(name);
    write_npy(&file("e.npy"), NpyType::U32, &[edges.len() as u64, 2], &edges);
    let report = import(&file("e.npy"), "expected", &[]).succeeded().json();
    let expected = lists(&file("expected"), &report);
    let (first, rest) = edges.split_at(1000);
    let (second, third) = rest.split_at(2500);
    write_npy(&file("a.npy"), NpyType::U32, &[1000, 2], first);
    fs::write(file("b.csv.gz"), gzip(&text(second, ",", "\n"))).unwrap();
    fs::write(file("c.u32"), bytemuck::cast_slice::<_, u8>(third)).unwrap();
    let [b, c] = ["b.csv.gz", "c.u32"].map(|name| file(name).display().to_string());
    let report = import(&file("a.npy"), "graph", &["--edges", &b, "--edges", &c]).succeeded();
    assert!(lists(&file("graph"), &report.json()) == expected);
    // The bad one is named.
    fs::write(file("c.u32"), [0; 9]).unwrap();
    let failed = import(&file("a.npy"), "other", &["--edges", &b, "--edges", &c]);
    failed.failed(1, &["c.u32", "9 bytes"]);
}

#[test]
fn self_loops_and_repeated_edges_are_counted_and_kept_or_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("e.txt");
    // A loop twice, 0 → 1 three times in both directions together.
    fs::write(&file, "0 1\n1 1\n0 1\n1 0\n1 1\n2 0\n").unwrap();
    let run = |graph: &str, more: &[&str]| {
        let report = import(&file, graph, more).succeeded().json();
        lode(["verify".into(), dir.path().join(graph).display().to_string()]).succeeded();
        assert_eq!(report["self_loops"], 2);
        (report["edges"].as_u64().unwrap(), report["duplicate_edges"].as_u64().unwrap())
    };
    // Directed: 0→1 ×3, 1→0 ×3, 1→1 ×2, 2→0, 0→2.
    assert_eq!(run("usual", &[]), (5, 5));
    assert_eq!(run("no-loops", &["--self-loops", "drop"]), (4, 4));
    assert_eq!(run("all", &["--duplicates", "keep"]), (10, 5));
    let neither = ["--self-loops", "drop", "--duplicates", "keep"];
    assert_eq!(run("repeated", &neither), (8, 4));
    import(&file, "x", &["--self-loops", "some"]).failed(2, &["some", "keep", "drop"]);
}

#[test]
fn edge_ids_and_weights_are_kept_verified_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let edges = edges();
    let file = |name: &str| dir.path().join(name);
    write_npy(&file("e.npy"), NpyType::U32, &[edges.len() as u64, 2], &edges);
    let weights: Vec<f32> = (0..edges.len()).map(|edge| edge as f32).collect();
    write_npy(&file("w.npy"), NpyType::F32, &[weights.len() as u64], &weights);
    let name = file("w.npy").display().to_string();
    let more = ["--edge-ids", "--edge-weights", &name];
    let report = import(&file("e.npy"), "graph", &more).succeeded().json();
    assert_eq!(report["edge_columns"], serde_json::json!(["ids", "weights"]));
    let plain = import(&file("e.npy"), "plain", &[]).succeeded().json();
    assert_eq!(plain["edges"], report["edges"]);
    assert_eq!(plain["edge_columns"], serde_json::json!([]));
    let graph = file("graph");
    lode(["verify".as_ref(), graph.as_os_str()]).succeeded();
    let topology = graph.join("part-001/topology.csr");
    let mut bytes = fs::read(&topology).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&topology, bytes).unwrap();
    let found = lode(["verify".as_ref(), graph.as_os_str()]);
    assert_eq!(found.code, Some(1));
    assert!(found.stdout.contains("weights"), "{}", found.stdout);
    // Weights that do not fit are refused before anything is written.
    write_npy(&file("w.npy"), NpyType::F32, &[9], &weights[..9]);
    import(&file("e.npy"), "x", &more).failed(1, &["w.npy", "shape (6000,)", "[9]"]);
    let bad: Vec<f32> = weights.iter().map(|weight| weight / (weight - 7.0)).collect();
    write_npy(&file("w.npy"), NpyType::F32, &[bad.len() as u64], &bad);
    import(&file("e.npy"), "x", &more).failed(1, &["w.npy", "edge 7", "finite"]);
    assert!(!file("x").exists());
}

#[test]
fn partitioners_are_compared_planned_refined_and_bounded() {
    let source = Source::random(800, 4000);
    let edges = source.file("edges.npy");
    let line = |more: &str| {
        let edges = edges.display();
        lode_line(&format!("partition --json --undirected --edges {edges} {more}"))
    };
    let all_nodes = |more: &str| line(&format!("--nodes 800 {more}"));
    let all = line("--parts 4 --all").succeeded().json();
    let results = all["results"].as_array().unwrap();
    for name in ["hash", "range", "dbh", "greedy", "hdrf", "2ps-l", "spring"] {
        let result = results.iter().find(|result| result["algorithm"] == name);
        let result = result.unwrap_or_else(|| panic!("no {name}"));
        for key in ["parts", "nodes", "edges", "peak_anonymous_bytes"] {
            assert!(result[key].as_u64().is_some(), "{key} of {name}");
        }
        for key in ["edge_cut", "replication_factor", "node_balance", "edge_balance", "seconds"] {
            assert!(result[key].as_f64().is_some(), "{key} of {name}");
        }
    }
    let spring = line("--parts 4").succeeded().json();
    let out = source.file("parts.npy");
    let refined =
        all_nodes(&format!("--parts 4 --refine 1 --out {}", out.display())).succeeded().json();
    assert!(refined["replication_factor"].as_f64() < spring["replication_factor"].as_f64());
    assert!(refined["node_balance"].as_f64().unwrap() <= 1.05);
    let parts = NpyArray::open(&out).unwrap();
    assert_eq!((parts.dtype(), parts.shape()), (NpyType::U16, &[800][..]));
    let parts: &[u16] = bytemuck::cast_slice(parts.bytes());
    assert!(parts.iter().all(|&part| part < 4));

    let bounded = line("--parts 4 --algorithm greedy --max-balance 1.1").succeeded().json();
    assert!(bounded["node_balance"].as_f64().unwrap() <= 1.1);
    let plan = all_nodes("--parts 4 --plan").succeeded().json();
    assert!(plan["plans"][0]["peak_bytes"].as_u64().unwrap() >= 800 * 24);
    let dealt = line("--memory 3MB --workers 2 --data 5MB").succeeded().json();
    assert_eq!(dealt["parts"], 5, "5 MB over a third of 3 MB each");

    let huge = line("--parts 65535 --algorithm dbh --nodes 4294967295");
    huge.failed(1, &["dbh needs", "--plan"]);
    line("--parts 4 --algorithm hash --tau 5").failed(2, &["--tau"]);
    line("--parts 4 --max-balance 0.5").failed(2, &["balance"]);
}

#[test]
fn a_tensor_comes_to_a_graph_in_the_order_of_its_input() {
    let source = testing::graph::Source::random(300, 900);
    let graph = source.import("graph", 3, "hash");
    let file = source.file("emb.npy");
    let rows: Vec<[i32; 2]> = (0..300).map(|id| [id, -id]).collect();
    testing::write_npy(&file, lodestore_graph::npy::NpyType::I32, &[300, 2], &rows);
    let line = |more: &str| lode_line(&format!("import --into {} --json {more}", graph.display()));
    let tensor = format!("--tensor emb={}", file.display());
    let report = line(&tensor).succeeded().json();
    assert_eq!(
        (&report["tensors"][0]["name"], &report["tensors"][0]["bytes"]),
        (&"emb".into(), &2400.into())
    );
    let (ids, out) = (source.file("ids.npy"), source.file("out.npy"));
    let wanted: Vec<u32> = (0..300).rev().collect();
    testing::write_npy(&ids, lodestore_graph::npy::NpyType::U32, &[300], &wanted);
    let gather = format!(
        "gather --graph {} --external-ids --tensor emb --ids {} --out {}",
        graph.display(),
        ids.display(),
        out.display(),
    );
    lode_line(&gather).succeeded();
    let found = lodestore_graph::npy::NpyArray::open(&out).unwrap();
    let expected: Vec<i32> = wanted.iter().flat_map(|&id| [id as i32, -(id as i32)]).collect();
    assert!(found.bytes() == bytemuck::cast_slice::<i32, u8>(&expected));
    assert!(
        lode_line(&format!("verify {} --json", graph.display())).succeeded().json()["ok"] == true
    );
    line(&tensor).failed(1, &["emb", "has a tensor of this name"]);
    line("").failed(2, &["--tensor NAME=FILE"]);
    line("--edges x.npy --tensor a=b").failed(2, &["--edges"]);
    let short = source.file("short.npy");
    testing::write_npy(&short, lodestore_graph::npy::NpyType::I32, &[299, 2], &rows[..299]);
    line(&format!("--tensor other={}", short.display())).failed(1, &["299", "300"]);
    // And goes from it, and may come again.
    let drop_line =
        |name: &str| lode_line(&format!("drop-tensor {} {name} --json", graph.display()));
    drop_line("other").failed(1, &["other", "feat"]);
    drop_line("external_id").failed(1, &["external_id"]);
    let report = drop_line("emb").succeeded().json();
    assert_eq!(report["dropped"], "emb");
    assert!(report["tensors"].as_array().unwrap().iter().all(|name| name != "emb"), "{report}");
    lode_line(&gather).failed(1, &["emb"]);
    line(&tensor).succeeded();
    lode_line(&gather).succeeded();
    let text = lode_line(&format!("drop-tensor {} emb", graph.display())).succeeded().stdout;
    assert!(text.contains("dropped emb; it has feat"), "{text}");
    lode_line("import --tensor a=b --out c").failed(2, &["--edges"]);
    lode_line("partition --parts 2 --algorithm hash").failed(2, &["--edges"]);
}

#[test]
fn a_tensor_comes_to_the_partitions_of_each_machine() {
    let source = testing::graph::Source::random(300, 900);
    let graph = source.import("graph", 2, "hash");
    let file = source.file("emb.npy");
    let rows: Vec<[i32; 2]> = (0..300).map(|id| [id, -id]).collect();
    testing::write_npy(&file, lodestore_graph::npy::NpyType::I32, &[300, 2], &rows);
    let other = source.file("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::copy(graph.join("graph.toml"), other.join("graph.toml")).unwrap();
    std::fs::rename(graph.join("part-001"), other.join("part-001")).unwrap();
    let mut bytes = 0;
    for (folder, absent) in [(&graph, 1), (&other, 0)] {
        let line = format!("import --into {} --tensor emb={}", folder.display(), file.display());
        let report = lode_line(&format!("{line} --json")).succeeded().json();
        assert_eq!(report["absent"], serde_json::json!([absent]));
        bytes += report["tensors"][0]["bytes"].as_u64().unwrap();
    }
    assert_eq!(bytes, 2400);
    let serve = format!("serve {} --unix {}/s --writable", other.display(), other.display());
    lode_line(&serve).failed(1, &["partition 0 is not here"]);
    std::fs::rename(other.join("part-001"), graph.join("part-001")).unwrap();
    let report = lode_line(&format!("verify {} --json", graph.display())).succeeded().json();
    assert_eq!(report["ok"], true);
    let (ids, out) = (source.file("ids.npy"), source.file("out.npy"));
    let wanted: Vec<u32> = (0..300).collect();
    testing::write_npy(&ids, lodestore_graph::npy::NpyType::U32, &[300], &wanted);
    let (graph, ids) = (graph.display(), ids.display());
    let gather = format!("gather --graph {graph} --external-ids --tensor emb --ids {ids} --out");
    lode_line(&format!("{gather} {}", out.display())).succeeded();
    let found = lodestore_graph::npy::NpyArray::open(&out).unwrap();
    assert!(found.bytes() == bytemuck::cast_slice::<[i32; 2], u8>(&rows));
}
