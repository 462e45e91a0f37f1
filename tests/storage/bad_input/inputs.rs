//! Files and flags that are wrong, and graphs that are odd but right.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lodestore_graph::npy::{NpyArray, NpyType};
use rustix::process::Signal;

use testing::graph::Source;
use testing::process::{Serving, command, finish, lode_line, signal};
use testing::{names_in, write_npy};

/// Returns a source, and what its folder holds before anything is imported.
fn small() -> (Source, Vec<String>) {
    let source = Source::random(50, 200);
    let names = names_in(source.dir.path());
    (source, names)
}

#[test]
fn usage_errors_have_exit_code_2() {
    let lines = [
        ("import --edges e.npy --out g --colour red", "--colour"),
        ("import --edges e.npy", "--out"),
        ("import --edges e.npy --out g --parts 0", "--parts"),
        ("import --edges e.npy --out g --partitioner best", "best"),
        ("import --edges e.npy --out g --tensor feat", "NAME=FILE"),
        ("import --edges e.npy --out g --tensor a=x.npy --tensor a=y.npy", "twice"),
        ("gather --tensor feat --ids i.npy --out o.npy", "--graph"),
        ("gather --graph g --connect a:1 --tensor feat --ids i.npy --out o.npy", "cannot be used"),
        ("serve g --listen 0.0.0.0:0", "--insecure"),
        ("serve g --listen nowhere", "nowhere"),
        ("serve g --policy best", "one of: none, lru"),
        ("train --graph g --tier 1MiB", "--strategy ondemand"),
        ("train --graph g --strategy ondemand --tier 1MiB --policy oracle", "oracle"),
        ("train --graph g --device-tier 1MiB", "--device-tier is for --strategy ondemand"),
        ("train --graph g --strategy ondemand --device-tier a --device-policy lru", "512MiB"),
        ("train --graph g --strategy ondemand --device-policy none", "one of: lru, fifo"),
        ("train --graph g --strategy ondemand --tier 1MiB --levels exclusive", "give both"),
        ("train --graph g --strategy ondemand --max-age 3", "--max-age is for --tier"),
        ("train --graph g --bypass 0.1", "--bypass is for --tier"),
        ("train --graph g --strategy ondemand --tier 1MiB --bypass 1.1", "found 1.1"),
        ("train --graph g --strategy ondemand --policy lru", "--policy is for --tier"),
        ("train --graph g --policy lru", "one of: frequency, oracle"),
        ("train --graph g --buffer 0.5", "--buffer is for --strategy massive"),
        ("train --graph g --no-eviction", "--no-eviction is for --strategy massive"),
        ("train --graph g --candidates halo", "--candidates is for --strategy massive"),
        ("train --graph g --strategy rapid --scoreboard dense", "--scoreboard is for --strategy"),
        ("train --graph g --strategy massive --candidates all", "halo, remote"),
        ("train --graph g --strategy massive --replace some", "missed, scored, any"),
        ("train --graph g --strategy massive --no-eviction --replace any", "cannot be used"),
        ("train --graph g --strategy massive --gamma 0", "found 0"),
        ("train --graph g --strategy massive --buffer=-0.1", "found -0.1"),
        ("train --graph g --strategy massive --gamma 1.5", "found 1.5"),
        ("train --graph g --strategy massive --buffer nan", "found NaN"),
        ("train --graph g --strategy massive --delta 0", "--delta"),
        ("train --graph g --strategy massive --no-eviction --delta 4", "cannot be used"),
        ("train --graph g --strategy massive --tier 1MiB", "--tier is for --strategy ondemand"),
        ("train --graph g --strategy ondemand --tier 1MiB --policy unbounded", "unbounded"),
        ("serve g --memory 12parsecs", "512MiB"),
        ("serve g --shards 0", "--shards"),
        ("train --graph g --strategy magic", "magic"),
        ("train --graph g --epochs 0", "epochs"),
        ("train --graph g --dropout 1.5", "dropout"),
        ("train --graph g --fanout 10,0", "fan-out"),
        ("generate --nodes 0 --out d", "--nodes"),
        ("generate --nodes 10 --classes 20 --out d", "n_classes"),
        ("frobnicate", "frobnicate"),
    ];
    for (line, part) in lines {
        lode_line(line).failed(2, &[part]);
    }
    assert_eq!(lode_line("--help").succeeded().stderr, "");
    let main = lode_line("train --help").succeeded().stdout;
    assert!(main.contains("--strategy") && main.contains("--log"), "{main}");
    assert!(main.contains("--help-all has more flags"), "{main}");
    assert!(!main.contains("--gamma") && main.contains("MassiveGNN: --strategy massive"), "{main}");
    let all = lode_line("train --help-all").succeeded().stdout;
    assert!(all.contains("--gamma") && all.contains("--token-file"), "{all}");
}

