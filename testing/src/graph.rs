//! Small graphs whose every row is known.

use std::path::{Path, PathBuf};

use lodestore_graph::npy::NpyType;
use tempfile::TempDir;

use crate::process::{Finished, lode, lode_line};
use crate::{Numbers, write_npy};

/// Makes a graph in four partitions, below `dir`, for training.
pub fn generated(dir: &Path) -> String {
    generated_as(dir, "--nodes 3000 --degree 10 --dim 32 --classes 4 --seed 5", 4)
}

/// Makes a graph by these flags of `lode generate`; its files stay in `raw` below `dir`.
pub fn generated_as(dir: &Path, flags: &str, n_parts: u32) -> String {
    let (raw, graph) = (dir.join("raw"), dir.join("graph"));
    let (raw, graph) = (raw.display(), graph.display().to_string());
    lode_line(&format!("generate {flags} --out {raw}")).succeeded();
    lode_line(&format!(
        "import --edges {raw}/edges.npy --undirected --tensor feat={raw}/features.npy \
         --tensor label={raw}/labels.npy --tensor split={raw}/split.npy --parts {n_parts} \
         --out {graph}"
    ))
    .succeeded();
    graph
}

/// The files of a graph before its import, and rows as they must come back.
pub struct Source {
    pub dir: TempDir,
    pub n_nodes: u32,
    /// Rows of `feat`: 13 f32, so that most pages are crossed by one.
    pub feat: Vec<[f32; 13]>,
    /// Rows of `wide`: more than a page each.
    pub wide: Vec<u8>,
    /// Rows of `label`.
    pub label: Vec<i64>,
}

/// Bytes of a row of `wide`.
pub const WIDE: usize = 4500;

impl Source {
    /// Returns a random graph; the last tenth of its nodes has no edge.
    pub fn random(n_nodes: u32, n_edges: u32) -> Self {
        let mut numbers = Numbers(7);
        let end = (n_nodes - n_nodes / 10).max(1);
        let edges: Vec<[u32; 2]> =
            (0..n_edges).map(|_| [numbers.below(end), numbers.below(end)]).collect();
        Self::with_edges(n_nodes, &edges)
    }

    /// Returns a graph with these edges.
    pub fn with_edges(n_nodes: u32, edges: &[[u32; 2]]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut numbers = Numbers(11);
        let feat: Vec<[f32; 13]> =
            (0..n_nodes).map(|_| std::array::from_fn(|_| numbers.next() as f32)).collect();
        let wide: Vec<u8> = (0..n_nodes as usize * WIDE).map(|_| numbers.next() as u8).collect();
        let label: Vec<i64> = (0..n_nodes).map(|_| i64::from(numbers.below(3))).collect();
        let split: Vec<u8> = (0..n_nodes).map(|node| (node % 3) as u8).collect();
        let n = u64::from(n_nodes);
        let file = |name| dir.path().join(name);
        write_npy(&file("edges.npy"), NpyType::U32, &[edges.len() as u64, 2], edges);
        write_npy(&file("feat.npy"), NpyType::F32, &[n, 13], &feat);
        write_npy(&file("wide.npy"), NpyType::U8, &[n, WIDE as u64], &wide);
        write_npy(&file("label.npy"), NpyType::I64, &[n], &label);
        write_npy(&file("split.npy"), NpyType::U8, &[n], &split);
        Self { dir, n_nodes, feat, wide, label }
    }

    /// Returns the path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Imports all tensors into `name`, which ends up in the folder.
    pub fn import(&self, name: &str, n_parts: u16, partitioner: &str) -> PathBuf {
        let out = self.file(name);
        let n_parts = n_parts.to_string();
        let more = ["--parts", &n_parts, "--partitioner", partitioner];
        self.try_import(&out, &["feat", "wide", "label", "split"], &more).succeeded();
        out
    }

    /// Imports the tensors named, each from its file, with more arguments.
    pub fn try_import(&self, out: &Path, tensors: &[&str], more: &[&str]) -> Finished {
        lode(self.import_args(out, tensors, more))
    }

    /// Returns the arguments of an import.
    pub fn import_args(&self, out: &Path, tensors: &[&str], more: &[&str]) -> Vec<String> {
        let mut args = vec!["import".to_owned(), "--undirected".to_owned()];
        args.extend(["--edges".to_owned(), self.file("edges.npy").display().to_string()]);
        for tensor in tensors {
            let file = self.file(&format!("{tensor}.npy"));
            args.extend(["--tensor".to_owned(), format!("{tensor}={}", file.display())]);
        }
        args.extend(["--out".to_owned(), out.display().to_string()]);
        args.extend(more.iter().map(ToString::to_string));
        args
    }

    /// Returns the rows of a tensor for these external ids, as bytes.
    pub fn rows(&self, tensor: &str, external: &[u32]) -> Vec<u8> {
        let row = |&node: &u32| -> &[u8] {
            let node = node as usize;
            match tensor {
                "feat" => bytemuck::bytes_of(&self.feat[node]),
                "wide" => &self.wide[node * WIDE..(node + 1) * WIDE],
                "label" => bytemuck::bytes_of(&self.label[node]),
                _ => panic!("no tensor {tensor}"),
            }
        };
        external.iter().flat_map(row).copied().collect()
    }
}

/// Returns every node once in random order, and as many again with repetitions.
pub fn shuffled_ids(n_nodes: u32) -> Vec<u32> {
    let mut numbers = Numbers(u64::from(n_nodes));
    let mut ids: Vec<u32> = (0..n_nodes).collect();
    for n in (1..ids.len()).rev() {
        ids.swap(n, numbers.below(n as u32 + 1) as usize);
    }
    ids.extend((0..n_nodes).map(|_| numbers.below(n_nodes)));
    ids
}
