//! A graph, and a bucket in a folder.

use std::fs;
use std::path::{Path, PathBuf};

use lodestore_graph::npy::NpyType;

use testing::graph::Source;
use testing::process::{Finished, lode};
use testing::{Numbers, write_npy};

pub(crate) const N_NODES: u32 = 600;

/// A graph of two partitions, and a bucket in a folder.
pub(crate) struct Home {
    pub(crate) source: Source,
    pub(crate) graph: PathBuf,
}

impl Home {
    pub(crate) fn new() -> Self {
        let source = Source::random(N_NODES, 2400);
        let graph = source.import("graph", 2, "hash");
        Self { source, graph }
    }

    /// Makes a graph of `n_parts` partitions; `run` runs the import.
    pub(crate) fn with_parts(n_parts: u16, run: impl FnOnce(&[&str]) -> Finished) -> Self {
        let source = Source::random(N_NODES, 2400);
        let (graph, n_parts) = (source.file("graph"), n_parts.to_string());
        let more = ["--parts", &n_parts, "--partitioner", "hash"];
        let args = source.import_args(&graph, &["feat", "wide", "label", "split"], &more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        run(&args).succeeded();
        Self { source, graph }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.source.file(name)
    }

    pub(crate) fn bucket(&self) -> PathBuf {
        self.path("bucket")
    }

    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.bucket().display())
    }

    pub(crate) fn push(&self, graph: &Path) -> Finished {
        lode(["push", "--json", graph.to_str().unwrap(), &self.url()])
    }

    pub(crate) fn pull(&self, name: &str, more: &[&str]) -> Finished {
        let (url, path) = (self.url(), self.path(name));
        let mut args = vec!["pull", "--json", &url, path.to_str().unwrap()];
        args.extend(more);
        lode(args)
    }

    pub(crate) fn gc(&self, more: &[&str]) -> Finished {
        let url = self.url();
        let mut args = vec!["gc", "--json", &url];
        args.extend(more);
        lode(args)
    }

    pub(crate) fn verify(&self) -> Finished {
        lode(["verify", "--json", &self.url()])
    }

    /// Puts 100 rows of `feat` into a folder, and commits them if `is_committed`.
    pub(crate) fn put(&self, graph: &Path, seed: u64, is_committed: bool) {
        let graph = graph.to_str().unwrap();
        self.try_put(&["--graph", graph], seed, is_committed).succeeded();
    }

    /// Puts 100 rows of `feat` through a server and commits them.
    pub(crate) fn put_through(&self, address: &str, seed: u64) -> Finished {
        self.try_put(&["--connect", address], seed, true)
    }

    pub(crate) fn try_put(&self, target: &[&str], seed: u64, is_committed: bool) -> Finished {
        let mut numbers = Numbers(seed);
        let ids: Vec<u32> = (0..100).map(|_| numbers.below(N_NODES)).collect();
        let rows: Vec<[f32; 13]> =
            ids.iter().map(|_| std::array::from_fn(|_| numbers.next() as f32)).collect();
        let [ids_file, rows_file] =
            ["ids", "rows"].map(|name| self.path(&format!("{name}-{seed}.npy")));
        write_npy(&ids_file, NpyType::U32, &[100], &ids);
        write_npy(&rows_file, NpyType::F32, &[100, 13], &rows);
        let paths = [&ids_file, &rows_file].map(|path| path.to_str().unwrap());
        let mut args = vec!["put", "--tensor", "feat", "--ids", paths[0], "--rows", paths[1]];
        args.extend(target);
        args.extend(is_committed.then_some("--commit"));
        lode(args)
    }

    /// Asserts that a pulled graph is sound and has the same rows as the other.
    pub(crate) fn check_same(&self, graph: &Path, pulled: &Path) {
        lode(["verify", pulled.to_str().unwrap()]).succeeded();
        for tensor in ["feat", "wide", "label"] {
            assert!(self.rows(graph, tensor) == self.rows(pulled, tensor), "{tensor}");
        }
    }

    /// Asserts that a partition of two graphs has the same files of rows.
    pub(crate) fn check_part(&self, graph: &Path, other: &Path, part: u16) {
        let name = format!("part-{part:03}");
        let mut n_files = 0;
        for entry in fs::read_dir(graph.join(&name)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let theirs = other.join(&name).join(path.file_name().unwrap());
                assert!(
                    fs::read(&path).unwrap() == fs::read(&theirs).unwrap(),
                    "{}",
                    path.display()
                );
                n_files += 1;
            }
        }
        assert!(n_files > 3, "{n_files} files");
    }

    /// Returns all rows of a tensor, by external id.
    pub(crate) fn rows(&self, graph: &Path, tensor: &str) -> Vec<u8> {
        let target = ["--external-ids", "--graph", graph.to_str().unwrap()];
        self.try_rows(&target, tensor).unwrap()
    }

    /// Returns all rows of a tensor of a folder or servers, in order of ids; fails with the
    /// message.
    pub(crate) fn try_rows(&self, target: &[&str], tensor: &str) -> Result<Vec<u8>, String> {
        let (ids, out) = (self.path("all.npy"), self.path("out.npy"));
        write_npy(&ids, NpyType::U32, &[u64::from(N_NODES)], &(0..N_NODES).collect::<Vec<_>>());
        let [ids, path] = [&ids, &out].map(|path| path.to_str().unwrap());
        let mut args = vec!["gather", "--tensor", tensor, "--ids", ids, "--out", path];
        args.extend(target);
        let gathered = lode(args);
        match gathered.code {
            Some(0) => Ok(fs::read(out).unwrap()),
            _ => Err(gathered.stderr),
        }
    }
}
