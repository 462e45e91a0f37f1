use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use lodestore_graph::npy::{NpyType, NpyWriter};
use lodestore_graph::order::RowOrder;
use lodestore_graph::partition::{Algorithm, PartitionConfig};
use lodestore_store::import::EXTERNAL_ID_TENSOR;
use lodestore_store::nan::NanPolicy;
use lodestore_store::{Dtype, EmbeddedStore, Graph};
use proptest::prelude::*;
use tempfile::TempDir;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::convert::{Numbers, Split};
use super::*;
use crate::config::{EdgeRules, ImportConfig};
use crate::run::Silent;

/// Five nodes, five edges.
const EDGES: [[u32; 2]; 5] = [[0, 1], [1, 2], [2, 3], [4, 0], [3, 4]];
const FEATURES: [[f32; 2]; 5] = [[0.5, 1.0], [-2.0, 0.0], [3.0, 1e-3], [4.0, 4.5], [5.0, -5.0]];
/// The fourth node has none.
const LABELS: [f32; 5] = [1.0, 0.0, 2.0, f32::NAN, 1.0];
const EXPECTED_LABELS: [i64; 5] = [1, 0, 2, NO_LABEL, 1];
const EXPECTED_SPLIT: [u8; 5] = [0, 1, 2, 255, 0];

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("data_set")
    }

    /// Writes a file of the dataset, compressed if its name says so.
    fn write(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match name.ends_with(".gz") {
            true => {
                let mut file = GzEncoder::new(File::create(path).unwrap(), Compression::fast());
                file.write_all(text.as_bytes()).unwrap();
                file.finish().unwrap();
            }
            false => fs::write(path, text).unwrap(),
        }
    }

    fn npy<T: bytemuck::NoUninit>(&self, name: &str, dtype: NpyType, shape: &[u64], values: &[T]) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        NpyWriter::write(&path, dtype, shape, bytemuck::cast_slice(values)).unwrap();
    }

    /// Puts `.npy` files of the dataset into an archive.
    fn npz(&self, name: &str, arrays: &[&str]) {
        let mut archive = ZipWriter::new(File::create(self.path().join(name)).unwrap());
        for array in arrays {
            let file = self.path().join(array);
            let name = file.file_name().unwrap().to_str().unwrap();
            archive.start_file(name, SimpleFileOptions::default()).unwrap();
            archive.write_all(&fs::read(&file).unwrap()).unwrap();
            fs::remove_file(file).unwrap();
        }
        archive.finish().unwrap();
    }

    fn open(&self, layout: Layout) -> Result<Dataset, Error> {
        Dataset::open(layout, &self.path(), &self.0.path().join("graph"))
    }

    /// Returns the error of opening, which must leave nothing behind.
    fn refused(&self, layout: Layout) -> String {
        let error = self.open(layout).unwrap_err().to_string();
        assert_eq!(self.0.path().read_dir().unwrap().count(), 1, "a scratch folder is left");
        error
    }

    fn ogb_text() -> Self {
        let folder = Self::new();
        let edges: String = EDGES.iter().map(|[u, v]| format!("{u},{v}\n")).collect();
        folder.write("raw/edge.csv.gz", &edges);
        let rows: String = FEATURES.iter().map(|[a, b]| format!("{a},{b}\n")).collect();
        folder.write("raw/node-feat.csv.gz", &rows);
        let labels: String = LABELS.iter().map(|label| format!("{label}\n")).collect();
        folder.write("raw/node-label.csv.gz", &labels);
        folder.write("raw/node_year.csv.gz", "2001\n2002\n2003\n2004\n2005\n");
        folder.write("raw/num-node-list.csv.gz", "5\n");
        folder.splits();
        folder
    }

    fn splits(&self) {
        self.write("split/time/train.csv.gz", "0\n4\n");
        self.write("split/time/valid.csv", "1\n");
        self.write("split/time/test.csv.gz", "2\n\n");
    }

    fn ogb_arrays() -> Self {
        let folder = Self::new();
        let ends = |end: usize| EDGES.iter().map(move |edge| i64::from(edge[end]));
        let ids: Vec<i64> = ends(0).chain(ends(1)).collect();
        folder.npy("raw/edge_index.npy", NpyType::I64, &[2, 5], &ids);
        folder.npy("raw/node_feat.npy", NpyType::F32, &[5, 2], FEATURES.as_flattened());
        folder.npy("raw/num_nodes_list.npy", NpyType::I64, &[1], &[5i64]);
        folder.npy("raw/node_year.npy", NpyType::I64, &[5, 1], &[2001i64, 2002, 2003, 2004, 2005]);
        let arrays = ["edge_index", "node_feat", "num_nodes_list", "node_year"];
        let arrays = arrays.map(|name| format!("raw/{name}.npy"));
        folder.npz("raw/data.npz", &arrays.each_ref().map(String::as_str));
        folder.npy("raw/node_label.npy", NpyType::F32, &[5, 1], &LABELS);
        folder.npz("raw/node-label.npz", &["raw/node_label.npy"]);
        folder.splits();
        folder
    }

    fn graphbolt() -> Self {
        let folder = Self::new();
        folder.write("metadata.yaml", GRAPHBOLT);
        let edges: String = EDGES.iter().map(|[u, v]| format!("{u},{v}\n")).collect();
        folder.write("edges/cites.csv", &edges);
        folder.npy("data/feat.npy", NpyType::F32, &[5, 2], FEATURES.as_flattened());
        folder.npy("set/train.npy", NpyType::I32, &[2], &[0i32, 4]);
        folder.npy("set/train-labels.npy", NpyType::I64, &[2], &[1i64, 1]);
        folder.npy("set/val.npy", NpyType::I64, &[1], &[1i64]);
        folder.npy("set/val-labels.npy", NpyType::U8, &[1], &[0u8]);
        folder.npy("set/test.npy", NpyType::U32, &[1], &[2u32]);
        folder.npy("set/test-labels.npy", NpyType::F32, &[1], &[2f32]);
        folder
    }
}

