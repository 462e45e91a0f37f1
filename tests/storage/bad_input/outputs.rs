//! Outputs that would destroy a graph, an input, or another output.

use std::fs::{self, File};
use std::os::unix::fs::symlink;

use lodestore_graph::npy::NpyType;

use testing::graph::Source;
use testing::process::{command, lode_line};
use testing::write_npy;

/// Returns a source with a graph, ids, and a schedule of its batches.
fn with_inputs() -> Source {
    let source = Source::random(50, 200);
    let graph = source.import("g", 2, "hash");
    write_npy(&source.file("ids.npy"), NpyType::U32, &[3], &[0u32, 1, 2]);
    let out = source.file("run");
    let line =
        format!("schedule {} --roots all --epochs 1 --out {}", graph.display(), out.display());
    lode_line(&line).succeeded();
    source
}

/// Runs a line in which names that begin with `@` are files of the source; it must fail.
fn refuse(source: &Source, line: &str, parts: &[&str]) {
    lode_line(&in_source(source, line)).failed(2, parts);
}

fn in_source(source: &Source, line: &str) -> String {
    line.replace('@', &format!("{}/", source.dir.path().display()))
}

#[test]
fn outputs_in_the_folder_of_a_graph_are_refused() {
    let source = with_inputs();
    symlink(source.file("g/part-000"), source.file("part")).unwrap();
    let toml = fs::read(source.file("g/graph.toml")).unwrap();
    for (line, flag) in [
        ("gather --graph @g --tensor feat --ids @ids.npy --out @g/part-001/rows", "--out"),
        ("gather --graph @g --tensor feat --ids @ids.npy --out @part/rows", "--out"),
        ("train --graph @g --save-model @g/graph.toml", "--save-model"),
        ("train --graph @g --log @g/log", "--log"),
        ("train --graph @g --schedule @g/schedule", "--schedule"),
        ("train --graph @g --checkpoint @g", "--checkpoint"),
        ("train --graph @g --checkpoint @g/part-000", "--checkpoint"),
        ("partition --edges @edges.npy --parts 2 --out @g/part-000/topology.csr", "--out"),
        ("schedule @g --out @g/schedule", "--out"),
        ("cache-bench --schedule @run --csv @g/graph.toml", "--csv"),
        ("cache-bench --schedule @run --svg @g/graph.toml", "--svg"),
        ("cache-bench --schedule @run --policies lru --capacities 9 --misses @g/m", "--misses"),
        ("generate --nodes 10 --classes 2 --out @g/raw", "--out"),
        ("import --edges @edges.npy --out @g/other", "--out"),
    ] {
        refuse(&source, line, &[flag, "in the folder of the graph"]);
    }
    assert!(fs::read(source.file("g/graph.toml")).unwrap() == toml);
    lode_line(&in_source(&source, "verify @g")).succeeded();
}

#[test]
fn outputs_that_are_inputs_are_refused() {
    let source = with_inputs();
    symlink("ids.npy", source.file("link.npy")).unwrap();
    let names = ["ids.npy", "edges.npy", "run"];
    let before = names.map(|name| fs::read(source.file(name)).unwrap());
    fs::copy(source.file("ids.npy"), source.file("m.ids.npy")).unwrap();
    for (line, parts) in [
        ("gather --graph @g --tensor feat --ids @ids.npy --out @ids.npy", ["--ids", "--out"]),
        ("gather --graph @g --tensor feat --ids @ids.npy --out @link.npy", ["--ids", "--out"]),
        ("gather --graph @g --tensor feat --ids @link.npy --out @ids.npy", ["--ids", "--out"]),
        ("partition --edges @edges.npy --parts 2 --out @edges.npy", ["--edges", "--out"]),
        ("cache-bench --schedule @run --csv @run", ["--schedule", "--csv"]),
        (
            "cache-bench --schedule @run --over-time @run --capacities 9",
            ["--schedule", "--over-time"],
        ),
        (
            "cache-bench --trace @m.ids.npy --batch 1 --policies lru --capacities 2 --misses @m",
            ["--trace", "--misses"],
        ),
        (
            "gather --connect a:1 --token-file @run --tensor t --ids @ids.npy --out @run",
            ["--token-file", "--out"],
        ),
    ] {
        refuse(&source, line, &parts);
    }
    assert!(names.map(|name| fs::read(source.file(name)).unwrap()) == before);
}

#[test]
fn two_outputs_on_one_path_are_refused() {
    let source = with_inputs();
    symlink("same", source.file("link")).unwrap();
    for (line, parts) in [
        ("train --graph @g --log @same --save-model @same", ["--log", "--save-model"]),
        ("train --graph @g --log @same --save-model @link", ["--log", "--save-model"]),
        ("train --graph @g --schedule @b --save-model @b", ["--schedule", "--save-model"]),
        ("train --graph @g --schedule @b --log @b.partial", ["--schedule", "--log"]),
        ("train --graph @g --log @c --schedule @c", ["--log", "--schedule"]),
        (
            "train --graph @g --checkpoint @ck --schedule @ck/checkpoint",
            ["--checkpoint", "--schedule"],
        ),
        ("train --graph @g --checkpoint @ck --log @ck/schedule", ["--checkpoint", "--log"]),
        ("cache-bench --schedule @run --csv @x --svg @x", ["--csv", "--svg"]),
        ("cache-bench --schedule @run --csv /dev/full --svg /dev/full", ["--csv", "--svg"]),
    ] {
        refuse(&source, line, &parts);
    }
    let outputs = ["same", "b", "c", "ck", "x"];
    assert!(outputs.iter().all(|name| !source.file(name).exists()), "nothing was begun");
}

#[test]
fn an_output_to_the_file_that_stdout_goes_to_is_refused() {
    let source = with_inputs();
    let (line, printed) = ("train --json --graph @g --log /dev/stdout", source.file("printed"));
    let line = in_source(&source, line);
    let mut train = command(line.split_whitespace());
    let output = train.stdout(File::create(&printed).unwrap()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("--log") && stderr.contains("stdout"), "{stderr}");
}

#[test]
fn a_file_in_the_place_of_a_work_folder_is_named() {
    let source = with_inputs();
    fs::write(source.file("g.infer-q"), "mine").unwrap();
    let failed = lode_line(&in_source(&source, "infer @g --model none --out-tensor q"));
    let stderr = failed.failed(1, &["g.infer-q", "move it away"]).stderr;
    assert!(!stderr.contains("TMPDIR"), "{stderr}");
    assert_eq!(fs::read(source.file("g.infer-q")).unwrap(), b"mine");
}

#[test]
fn more_workers_or_partitions_than_there_can_be_are_told() {
    let source = with_inputs();
    refuse(&source, "schedule @g --roots all --workers 9 --out @s", &["--workers 9", "--parts 9"]);
    assert!(!source.file("s").exists());
    let line = in_source(&source, "partition --edges @edges.npy --parts 99 --algorithm hash");
    let partitioned = lode_line(&line).succeeded();
    assert!(partitioned.stderr.contains("some will be empty"), "{partitioned:?}");
}
