//! Every row comes back as it was imported, byte for byte, whichever way it is asked for.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lodestore_client::{Client, ClientConfig, RowSource};
use lodestore_graph::npy::{NpyArray, NpyType};
use lodestore_graph::{NodeId, PartitionBook};
use lodestore_schema::request::PullKind;
use lodestore_store::EmbeddedStore;
use lodestore_store::import::EXTERNAL_ID_TENSOR;

use testing::graph::{Source, shuffled_ids};
use testing::process::{Serving, lode};
use testing::wire::PlainConnection;
use testing::write_npy;

const TENSORS: [&str; 3] = ["feat", "wide", "label"];

/// An imported graph with what its rows must be.
struct Imported {
    source: Source,
    graph: PathBuf,
    n_parts: u16,
    /// Internal ids to ask for, and the external ids that they stand for.
    ids: Vec<NodeId>,
    external: Vec<u32>,
}

impl Imported {
    fn new(n_parts: u16, partitioner: &str) -> Self {
        let source = Source::random(1500, 6000);
        let graph = source.import("graph", n_parts, partitioner);
        let ids: Vec<NodeId> = shuffled_ids(source.n_nodes).into_iter().map(NodeId).collect();
        let mut external = vec![0i64; ids.len()];
        let store = EmbeddedStore::open(&graph, None).unwrap();
        let out = bytemuck::cast_slice_mut(&mut external);
        store.gather(EXTERNAL_ID_TENSOR, &ids, out).unwrap();
        let external = external.into_iter().map(|id| u32::try_from(id).unwrap()).collect();
        Self { source, graph, n_parts, ids, external }
    }

    /// Checks `lode gather` by external ids, with `from` naming where.
    fn check_command(&self, from: &[String]) {
        let (ids, out) = (self.source.file("ids.npy"), self.source.file("out.npy"));
        let external = shuffled_ids(self.source.n_nodes);
        write_npy(&ids, NpyType::U32, &[external.len() as u64], &external);
        for tensor in TENSORS {
            let mut args: Vec<String> = ["gather", "--external-ids", "--json", "--tensor", tensor]
                .map(str::to_owned)
                .to_vec();
            args.extend(["--ids".to_owned(), ids.display().to_string()]);
            args.extend(["--out".to_owned(), out.display().to_string()]);
            args.extend_from_slice(from);
            let report = lode(args).succeeded().json();
            let expected = self.source.rows(tensor, &external);
            assert_eq!(report["rows"], external.len());
            assert_eq!(report["bytes"], expected.len());
            let found = NpyArray::open(&out).unwrap();
            assert!(found.bytes() == expected, "{tensor} from {from:?}");
        }
    }

    /// Checks the library's client, which talks to the owner of each row.
    fn check_client(&self, addresses: &[String]) {
        let client = Client::connect(addresses, ClientConfig::default()).unwrap();
        assert_eq!(client.book().n_nodes(), self.source.n_nodes);
        for tensor in TENSORS {
            let expected = self.source.rows(tensor, &self.external);
            let mut out = vec![0xee; expected.len()];
            client.sync_pull(tensor, &self.ids, &mut out).unwrap();
            assert!(out == expected, "sync pull of {tensor} from {addresses:?}");
            out.fill(0xee);
            client.vector_pull(tensor, &self.ids, &mut out).unwrap();
            assert!(out == expected, "vector pull of {tensor} from {addresses:?}");
        }
        let label = client.tensor("label").unwrap();
        let found: Vec<i64> = label.gather(&self.ids).unwrap();
        let expected = self.external.iter().map(|&id| self.source.label[id as usize]);
        assert!(found.into_iter().eq(expected), "labels from {addresses:?}");
        let error = label.gather::<f32>(&self.ids).unwrap_err().to_string();
        assert!(error.contains("expected elements of type i64 for `label`, found f32"), "{error}");
    }

    /// Checks a connection to the common port that knows nothing of shards.
    fn check_plain_connection(&self, address: &str) {
        let mut connection = PlainConnection::open(address);
        let description = connection.describe();
        let book = PartitionBook::new(description.bounds).unwrap();
        let held = |id: &NodeId| description.parts.contains(&book.part_of(*id).unwrap().0);
        let pairs = self.ids.iter().zip(&self.external).filter(|(id, _)| held(id));
        let (ids, external): (Vec<NodeId>, Vec<u32>) = pairs.map(|(&i, &e)| (i, e)).unzip();
        for (position, tensor) in description.tensors.iter().enumerate() {
            if !TENSORS.contains(&tensor.name.as_str()) {
                continue;
            }
            let expected = self.source.rows(&tensor.name, &external);
            for kind in [PullKind::Sync, PullKind::Vector] {
                let found = connection.pull(position as u16, kind, &ids, tensor.row_bytes as usize);
                assert!(found == expected, "{} from {address}", tensor.name);
            }
        }
    }

