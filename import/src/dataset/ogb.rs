//! Node property datasets of the Open Graph Benchmark (Hu et al., NeurIPS 2020).
//!
//! `raw/` has `edge.csv.gz`, `node-feat.csv.gz`, `node-label.csv.gz` and `num-node-list.csv.gz`, or
//! the arrays of `data.npz` and `node-label.npz`; `split/NAME/` has lists of nodes. Files may also
//! be plain `.csv`. Which datasets store one direction of undirected edges is in the benchmark's
//! own table, not in the folder.

use std::path::{Path, PathBuf};

use lodestore_graph::edges::EdgeFile;
use lodestore_graph::topology::Direction;
use lodestore_store::source::Npz;
use tempfile::TempDir;

use super::Dataset;
use super::convert::{Numbers, Split, check_rows, text_integers, text_rows};
use super::text::Lines;
use crate::config::TensorFile;
use crate::error::{Error, node_count, refused};

/// Folders of the datasets that store each undirected edge once (`add_inverse_edge` of the
/// benchmark's table), as its downloads are named: with the framework behind, where one is meant.
/// `-` and `_` are the same.
const UNDIRECTED: [&str; 2] = ["ogbn_products", "ogbn_proteins"];
/// Files of lists of nodes, in the order of the values of a split.
const SETS: [&str; 3] = ["train", "valid", "test"];
/// Arrays of nodes beside features and labels, and the tensors that they become.
const NODE_ARRAYS: [(&str, &str); 2] = [("node_year", "year"), ("node_species", "species")];

/// Reads the folder of a dataset, such as `dataset/ogbn_arxiv`.
pub(super) fn open(dir: &Path, scratch: TempDir) -> Result<Dataset, Error> {
    let raw = dir.join("raw");
    if !raw.is_dir() {
        return Err(refused(dir, "no folder raw/; give the folder of one dataset of OGB"));
    }
    if find(&raw, "triplet-type-list").is_some() || raw.join("relations").is_dir() {
        return Err(refused(
            dir,
            "nodes of several types; only graphs of one type can be imported",
        ));
    }
    let data = raw.join("data.npz");
    let mut dataset = match data.is_file() {
        true => of_arrays(&raw, &data, scratch)?,
        false => of_text(&raw, scratch)?,
    };
    let name = folder_name(dir).to_lowercase().replace('-', "_");
    let of_framework = ["_pyg", "_dgl"].iter().find_map(|end| name.strip_suffix(end));
    if UNDIRECTED.contains(&of_framework.unwrap_or(&name)) {
        dataset.direction = Direction::Undirected;
        dataset.notes.push(format!("each edge stands for both directions, as in OGB's {name}"));
    }
    if find(&raw, "edge-feat").is_some() {
        dataset.warnings.push("features of edges are left out".to_owned());
    }
    add_split(&dir.join("split"), &mut dataset)?;
    Ok(dataset)
}

fn of_text(raw: &Path, scratch: TempDir) -> Result<Dataset, Error> {
    let edges = find(raw, "edge").ok_or_else(|| {
        refused(raw, "neither edge.csv.gz nor data.npz; this is no dataset of OGB as downloaded")
    })?;
    let counts =
        find(raw, "num-node-list").ok_or_else(|| refused(raw, "no num-node-list.csv.gz"))?;
    let n_nodes = only_count(&counts)?;
    let mut tensors = Vec::new();
    if let Some(path) = find(raw, "node-feat") {
        tensors.push(text_rows("feat", &path, n_nodes, scratch.path())?);
    }
    let named = NODE_ARRAYS.iter().chain(&[("node-label", "label")]);
    for (file, tensor) in named {
        if let Some(path) = find(raw, file) {
            tensors.push(text_integers(tensor, &path, n_nodes, scratch.path())?);
        }
    }
    Ok(Dataset { tensors, ..Dataset::new(EdgeFile::at(edges), n_nodes, scratch) })
}