const GRAPHBOLT: &str = "
dataset_name: small
graph:
  nodes:
    - num: 5
  edges:
    - format: csv
      path: edges/cites.csv
feature_data:
  - {domain: node, type: null, name: feat, format: numpy, in_memory: false, path: data/feat.npy}
  - {domain: edge, type: null, name: weight, format: numpy, path: data/none.npy}
tasks:
  - name: node_classification
    num_classes: 3
    train_set:
      - data:
          - {name: seeds, format: numpy, path: set/train.npy}
          - {name: labels, format: numpy, path: set/train-labels.npy}
    validation_set:
      - data:
          - {name: seed_nodes, format: numpy, path: set/val.npy}
          - {name: labels, format: numpy, path: set/val-labels.npy}
    test_set:
      - data:
          - {name: seeds, format: numpy, path: set/test.npy}
          - {name: labels, format: numpy, path: set/test-labels.npy}
  - name: link_prediction
";

/// Returns the type and the rows of a tensor, by the ids of the input.
fn rows(graph: &Path, tensor: &str) -> (Dtype, Vec<Vec<u8>>) {
    let store = EmbeddedStore::open(graph, None).unwrap();
    let read = |name: &str| {
        let spec = store.tensor(name).unwrap().spec();
        let row_bytes = spec.row_bytes();
        let ids: Vec<_> = (0..5).map(lodestore_graph::NodeId).collect();
        let mut bytes = vec![0; 5 * row_bytes];
        store.gather(name, &ids, &mut bytes).unwrap();
        (spec.dtype, bytes.chunks(row_bytes).map(<[u8]>::to_vec).collect::<Vec<_>>())
    };
    let external: Vec<i64> =
        read(EXTERNAL_ID_TENSOR).1.iter().map(|row| bytemuck::pod_read_unaligned(row)).collect();
    let (dtype, internal) = read(tensor);
    let mut rows = vec![Vec::new(); 5];
    external.iter().zip(internal).for_each(|(&id, row)| rows[id as usize] = row);
    (dtype, rows)
}

