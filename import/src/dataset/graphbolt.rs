//! On-disk datasets of DGL's GraphBolt: `metadata.yaml` and the files that it names.

use std::fs;
use std::path::{Path, PathBuf};

use lodestore_graph::edges::{EdgeFile, EdgeFormat};
use lodestore_graph::npy::{NpyArray, NpyType, NpyWriter};
use serde::Deserialize;
use tempfile::TempDir;

use super::convert::{Numbers, Split};
use super::{Dataset, NO_LABEL};
use crate::config::TensorFile;
use crate::error::{Error, node_count, refused};

const METADATA_FILE: &str = "metadata.yaml";
/// Bytes of it at most.
const MAX_METADATA_BYTES: u64 = 1 << 20;
/// Names of the data of a set that are its nodes; the second is that of DGL 2.1 and before.
const SEEDS: [&str; 2] = ["seeds", "seed_nodes"];

#[derive(Deserialize)]
struct Metadata {
    graph: GraphData,
    #[serde(default)]
    feature_data: Vec<FeatureData>,
    #[serde(default)]
    tasks: Vec<Task>,
}

#[derive(Deserialize)]
struct GraphData {
    nodes: Vec<NodeData>,
    edges: Vec<EdgeData>,
}

#[derive(Deserialize)]
struct NodeData {
    num: u64,
    r#type: Option<String>,
}

#[derive(Deserialize)]
struct EdgeData {
    format: String,
    path: PathBuf,
}

#[derive(Deserialize)]
struct FeatureData {
    domain: String,
    name: String,
    format: String,
    path: PathBuf,
}

#[derive(Deserialize)]
struct Task {
    name: Option<String>,
    #[serde(default)]
    train_set: Vec<Set>,
    #[serde(default)]
    validation_set: Vec<Set>,
    #[serde(default)]
    test_set: Vec<Set>,
}

#[derive(Deserialize)]
struct Set {
    data: Vec<SetData>,
}

#[derive(Deserialize)]
struct SetData {
    name: Option<String>,
    format: String,
    path: PathBuf,
}

/// Reads the folder of a dataset.
pub(super) fn open(dir: &Path, scratch: TempDir) -> Result<Dataset, Error> {
    let path = dir.join(METADATA_FILE);
    let length = fs::metadata(&path).map_err(Error::io(&path, "look at"))?.len();
    if length > MAX_METADATA_BYTES {
        return Err(refused(
            &path,
            format!("{length} bytes; expected {MAX_METADATA_BYTES} at most"),
        ));
    }
    let text = fs::read_to_string(&path).map_err(Error::io(&path, "read"))?;
    let metadata: Metadata =
        serde_yaml_ng::from_str(&text).map_err(|error| refused(&path, error.to_string()))?;
    let (nodes, edges) = match (&metadata.graph.nodes[..], &metadata.graph.edges[..]) {
        ([nodes], [edges]) => (nodes, edges),
        (nodes, _) => {
            let named = nodes.iter().filter_map(|of_type| of_type.r#type.as_deref());
            let types = named.collect::<Vec<_>>().join(", ");
            let reason = "only a graph of one type of nodes and edges can be imported";
            return Err(refused(&path, format!("{reason}; found node types {types}")));
        }
    };
    let n_nodes = node_count(&path, nodes.num, "nodes")?;
    let mut dataset = Dataset::new(edge_file(dir, edges, scratch.path())?, n_nodes, scratch);
    for feature in &metadata.feature_data {
        let file = dir.join(&feature.path);
        if feature.domain != "node" {
            dataset.warnings.push(format!("features `{}` of edges are left out", feature.name));
            continue;
        }
        check_format(&file, &feature.format)?;
        dataset.tensors.push(TensorFile::new(&feature.name, file));
    }
    if let Some(task) = metadata.tasks.first() {
        add_task(dir, task, &mut dataset)?;
    }
    for task in metadata.tasks.iter().skip(1) {
        let name = task.name.as_deref().unwrap_or("without a name");
        dataset.warnings.push(format!("task {name} is left out; the first one is imported"));
    }
    Ok(dataset)
}

fn edge_file(dir: &Path, edges: &EdgeData, scratch: &Path) -> Result<EdgeFile, Error> {
    let path = dir.join(&edges.path);
    match &*edges.format {
        "csv" => Ok(EdgeFile { format: Some(EdgeFormat::Text), ..EdgeFile::at(path) }),
        "numpy" => {
            let out = scratch.join("edges.u32");
            Numbers::of_array(&path, &NpyArray::open(&path)?).write_edges(&out)?;
            Ok(EdgeFile::at(out))
        }
        other => Err(refused(&path, format!("edges in format {other}; expected csv or numpy"))),
    }
}

fn check_format(path: &Path, format: &str) -> Result<(), Error> {
    match format {
        "numpy" => Ok(()),
        other => {
            let reason = format!("format {other}; expected numpy, save it with numpy.save");
            Err(refused(path, reason))
        }
    }
}

/// Adds `split`, and `label` where the features have none.
fn add_task(dir: &Path, task: &Task, dataset: &mut Dataset) -> Result<(), Error> {
    let n_nodes = dataset.nodes;
    let (mut split, mut labels) = (Split::new(n_nodes), Vec::new());
    let sets = [&task.train_set, &task.validation_set, &task.test_set];
    for (number, set) in
        sets.into_iter().enumerate().flat_map(|(i, sets)| sets.iter().map(move |s| (i, s)))
    {
        let named = |names: &[&str]| {
            let mut data = set.data.iter();
            data.find(|data| data.name.as_deref().is_some_and(|name| names.contains(&name)))
        };
        let Some(seeds) = named(&SEEDS) else {
            let path = dir.join(METADATA_FILE);
            return Err(refused(&path, "a set without seeds; only tasks on nodes can be imported"));
        };
        let path = dir.join(&seeds.path);
        check_format(&path, &seeds.format)?;
        let array = NpyArray::open(&path)?;
        let seeds = Numbers::of_array(&path, &array);
        if seeds.shape.len() != 1 {
            let shape = seeds.shape;
            return Err(refused(
                &path,
                format!("seeds must be nodes, of shape (N,); found {shape:?}"),
            ));
        }
        for i in 0..seeds.len() {
            let placed = split.put(seeds.integer(i)?, number);
            placed.map_err(|reason| refused(&path, format!("element {i} {reason}")))?;
        }
        let Some(found) = named(&["labels"]) else { continue };
        let path = dir.join(&found.path);
        check_format(&path, &found.format)?;
        let array = NpyArray::open(&path)?;
        let values = Numbers::of_array(&path, &array);
        if values.len() != seeds.len() {
            let (found, expected) = (values.len(), seeds.len());
            return Err(refused(&path, format!("{found} labels of {expected} seeds")));
        }
        labels.resize(n_nodes as usize, NO_LABEL);
        for i in 0..seeds.len() {
            labels[seeds.integer(i)? as usize] = values.integer(i)?;
        }
    }
    dataset.tensors.push(split.write(dataset.scratch.path())?);
    let has_label = dataset.tensors.iter().any(|tensor| tensor.name == "label");
    if !labels.is_empty() && !has_label {
        let out = dataset.scratch.path().join("label.npy");
        let bytes = bytemuck::cast_slice(&labels);
        NpyWriter::write(&out, NpyType::I64, &[n_nodes.into()], bytes)?;
        dataset.tensors.push(TensorFile::new("label", out));
    }
    Ok(())
}
