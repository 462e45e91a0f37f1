//! Rows are put, committed, read by version and compacted by real processes, beside readers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodestore_graph::NodeId;
use lodestore_graph::npy::{NpyArray, NpyType};
use lodestore_store::{EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, View};

use testing::graph::Source;
use testing::process::{Finished, lode, lode_line};
use testing::{Numbers, names_in, write_npy};

const N_NODES: u32 = 600;

/// A graph and, by external id, the rows of `feat` that it must have.
struct Updated {
    source: Source,
    graph: PathBuf,
    feat: Vec<[f32; 13]>,
}

impl Updated {
    fn new(n_parts: u16) -> Self {
        let source = Source::random(N_NODES, 2400);
        let graph = source.import("graph", n_parts, "hash");
        let feat = source.feat.clone();
        Self { source, graph, feat }
    }

    /// Runs `lode put` with new rows for `ids`, which are external.
    fn put(&mut self, ids: &[u32], seed: u64, more: &[&str]) -> Finished {
        let mut numbers = Numbers(seed);
        let rows: Vec<[f32; 13]> =
            ids.iter().map(|_| std::array::from_fn(|_| numbers.next() as f32)).collect();
        for (&id, row) in ids.iter().zip(&rows) {
            self.feat[id as usize] = *row;
        }
        self.put_rows("feat", ids, NpyType::F32, &[ids.len() as u64, 13], &rows, more)
    }

    fn put_rows<T: bytemuck::NoUninit>(
        &self,
        tensor: &str,
        ids: &[u32],
        dtype: NpyType,
        shape: &[u64],
        rows: &[T],
        more: &[&str],
    ) -> Finished {
        let (ids_file, rows_file) = (self.source.file("put-ids.npy"), self.source.file("put.npy"));
        write_npy(&ids_file, NpyType::U32, &[ids.len() as u64], ids);
        write_npy(&rows_file, dtype, shape, rows);
        let mut args = vec!["put", "--json", "--external-ids", "--tensor", tensor];
        let paths = [&self.graph, &ids_file, &rows_file].map(|path| path.to_str().unwrap());
        args.extend(["--graph", paths[0], "--ids", paths[1], "--rows", paths[2]]);
        args.extend(more);
        lode(args)
    }

    /// Returns the rows of `feat` of all nodes by external id, with more arguments.
    fn gather(&self, more: &[&str]) -> Finished {
        let (ids, out) = (self.source.file("all.npy"), self.source.file("out.npy"));
        write_npy(&ids, NpyType::U32, &[u64::from(N_NODES)], &(0..N_NODES).collect::<Vec<_>>());
        let paths = [&self.graph, &ids, &out].map(|path| path.to_str().unwrap());
        let mut args = vec!["gather", "--json", "--external-ids", "--tensor", "feat"];
        args.extend(["--graph", paths[0], "--ids", paths[1], "--out", paths[2]]);
        args.extend(more);
        lode(args)
    }

    fn check(&self, expected: &[[f32; 13]], more: &[&str]) {
        self.gather(more).succeeded();
        let found = NpyArray::open(&self.source.file("out.npy")).unwrap();
        assert!(found.bytes() == bytemuck::cast_slice::<_, u8>(expected), "{more:?}");
    }

    fn line(&self, command: &str) -> Finished {
        lode_line(&format!("{command} {} --json", self.graph.display()))
    }
}

fn live(graph: &Path, mode: OpenMode) -> Arc<GraphHandle> {
    let graph = Graph::open(graph).unwrap();
    Arc::new(GraphHandle::open(graph, None, mode, &OpenOptions::default()).unwrap())
}

fn segments(graph: &Path) -> Vec<String> {
    let mut names: Vec<String> = names_in(&graph.join("part-000"));
    names.retain(|name| name.starts_with("feat"));
    names
}