fn of_arrays(raw: &Path, data: &Path, scratch: TempDir) -> Result<Dataset, Error> {
    let mut npz = Npz::open(data)?;
    let names = npz.arrays();
    let has = |name: &str| names.iter().any(|found| found == name);
    let counts = npz.array("num_nodes_list.npy")?;
    let counts = Numbers::of_member(data, &counts);
    if counts.len() != 1 {
        let n_graphs = counts.len();
        return Err(refused(data, format!("{n_graphs} graphs; only one can be imported")));
    }
    let n_nodes = node_count(data, counts.integer(0)?, "nodes")?;
    let edges = scratch.path().join("edges.u32");
    Numbers::of_member(data, &npz.array("edge_index.npy")?).write_edges(&edges)?;
    let member = |name: &str| PathBuf::from(format!("{}:{name}", data.display()));
    let mut tensors = Vec::new();
    if has("node_feat") {
        tensors.push(TensorFile::new("feat", member("node_feat")));
    }
    for (array, tensor) in NODE_ARRAYS.iter().filter(|(array, _)| has(array)) {
        tensors.push(integers(&mut npz, data, (array, tensor), n_nodes, scratch.path())?);
    }
    let labels = raw.join("node-label.npz");
    if labels.is_file() {
        let mut npz = Npz::open(&labels)?;
        let named = ("node_label", "label");
        tensors.push(integers(&mut npz, &labels, named, n_nodes, scratch.path())?);
    }
    Ok(Dataset { tensors, ..Dataset::new(EdgeFile::at(edges), n_nodes, scratch) })
}

/// Converts an array of an archive, which has a row for each node, to integers; `named` has the
/// array's name and that of the tensor.
fn integers(
    npz: &mut Npz,
    path: &Path,
    named: (&str, &str),
    n_nodes: u32,
    scratch: &Path,
) -> Result<TensorFile, Error> {
    let (array, tensor) = named;
    let out = scratch.join(format!("{tensor}.npy"));
    let member = npz.array(&format!("{array}.npy"))?;
    let numbers = Numbers::of_member(path, &member);
    check_rows(path, n_nodes, numbers.shape.first().copied().unwrap_or(0))?;
    numbers.write_integers(&out)?;
    Ok(TensorFile::new(tensor, out))
}

/// Returns the name of a folder, which may be given as `.`.
fn folder_name(dir: &Path) -> String {
    let whole = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    whole.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Adds the split of the only folder of `split`, if there is one.
fn add_split(split: &Path, dataset: &mut Dataset) -> Result<(), Error> {
    let Ok(entries) = split.read_dir() else { return Ok(()) };
    let folders = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    let mut folders: Vec<PathBuf> = folders.collect();
    folders.sort();
    let folder = match &folders[..] {
        [] => return Ok(()),
        [only] => only,
        _ => {
            let names: Vec<_> = folders.iter().map(|path| path.display().to_string()).collect();
            return Err(refused(split, format!("several splits ({}); keep one", names.join(", "))));
        }
    };
    let mut nodes = Split::new(dataset.nodes);
    for (set, name) in SETS.iter().enumerate() {
        let path = find(folder, name).ok_or_else(|| {
            refused(folder, format!("no {name}.csv.gz; lists of nodes in text are expected"))
        })?;
        nodes.put_text(&path, set)?;
    }
    dataset.tensors.push(nodes.write(dataset.scratch.path())?);
    Ok(())
}

/// Returns the file `name.csv.gz` or `name.csv` of `folder`.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let candidates = ["csv.gz", "csv"].map(|end| folder.join(format!("{name}.{end}")));
    candidates.into_iter().find(|path| path.is_file())
}

/// Returns the number on the only line of a file.
fn only_count(path: &Path) -> Result<u32, Error> {
    let mut lines = Lines::open(path)?;
    let found = lines.next()?.map(str::parse::<i64>);
    let Some(Ok(found)) = found else {
        return Err(refused(path, "expected one line with the number of nodes"));
    };
    if lines.next()?.is_some() {
        return Err(refused(path, "several graphs; only one can be imported"));
    }
    node_count(path, found, "nodes")
}