    /// Checks all ways to the rows over `n_servers` servers of `n_shards` shards each.
    fn check_servers(&self, n_servers: u16, n_shards: u16, more: &str) {
        let servers: Vec<(Serving, PathBuf)> = (0..n_servers)
            .map(|server| {
                let parts = (0..self.n_parts).filter(|part| part % n_servers == server);
                let parts: Vec<String> = parts.map(|part| part.to_string()).collect();
                let socket = self.source.file(&format!("{server}.sock"));
                let args = format!(
                    "--parts {} --shards {n_shards} --listen 127.0.0.1:0 --unix {} {more}",
                    parts.join(","),
                    socket.display()
                );
                (Serving::start(&self.graph, &args), socket)
            })
            .collect();
        let tcp: Vec<String> = servers.iter().map(|(server, _)| server.address.clone()).collect();
        let unix: Vec<String> =
            servers.iter().map(|(_, socket)| format!("unix:{}", socket.display())).collect();
        for addresses in [&tcp, &unix] {
            self.check_client(addresses);
            let from = addresses.iter().flat_map(|a| ["--connect".to_owned(), a.clone()]);
            self.check_command(&from.collect::<Vec<_>>());
        }
        for address in &tcp {
            self.check_plain_connection(address);
        }
        for (server, socket) in servers {
            server.stop();
            assert!(!socket.exists(), "a clean stop removes {}", socket.display());
        }
    }

    fn check_files(&self) {
        self.check_command(&["--graph".to_owned(), self.graph.display().to_string()]);
        let store = EmbeddedStore::open(&self.graph, None).unwrap();
        for tensor in TENSORS {
            let expected = self.source.rows(tensor, &self.external);
            let mut out = vec![0xee; expected.len()];
            store.gather(tensor, &self.ids, &mut out).unwrap();
            assert!(out == expected, "{tensor}");
        }
    }
}

#[test]
fn one_partition() {
    let imported = Imported::new(1, "spring");
    imported.check_files();
    imported.check_servers(1, 1, "");
    imported.check_servers(1, 2, "");
}

#[test]
fn two_partitions() {
    let imported = Imported::new(2, "spring");
    imported.check_files();
    for n_servers in [1, 2] {
        imported.check_servers(n_servers, 1, "");
        imported.check_servers(n_servers, 2, "");
    }
}

#[test]
fn seven_partitions() {
    let imported = Imported::new(7, "hash");
    imported.check_files();
    for n_servers in [1, 2] {
        imported.check_servers(n_servers, 1, "");
        imported.check_servers(n_servers, 2, "");
    }
}

#[test]
fn no_resident_rows_and_hardly_any() {
    let imported = Imported::new(2, "hash");
    imported.check_servers(1, 2, "--memory 0");
    imported.check_servers(1, 2, "--memory 20kB");
}

#[test]
fn rows_are_printed_where_no_file_is_named() {
    let source = Source::random(1500, 6000);
    let graph = source.import("graph", 2, "hash");
    let gather = |more: &[&str]| {
        lode([&["gather", "--external-ids", "--graph", graph.to_str().unwrap()], more].concat())
    };
    let ids = [17, 3, 1499, 17];
    let listed = ["--ids", "17,3,1499,17"];
    let line = |id: u32| format!("{id:>4}  {}\n", source.label[id as usize]);
    let printed = gather(&[&listed[..], &["--tensor", "label"]].concat()).succeeded();
    assert_eq!(printed.stdout, ids.map(line).concat());
    let printed = gather(&[&listed[..], &["--tensor", "feat", "--json"]].concat()).succeeded();
    let printed = printed.json();
    for (at, id) in ids.into_iter().enumerate() {
        assert_eq!(printed["ids"][at], id);
        for (column, element) in source.feat[id as usize].iter().enumerate() {
            let found = printed["rows"][at][column].as_f64().unwrap();
            assert_eq!(found as f32, *element, "row {at}, column {column}");
        }
    }
    gather(&["--tensor", "label", "--ids", "1500"]).failed(1, &["no node 1500", "below 1500"]);
    gather(&["--tensor", "label", "--ids", "5,,6"]).failed(2, &["5,17,19999"]);
    gather(&["--tensor", "label", "--ids", "5", "--f32"]).failed(2, &["--out"]);
    let many = source.file("ids.npy");
    write_npy(&many, NpyType::U32, &[1001], &(0..1001).collect::<Vec<u32>>());
    let many = ["--tensor", "label", "--ids", many.to_str().unwrap()];
    gather(&many).failed(2, &["1001 rows", "--out FILE.npy"]);
}

#[test]
fn serving_and_reading_change_no_file() {
    let imported = Imported::new(2, "range");
    let before = snapshot(&imported.graph);
    imported.check_files();
    imported.check_servers(1, 1, "");
    assert_eq!(snapshot(&imported.graph), before);
}

/// Returns every file below `dir`, with its length and the time of its last change.
fn snapshot(dir: &Path) -> Vec<(PathBuf, u64, SystemTime)> {
    let mut files = Vec::new();
    for entry in dir.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let metadata = path.metadata().unwrap();
        if metadata.is_dir() {
            files.extend(snapshot(&path));
        }
        files.push((path, metadata.len(), metadata.modified().unwrap()));
    }
    files.sort();
    files
}