#[test]
fn flags_that_would_do_nothing_are_refused_by_name() {
    let put = "put --graph g --tensor feat --ids i.npy --rows r.npy --commit";
    let gather = "gather --graph g --tensor feat --ids i.npy --out o.npy";
    let into = "import --into g --tensor x=x.npy";
    let edges = "import --edges e.npy --out g";
    let folder = tempfile::tempdir().unwrap();
    let commit = format!("commit {}", folder.path().display());
    for (line, flags) in [
        (gather, "--token-file t,--tls-ca t,--deadline 3"),
        (put, "--wait-followers 1,--token-file t,--deadline 3"),
        (&commit, "--wait-followers 1,--token-file t,--deadline 3"),
        ("compact g", "--no-wait,--token-file t"),
        ("evaluate g --model m", "--tls-ca t,--token-file t"),
        ("train --graph g", "--token-file t,--deadline 3,--mixed-versions,--peer-timeout 3"),
        ("train --graph g --model sage", "--heads 2,--output-heads 2"),
        (
            "train --graph g --no-test --evaluate-every 0",
            "--metric f1-micro,--evaluation-memory 1MiB",
        ),
        ("train --graph g --window 1", "--together 9"),
        ("train --graph g --strategy massive --candidates halo", "--buffer 2"),
        ("train --graph g --strategy sdt --full-partition", "--batch 3"),
        (
            "train --graph g --strategy full --halo zero",
            "--no-overlap,--tier 1MiB,--device-tier 1MiB,--staleness 1,--compress f16",
        ),
        (
            into,
            "--nodes 3,--parts 2,--undirected,--edge-ids,--order degree,--partitioner hash,\
             --self-loops drop,--duplicates keep,--refine 1,--edge-format npy,--ignore-extra-columns,\
             --edge-weights w,--max-balance 1.1,--tau 1,--passes 2,--beta 1.1,--compare-orders",
        ),
        ("import --from ogb d --out g", "--edge-format npy,--ignore-extra-columns"),
        (edges, "--compare-orders"),
        ("serve g", "--keep-versions 2,--keep-for 2s,--unix-mode 660,--metrics-insecure"),
        ("serve g", "--metrics-host a,--follow-interval 3,--follow-token-file t"),
        ("serve g --writable", "--follow-interval 3,--follow-tls-ca t,--disk 1GiB"),
        ("serve g --unix u", "--shard-port-base 8000,--admin-token-file t,--token-file t"),
        ("serve g --memory 0", "--preload feat"),
        ("serve g --policy none", "--preload auto"),
        (
            "cache-bench --schedule s --policies lru",
            "--gamma 0.9,--delta 9,--by-delta b,--ahead,--offsets o,--epoch-batches 3",
        ),
        ("cache-bench --trace t.npy --batch 2", "--worker 0,--remote"),
        ("partition --edges e.npy --parts 2", "--workers 3,--reserve 1MiB,--data 1MiB"),
    ] {
        for flag in flags.split(',') {
            let name = flag.split(' ').next().unwrap();
            lode_line(&format!("{line} {flag}")).failed(2, &[name]);
        }
    }
}

#[test]
fn values_out_of_range_are_reported_with_their_flags() {
    for (line, parts) in [
        ("schedule g --batch 0 --out s", ["--batch", "1.."]),
        ("schedule g --seed -1 --out s", ["--seed", "from 0 on"]),
        ("train --graph g --lr -1", ["--lr", "found -1"]),
        ("train --graph g --batch 0", ["--batch", "found 0"]),
        ("train --graph g --schedule /dev/null", ["--schedule /dev/null", "pipe or a device"]),
        ("gather --graph g --tensor t --ids i --out o --version -1", ["--version", "-1 is not in"]),
        ("gc file:///b --keep 1 --grace -1", ["--grace", "hours"]),
        ("import --edges e --out g --tensor x=f --dtype x=f32 --dtype x=f64", ["--dtype", "twice"]),
        ("serve g --policy decay", ["cannot follow the policy `decay`", "s3-fifo, tinylfu\n"]),
    ] {
        lode_line(line).failed(2, &parts);
    }
    lode_line("commit nog").failed(1, &["nog", "HOST:PORT", "there is no such folder"]);
}