fn imported(folder: &Folder, layout: Layout) -> PathBuf {
    let mut dataset = folder.open(layout).unwrap();
    let out = folder.0.path().join("graph");
    let config = ImportConfig {
        edges: dataset.edges.clone(),
        rules: EdgeRules::default(),
        tensors: std::mem::take(&mut dataset.tensors),
        nodes: Some(dataset.nodes),
        partition: PartitionConfig::new(Algorithm::Hash, 2),
        order: RowOrder::Input,
        compare_orders: false,
        nan: NanPolicy::Refuse,
        max_served_row_bytes: None,
        out: out.clone(),
    };
    let report = crate::run::import(&config, &mut Silent).unwrap();
    assert_eq!((report.nodes, report.edges), (5, 5));
    let scratch = dataset.scratch().to_owned();
    drop(dataset);
    assert!(!scratch.exists());
    out
}

#[test]
fn every_layout_has_the_same_graph() {
    let folders = [
        (Folder::ogb_text(), Layout::Ogb),
        (Folder::ogb_arrays(), Layout::Ogb),
        (Folder::graphbolt(), Layout::GraphBolt),
    ];
    for (folder, layout) in folders {
        let graph = imported(&folder, layout);
        let (dtype, found) = rows(&graph, "feat");
        assert_eq!(dtype, Dtype::F32, "{layout:?}");
        assert_eq!(found, FEATURES.map(|row| bytemuck::cast_slice::<f32, u8>(&row).to_vec()));
        let (dtype, found) = rows(&graph, "label");
        assert_eq!(dtype, Dtype::I64);
        assert_eq!(found, EXPECTED_LABELS.map(|label| label.to_le_bytes().to_vec()), "{layout:?}");
        let (dtype, found) = rows(&graph, "split");
        assert_eq!((dtype, found), (Dtype::U8, EXPECTED_SPLIT.map(|set| vec![set]).to_vec()));
        let years = Graph::open(&graph).unwrap().tensor("year").is_ok();
        assert_eq!(years, layout == Layout::Ogb);
    }
}

#[test]
fn what_is_left_out_is_reported() {
    let folder = Folder::graphbolt();
    let warnings = folder.open(Layout::GraphBolt).unwrap().warnings.join("; ");
    assert!(warnings.contains("weight") && warnings.contains("link_prediction"), "{warnings}");
    let folder = Folder::ogb_text();
    folder.write("raw/edge-feat.csv.gz", "1\n");
    assert!(folder.open(Layout::Ogb).unwrap().warnings[0].contains("features of edges"));
}

#[test]
fn only_some_datasets_store_one_direction() {
    let names = [
        ("ogbn_products", true),
        ("ogbn_products_pyg", true),
        ("ogbn-proteins", true),
        ("ogbn_arxiv_pyg", false),
        ("byproducts_citations", false),
        ("my_ogbn_products", false),
    ];
    for (name, expected) in names {
        let folder = Folder::ogb_text();
        let path = folder.0.path().join(name);
        fs::rename(folder.path(), &path).unwrap();
        let dataset = Dataset::open(Layout::Ogb, &path, &folder.0.path().join("g")).unwrap();
        assert_eq!(dataset.direction, expected.into(), "{name}");
        assert_eq!(
            dataset.notes.len(),
            usize::from(expected),
            "a direction from the name is reported"
        );
    }
}

#[test]
fn several_labels_of_a_node_become_flags() {
    let folder = Folder::ogb_text();
    folder.write("raw/node-label.csv.gz", "0,1\n1,1\n0,0\n1,0\n0,1\n");
    let graph = imported(&folder, Layout::Ogb);
    let (dtype, found) = rows(&graph, "label");
    assert_eq!((dtype, &found[..2]), (Dtype::U8, &[vec![0, 1], vec![1, 1]][..]));
    let folder = Folder::ogb_text();
    folder.write("raw/node-label.csv.gz", "0,1\n1,1\n0,7\n1,0\n0,1\n");
    let graph = imported(&folder, Layout::Ogb);
    assert_eq!(rows(&graph, "label").0, Dtype::I64);
}

