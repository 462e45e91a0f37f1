//! The whole way from the command line: serve, put, commit, gather, compact, restart.

use std::path::PathBuf;

use lodestore_graph::npy::{NpyArray, NpyType};
use lodestore_schema::request::CommitStep;
use lodestore_schema::{Reply, RequestBody};
use lodestore_store::CommitId;

use testing::graph::Source;
use testing::process::{Finished, Serving, lode, lode_line};
use testing::wire::PlainConnection;
use testing::{Numbers, write_npy};

const N_NODES: u32 = 500;

/// A graph and, by external id, the rows of `feat` that it must have.
struct Served {
    source: Source,
    graph: PathBuf,
    feat: Vec<[f32; 13]>,
    /// Puts that are not committed, in order.
    put: Vec<(u32, [f32; 13])>,
}

impl Served {
    fn new(n_parts: u16) -> Self {
        let source = Source::random(N_NODES, 2000);
        let graph = source.import("graph", n_parts, "hash");
        let feat = source.feat.clone();
        Self { source, graph, feat, put: Vec::new() }
    }

    fn serve(&self, more: &str) -> Serving {
        Serving::start(&self.graph, &format!("--listen 127.0.0.1:0 --shards 2 {more}"))
    }

    /// Runs `lode put --connect` with new rows for some external ids.
    fn put(&mut self, to: &[&str], ids: &[u32], seed: u64, more: &[&str]) -> Finished {
        let mut numbers = Numbers(seed);
        let rows: Vec<[f32; 13]> =
            ids.iter().map(|_| std::array::from_fn(|_| numbers.next() as f32)).collect();
        let (ids_file, rows_file) = (self.source.file("put-ids.npy"), self.source.file("put.npy"));
        write_npy(&ids_file, NpyType::U32, &[ids.len() as u64], ids);
        write_npy(&rows_file, NpyType::F32, &[ids.len() as u64, 13], &rows);
        let files = [&ids_file, &rows_file].map(|path| path.to_str().unwrap());
        let mut args = vec!["put", "--json", "--external-ids", "--tensor", "feat"];
        args.extend(["--ids", files[0], "--rows", files[1]]);
        args.extend(to.iter().flat_map(|address| ["--connect", address]));
        args.extend(more);
        let finished = lode(args);
        if finished.code == Some(0) {
            self.put.extend(ids.iter().copied().zip(rows));
            if more.contains(&"--commit") {
                self.committed();
            }
        }
        finished
    }

    /// Records that everything that was put is committed.
    fn committed(&mut self) {
        self.put.drain(..).for_each(|(id, row)| self.feat[id as usize] = row);
    }

    /// Checks every row, through the servers at `from` or, if there are none, from the files.
    fn check(&self, from: &[&str]) {
        self.gather(from, &[]).succeeded();
        let found = NpyArray::open(&self.source.file("out.npy")).unwrap();
        assert!(found.bytes() == bytemuck::cast_slice::<_, u8>(&self.feat), "{from:?}");
    }

    /// Gathers every row into `out.npy`.
    fn gather(&self, from: &[&str], more: &[&str]) -> Finished {
        let (ids, out) = (self.source.file("all.npy"), self.source.file("out.npy"));
        write_npy(&ids, NpyType::U32, &[u64::from(N_NODES)], &(0..N_NODES).collect::<Vec<_>>());
        let files = [&ids, &out, &self.graph].map(|path| path.to_str().unwrap());
        let mut args = vec!["gather", "--external-ids", "--tensor", "feat", "--ids", files[0]];
        args.extend(["--out", files[1]]);
        args.extend(from.iter().flat_map(|address| ["--connect", address]));
        if from.is_empty() {
            args.extend(["--graph", files[2]]);
        }
        args.extend(more);
        lode(args)
    }
}