#[test]
fn puts_become_versions_and_compaction_keeps_the_rows() {
    let mut graph = Updated::new(2);
    let imported = graph.feat.clone();
    let first: Vec<u32> = (0..N_NODES).step_by(3).collect();
    let report = graph.put(&first, 1, &["--commit"]).succeeded().json();
    assert_eq!((&report["rows"], &report["bytes"]), (&first.len().into(), &(200 * 52).into()));
    assert_eq!((report["version"].as_u64(), report["committed"].as_bool()), (Some(2), Some(true)));
    let second = graph.feat.clone();
    let report = graph.put(&[1, 2, 1, 3], 2, &[]).succeeded().json();
    assert_eq!((report["version"].as_u64(), report["committed"].as_bool()), (Some(2), Some(false)));
    assert_ne!(graph.feat, second);
    // No reader sees rows that are not committed.
    for (rows, more) in [
        (&second, &[][..]),
        (&second, &["--reader", "direct"]),
        (&imported, &["--version", "1"]),
        (&imported, &["--version", "1", "--reader", "direct"]),
        (&second, &["--version", "2"]),
        (&second, &["--version", "2", "--reader", "pread"]),
    ] {
        graph.check(rows, more);
    }
    graph.gather(&["--version", "3"]).failed(1, &["version 3 cannot be read", "newest 2"]);
    let summary = graph.line("inspect").succeeded().json();
    assert_eq!((&summary["version"], &summary["oldest_version"]), (&2.into(), &1.into()));
    let feat = &summary["tensors"][0];
    let rows = ["delta_rows", "pending_rows"].map(|key| feat[key].as_u64().unwrap());
    assert_eq!((feat["name"].as_str(), rows), (Some("feat"), [200, 3]));
    let sum = |key: &str| -> u64 {
        let layers = summary["parts"].as_array().unwrap().iter().map(|part| &part["layers"][0]);
        let rows = layers.map(|it| it[key].as_array().map_or_else(|| &it[key], |all| &all[0]));
        rows.map(|n| n.as_u64().unwrap()).sum()
    };
    assert_eq!([sum("delta_rows"), sum("pending_rows")], [200, 3], "{summary}");
    assert!(graph.line("verify").succeeded().json()["ok"].as_bool().unwrap());

    let report = graph.line("compact").succeeded().json();
    assert_eq!(
        (&report["rows"], &report["version"], &report["waiting"]),
        (&200.into(), &2.into(), &0.into())
    );
    let folded = report["tensors"].as_array().unwrap().iter();
    let folded = folded.filter(|tensor| tensor["rows"].as_u64() > Some(0));
    assert!(folded.clone().all(|t| t["tensor"] == "feat" && t["bytes"].as_u64() > Some(0)));
    assert_eq!(folded.count(), 2, "one in each partition");
    assert_eq!(segments(&graph.graph), ["feat.v2.seg"]);
    graph.check(&second, &[]);
    graph.check(&second, &["--version", "2"]);
    graph.gather(&["--version", "1"]).failed(1, &["version 1 cannot be read", "oldest is 2"]);
    assert!(graph.line("verify").succeeded().json()["ok"].as_bool().unwrap());
    assert_eq!(graph.line("compact").succeeded().json()["rows"], 0);

    // Pending rows stay, and become part of the next version.
    let report = graph.put(&[9], 3, &["--commit"]).succeeded().json();
    assert_eq!((report["version"].as_u64(), report["committed"].as_bool()), (Some(3), Some(true)));
    for more in [&[][..], &["--version", "3"], &["--reader", "direct"]] {
        graph.check(&graph.feat, more);
    }
    graph.check(&second, &["--version", "2"]);
    assert!(graph.line("verify").succeeded().json()["ok"].as_bool().unwrap());
}

#[test]
fn a_second_process_cannot_write_and_every_process_can_read() {
    let mut graph = Updated::new(1);
    let writer = live(&graph.graph, OpenMode::Write);
    let before = graph.feat.clone();
    let refusal = "another process has this graph open for writing";
    graph.put(&[1], 1, &[]).failed(1, &[refusal, "wait for it"]);
    graph.line("compact").failed(1, &[refusal]);
    graph.feat = before;
    graph.check(&graph.feat, &[]);
    drop(writer);
    graph.put(&[1], 1, &["--commit"]).succeeded();
    graph.check(&graph.feat, &[]);
}

#[test]
fn another_process_compacts_and_a_reader_keeps_what_it_opened() {
    let mut graph = Updated::new(1);
    let reader =
        EmbeddedStore::from_handle(live(&graph.graph, OpenMode::Read), View::Latest).unwrap();
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let rows = || {
        let mut out = vec![0; ids.len() * 52];
        reader.gather("feat", &ids, &mut out).unwrap();
        out
    };
    let before = rows();
    graph.put(&(0..N_NODES).collect::<Vec<_>>(), 1, &["--commit"]).succeeded();
    assert!(rows() == before, "what was committed later is not of the state when it was opened");
    // The folding process has the delta open too, and removes it; the segment is the reader's.
    assert_eq!(graph.line("compact").succeeded().json()["waiting"], 1);
    assert_eq!(segments(&graph.graph), ["feat.v1.seg", "feat.v2.seg"]);
    assert!(rows() == before, "the state when it was opened");
    graph.check(&graph.feat, &[]);
    drop(reader);
    assert_eq!(graph.line("compact").succeeded().json()["rows"], 0);
    assert_eq!(segments(&graph.graph), ["feat.v2.seg"]);
    graph.check(&graph.feat, &[]);
}

#[test]
fn what_cannot_be_put_is_refused_before_anything_is() {
    let graph = Updated::new(2);
    let rows = vec![[0.5f32; 13]; 3];
    let shape = [3, 13];
    type Case<'a> = (&'a str, &'a [u32], NpyType, &'a [u64], &'a [&'a str]);
    let cases: [Case<'_>; 5] = [
        ("none", &[1, 2, 3], NpyType::F32, &shape, &["no tensor `none`"]),
        ("feat", &[1, 2], NpyType::F32, &shape, &["expected the shape (2, 13)"]),
        ("feat", &[1, 2, 3], NpyType::I32, &shape, &["rows of `feat` are <f4"]),
        ("feat", &[1, 2, 3], NpyType::F32, &[13, 3], &["expected the shape (3, 13)"]),
        ("feat", &[1, 2, N_NODES], NpyType::F32, &shape, &["id 2 is 600", "below 600"]),
    ];
    for (tensor, ids, dtype, shape, expected) in cases {
        graph.put_rows(tensor, ids, dtype, shape, &rows, &[]).failed(1, expected);
    }
    let ids = [[7i64]; 1];
    let fixed = graph.put_rows("external_id", &[1], NpyType::I64, &[1], &ids, &[]);
    fixed.failed(1, &["is read-only"]);
    graph.check(&graph.feat, &[]);
    lode_line("put --help").succeeded();
    assert!(lode_line("compact --help").succeeded().stdout.contains("lode compact my-graph"));
}