#[test]
fn a_file_with_other_rows_than_nodes_is_named() {
    for (file, text) in [("raw/node-label.csv.gz", "0\n1\n"), ("raw/node-feat.csv.gz", "1,2\n")] {
        let folder = Folder::ogb_text();
        folder.write(file, text);
        let error = folder.refused(Layout::Ogb);
        assert!(error.contains(file) && error.contains("expected 5 rows"), "{error}");
    }
}

#[test]
fn damaged_files_of_ogb_are_named_with_their_line() {
    let cases: [(&str, &str, &[&str]); 10] = [
        ("raw/node-feat.csv.gz", "1,2\n3\n", &["node-feat.csv.gz: line 2", "1 columns", "2"]),
        ("raw/node-feat.csv.gz", "1,x\n", &["line 1", "no number"]),
        ("raw/node-feat.csv.gz", "", &["no rows"]),
        ("raw/node-label.csv.gz", "1\n1.5\n", &["line 2", "no integer"]),
        ("raw/num-node-list.csv.gz", "3\n2\n", &["several graphs"]),
        ("raw/num-node-list.csv.gz", "five\n", &["one line"]),
        ("raw/num-node-list.csv.gz", "4294967295\n", &["2^32 - 2"]),
        ("split/time/train.csv.gz", "0\n5\n", &["line 2", "node 5 of 5"]),
        ("split/time/test.csv.gz", "0\n", &["node 0", "another set"]),
        ("split/time/train.csv.gz", "-1\n", &["node -1"]),
    ];
    for (file, text, expected) in cases {
        let folder = Folder::ogb_text();
        folder.write(file, text);
        let error = folder.refused(Layout::Ogb);
        assert!(expected.iter().all(|part| error.contains(part)), "{file} {text:?}: {error}");
    }
    let folder = Folder::ogb_text();
    fs::write(folder.path().join("raw/node-feat.csv.gz"), b"no gzip").unwrap();
    assert!(folder.refused(Layout::Ogb).contains("node-feat.csv.gz"));
    folder.write("raw/triplet-type-list.csv.gz", "");
    assert!(folder.refused(Layout::Ogb).contains("several types"));
    let folder = Folder::ogb_text();
    folder.write("split/random/train.csv.gz", "");
    assert!(folder.refused(Layout::Ogb).contains("several splits"));
    fs::remove_dir_all(folder.path().join("split/time")).unwrap();
    assert!(folder.refused(Layout::Ogb).contains("no valid.csv.gz"));
    fs::remove_file(folder.path().join("raw/edge.csv.gz")).unwrap();
    assert!(folder.refused(Layout::Ogb).contains("neither edge.csv.gz nor data.npz"));
    fs::remove_dir_all(folder.path().join("raw")).unwrap();
    assert!(folder.refused(Layout::Ogb).contains("no folder raw/"));
}

#[test]
fn metadata_that_cannot_be_imported_is_refused() {
    let cases = [
        ("num: 5", "num: 99999999999", "2^32 - 2"),
        (
            "    - num: 5",
            "    - {num: 5, type: a}\n    - {num: 2, type: b}",
            "found node types a, b",
        ),
        ("format: csv", "format: parquet", "expected csv or numpy"),
        ("name: seed_nodes", "name: node_pairs", "without seeds"),
        ("set/val.npy", "set/train.npy", "another set"),
        ("set/val-labels.npy", "set/train-labels.npy", "2 labels of 1 seeds"),
        ("graph:", "grap:", "graph"),
        ("graph:", "graph: [", "metadata.yaml"),
    ];
    for (from, to, expected) in cases {
        let folder = Folder::graphbolt();
        assert!(GRAPHBOLT.contains(from));
        folder.write("metadata.yaml", &GRAPHBOLT.replace(from, to));
        let error = folder.refused(Layout::GraphBolt);
        assert!(error.contains(expected), "{to}: {error}");
    }
    let folder = Folder::graphbolt();
    folder.npy("set/train.npy", NpyType::I64, &[2], &[0i64, 5]);
    let error = folder.refused(Layout::GraphBolt);
    assert!(error.contains("train.npy") && error.contains("node 5 of 5"), "{error}");
    assert!("pyg".parse::<Layout>().unwrap_err().to_string().contains("ogb and graphbolt"));
}