#[test]
fn with_json_a_failure_is_one_object_too() {
    let finished = lode_line("--json inspect no-such-graph").failed(1, &["no-such-graph"]);
    let message = finished.json()["error"].as_str().unwrap().to_owned();
    assert!(message.contains("graph.toml"), "{message}");
    for (line, told) in [
        ("gather --json --graph g", "required arguments were not provided: --tensor <T>"),
        ("gather --version x --json", "invalid value 'x' for '--version <N>'"),
        ("--json", "subcommand"),
        ("train --json --graph g --heads 2", "--heads"),
    ] {
        let failed = lode_line(line).failed(2, &[]).json();
        let message = failed["error"].as_str().unwrap();
        assert!(message.contains(told) && !message.contains("Usage"), "{line}: {message}");
    }
}

#[test]
fn edges_out_of_range_are_named_and_nothing_is_written() {
    let (source, names) = small();
    let edges = [[0u32, 1], [2, 50], [3, 4]];
    write_npy(&source.file("edges.npy"), NpyType::U32, &[3, 2], &edges);
    let out = source.file("graph");
    let failed = source.try_import(&out, &["feat"], &[]);
    failed.failed(1, &["edges.npy", "edge 1", "node 50", "below 50"]);
    assert_eq!(names_in(source.dir.path()), names);

    let edges = [[0i64, 1], [-2, 5]];
    write_npy(&source.file("edges.npy"), NpyType::I64, &[2, 2], &edges);
    source.try_import(&out, &["feat"], &[]).failed(1, &["edge 1", "-2"]);
    assert_eq!(names_in(source.dir.path()), names);
}

#[test]
fn wrong_types_and_shapes_are_named() {
    let (source, mut names) = small();
    let out = source.file("graph");
    let refuse = |tensors: &[&str], parts: &[&str]| {
        source.try_import(&out, tensors, &[]).failed(1, parts);
    };
    write_npy(&source.file("cube.npy"), NpyType::F32, &[50, 2, 2], &[0f32; 200]);
    refuse(&["cube"], &["cube.npy", "[50, 2, 2]"]);
    fs::write(source.file("complex.npy"), array_of_complex_numbers()).unwrap();
    refuse(&["complex"], &["complex.npy", "<c8"]);
    write_npy(&source.file("thin.npy"), NpyType::F32, &[50, 0], &[0f32; 0]);
    refuse(&["thin"], &["thin.npy"]);
    fs::write(source.file("text.npy"), "not an array").unwrap();
    refuse(&["text"], &["text.npy"]);
    refuse(&["missing"], &["missing.npy"]);
    names.extend(["cube.npy", "complex.npy", "thin.npy", "text.npy"].map(str::to_owned));
    names.sort();

    write_npy(&source.file("edges.npy"), NpyType::F32, &[2, 2], &[0f32; 4]);
    refuse(&["feat"], &["edges.npy", "u32", "<f4"]);
    write_npy(&source.file("edges.npy"), NpyType::U32, &[2, 3], &[0u32; 6]);
    refuse(&["feat"], &["edges.npy", "(E, 2)", "[2, 3]"]);
    assert_eq!(names_in(source.dir.path()), names);
}

/// Returns 50 numbers of a type that no tensor has.
fn array_of_complex_numbers() -> Vec<u8> {
    let header = "{'descr': '<c8', 'fortran_order': False, 'shape': (50,), }";
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend_from_slice(format!("{header:<117}\n").as_bytes());
    bytes.resize(128 + 50 * 8, 0);
    bytes
}

#[test]
fn a_truncated_array_is_refused() {
    let (source, names) = small();
    let path = source.file("feat.npy");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let failed = source.try_import(&source.file("graph"), &["feat"], &[]);
    failed.failed(1, &["feat.npy", &format!("{}", whole.len() - 1)]);
    assert_eq!(names_in(source.dir.path()), names);
}

#[test]
fn too_few_rows_are_refused_before_anything_is_written() {
    let (source, names) = small();
    let out = source.file("graph");
    write_npy(&source.file("label.npy"), NpyType::I64, &[49], &[0i64; 49]);
    source.try_import(&out, &["feat", "label"], &[]).failed(1, &["label.npy", "49", "50"]);
    source.try_import(&out, &["feat"], &["--nodes", "60"]).failed(1, &["feat.npy", "50", "60"]);
    source.try_import(&out, &["feat"], &["--nodes", "40"]).failed(1, &["40"]);
    assert_eq!(names_in(source.dir.path()), names);
}