#[test]
fn rows_of_a_version_are_gathered_from_servers_as_from_files() {
    let mut served = Served::new(2);
    let server = served.serve("--writable --insecure");
    let to = [server.address.as_str()];
    let rows_of = |served: &Served, from: &[&str], version: &str| {
        served.gather(from, &["--version", version]).succeeded();
        let rows = NpyArray::open(&served.source.file("out.npy")).unwrap();
        rows.bytes().to_vec()
    };
    let before = bytemuck::cast_slice::<_, u8>(&served.feat).to_vec();
    served.put(&to, &[5, 17, 300], 8, &["--commit"]).succeeded();
    let after = bytemuck::cast_slice::<_, u8>(&served.feat).to_vec();
    for from in [&to[..], &[]] {
        assert!(rows_of(&served, from, "1") == before, "{from:?}");
        assert!(rows_of(&served, from, "2") == after, "{from:?}");
        served.gather(from, &["--version", "3"]).failed(1, &["version 3"]);
    }
    served.gather(&to, &["--version", "1", "--pin"]).failed(2, &["cannot be used with"]);
    server.stop();
}

#[test]
fn put_commit_gather_compact_and_restart() {
    let mut served = Served::new(3);
    let server = served.serve("--writable --insecure --keep-versions 1 --keep-for 0");
    let address = server.address.clone();
    let to = [address.as_str()];
    served.check(&to);
    let some: Vec<u32> = (0..N_NODES).step_by(3).collect();
    let put = served.put(&to, &some, 1, &["--commit"]).succeeded().json();
    assert_eq!((put["rows"].as_u64(), put["version"].as_u64()), (Some(167), Some(2)));
    served.check(&to);
    // A second writer fails with the holder of the graph.
    let ids = served.source.file("put-ids.npy");
    let rows = served.source.file("put.npy");
    let (graph, ids, rows) = (served.graph.display(), ids.display(), rows.display());
    lode_line(&format!("put --graph {graph} --tensor feat --ids {ids} --rows {rows}"))
        .failed(1, &["another process has this graph open for writing"]);
    lode_line(&format!("compact --connect {address}")).succeeded();
    served.check(&to);
    let pending = served.put(&to, &[7, 8, 7], 2, &[]).succeeded().json();
    assert_eq!(
        (pending["version"].as_u64(), pending["committed"].as_bool()),
        (Some(2), Some(false))
    );
    served.check(&to);
    let compacted = lode_line(&format!("compact --json --no-wait --connect {address}")).succeeded();
    assert_eq!(compacted.json()["done"].as_bool(), Some(false));
    let stat = lode_line(&format!("stat {address} --json")).succeeded().json();
    let figure = |name: &str| stat[name].as_u64();
    assert_eq!((figure("version"), figure("committed_rows")), (Some(2), Some(0)));
    assert_eq!((figure("pending_rows"), stat["writable"].as_bool()), (Some(2), Some(true)));
    let text = lode_line(&format!("stat {address}")).succeeded().stdout;
    assert!(text.contains("version 2, writer, takes updates"), "{text}");
    server.stop();
    served.check(&[]);
    let server = served.serve("--writable --insecure");
    served.check(&[&server.address]);
    let committed = served.put(&[&server.address.clone()], &[8], 4, &["--commit"]);
    assert_eq!(committed.succeeded().json()["version"].as_u64(), Some(3));
    served.check(&[&server.address]);
    server.stop();
    served.check(&[]);
    let server = served.serve("");
    served.check(&[&server.address]);
    let refused = served.put(&[&server.address.clone()], &[1], 3, &["--commit"]);
    refused.failed(1, &["no server accepts puts for partition", "--writable"]);
    served.check(&[&server.address]);
    server.stop();
}

#[test]
fn two_servers_are_written_as_one_and_a_missing_one_is_named() {
    let mut served = Served::new(2);
    let first = served.serve("--writable --insecure --parts 0");
    let second = served.serve("--writable --insecure --parts 1");
    let to = [first.address.clone(), second.address.clone()];
    let to = to.each_ref().map(String::as_str);
    let all: Vec<u32> = (0..N_NODES).collect();
    let put = served.put(&to, &all, 5, &["--commit"]).succeeded().json();
    assert_eq!(put["version"].as_u64(), Some(2));
    served.check(&to);
    served.put(&to[..1], &all, 6, &[]).failed(1, &["partition 1"]);
    lode_line(&format!("compact --connect {} --connect {}", to[0], to[1])).succeeded();
    served.check(&to);
    lode_line("compact").failed(2, &["--connect"]);
    lode_line("put --tensor feat --ids a --rows b").failed(2, &["--connect"]);
    let here = served.graph.display();
    lode_line(&format!("compact {here} --connect {}", to[0])).failed(2, &["--connect"]);
    first.stop();
    second.stop();
    served.check(&[]);
}