proptest! {
    /// The naive twin parses each element by its type.
    #[test]
    fn integers_of_every_type_keep_their_value(values in prop::collection::vec(-128i64..128, 1..20)) {
        fn bytes<T: bytemuck::NoUninit>(values: impl Iterator<Item = T>) -> Vec<u8> {
            values.flat_map(|value| bytemuck::bytes_of(&value).to_vec()).collect()
        }
        let all = || values.iter().copied();
        let positive = || all().map(i64::abs);
        let shape = [values.len() as u64];
        let cases = [
            (NpyType::I8, bytes(all().map(|v| v as i8)), true),
            (NpyType::I16, bytes(all().map(|v| v as i16)), true),
            (NpyType::I32, bytes(all().map(|v| v as i32)), true),
            (NpyType::I64, bytes(all()), true),
            (NpyType::F32, bytes(all().map(|v| v as f32)), true),
            (NpyType::F64, bytes(all().map(|v| v as f64)), true),
            (NpyType::U8, bytes(positive().map(|v| v as u8)), false),
            (NpyType::U16, bytes(positive().map(|v| v as u16)), false),
            (NpyType::U32, bytes(positive().map(|v| v as u32)), false),
            (NpyType::U64, bytes(positive().map(|v| v as u64)), false),
        ];
        for (dtype, bytes, is_signed) in &cases {
            let numbers =
                Numbers { path: Path::new("x"), dtype: *dtype, shape: &shape, bytes };
            prop_assert_eq!(numbers.len(), values.len());
            for (i, value) in values.iter().enumerate() {
                let expected = if *is_signed { *value } else { value.abs() };
                prop_assert_eq!(numbers.integer(i).unwrap(), expected, "{}", dtype);
            }
        }
    }
}

#[test]
fn numbers_that_are_no_integers_and_ids_out_of_range_are_refused() {
    let half = 0.5f64.to_le_bytes();
    let numbers = |dtype, bytes| Numbers { path: Path::new("x.npy"), dtype, shape: &[1], bytes };
    let error = numbers(NpyType::F64, &half).integer(0).unwrap_err().to_string();
    assert!(
        error.contains("x.npy: element 0 (float64)") || error.contains("no integer"),
        "{error}"
    );
    let largest = u64::MAX.to_le_bytes();
    assert!(numbers(NpyType::U64, &largest).integer(0).is_err());
    let nan = f64::NAN.to_le_bytes();
    assert_eq!(numbers(NpyType::F64, &nan).integer(0).unwrap(), NO_LABEL);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("edges.u32");
    for bad in [-1i64, i64::from(u32::MAX), 1 << 40] {
        let ids = [0, 1, bad, 0];
        let bytes = bytemuck::cast_slice(&ids);
        let pairs = Numbers { path: Path::new("e"), dtype: NpyType::I64, shape: &[2, 2], bytes };
        let error = pairs.write_edges(&out).unwrap_err().to_string();
        assert!(error.contains(&format!("edge 0 names node {bad}")), "{error}");
        let flat = Numbers { shape: &[4], ..pairs };
        assert!(flat.write_edges(&out).unwrap_err().to_string().contains("(2, E)"));
    }
}

#[test]
fn a_node_twice_in_one_set_is_once_in_it() {
    let mut split = Split::new(3);
    split.put(1, 0).unwrap();
    split.put(1, 0).unwrap();
    assert!(split.put(1, 2).unwrap_err().contains("another set"));
    assert!(split.put(3, 0).is_err() && split.put(-1, 0).is_err());
}
