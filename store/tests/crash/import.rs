//! Import: there is no graph, or a whole one.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use lodestore_graph::{NodeId, PartitionBook};
use lodestore_store::crash::{CrashDevice, Neglect};
use lodestore_store::{
    CodecChoice, Device, Dtype, EXTERNAL_ID_TENSOR, EmbeddedStore, Graph, ImportError, Importer,
    NanPolicy, SourceError, TensorOptions, TensorSource, verify_rows,
};

use crate::sweep::{Finding, Scenario, n_seeds, sweep_faults, sweep_losses};

const OUT: &str = "graphs/ring";
const N_NODES: u32 = 40;
/// The first partition's rows fill more than a page, the second has none.
const BOUNDS: [u32; 4] = [0, 30, 30, N_NODES];

/// A tensor whose every byte follows from node and column.
#[derive(Clone, Copy)]
struct Rows {
    name: &'static str,
    row_bytes: usize,
    codec: CodecChoice,
}

const TENSORS: [Rows; 2] = [
    Rows { name: "feat", row_bytes: 150, codec: CodecChoice::Raw },
    Rows { name: "label", row_bytes: 1, codec: CodecChoice::Zstd },
];

impl Rows {
    fn row(self, node: u32) -> impl Iterator<Item = u8> {
        (0..self.row_bytes).map(move |column| (node * 37 + column as u32 * 11 + 1) as u8)
    }
}

impl TensorSource for Rows {
    fn dtype(&self) -> Dtype {
        Dtype::U8
    }

    fn width(&self) -> u64 {
        self.row_bytes as u64
    }

    fn n_rows(&self) -> u64 {
        N_NODES.into()
    }

    fn path(&self) -> &Path {
        Path::new(self.name)
    }

    fn copy_rows(&self, rows: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
        let bytes = rows.iter().flat_map(|&row| self.row(row));
        out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = byte);
        Ok(())
    }
}

/// Internal node `i` was node `N_NODES - 1 - i` outside.
fn external_of() -> Vec<u32> {
    (0..N_NODES).rev().collect()
}

fn import(device: &Arc<dyn Device>) -> Result<Graph, ImportError> {
    let (order, book) = (external_of(), PartitionBook::new(BOUNDS.to_vec()).unwrap());
    let mut importer = Importer::begin_on(Arc::clone(device), Path::new(OUT))?;
    for part in book.parts() {
        importer.part_dir(part)?;
    }
    for tensor in TENSORS {
        let options = TensorOptions { nan: NanPolicy::Refuse, codec: tensor.codec };
        importer.add_tensor(tensor.name, &tensor, options, &order, &book, &mut |_, _| {})?;
    }
    importer.commit(&order, &book, 0, false)
}

/// The graph holds exactly what was imported.
fn check_graph(graph: Graph) -> Finding {
    let report = verify_rows(&graph);
    if !report.ok {
        return Err(format!("{:?}", report.damaged).into());
    }
    let store = EmbeddedStore::of(graph, None)?;
    let gather = |tensor: &str, expected: &mut dyn Iterator<Item = u8>| -> Finding {
        let (expected, ids) = (expected.collect::<Vec<u8>>(), (0..N_NODES).map(NodeId));
        let mut out = vec![0; expected.len()];
        store.gather(tensor, &ids.collect::<Vec<_>>(), &mut out)?;
        if out == expected { Ok(()) } else { Err(format!("wrong rows of `{tensor}`").into()) }
    };
    for tensor in TENSORS {
        gather(tensor.name, &mut external_of().into_iter().flat_map(|id| tensor.row(id)))?;
    }
    let ids = external_of().into_iter().flat_map(|id| i64::from(id).to_le_bytes());
    gather(EXTERNAL_ID_TENSOR, &mut ids.into_iter())
}

struct Import;

impl Scenario for Import {
    /// Whether the import has said that it is done.
    type Acknowledged = bool;

    fn name(&self) -> &'static str {
        "import"
    }

    fn prepare(&self, device: &Arc<dyn Device>) {
        device.create_dir(Path::new("graphs")).unwrap();
        device.sync(Path::new("")).unwrap();
    }

    fn run(&self, device: &Arc<dyn Device>) -> Result<bool, Box<dyn Error>> {
        match import(device).map_err(|error| error.to_string()) {
            Ok(_) => Ok(true),
            Err(told) if told.contains("graphs") && told.len() > 20 => Ok(false),
            Err(told) => Err(format!("not a clear error: {told}").into()),
        }
    }

    fn check(&self, device: &CrashDevice, acknowledged: &bool) -> Finding {
        let device: Arc<dyn Device> = Arc::new(device.clone());
        if !device.exists(Path::new(OUT)) {
            if *acknowledged {
                return Err("an acknowledged import is gone".into());
            }
            return check_graph(import(&device)?);
        }
        check_graph(Graph::open_on(Arc::clone(&device), Path::new(OUT))?)?;
        match import(&device) {
            Err(ImportError::Exists { .. }) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => Err("imported over a graph".into()),
        }
    }
}

#[test]
fn an_import_is_whole_or_not_there_wherever_the_power_goes() {
    let n_outcomes = sweep_losses(&Import, None, n_seeds(16, 1000)).unwrap();
    println!("{n_outcomes} outcomes");
}

#[test]
fn an_import_that_is_refused_anything_says_so_and_leaves_nothing_half_made() {
    println!("{} runs", sweep_faults(&Import).unwrap());
}

/// The sweep of a device that breaks this promise must find it.
fn is_found(neglect: Neglect) {
    println!("{}", sweep_losses(&Import, Some(neglect), 16).unwrap_err());
}

#[test]
fn the_sweep_finds_skipped_syncs_of_files() {
    is_found(Neglect::FileSyncs);
}

#[test]
fn the_sweep_finds_skipped_syncs_of_folders() {
    is_found(Neglect::FolderSyncs);
}

#[test]
fn the_sweep_finds_catalogs_that_are_not_durable() {
    is_found(Neglect::PairSyncs);
}

#[test]
fn the_sweep_finds_a_graph_that_appears_before_its_files_are_durable() {
    is_found(Neglect::Order);
}