#[test]
fn a_commit_of_its_own_makes_a_version_of_what_is_pending_and_of_nothing_else() {
    let mut served = Served::new(3);
    let serve =
        |served: &Served, more: &str| served.serve(&format!("--writable --insecure {more}"));
    let (first, second) = (serve(&served, "--parts 0,2"), serve(&served, "--parts 1"));
    let to = [first.address.clone(), second.address.clone()];
    let to = to.each_ref().map(String::as_str);
    let commit = |to: &[&str]| lode_line(&format!("commit {} --json", to.join(" ")));
    let outcome = |finished: Finished| {
        let report = finished.succeeded().json();
        let parts = report["parts"].as_array().unwrap().iter();
        let versions: Vec<u64> = parts.map(|it| it["version"].as_u64().unwrap()).collect();
        (report["version"].as_u64().unwrap(), report["committed"].as_bool().unwrap(), versions)
    };
    assert_eq!(outcome(commit(&to)), (1, false, vec![1; 3]));
    let text = lode_line(&format!("commit {}", to.join(" "))).succeeded().stdout;
    assert_eq!(text.trim(), "nothing is pending; version 1 of partitions 0 to 2");
    served.put(&to, &[5, 17, 300], 8, &[]).succeeded();
    served.check(&to);
    // The next process of a server knows of rows that were put before it.
    first.kill();
    second.kill();
    let (first, second) = (serve(&served, "--parts 0,2"), serve(&served, "--parts 1"));
    let to = [first.address.clone(), second.address.clone()];
    let to = to.each_ref().map(String::as_str);
    assert_eq!(outcome(commit(&to)), (2, true, vec![2; 3]));
    served.committed();
    served.check(&to);
    assert_eq!(outcome(commit(&to)), (2, false, vec![2; 3]));
    // A commit that has reached one server of two is finished as it was begun.
    served.put(&to, &[5, 6, 7, 8], 9, &[]).succeeded();
    let label = u128::from_be_bytes(CommitId::draw().to_bytes());
    let steps =
        [(to[1], CommitStep::Prepare), (to[0], CommitStep::Prepare), (to[0], CommitStep::Publish)];
    for (address, step) in steps {
        let mut raw = PlainConnection::open(address);
        raw.ask(RequestBody::Commit { version: 3, step, label }, &[]);
        assert!(matches!(raw.answer().0, Reply::Committed { version: 3, .. }));
    }
    assert_eq!(outcome(commit(&to)), (3, true, vec![3; 3]));
    served.committed();
    served.check(&to);
    lode_line(&format!("commit {} --parts 0", to.join(" ")))
        .failed(2, &["--parts is for a folder"]);
    let text = lode_line(&format!("commit {}", to[0])).succeeded().stdout;
    let expected = "nothing is pending; version 3 of partition 0, version 3 of partition 2";
    assert_eq!(text.trim(), format!("{expected}\nleft as they are: partitions 1"));
    first.stop();
    second.stop();
    // The files, once the servers have gone.
    let graph = served.graph.display().to_string();
    assert_eq!(outcome(commit(&[&graph])), (3, false, vec![3; 3]));
    let files = ["put-ids.npy", "put.npy"].map(|name| served.source.file(name));
    let files = format!("--ids {} --rows {}", files[0].display(), files[1].display());
    let put = format!("put --graph {graph} --tensor feat --external-ids {files}");
    lode_line(&put).succeeded();
    assert_eq!(outcome(commit(&[&graph])), (4, true, vec![4; 3]));
    let text = lode_line(&format!("commit {graph}")).succeeded().stdout;
    assert_eq!(text.trim(), "nothing is pending; version 4 of partitions 0 to 2");
    commit(&[&graph, "127.0.0.1:1"]).failed(2, &["expected one folder"]);
    lode_line(&format!("commit {graph} --wait-followers 1")).failed(2, &["for servers"]);
    commit(&["no-such-graph"]).failed(1, &["no-such-graph"]);
    served.check(&[]);
}
