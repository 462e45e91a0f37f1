//! Rows on a disk whose pages are not cached, and batches that ask for them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lodestore_store::Graph;
use lodestore_store::source::open_source;
use tempfile::TempDir;

use crate::rounds::is_smoke;
use crate::trace::Trace;
use testing::features::{feature_graph, import_features};

/// A graph of one partition with the tensor `feat`, and batches of it. The environment names them:
/// `LODE_COLD_TABLE`, `LODE_COLD_TRACE` and `LODE_COLD_GRAPH`. Else small ones are generated.
pub struct ColdSubject {
    /// The graph.
    pub graph: Graph,
    /// The batches.
    pub trace: Trace,
    /// The table that was imported; `None` for the generated one.
    pub table: Option<PathBuf>,
    /// Time for each case, of `LODE_COLD_SECONDS`.
    pub budget: Duration,
    _dir: TempDir,
}

impl ColdSubject {
    /// Opens the subject; a generated one has `n_batches`.
    ///
    /// # Panics
    /// When it cannot be read or made.
    #[must_use]
    pub fn open(n_batches: u32) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let seconds = std::env::var("LODE_COLD_SECONDS").ok().and_then(|text| text.parse().ok());
        let seconds = seconds.unwrap_or(if is_smoke() { 0.05 } else { 15.0 });
        let budget = Duration::from_secs_f64(seconds);
        let path_of = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let (graph, trace, table) = match (path_of("LODE_COLD_TABLE"), path_of("LODE_COLD_TRACE")) {
            (Some(table), Some(trace)) => {
                let place = path_of("LODE_COLD_GRAPH").unwrap_or_else(|| dir.path().join("graph"));
                import_table(&table, &place);
                (place, Trace::read(&trace), Some(table))
            }
            _ => {
                let n_nodes = if is_smoke() { 20_000 } else { 500_000 };
                let graph = feature_graph(dir.path(), n_nodes, 128, 1);
                (graph, Trace::sampled(n_nodes, n_batches, n_nodes / 1000), None)
            }
        };
        let graph = Graph::open(&graph).expect("a graph");
        Self { graph, trace, table, budget, _dir: dir }
    }

    /// Returns the bytes of a row.
    ///
    /// # Panics
    /// Never: the graph has the tensor.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.graph.tensor("feat").expect("features").row_bytes()
    }
}

/// Imports the table of a file to a graph without edges at `out`, unless the graph exists.
fn import_table(table: &Path, out: &Path) {
    if !out.exists() {
        let source = open_source(table).expect("a table");
        let n_nodes = u32::try_from(source.n_rows()).expect("as many rows as a graph has nodes");
        import_features(out, &*source, n_nodes, 1);
    }
}

/// Makes the next read of a file that is not mapped come from the disk.
///
/// # Panics
/// When the file cannot be opened or written back.
pub fn drop_cached(path: &Path) {
    let file = File::open(path).expect("a file");
    file.sync_all().expect("a sync");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
}