#[test]
fn files_at_fault_are_named_as_they_were_given() {
    let (source, names) = small();
    let out = source.file("graph");
    // The first tensor says how many nodes there are.
    write_npy(&source.file("feat.npy"), NpyType::F32, &[40, 2], &[0f32; 80]);
    source.try_import(&out, &["feat"], &[]).failed(1, &["edges.npy", "feat.npy has 40 rows"]);
    write_npy(&source.file("split.npy"), NpyType::Bool, &[50], &[1u8; 50]);
    let failed = source.try_import(&out, &["split"], &[]);
    failed.failed(1, &["split.npy", "booleans", "numpy.where"]);
    // `split.npy` took the place of what was there.
    assert_eq!(names_in(source.dir.path()), names);
}

#[test]
fn outputs_are_written_through_links_and_replace_no_pipe() {
    let (source, _) = small();
    let graph = source.import("graph", 2, "hash");
    write_npy(&source.file("ids.npy"), NpyType::U32, &[3], &[0u32, 1, 2]);
    let gather = |out: &str| {
        let (graph, ids) = (graph.display(), source.file("ids.npy"));
        let out = source.file(out);
        let line = format!(
            "gather --graph {graph} --tensor feat --ids {} --out {}",
            ids.display(),
            out.display()
        );
        lode_line(&line).succeeded();
    };
    gather("rows.npy");
    let rows = fs::read(source.file("rows.npy")).unwrap();
    fs::create_dir(source.file("far")).unwrap();
    symlink("far/rows.npy", source.file("link.npy")).unwrap();
    gather("link.npy");
    assert_eq!(fs::read_link(source.file("link.npy")).unwrap(), Path::new("far/rows.npy"));
    assert_eq!(fs::read(source.file("far/rows.npy")).unwrap(), rows);
    let pipe = source.file("pipe.npy");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let to_read = pipe.clone();
    let reader = thread::spawn(move || fs::read(to_read).unwrap());
    gather("pipe.npy");
    assert_eq!(reader.join().unwrap(), rows);
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
}

#[test]
fn nan_is_refused_by_row_or_kept() {
    let (source, names) = small();
    let mut rows = source.feat.clone();
    rows[33][5] = f32::NAN;
    write_npy(&source.file("feat.npy"), NpyType::F32, &[50, 13], &rows);
    let out = source.file("graph");
    source.try_import(&out, &["feat"], &[]).failed(1, &["feat.npy", "row 33", "NaN"]);
    assert_eq!(names_in(source.dir.path()), names);
    source.try_import(&out, &["feat"], &["--nan", "keep"]).succeeded();
}

#[test]
fn an_existing_folder_is_never_touched() {
    let (source, _) = small();
    let out = source.file("graph");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("mine"), "precious").unwrap();
    let names = names_in(source.dir.path());
    source.try_import(&out, &["feat"], &[]).failed(1, &["graph", "exists already"]);
    let generate = format!("generate --nodes 10 --classes 2 --out {}", out.display());
    lode_line(&generate).failed(1, &["graph", "exists already"]);
    lode_line("generate --nodes 10 --classes 2 --hub-power 0 --out none")
        .failed(2, &["hub_power must be from 1 to 16"]);
    assert_eq!(names_in(source.dir.path()), names);
    assert_eq!(fs::read(out.join("mine")).unwrap(), b"precious");
}

#[test]
fn an_interrupted_import_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let raw = dir.path().join("raw");
    lode_line(&format!("generate --nodes 60000 --degree 8 --dim 512 --out {}", raw.display()))
        .succeeded();
    let (edges, feat) = (raw.join("edges.npy"), raw.join("features.npy"));
    for interrupt in [Signal::INT, Signal::TERM] {
        let child = command([
            "import".as_ref(),
            "--edges".as_ref(),
            edges.as_os_str(),
            "--tensor".as_ref(),
            format!("feat={}", feat.display()).as_ref(),
            "--out".as_ref(),
            dir.path().join("graph").as_os_str(),
        ])
        .spawn()
        .unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        let staged =
            || names_in(dir.path()).iter().find(|name| name.contains("importing")).cloned();
        while staged().is_none_or(|name| !dir.path().join(name).join("part-000").exists()) {
            assert!(Instant::now() < end, "no staging folder appears");
        }
        std::thread::sleep(Duration::from_millis(30));
        signal(&child, interrupt);
        let finished = finish(child, Duration::from_secs(20));
        assert_eq!(finished.code, Some(128 + interrupt.as_raw()), "{finished:?}");
        assert_eq!(names_in(dir.path()), ["raw"], "{finished:?}");
    }
}

#[test]
fn zero_edges_one_node_and_isolated_nodes_are_graphs() {
    // More partitions than nodes in the first two: some stay empty.
    for (n_nodes, edges, n_parts) in
        [(1, vec![], 3), (5, vec![], 7), (40, vec![[0, 1], [1, 1]], 2), (300, vec![], 2)]
    {
        let source = Source::with_edges(n_nodes, &edges);
        for partitioner in ["spring", "hash"] {
            let graph = source.import(&format!("graph-{partitioner}"), n_parts, partitioner);
            lode_line(&format!("verify {}", graph.display())).succeeded();
            let ids: Vec<u32> = (0..n_nodes).rev().collect();
            let (ids_path, out) = (source.file("ids.npy"), source.file("out.npy"));
            write_npy(&ids_path, NpyType::U32, &[ids.len() as u64], &ids);
            let server = Serving::start(&graph, "--listen 127.0.0.1:0 --shards 2");
            let from =
                [format!("--graph {}", graph.display()), format!("--connect {}", server.address)];
            for from in from {
                lode_line(&format!(
                    "gather {from} --tensor wide --external-ids --ids {} --out {}",
                    ids_path.display(),
                    out.display()
                ))
                .succeeded();
                let found = NpyArray::open(&out).unwrap();
                assert!(found.bytes() == source.rows("wide", &ids), "{n_nodes} nodes from {from}");
            }
            server.stop();
        }
    }
}

/// The longest row that a server sends, and one byte more: an import warns of it, and reads without
/// a server continue.
#[test]
fn rows_too_long_for_a_server_are_named_by_the_import_and_by_the_server() {
    let source = Source::with_edges(4, &[[0, 1], [2, 3]]);
    let (ids, out) = (source.file("ids.npy"), source.file("out.npy"));
    write_npy(&ids, NpyType::U32, &[4], &[3u32, 1, 0, 2]);
    let (ids, found) = (ids.display(), out.display());
    for (width, is_served) in [(1 << 20, true), ((1 << 20) + 1, false)] {
        let rows: Vec<u8> = (0..4 * width).map(|n| (n % 251) as u8).collect();
        write_npy(&source.file("long.npy"), NpyType::U8, &[4, width as u64], &rows);
        let graph = source.file(&format!("graph-{width}"));
        let more = ["--codec", "raw", "--json", "--parts", "2"];
        let imported = source.try_import(&graph, &["label", "long"], &more).succeeded();
        let not_served = imported.json()["not_served"].as_array().unwrap().len();
        assert_eq!(not_served, usize::from(!is_served), "{imported:?}");
        assert_eq!(imported.stderr.contains("tensor `long` has rows"), !is_served, "{imported:?}");
        let gather = |from: &str| {
            let line =
                format!("gather {from} --tensor long --external-ids --ids {ids} --out {found}");
            lode_line(&line).succeeded();
            let expected = [3, 1, 0, 2].map(|id| &rows[id * width..][..width]).concat();
            assert!(NpyArray::open(&out).unwrap().bytes() == expected, "{width} from {from}");
        };
        let graph_name = graph.display();
        gather(&format!("--graph {graph_name}"));
        if is_served {
            let server = Serving::start(&graph, "--listen 127.0.0.1:0 --shards 2");
            gather(&format!("--connect {}", server.address));
            server.stop();
        } else {
            lode_line(&format!("serve {graph_name} --listen 127.0.0.1:0"))
                .failed(1, &["tensor `long` cannot be served", "1048577", "1048576", "--graph"]);
        }
    }
}

#[test]
fn a_graph_of_no_nodes_is_refused() {
    let source = Source::with_edges(0, &[]);
    let out = source.file("graph");
    source.try_import(&out, &[], &[]).failed(1, &["edges.npy", "--nodes"]);
    assert!(!out.exists());
}

#[test]
fn an_edge_list_alone_is_a_graph() {
    let (source, _) = small();
    let out = source.file("graph");
    let report = source.try_import(&out, &[], &["--json", "--nodes", "70"]).succeeded().json();
    assert_eq!(report["nodes"], 70);
    lode_line(&format!("schedule {} --out {}", out.display(), source.file("s").display()))
        .failed(1, &["split", "--roots all"]);
    let schedule = format!(
        "schedule {} --roots all --epochs 2 --json --out {}",
        out.display(),
        source.file("s").display()
    );
    let first = lode_line(&schedule).succeeded().json();
    assert_eq!(first["batches"], 2);
    assert_eq!(lode_line(&schedule).succeeded().json()["digest"], first["digest"]);
}
